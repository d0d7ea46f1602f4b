"""How much of a passage an output gives back nearly word for word."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from nafaudit.overlap.runs import Block, match_lengths, matching_blocks
from nafaudit.overlap.words import UNKNOWN, prepare, words_of

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
    """Matching words in merged spans of at least `min_span` of them."""
    return sum(size for size in _span_sizes(blocks) if size >= min_span)


def possible(code: str, min_span: int = MIN_SPAN) -> bool:
    """False if no span can be long enough, told from an encoded output alone.

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
