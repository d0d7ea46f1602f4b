"""Stage 2: the search for prompts that drive spend to the budget.

The parts that decide are small and know no file and no model: numbers in, decisions out.

* `candidate`: the nouns. A proposer is asked, and told through the parents it is given.
* `propose`, `operators`: which prompts to try next; two controls that a search must beat.
* `filters`: which proposals are new and of a fair length.
* `measured`, `allocation`, `prescreen`, `finals`: the paper's evaluator and its choices, on given
  spends; `defects` finds by name what goes wrong in them.
* `halving`: the sound ranking, by shrunk mean utilisation.
* `archive`: which prompts stay: good ones that are unlike each other.
* `surrogate`, `gate`: what a prompt will probably spend, and whether that guess may steer.
* `paper_surrogate`, `paper_heads`: the paper's surrogate, which saturates; the only torch here.
* `steer`: a surrogate behind its gate; `features`: what it sees of a prompt.
* `studies`: what both do where the truth is known.

What runs them on a pair: `settings`, `pools` (the workload, divided), `candidate` (also what is
recorded), `explore` (one search as a function of it), `recorder` (models, run directories,
counterexamples), `confirm` (fresh draws, protected text in outputs), `search` (all in order, for
one budget or several), `found` and `result` (what came out). Around it: `study` with `paired` and
`planted` (does search work?).

A language model that proposes: `llm_chat` (who answers, and in which form), `llm_answers` (what an
answer is worth, and the journal: what a model says cannot be had again, so it is written down
first), `llm_proposer` (what is asked and retried; the local operators fill what is missing).

The paper's protocol on a pair: `paper_settings`, `paper_pools`, `paper_propose`, `paper_guess` (its
surrogate), `paper_draws` (its seeds), `paper_loop` (its stages in order), `paper_findings`,
`paper_run`, `paper_found`, `paper_files`, `paper_result`. `protocols` tells the two apart.
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
