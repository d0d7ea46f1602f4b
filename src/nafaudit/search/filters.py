"""Drops candidates that are copies or of a wrong length, and divides a workload into pools.

Dropped candidates are counted by reason, so that no stage of a search loses prompts in silence.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nafaudit.core.errors import InputError
from nafaudit.measures.common_text import ngrams, words_of
from nafaudit.search.candidate import Candidate

if TYPE_CHECKING:
    from nafaudit.search.settings import SearchSettings

GRAM = 4
NEAR = 0.92
"""4-gram Jaccard similarity from which on two prompts count as one (the paper's code)."""

Grams = frozenset[tuple[str, ...]]


@dataclass(frozen=True)
class LengthWindow:
    """Smallest and largest number of tokens of a prompt."""

    least: int = 20
    most: int = 250

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise InputError(
                f"lengths of prompts must be 1 <= shortest <= longest, got {self.least} and "
                f"{self.most}; set --shortest and --longest."
            )


@dataclass(frozen=True)
class AdmittedPrompts:
    """Candidates that passed the filters, and numbers of those dropped, by reason.

    Attributes:
        kept: Candidates that are new and fit the window, in the order given.
        empty: Number of texts of only white space.
        exact: Of copies of an earlier text, up to case and white space.
        near: Of near copies of an earlier text.
        short: Of texts with fewer tokens than the window allows.
        long: Of texts with more tokens than it allows.
    """

    kept: tuple[Candidate, ...]
    empty: int = 0
    exact: int = 0
    near: int = 0
    short: int = 0
    long: int = 0

    @property
    def after_length(self) -> int:
        """Number that passed both filters; the paper's name."""
        return len(self.kept)

    @property
    def after_dedup(self) -> int:
        """Number that were new; the paper's name."""
        return self.after_length + self.short + self.long

    @property
    def raw(self) -> int:
        """Number that were proposed."""
        return self.after_dedup + self.empty + self.exact + self.near


def canonical(text: str) -> str:
    """Returns a text in lower case, with single spaces."""
    return " ".join(words_of(text))


def grams_of(text: str) -> Grams:
    """Returns all 4-grams of words; a shorter text is one gram, and an empty one has none."""
    words = words_of(text)
    return ngrams(words, GRAM) or frozenset([tuple(words)] if words else [])


def jaccard(a: Grams, b: Grams) -> float:
    """Returns shared grams over all grams; 0 if there are none."""
    shared = len(a & b)
    return shared / (len(a) + len(b) - shared) if shared else 0.0


def admit(
    candidates: Sequence[Candidate],
    history: Iterable[str],
    tokens: Callable[[str], int],
    window: LengthWindow | None = None,
    near: float = NEAR,
) -> AdmittedPrompts:
    """Drops candidates that were seen before, then those that do not fit the window.

    A candidate that is new but too long still makes its copies duplicates, as in the paper.

    Args:
        candidates: In order of preference: of two copies, the first stays.
        history: Texts that were tried before.
        tokens: Counts the tokens of a text, special ones included.
        window: Allowed lengths; the paper's if None.
        near: 4-gram Jaccard similarity from which on two texts count as one.
    """
    if not 0 < near <= 1:
        raise InputError(f"the near-duplicate limit must be in (0, 1], got {near}.")
    window = window or LengthWindow()
    texts = [canonical(text) for text in history]
    seen, seen_grams = set(texts), [grams_of(text) for text in texts]
    kept: list[Candidate] = []
    dropped: Counter[str] = Counter()
    for candidate in candidates:
        plain = canonical(candidate.text)
        if not plain or plain in seen:
            dropped["exact" if plain else "empty"] += 1
            continue
        grams = grams_of(plain)
        # Jaccard is at most the ratio of the sizes, which is cheaper to look at.
        if any(
            near * max(len(grams), len(old)) <= min(len(grams), len(old))
            and jaccard(grams, old) >= near
            for old in seen_grams
        ):
            dropped["near"] += 1
            continue
        seen.add(plain)
        seen_grams.append(grams)
        count = tokens(candidate.text)
        if window.least <= count <= window.most:
            kept.append(candidate)
        else:
            dropped["short" if count < window.least else "long"] += 1
    return AdmittedPrompts(tuple(kept), **dropped)


@dataclass(frozen=True)
class Pools:
    """The prompts of a workload, divided before anything is drawn.

    Attributes:
        usable: Prompts that searches may start from: no copies, of an allowed length.
        heldout: Prompts that no search sees; no near copy of them is ever tried.
        dropped: Number of prompts that are copies, or too short or long.
        others: Held-out prompts of other kinds, not of the workload; the kind is the label.
    """

    usable: tuple[Candidate, ...]
    heldout: tuple[Candidate, ...]
    dropped: int
    others: tuple[Candidate, ...] = ()

    @property
    def unseen(self) -> tuple[Candidate, ...]:
        """Prompts that no search sees."""
        return self.heldout + self.others


def divide(
    prompts: Sequence[Candidate],
    settings: SearchSettings,
    tokens: Callable[[str], int],
    others: Sequence[Candidate] = (),
) -> Pools:
    """Sets the held-out pools apart: at most a third of the workload.

    Args:
        prompts: The workload.
        settings: Sizes.
        tokens: Counts the tokens of a text.
        others: Held-out prompts of other kinds; near copies of them are dropped.
    """
    order = list(prompts)
    random.Random(f"nafaudit search held out {settings.seed}").shuffle(order)
    fit = admit(order, [one.text for one in others], tokens, settings.window).kept
    held = fit[: min(settings.heldout, len(fit) // 3)]
    # Ids differ from those of searches, so that draws do too.
    heldout = tuple(replace(one, id=f"heldout_{one.id}") for one in held)
    unseen = tuple(replace(one, id=f"other_{one.id}") for one in others)
    return Pools(fit[len(held) :], heldout, len(prompts) - len(fit), unseen)


def start_of(pools: Pools, seed: int, size: int) -> tuple[tuple[Candidate, ...], ...]:
    """Returns the first pool of a search seed, and the rest; ids differ, so that draws do."""
    order = [replace(one, id=f"s{seed}_{one.id}") for one in pools.usable]
    random.Random(f"nafaudit search start {seed}").shuffle(order)
    return tuple(order[:size]), tuple(order[size:])
