"""Words and prepared references: without them every metric would cut text its own way."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nafaudit.overlap.runs import Text

NGRAM = 5
"""Words of an n-gram, as in the paper."""

UNKNOWN = "\0"
"""Stands for every word that the reference does not have."""

_SURROGATES = range(0xD800, 0xE000)
_WORD = re.compile(r"\S+")


def words_of(text: str) -> list[str]:
    """Lower-cased and split at white space; punctuation stays with its word."""
    return text.lower().split()


def located_words(text: str) -> list[tuple[str, int, int]]:
    """The same words, each with the range of characters it has in the text."""
    return [(found[0].lower(), *found.span()) for found in _WORD.finditer(text)]


def ngrams(words: Sequence[str], n: int = NGRAM) -> frozenset[tuple[str, ...]]:
    """All runs of n words; empty if there are fewer."""
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
        """One character per word; words that the reference does not have are `UNKNOWN`."""
        code = self._codes.get
        return "".join([code(word, UNKNOWN) for word in words])


def prepare(text: str) -> Reference:
    """Makes a reference ready for many outputs."""
    words = tuple(words_of(text))
    codes = {word: _character(i) for i, word in enumerate(dict.fromkeys(words))}
    code = "".join(map(codes.__getitem__, words))
    return Reference(words, Text(" ".join(words)), Text(code), ngrams(words), codes)


def _character(index: int) -> str:
    """The character of a word; never `UNKNOWN`, never half of a surrogate pair."""
    point = index + 1
    if point >= _SURROGATES.start:
        point += len(_SURROGATES)
    if point > 0x10FFFF:
        raise ValueError(
            "a reference has more than 1,112,063 distinct words; compare with parts of it instead."
        )
    return chr(point)
