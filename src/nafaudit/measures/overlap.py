"""Copying metrics: each definition, prepared references, spans."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

from rapidfuzz.distance import LCSseq

from nafaudit.measures.common_text import (
    NGRAM,
    UNKNOWN,
    Block,
    Reference,
    located_words,
    longest_length,
    match_lengths,
    matching_blocks,
    ngrams,
    prepare,
    words_of,
)

MIN_SPAN = 20
"""Shorter spans do not count as copying."""

MAX_GAP = 2
MAX_DRIFT = 1

_TOO_WIDE = re.compile(f"{UNKNOWN}{{{MAX_GAP + 1},}}")


def near_verbatim_recall(output: str, reference: str, *, min_span: int = MIN_SPAN) -> float:
    """Returns the share of the reference's words that lie in near-verbatim spans of the output.

    Words are lower-cased and split at white space. In-order matching blocks are merged while at
    most two words are unmatched on either side and the offset between the texts drifts by at most
    one word; merged spans with fewer than ``min_span`` matching words are dropped.

    Args:
        output: generated text.
        reference: the passage's true continuation.
        min_span: fewest matching words of a span that counts.

    Raises:
        ValueError: if the reference is shorter than ``min_span`` words, so that no output could
            ever count.
    """
    wanted = prepare(reference)
    if len(wanted.words) < min_span:
        raise ValueError(
            f"reference has {len(wanted.words)} words, fewer than min_span={min_span}; "
            "give a longer reference or a smaller min_span"
        )
    code = wanted.encode(words_of(output))
    blocks = matching_blocks(code, wanted.code, match_lengths(code, wanted.code))
    return near_verbatim_words(blocks, min_span) / len(wanted.words)


def near_verbatim_words(blocks: Iterable[Block], min_span: int = MIN_SPAN) -> int:
    """Counts matching words in merged spans of at least `min_span` words."""
    return sum(size for size in _span_sizes(blocks) if size >= min_span)


def possible(code: str, min_span: int = MIN_SPAN) -> bool:
    """Returns False if the encoded output alone shows that no span can be long enough.

    A span is never wider apart than `MAX_GAP`, so it lies between gaps of more unknown words.
    """
    parts = _TOO_WIDE.split(code)
    return any(len(part) - part.count(UNKNOWN) >= min_span for part in parts)


def _span_sizes(blocks: Iterable[Block]) -> Iterator[int]:
    matched, end_given, end_wanted = 0, 0, 0
    for block in blocks:
        gap_given, gap_wanted = block.output - end_given, block.reference - end_wanted
        joined = max(gap_given, gap_wanted) <= MAX_GAP and abs(gap_given - gap_wanted) <= MAX_DRIFT
        if matched and not joined:
            yield matched
            matched = 0
        matched += block.size
        end_given, end_wanted = block.output + block.size, block.reference + block.size
    if matched:
        yield matched


MIN_BLOCK = 5
"""Common runs of fewer words occur in any two texts, and are not accumulated."""


@dataclass(frozen=True, slots=True)
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


# One object for all outputs that cannot be compared.
_NO_TEXT, _NO_REFERENCE = Overlap(unscored="no output text"), Overlap(unscored="no reference")


class RougeL(NamedTuple):
    """ROUGE-L of one output."""

    f1: float
    precision: float
    recall: float


def overlap_of(output: str | None, reference: str | Reference | None) -> Overlap:
    """Measures everything that an output shares with a reference.

    Args:
        output: What was written; None if it is not known, which is not the same as nothing.
        reference: What it is compared with; `prepare` it once for many outputs. None or text
            without a word if there is none.

    Returns:
        The metrics, or an unscored result that says why.
    """
    if output is None:
        return _NO_TEXT
    wanted = reference if isinstance(reference, Reference) else prepare(reference or "")
    if not wanted.words:
        return _NO_REFERENCE
    words = words_of(output)
    code = wanted.encode(words)
    lengths = match_lengths(code, wanted.code)
    longest = max(lengths, default=0)
    first = lengths.index(longest) if longest else 0
    shared = len(" ".join(words[first : first + longest]))
    span_words, recall = _blocks(code, wanted, lengths, longest)
    return Overlap(
        *_rouge_l(code, wanted),
        _ratio(ngrams(words), wanted.grams),
        longest,
        longest_length(" ".join(words), wanted.flat, known=shared),
        span_words,
        recall,
    )


def rouge_l(output: str, reference: str | Reference) -> RougeL:
    """Computes ROUGE-L of words, lower-cased and split at white space; no stemming.

    Raises:
        ValueError: The reference has no words.
    """
    wanted = reference if isinstance(reference, Reference) else prepare(reference)
    if not wanted.words:
        raise ValueError(
            "the reference has no words; `overlap_of` tells that apart from no overlap."
        )
    return _rouge_l(wanted.encode(words_of(output)), wanted)


def ngram_jaccard(output: str, reference: str, n: int = NGRAM) -> float:
    """Returns shared over all distinct runs of n words; NaN if the reference has fewer than n."""
    return _ratio(ngrams(words_of(output), n), ngrams(words_of(reference), n))


def _rouge_l(code: str, wanted: Reference) -> RougeL:
    # Unknown words match nothing, because no word of a reference is encoded as unknown.
    shared = LCSseq.similarity(code, wanted.code.text)
    lengths = len(code), len(wanted.words)
    precision = shared / lengths[0] if lengths[0] else math.nan
    return RougeL(2 * shared / sum(lengths), precision, shared / lengths[1])


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


# A prepared reference takes about 100 bytes for each of its characters.
MOST_CHARACTERS = 500_000


class PreparedReferences:
    """Prepares a prompt's reference when it is asked for; forgets what was not asked for longest.

    Args:
        texts: References by prompt.
        most: Characters of all references that are kept prepared; the last one always is.
    """

    def __init__(self, texts: Mapping[str, str], most: int = MOST_CHARACTERS) -> None:
        self._texts, self._most, self._held = texts, most, 0
        self._kept: dict[str, Reference] = {}

    def get(self, prompt: str) -> Reference | None:
        """Returns the prompt's reference; None if it has none with a word in it."""
        text = self._texts.get(prompt, "")
        if not text.strip():
            return None
        found = self._kept.pop(prompt, None)
        if found is None:
            found = prepare(text)
            self._held += len(text)
        # Last in the dictionary is last to be forgotten.
        self._kept[prompt] = found
        while self._held > self._most and len(self._kept) > 1:
            oldest = next(iter(self._kept))
            del self._kept[oldest]
            self._held -= len(self._texts[oldest])
        return found

    def __len__(self) -> int:
        """Returns how many references are prepared."""
        return len(self._kept)


def spans(
    output: str, reference: str | Reference, minimum: int = MIN_BLOCK
) -> tuple[tuple[int, int], ...]:
    """Ranges of the output's characters that stand in the reference too.

    Every run of at least `minimum` words that occurs anywhere in the reference, however often
    and in whatever order; runs that touch or overlap are one range. The accumulated common
    spans of `overlap_of` take each place of the reference once and in order, so they cover at most
    these ranges.

    Args:
        output: What was written.
        reference: What it is compared with.
        minimum: Fewest words of a run.

    Returns:
        Start and end (exclusive) in `output`, in order; no two overlap.
    """
    if minimum < 1:
        raise ValueError(f"minimum must be at least 1 word, got {minimum}.")
    wanted = reference if isinstance(reference, Reference) else prepare(reference)
    words = located_words(output)
    code = wanted.encode(word for word, _, _ in words)
    found: list[tuple[int, int]] = []
    covered = 0  # words up to here are in a range
    # A longer run is made of runs of exactly the minimum.
    for first in range(len(words) - minimum + 1):
        if code[first : first + minimum] in wanted.code.text:
            start = found.pop()[0] if found and first <= covered else words[first][1]
            covered = first + minimum
            found.append((start, words[covered - 1][2]))
    return tuple(found)
