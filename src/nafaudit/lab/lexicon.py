"""The words of the lab and each corpus's taste for them; without it A and B would be one corpus.

Two corpora are written with one grammar and one lexicon. They differ in taste: each has its own
order of preference over the words of every category, and draws the word of rank r out of n with
weight exp(-4 r / n). A pair trained on different tastes disagrees mildly about ordinary text, as
two language models from different sources do.
"""

from __future__ import annotations

import math
import random
import tomllib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from itertools import accumulate
from typing import Any, Literal

Corpus = Literal["A", "B", "plain"]
"""A and B have tastes of their own; "plain" draws every word equally often."""

STEEPNESS = 4.0
"""Decay of preference over ranks: the favourite is e^4 times likelier than the last word."""


@cache
def read_toml(name: str) -> Mapping[str, Any]:
    """Parses one data file of the lab's ``text`` directory."""
    source = resources.files("nafaudit.lab") / "text" / name
    return tomllib.loads(source.read_text(encoding="utf-8"))


@cache
def lexicon() -> Mapping[str, tuple[str, ...]]:
    """Returns the phrases of every category, in the order of the data file."""
    table = read_toml("lexicon.toml")
    return {
        category: tuple(" ".join(phrase.split()) for phrase in text.split(","))
        for category, text in table.items()
    }


@cache
def vocabulary() -> tuple[str, ...]:
    """Returns the distinct single words of the lexicon and the grammars, sorted."""
    words: set[str] = set()
    for phrases in lexicon().values():
        for phrase in phrases:
            words.update(phrase.split())
    return tuple(sorted(words))


@dataclass(frozen=True)
class Taste:
    """One corpus's preferences over the words of every category.

    Weights are integers, so that the same seed draws the same words where the platform's ``exp``
    differs in the last bit.
    """

    corpus: Corpus
    _tables: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def draw(self, category: str, rng: random.Random) -> str:
        """Draws one phrase of the category."""
        if category not in self._tables:
            self._tables[category] = self._rank(category)
        phrases, cumulative = self._tables[category]
        return phrases[bisect_right(cumulative, rng.randrange(cumulative[-1]))]

    def _rank(self, category: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
        phrases = list(lexicon()[category])
        random.Random(f"taste/{self.corpus}/{category}").shuffle(phrases)
        weights = preference_weights(len(phrases), 0.0 if self.corpus == "plain" else STEEPNESS)
        return tuple(phrases), tuple(accumulate(weights))


def preference_weights(n: int, steepness: float = STEEPNESS) -> Sequence[int]:
    """Returns integer weights proportional to exp(-steepness * rank / n), the first 10^6."""
    return [round(1e6 * math.exp(-steepness * rank / n)) for rank in range(n)]
