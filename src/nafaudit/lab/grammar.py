"""Expands the grammars of the lab; the stories, letters and questions are data, this is the reader.

A template is text with slots. ``{thing}`` expands a rule of the grammar or draws a word of the
lexicon; ``{hero=name}`` draws and binds, so that ``{hero}`` means the same name from then on;
``{event:2-4}`` expands a rule two to four times, preferring options not used yet. ``a(n)`` becomes
"a" or "an", and sentences begin with a capital.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from functools import cache

from nafaudit.lab.lexicon import Taste, lexicon, read_toml

_SLOT = re.compile(r"\{(?:(\w+)=)?(\w+)(?::(\d+)-(\d+))?\}")
_ARTICLE = re.compile(r"\b([Aa])\(n\) (\w{1,4})")
_VOWEL = re.compile(r"[aeiou]|hon|hour", re.IGNORECASE)
_CONSONANT = re.compile(r"use|uni|one", re.IGNORECASE)
# A quotation that ends in a full stop ends its sentence; one that ends in "?" goes on with "said".
_START = re.compile(r"(^|[.!?]\s+|\.\"\s+|\n)(\"?)([a-z])")
_SHE = {"they": "she", "them": "her", "their": "her"}
_HE = {"they": "he", "them": "him", "their": "his"}
_REDRAWS = 3  # enough to make repeated words rare; more would flatten the taste in long documents


@cache
def rules() -> Mapping[str, tuple[str, ...]]:
    """Returns the options of every rule of the three grammars."""
    merged: dict[str, tuple[str, ...]] = {}
    for name in ("stories.toml", "prose.toml", "exchanges.toml"):
        for rule, options in read_toml(name).items():
            if rule in merged or rule in lexicon():
                raise ValueError(f"rule {rule!r} of {name} is defined twice; rename one of them")
            merged[rule] = tuple(options)
    return merged


@cache
def read_women() -> frozenset[str]:
    """Returns the first names that take "she"."""
    return frozenset(name.strip() for name in read_toml("names.toml")["women"].split(","))


class Writer:
    """Writes one document: remembers who its hero is and which words it has used."""

    def __init__(self, rng: random.Random, taste: Taste, *, stretch: int = 1) -> None:
        """Starts an empty document.

        Args:
            rng: source of all choices.
            taste: the corpus's preferences over words.
            stretch: factor on every repeat count above one; a few documents run long with it.
        """
        self._rng = rng
        self._taste = taste
        self._stretch = stretch
        self._bound: dict[str, str] = {}
        self._used: set[str] = set()
        self._bags: dict[str, list[str]] = {}

    def bind(self, **names: str) -> Writer:
        """Fixes what the given slots expand to, and returns the writer."""
        self._bound.update(names)
        self._used.update(names.values())
        return self

    def write(self, rule: str) -> str:
        """Expands a rule into finished text."""
        return polish(self._expand(rule))

    def _expand(self, rule: str) -> str:
        return _SLOT.sub(self._fill, self._option(rule))

    def _fill(self, slot: re.Match[str]) -> str:
        name, target, low, high = slot.groups()
        if name is not None:
            if name not in self._bound:
                self._bound[name] = self._word(target)
            return self._bound[name]
        if low is not None:
            count = self._rng.randint(int(low), int(high))
            if int(high) > 1:
                count *= self._stretch
            return " ".join(self._expand(target) for _ in range(count))
        if target in self._bound:
            return self._bound[target]
        if target in _SHE:
            pronouns = _SHE if self._bound.get("hero", "Ada") in read_women() else _HE
            return pronouns[target]
        return self._word(target) if target in lexicon() else self._late(target)

    def _late(self, target: str) -> str:
        # A reply may name what its prompt left open: who, what and where then become anything.
        openings = {"who": "animal", "what": "thing", "where": "place"}
        if target in openings:
            return self._bound.setdefault(target, self._word(openings[target]))
        return self._expand(target)

    def _word(self, category: str) -> str:
        for _ in range(_REDRAWS):
            word = self._taste.draw(category, self._rng)
            if word not in self._used:
                break
        self._used.add(word)
        return word

    def _option(self, rule: str) -> str:
        bag = self._bags.get(rule)
        if not bag:
            bag = list(rules()[rule])
            self._rng.shuffle(bag)
            self._bags[rule] = bag
        return bag.pop()


def polish(text: str) -> str:
    """Settles articles, capitals and spaces of an expanded template."""
    text = re.sub(r" +", " ", text).strip()
    text = re.sub(r" ?\n ?", "\n", text)
    text = _ARTICLE.sub(_article, text)
    return _START.sub(lambda m: m[1] + m[2] + m[3].upper(), text)


def _article(match: re.Match[str]) -> str:
    word = match[2]
    vowel = _VOWEL.match(word) and not _CONSONANT.match(word)
    return f"{match[1]}n {word}" if vowel else f"{match[1]} {word}"
