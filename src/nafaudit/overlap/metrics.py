"""Every copying metric of an output against its reference, from one reading of both."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import NamedTuple

from rapidfuzz.distance import LCSseq

from nafaudit.overlap.near_verbatim import MIN_SPAN, near_verbatim_words, possible
from nafaudit.overlap.runs import longest_length, match_lengths, matching_blocks
from nafaudit.overlap.words import NGRAM, Reference, ngrams, prepare, words_of

MIN_BLOCK = 5
"""Common runs of fewer words are everybody's, and are not accumulated."""


@dataclass(frozen=True)
class Overlap:
    """What an output shares with a reference; NaN is never 0 but "cannot be said".

    Words are lower-cased and split at white space. A substring is without gaps, a subsequence
    (ROUGE-L) may have any.

    Attributes:
        rouge_l_f1: F1 of the longest common subsequence of words (Lin 2004).
        rouge_l_precision: Its length over the output's words; NaN for an output without words.
        rouge_l_recall: Its length over the reference's words.
        jaccard_5gram: Shared over all distinct runs of five words; NaN if the reference has
            fewer words.
        substring_words: Words of the longest common substring of words.
        substring_characters: Characters of the longest common substring, over the words with
            one space between.
        span_words: Words in in-order common runs of at least `MIN_BLOCK` words.
        near_verbatim_recall: Share of the reference in near-verbatim spans; NaN if the
            reference has fewer than 20 words.
        unscored: Why there is no number at all; empty if there is.
    """

    rouge_l_f1: float = math.nan
    rouge_l_precision: float = math.nan
    rouge_l_recall: float = math.nan
    jaccard_5gram: float = math.nan
    substring_words: float = math.nan
    substring_characters: float = math.nan
    span_words: float = math.nan
    near_verbatim_recall: float = math.nan
    unscored: str = ""

    @property
    def scored(self) -> bool:
        """True if there was something to compare."""
        return not self.unscored

    @property
    def numbers(self) -> dict[str, float]:
        """The metrics by name."""
        return {name: getattr(self, name) for name in METRICS}


METRICS = tuple(field.name for field in fields(Overlap) if field.name != "unscored")
"""Names of the metrics, in the order of `Overlap`."""


class RougeL(NamedTuple):
    """ROUGE-L of one output."""

    f1: float
    precision: float
    recall: float


def measure(output: str | None, reference: str | Reference | None) -> Overlap:
    """Measures everything that an output shares with a reference.

    Args:
        output: What was written; None if it is not known, which is not the same as nothing.
        reference: What it is compared with; `prepare` it once for many outputs. None or text
            without a word if there is none.

    Returns:
        The metrics, or an unscored result that says why.
    """
    if output is None:
        return Overlap(unscored="no output text")
    wanted = reference if isinstance(reference, Reference) else prepare(reference or "")
    if not wanted.words:
        return Overlap(unscored="no reference")
    words = words_of(output)
    code = wanted.encode(words)
    lengths = match_lengths(code, wanted.code)
    longest = max(lengths, default=0)
    first = lengths.index(longest) if longest else 0
    shared = len(" ".join(words[first : first + longest]))
    span_words, recall = _blocks(code, wanted, lengths, longest)
    return Overlap(
        *_rouge_l(code, wanted),
        _jaccard(words, wanted),
        longest,
        longest_length(" ".join(words), wanted.flat, known=shared),
        span_words,
        recall,
    )


def rouge_l(output: str, reference: str | Reference) -> RougeL:
    """ROUGE-L of words, lower-cased and split at white space; no stemming.

    Raises:
        ValueError: The reference has no words.
    """
    wanted = reference if isinstance(reference, Reference) else prepare(reference)
    if not wanted.words:
        raise ValueError("the reference has no words; `measure` tells that apart from no overlap.")
    return _rouge_l(wanted.encode(words_of(output)), wanted)


def ngram_jaccard(output: str, reference: str, n: int = NGRAM) -> float:
    """Shared over all distinct runs of n words; NaN if the reference has fewer than n words."""
    return _ratio(ngrams(words_of(output), n), ngrams(words_of(reference), n))


def _rouge_l(code: str, wanted: Reference) -> RougeL:
    # Unknown words match nothing, because no word of a reference is encoded as unknown.
    shared = LCSseq.similarity(code, wanted.code.text)
    lengths = len(code), len(wanted.words)
    precision = shared / lengths[0] if lengths[0] else math.nan
    return RougeL(2 * shared / sum(lengths), precision, shared / lengths[1])


def _jaccard(words: list[str], wanted: Reference) -> float:
    return _ratio(ngrams(words), wanted.grams)


def _ratio(given: frozenset[tuple[str, ...]], wanted: frozenset[tuple[str, ...]]) -> float:
    if not wanted:
        return math.nan
    shared = len(given & wanted)
    return shared / (len(given) + len(wanted) - shared)


def _blocks(code: str, wanted: Reference, lengths: list[int], longest: int) -> tuple[int, float]:
    """Words in common runs, and near-verbatim recall; blocks are looked for only if needed."""
    near = len(wanted.words) >= MIN_SPAN
    full = near and possible(code)
    if not full and longest < MIN_BLOCK:
        return 0, 0.0 if near else math.nan
    blocks = matching_blocks(code, wanted.code, lengths, 1 if full else MIN_BLOCK)
    span_words = sum(block.size for block in blocks if block.size >= MIN_BLOCK)
    recall = near_verbatim_words(blocks) / len(wanted.words) if full else 0.0
    return span_words, recall if near else math.nan
