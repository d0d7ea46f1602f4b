"""Where an output copies, so that a reader can see it in the text."""

from __future__ import annotations

from nafaudit.overlap.metrics import MIN_BLOCK
from nafaudit.overlap.words import Reference, located_words, prepare


def spans(
    output: str, reference: str | Reference, minimum: int = MIN_BLOCK
) -> tuple[tuple[int, int], ...]:
    """Ranges of the output's characters that stand in the reference too.

    Every run of at least `minimum` words that occurs anywhere in the reference, however often
    and in whatever order; runs that touch or overlap are one range. The accumulated common
    spans of `measure` take each place of the reference once and in order, so they cover at most
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
