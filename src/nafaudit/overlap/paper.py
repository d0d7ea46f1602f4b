"""The paper's two overlap scores exactly as its code has them, for its own output files."""

from __future__ import annotations

from typing import NamedTuple

from nafaudit.overlap.metrics import ngram_jaccard, rouge_l
from nafaudit.overlap.runs import NGRAM, prepare, words_of


class PaperScores(NamedTuple):
    """Fields of the paper's trajectory files, by its names.

    Attributes:
        rouge_l: F1 of the longest common subsequence of words.
        minhash_5gram: Exact Jaccard of 5-gram sets; nothing is hashed, whatever its name says.
    """

    rouge_l: float
    minhash_5gram: float


def paper_scores(generation: str, reference: str | None) -> PaperScores:
    """Scores the whole generation against the whole reference; neither is cut.

    Words are lower-cased and split at white space. A missing reference, and a side that is too
    short, score 0 in the paper's files; everywhere else use `measure`, which calls that unscored.
    """
    words, wanted = words_of(generation), prepare(reference or "")
    if not words or not wanted.words:
        return PaperScores(0.0, 0.0)
    _, precision, recall = rouge_l(generation, wanted)
    shared = precision + recall
    # Its order of operations, so that the last digits are its own as well.
    f1 = 2 * precision * recall / shared if shared else 0.0
    long_enough = min(len(words), len(wanted.words)) >= NGRAM
    return PaperScores(f1, ngram_jaccard(generation, reference or "") if long_enough else 0.0)
