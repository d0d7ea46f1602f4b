"""Stage 2: the search for prompts that drive spend to the budget.

The parts that decide are small and know no file and no model: numbers in, decisions out.

* `candidate`: the nouns. A proposer is given parents with their scores, and suggests prompts.
* `propose`, `operators`: which prompts to try next; two controls that a search must beat.
* `filters`: which proposals are new and of a fair length; the workload, divided.
* `halving`: the sound ranking, by shrunk mean utilisation.
* `archive`: which prompts stay: good ones that are unlike each other.

What runs them on a pair: `settings`, `candidate` (also what is recorded), `explore` (one search as
a function of it), `recorder` (models, run directories, counterexamples), `confirm` (fresh draws,
protected text in outputs, what came out), `search` (all in order, for one budget or several).

A language model that proposes: `llm_chat` (a server or a checkpoint, and the form of an answer),
`llm_answers` (what an answer is worth, and the journal: what a model says cannot be had again, so
it is written down first), `llm_proposer` (what is asked and retried; the local operators fill what
is missing).

The paper's own search is in `nafaudit.paper`.
"""

from nafaudit.search.candidate import Candidate, Parent, Proposer
from nafaudit.search.filters import Admission, LengthWindow, admit
from nafaudit.search.propose import LocalProposer, RandomProposer, SeedsProposer

__all__ = [
    "Admission",
    "Candidate",
    "LengthWindow",
    "LocalProposer",
    "Parent",
    "Proposer",
    "RandomProposer",
    "SeedsProposer",
    "admit",
]
