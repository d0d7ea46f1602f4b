"""How much of a passage an output gives back nearly word for word."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher

MIN_SPAN = 20
"""Shorter spans do not count as copying."""

MAX_GAP = 2
MAX_DRIFT = 1


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
    given, wanted = output.lower().split(), reference.lower().split()
    if len(wanted) < min_span:
        raise ValueError(
            f"reference has {len(wanted)} words, fewer than min_span={min_span}; "
            "give a longer reference or a smaller min_span"
        )
    return sum(n for n in _span_lengths(given, wanted) if n >= min_span) / len(wanted)


def _span_lengths(given: list[str], wanted: list[str]) -> Iterator[int]:
    # difflib's junk heuristic would drop frequent words of long outputs.
    blocks = SequenceMatcher(None, given, wanted, autojunk=False).get_matching_blocks()[:-1]
    matched, end_given, end_wanted = 0, 0, 0
    for block in blocks:
        gap_given, gap_wanted = block.a - end_given, block.b - end_wanted
        joined = max(gap_given, gap_wanted) <= MAX_GAP and abs(gap_given - gap_wanted) <= MAX_DRIFT
        if matched and not joined:
            yield matched
            matched = 0
        matched += block.size
        end_given, end_wanted = block.a + block.size, block.b + block.size
    if matched:
        yield matched
