"""The paper's pre-screen: which admitted candidates see a decoder, by the surrogate's word alone.

Exploit rewards a large predicted margin, that is a *small* predicted ratio, and the kept are ranked
by it again at the end; boundary and explore picks are the last to be decoded, if at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from nafaudit.search.allocation import Prediction

Pick = Literal["exploit", "boundary", "explore", "fallback", "first"]
EXPLOIT_SHARE, BOUNDARY_SHARE = 0.6, 0.2


@dataclass(frozen=True)
class Screened:
    """What the pre-screen kept.

    Attributes:
        kept: Places of the kept candidates, the first to be decoded first.
        picks: Why each was kept, in the same order.
        rest: Places of the others: the pool of the no-surrogate ablation.
        quotas: How many exploit, boundary and explore picks were wanted.
    """

    kept: tuple[int, ...]
    picks: tuple[Pick, ...]
    rest: tuple[int, ...]
    quotas: tuple[int, int, int] = (0, 0, 0)


def _margin(said: Prediction) -> float:
    return min(max(said.margin, -1.0), 1.0)


def exploit(said: Prediction) -> float:
    """Computes mu - 0.5 sigma + 0.15 clip(m, -1, 1)."""
    return said.safe - 0.5 * said.spread + 0.15 * _margin(said)


def boundary(said: Prediction) -> float:
    """Computes -|mu - 1/2| + 0.5 sigma."""
    return -abs(said.safe - 0.5) + 0.5 * said.spread


def explore(said: Prediction) -> float:
    """Computes sigma - 0.15 |mu - 1/2| + 0.10 clip(m, -1, 1)."""
    return said.spread - 0.15 * abs(said.safe - 0.5) + 0.10 * _margin(said)


def fallback(said: Prediction) -> float:
    """Computes mu - 0.25 sigma, for places that no quota filled."""
    return said.safe - 0.25 * said.spread


def quotas(keep: int) -> tuple[int, int, int]:
    """Exploit, boundary and explore picks among `keep`: 29, 10 and 9 of the paper's 48."""
    first, second = round(EXPLOIT_SHARE * keep), round(BOUNDARY_SHARE * keep)
    return first, second, keep - first - second


def prescreen(predictions: Sequence[Prediction] | None, available: int, keep: int = 48) -> Screened:
    """Chooses up to `keep` of the available candidates.

    Args:
        predictions: One per candidate; None if the surrogate is not ready, and then the first
            are kept as they come.
        available: How many candidates there are.
        keep: How many may stay.
    """
    keep = min(keep, available)
    if predictions is None:
        places = tuple(range(available))
        first: list[Pick] = ["first" for _ in range(keep)]
        return Screened(places[:keep], tuple(first), places[keep:])
    said = [one.finite for one in predictions]
    wanted = quotas(keep)
    picked: dict[int, Pick] = {}
    _fill(picked, said, exploit, "exploit", wanted[0])
    _fill(picked, said, boundary, "boundary", wanted[1])
    _fill(picked, said, explore, "explore", wanted[2])
    _fill(picked, said, fallback, "fallback", keep - len(picked))
    kept = sorted(picked, key=lambda i: (-exploit(said[i]), i))
    rest = tuple(i for i in range(available) if i not in picked)
    return Screened(tuple(kept), tuple(picked[i] for i in kept), rest, wanted)


def _fill(
    picked: dict[int, Pick],
    said: Sequence[Prediction],
    score: Callable[[Prediction], float],
    why: Pick,
    count: int,
) -> None:
    """Adds the best `count` that nobody picked yet; ties go to the earlier one."""
    left = sorted((i for i in range(len(said)) if i not in picked), key=lambda i: -score(said[i]))
    picked |= dict.fromkeys(left[: max(0, count)], why)
