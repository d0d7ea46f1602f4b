"""Words of a text, and the runs that two texts have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

# Long enough to be rare in a reference, short enough to leave a wide stride.
_SAMPLE = 6


class Block(NamedTuple):
    """A run that two texts share.

    Attributes:
        output: Where it starts in the output.
        reference: Where it starts in the reference.
        size: How long it is.
    """

    output: int
    reference: int
    size: int


@dataclass(frozen=True, eq=False)
class Text:
    """A text that is searched for the runs of many others."""

    text: str

    @cached_property
    def pairs(self) -> frozenset[str]:
        """All its runs of two."""
        return runs_of(self.text, 2)

    @cached_property
    def samples(self) -> frozenset[str]:
        """All its runs of `_SAMPLE`."""
        return runs_of(self.text, _SAMPLE)


def runs_of(text: str, size: int) -> frozenset[str]:
    """Returns every run of a size."""
    return frozenset([text[i : i + size] for i in range(len(text) - size + 1)])


def match_lengths(a: str, b: Text) -> list[int]:
    """Returns, for every place in `a`, the length of the longest run of `b` that starts there."""
    lengths, length, text, pairs = [], 0, b.text, b.pairs
    for start in range(len(a)):
        if a[start : start + 2] in pairs:
            # One place on, all but the first character of the last run are still there.
            length = _extended(a, text, start, max(2, length - 1))
        else:
            length = int(a[start] in text)
        lengths.append(length)
    return lengths


def longest_length(a: str, b: Text, known: int = 0) -> int:
    """Returns the length of the longest common run.

    A run of n characters holds a sample of q that starts at a multiple of n - q + 1, so only
    samples of `a` at that stride are looked up. A longer run around a sample has at least half
    of its rest on one side of it, which is looked up next.

    Args:
        a: One text.
        b: The other.
        known: A length that they certainly share.
    """
    text, samples = b.text, b.samples
    least = _SAMPLE - 1
    best, place = max(known, least), 0
    missed: set[str] = set()
    while (after := place + _SAMPLE) <= len(a):
        stride = best + 2 - _SAMPLE
        half = stride // 2
        if a[place:after] in samples and (
            (a[place + half : after + half] in samples and a[place : after + half] in text)
            or (place >= half and a[place - half : after] in text)
        ):
            for start in range(max(0, place - stride + 1), place + 1):
                # Its end is quicker to look up than a longer run; and loops repeat themselves.
                if a[start + stride - 1 : start + best + 1] in samples:
                    window = a[start : start + best + 1]
                    if window not in missed:
                        best = _extended(a, text, start, best)
                        stride = best + 2 - _SAMPLE
                        missed.add(window)
        place += stride
    return best if best > least else _longest_short(a, text, known, least)


def _longest_short(a: str, b: str, known: int, most: int) -> int:
    """Finds the longest common run by trying every length, where none is longer than `most`."""
    for size in range(most, known, -1):
        if not runs_of(a, size).isdisjoint(runs_of(b, size)):
            return size
    return known


def matching_blocks(a: str, b: Text, lengths: Sequence[int], least: int = 1) -> list[Block]:
    """Finds common runs in the order of both texts: the longest first, then beside it.

    The blocks of Ratcliff and Obershelp (1988), as `difflib` gives them without its junk rules.
    Leaving out shorter ones changes no longer one: left and right of a block are only blocks of
    at most its size.

    Args:
        a: One text.
        b: The other.
        lengths: Their `match_lengths`.
        least: Smallest size of a block, at least 1.
    """
    return sorted(_blocks(a, b.text, lengths, least))


def _blocks(a: str, b: str, lengths: Sequence[int], least: int) -> Iterator[Block]:
    waiting = [(0, len(a), 0, len(b))]
    while waiting:
        start, end, low, high = waiting.pop()
        if min(end - start, high - low) < least:
            continue
        block = _longest(a, b, lengths, (start, end, low, high), least)
        if block is not None:
            yield block
            waiting.append((start, block.output, low, block.reference))
            waiting.append((block.output + block.size, end, block.reference + block.size, high))


def _longest(
    a: str, b: str, lengths: Sequence[int], within: tuple[int, int, int, int], least: int
) -> Block | None:
    """Finds the longest common run; of several, the first in `a`, of those the first in `b`."""
    start, end, low, high = within
    best, size, find = None, least, b.find
    for place, length in enumerate(lengths[start:end], start):
        # What `b` as a whole does not have, no part of it has.
        while size <= length and place + size <= end:
            found = find(a[place : place + size], low, high)
            if found < 0:
                break
            best = Block(place, found, size)
            size += 1
    return best


def _extended(a: str, b: str, start: int, best: int) -> int:
    """Returns `best`, or the length of the longest run of `b` at `start` in `a` if larger."""
    while start + best < len(a) and a[start : start + best + 1] in b:
        best += 1
    return best


NGRAM = 5
"""Words of an n-gram, as in the paper."""

UNKNOWN = "\0"
"""Stands for every word that the reference does not have."""

_SURROGATES = range(0xD800, 0xE000)
_WORD = re.compile(r"\S+")


def words_of(text: str) -> list[str]:
    """Splits lower-cased text at white space; punctuation stays with its word."""
    return text.lower().split()


def located_words(text: str) -> list[tuple[str, int, int]]:
    """Words as of `words_of`, each with the range of characters that it has in the text."""
    return [(found[0].lower(), *found.span()) for found in _WORD.finditer(text)]


def ngrams(words: Sequence[str], n: int = NGRAM) -> frozenset[tuple[str, ...]]:
    """Returns all runs of n words; empty if there are fewer."""
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}.")
    return frozenset(zip(*(words[i:] for i in range(n)), strict=False))


@dataclass(frozen=True, eq=False)
class Reference:
    """A reference made ready, so that many outputs are compared with it quickly.

    Every distinct word becomes one character. Runs of words are then substrings, which Python
    and rapidfuzz compare in C, without hashing: equal characters are equal words.

    Attributes:
        words: Its words.
        flat: The words with one space between.
        code: One character per word.
        grams: Its n-grams of `NGRAM` words.
    """

    words: tuple[str, ...]
    flat: Text
    code: Text
    grams: frozenset[tuple[str, ...]]
    _codes: dict[str, str]

    def encode(self, words: Iterable[str]) -> str:
        """Writes one character per word; words that the reference does not have are `UNKNOWN`."""
        code = self._codes.get
        return "".join([code(word, UNKNOWN) for word in words])


def prepare(text: str) -> Reference:
    """Makes a reference ready for many outputs."""
    words = tuple(words_of(text))
    codes = {word: _character(i) for i, word in enumerate(dict.fromkeys(words))}
    code = "".join(map(codes.__getitem__, words))
    return Reference(words, Text(" ".join(words)), Text(code), ngrams(words), codes)


def _character(index: int) -> str:
    """Returns the character of a word; never `UNKNOWN`, never half of a surrogate pair."""
    point = index + 1
    if point >= _SURROGATES.start:
        point += len(_SURROGATES)
    if point > 0x10FFFF:
        raise ValueError(
            "a reference has more than 1,112,063 distinct words; compare with parts of it instead."
        )
    return chr(point)
