"""How much an output repeats of a reference; one definition each.

`measure` gives every metric of one output as a frozen `Overlap`; `prepare` makes a reference
ready for many outputs; `spans` says where in the output the copied text stands; `paper_scores`
are the two scores of the paper's own files, where a missing reference is 0.
"""

from nafaudit.overlap.metrics import (
    METRICS,
    MIN_BLOCK,
    MIN_SPAN,
    Overlap,
    PreparedReferences,
    RougeL,
    measure,
    near_verbatim_recall,
    ngram_jaccard,
    rouge_l,
    spans,
)
from nafaudit.overlap.runs import Reference, prepare

__all__ = [
    "METRICS",
    "MIN_BLOCK",
    "MIN_SPAN",
    "Overlap",
    "PreparedReferences",
    "Reference",
    "RougeL",
    "measure",
    "near_verbatim_recall",
    "ngram_jaccard",
    "prepare",
    "rouge_l",
    "spans",
]
