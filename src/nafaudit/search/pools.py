"""The prompts of a workload, divided before anything is drawn."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from nafaudit.search.candidate import Candidate
from nafaudit.search.filters import admit
from nafaudit.search.settings import SearchSettings


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
