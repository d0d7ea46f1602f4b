"""Which prompts a search may try: new ones of a fair length, and how the workload is divided.

What is dropped is counted by reason, so that no stage of a search loses prompts in silence.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nafaudit.core.errors import InputError
from nafaudit.measures.runs import ngrams, words_of
from nafaudit.search.candidate import Candidate

if TYPE_CHECKING:
    from nafaudit.search.settings import SearchSettings

GRAM = 4
NEAR = 0.92
"""A 4-gram Jaccard similarity from which on two prompts count as one (the paper's code)."""

Grams = frozenset[tuple[str, ...]]


@dataclass(frozen=True)
class LengthWindow:
    """How many tokens a prompt may have, both ends included."""

    least: int = 20
    most: int = 250

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise InputError(
                f"lengths of prompts must be 1 <= shortest <= longest, got {self.least} and "
                f"{self.most}; set --shortest and --longest."
            )


@dataclass(frozen=True)
class Admission:
    """What came through, and what happened to the rest.

    Attributes:
        kept: Candidates that are new and fit the window, in the order given.
        empty: Nothing but white space.
        exact: The same text as an earlier one, case and white space apart.
        near: Nearly the same text as an earlier one.
        short: Fewer tokens than the window allows.
        long: More tokens than it allows.
    """

    kept: tuple[Candidate, ...]
    empty: int = 0
    exact: int = 0
    near: int = 0
    short: int = 0
    long: int = 0

    @property
    def after_length(self) -> int:
        """How many passed both filters; the paper's name."""
        return len(self.kept)

    @property
    def after_dedup(self) -> int:
        """How many were new; the paper's name."""
        return self.after_length + self.short + self.long

    @property
    def raw(self) -> int:
        """How many were proposed."""
        return self.after_dedup + self.empty + self.exact + self.near


def canonical(text: str) -> str:
    """Lower-cased, with single spaces."""
    return " ".join(words_of(text))


def grams_of(text: str) -> Grams:
    """All 4-grams of words; a text of fewer words is one gram, and none has no gram."""
    words = words_of(text)
    return ngrams(words, GRAM) or frozenset([tuple(words)] if words else [])


def jaccard(a: Grams, b: Grams) -> float:
    """Shared grams over all grams; 0 if there are none."""
    shared = len(a & b)
    return shared / (len(a) + len(b) - shared) if shared else 0.0


class _Seen:
    """Texts so far, ready to be compared with many more."""

    def __init__(self, near: float) -> None:
        self.near = near
        self.texts: set[str] = set()
        self.grams: list[Grams] = []

    def add(self, text: str) -> None:
        self.texts.add(text)
        self.grams.append(grams_of(text))

    def has_near(self, text: str) -> bool:
        grams = grams_of(text)
        # Jaccard is at most the ratio of the sizes, which is cheaper to look at.
        return any(
            self.near * max(len(grams), len(old)) <= min(len(grams), len(old))
            and jaccard(grams, old) >= self.near
            for old in self.grams
        )


def admit(
    candidates: Sequence[Candidate],
    history: Iterable[str],
    tokens: Callable[[str], int],
    window: LengthWindow | None = None,
    near: float = NEAR,
) -> Admission:
    """Drops what was seen before, then what does not fit the window.

    A candidate that is new but too long still makes its copies duplicates, as in the paper.

    Args:
        candidates: In order of preference: of two that agree, the first stays.
        history: Texts that were tried before.
        tokens: Counts the tokens of a text, special ones included.
        window: Allowed lengths; the paper's if None.
        near: 4-gram Jaccard similarity from which on two texts count as one.
    """
    if not 0 < near <= 1:
        raise InputError(f"the near-duplicate limit must be in (0, 1], got {near}.")
    window, seen = window or LengthWindow(), _Seen(near)
    for text in history:
        seen.add(canonical(text))
    kept: list[Candidate] = []
    dropped = dict.fromkeys(("empty", "exact", "near", "short", "long"), 0)
    for candidate in candidates:
        reason = _reason(candidate.text, seen, tokens, window)
        if reason:
            dropped[reason] += 1
        else:
            kept.append(candidate)
    return Admission(tuple(kept), **dropped)


def _reason(
    text: str, seen: _Seen, tokens: Callable[[str], int], window: LengthWindow
) -> str | None:
    """Why a text is dropped; remembers it if it is new."""
    plain = canonical(text)
    if not plain:
        return "empty"
    if plain in seen.texts:
        return "exact"
    if seen.has_near(plain):
        return "near"
    seen.add(plain)
    count = tokens(text)
    if count < window.least:
        return "short"
    return "long" if count > window.most else None


@dataclass(frozen=True)
class Pools:
    """The prompts of a workload, divided before anything is drawn.

    Attributes:
        usable: What searches may start from: new to one another, of a fair length.
        heldout: What no search sees; nothing that is nearly the same is ever tried.
        dropped: Prompts of the workload that are copies, or too short or long.
        others: Held-out prompts of other kinds, not of the workload; the kind is the label.
    """

    usable: tuple[Candidate, ...]
    heldout: tuple[Candidate, ...]
    dropped: int
    others: tuple[Candidate, ...] = ()

    @property
    def unseen(self) -> tuple[Candidate, ...]:
        """What no search sees."""
        return self.heldout + self.others


def divide(
    prompts: Sequence[Candidate],
    settings: SearchSettings,
    tokens: Callable[[str], int],
    others: Sequence[Candidate] = (),
) -> Pools:
    """Sets the held-out pools apart; of the workload at most a third if it is small.

    Args:
        prompts: The workload.
        settings: Sizes.
        tokens: Counts the tokens of a text.
        others: Held-out prompts of other kinds; no prompt that is nearly one of them stays.
    """
    order = list(prompts)
    random.Random(f"nafaudit search held out {settings.seed}").shuffle(order)
    fit = admit(order, [one.text for one in others], tokens, settings.window).kept
    held = fit[: min(settings.heldout, len(fit) // 3)]
    return Pools(
        fit[len(held) :],
        _renamed(held, "heldout"),
        len(prompts) - len(fit),
        _renamed(others, "other"),
    )


def _renamed(candidates: Sequence[Candidate], prefix: str) -> tuple[Candidate, ...]:
    """With ids apart from those of searches, so that draws are too."""
    return tuple(replace(one, id=f"{prefix}_{one.id}") for one in candidates)


def start_of(pools: Pools, seed: int, size: int) -> tuple[tuple[Candidate, ...], ...]:
    """The first pool of a search seed, and the rest; ids carry the seed, so draws differ."""
    order = [replace(one, id=f"s{seed}_{one.id}") for one in pools.usable]
    random.Random(f"nafaudit search start {seed}").shuffle(order)
    return tuple(order[:size]), tuple(order[size:])
