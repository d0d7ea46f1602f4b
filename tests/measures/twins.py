"""The same metrics by tables and plain loops: slow, and too simple to be wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from difflib import SequenceMatcher

from nafaudit.measures.overlap import Overlap


def subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common subsequence, by the textbook's table."""
    row = [0] * (len(b) + 1)
    for x in a:
        above = row
        row = [0]
        for j, y in enumerate(b):
            row.append(above[j] + 1 if x == y else max(above[j + 1], row[j]))
    return row[-1]


def substring(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common substring, by the textbook's table."""
    best, row = 0, [0] * (len(b) + 1)
    for x in a:
        row = [0, *(row[j] + 1 if x == y else 0 for j, y in enumerate(b))]
        best = max(best, *row)
    return best


def blocks(a: Sequence[str], b: Sequence[str]) -> list[tuple[int, int, int]]:
    """In-order common runs by difflib, its junk heuristic off."""
    matcher = SequenceMatcher(None, a, b, autojunk=False)
    return [(x, y, size) for x, y, size in matcher.get_matching_blocks()[:-1]]


def jaccard(a: Sequence[str], b: Sequence[str], n: int) -> float:
    """Shared over all runs of n words, by counting."""
    mine = {tuple(a[i : i + n]) for i in range(len(a) - n + 1)}
    theirs = {tuple(b[i : i + n]) for i in range(len(b) - n + 1)}
    return sum(run in theirs for run in mine) / len(mine | theirs)


def near_verbatim(a: Sequence[str], b: Sequence[str], least: int) -> float:
    """Merges difflib's blocks into lists of pairs of places, then counts."""
    merged: list[list[tuple[int, int]]] = []
    for x, y, size in blocks(a, b):
        pairs = [(x + i, y + i) for i in range(size)]
        if merged:
            gap_a, gap_b = (
                now - then - 1 for now, then in zip(pairs[0], merged[-1][-1], strict=True)
            )
            if gap_a <= 2 and gap_b <= 2 and abs(gap_a - gap_b) <= 1:
                merged[-1] += pairs
                continue
        merged.append(pairs)
    return sum(len(span) for span in merged if len(span) >= least) / len(b)


def covered(a: Sequence[str], b: Sequence[str], minimum: int) -> list[bool]:
    """For every word: is it in a run of at least `minimum` words that `b` has?"""
    found = [False] * len(a)
    for i in range(len(a)):
        for j in range(i + minimum, len(a) + 1):
            run = list(a[i:j])
            if any(list(b[p : p + j - i]) == run for p in range(len(b))):
                found[i:j] = [True] * (j - i)
    return found


def measure(output: str, reference: str) -> Overlap:
    """Everything at once; the reference must have a word."""
    given, wanted = output.lower().split(), reference.lower().split()
    shared = subsequence(given, wanted)
    spans = [size for _, _, size in blocks(given, wanted)]
    return Overlap(
        2 * shared / (len(given) + len(wanted)),
        shared / len(given) if given else math.nan,
        shared / len(wanted),
        jaccard(given, wanted, 5) if len(wanted) >= 5 else math.nan,
        substring(given, wanted),
        substring(" ".join(given), " ".join(wanted)),
        sum(size for size in spans if size >= 5),
        near_verbatim(given, wanted, 20) if len(wanted) >= 20 else math.nan,
    )
