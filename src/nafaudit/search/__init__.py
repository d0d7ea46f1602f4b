"""Stage 2: the search for prompts that drive spend to the budget.

These modules decide, and use neither files nor models:

* `candidate`: candidates, parents, proposers, and the measurements of recorded trajectories.
* `propose`, `operators`: new prompts made of others, and two controls that a search must beat.
* `filters`: drops copies and prompts of a wrong length; divides the workload.
* `halving`: ranks prompts by shrunk mean utilisation.
* `archive`: keeps good prompts that differ from each other.

These run them on a pair: `settings`, `explore` (one search as a function of the measurements),
`recorder` (models, run directories, counterexamples), `confirm` (fresh draws, protected text in
outputs, the result), `search` (all in order, for one budget or several).

A language model can propose: `llm_chat` (a server or a checkpoint, and the form of an answer),
`llm_answers` (reads answers and keeps a journal of them, as a model may answer differently the next
time), `llm_proposer` (questions and retries; the local operators fill what is missing).

The paper's own search is in `nafaudit.paper`.
"""
