"""The paper's adaptive evaluator and its pre-screen, which allocate trajectories to prompts.

There are two paths, as in its code. The *survivor path* (Algorithm 1) gives every prompt a floor of
trajectories, and more to the most promising of those whose proxy is not too large. The *hardness
path* sets each prompt's number by the surrogate first, then uses the survivor path for each group
of equal number. Both are reproductions; `defects.py` finds their faults.

The pre-screen chooses by the surrogate alone which admitted candidates are decoded. Exploit rewards
a large predicted margin, that is a *small* predicted ratio, and the kept are ranked by it again at
the end; boundary and explore picks are decoded last, if at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from nafaudit.core.errors import InputError, nearest
from nafaudit.paper.proxy import DELTA, Draw, PaperRequest, ProxyRow

FIXES = {
    "min-n": "at least {least} draws, all distinct, before the survivor test wherever a first rho "
    "exceeds {above:g}",
    "width": "every rho in tables and files has its width, U_EBB less the mean, beside it",
    "reff": "every U_EBB has R_eff, under both variants; so it was without this option too",
    "delta": "delta is shared by all looks that the allocation may take at one prompt",
}
"""The paper's recommendations (a) to (c) and its future work (1) to (4), with what each does."""


@dataclass(frozen=True)
class Fixes:
    """The paper's own recommendations, switched on within its protocol.

    Attributes:
        min_n: At least `least` trajectories, before the survivor test, for every prompt whose
            first ratio exceeds `above`, whichever path gave it its first trajectories. An invalid
            prompt has no ratio, and more trajectories cannot make it valid: it gets no more.
            Every top-up takes seeds that its prompt does not have yet, so that N draws differ.
        width: The proxy's width stands beside every ratio, in the paper's files too.
        reff: R_eff from end to end, which both variants of the search have anyway.
        delta: Level delta / `looks` for every U_EBB, so that all looks at one prompt together
            have the level delta. A generated prompt is looked at after the floor and after the
            top-up, at medium fidelity, as a top-up, in the final and in the stress pool: 8 times,
            with `min_n` 12 times.
        least: N_min.
        above: The preliminary ratio from which on it applies.
    """

    min_n: bool = False
    width: bool = False
    reff: bool = False
    delta: bool = False
    least: int = 20
    above: float = 0.9

    @classmethod
    def parse(cls, text: str) -> Fixes:
        """Reads names between commas; an empty text switches none on."""
        names = [name.strip() for name in text.split(",") if name.strip()]
        for name in names:
            if name not in FIXES:
                known = f"{', '.join(FIXES)}{nearest(name, FIXES)}"
                raise InputError(f"unknown fix {name!r}; known: {known}")
        return cls(**{name.replace("-", "_"): True for name in names})

    @property
    def looks(self) -> int:
        """Largest number of times that the allocation computes a U_EBB of one prompt."""
        return 4 * (3 if self.min_n else 2)

    def level(self, delta: float) -> float:
        """Returns the level of one U_EBB."""
        return delta / self.looks if self.delta else delta

    @property
    def words(self) -> list[str]:
        """What each of those switched on does."""
        chosen = [name for name in FIXES if getattr(self, name.replace("-", "_"))]
        return [f"{n}: {FIXES[n].format(least=self.least, above=self.above)}" for n in chosen]


@dataclass(frozen=True)
class ProxyRule:
    """The constants of the paper's evaluator.

    Attributes:
        high: R; the paper's code uses K here.
        delta: Level.
        floor: n0, trajectories of every prompt.
        slack: eta of the survivor test U <= eta B_eff.
        fraction: tau, the share of a pool that is topped up: 0.5 in text and code, 0.75 in the
            run behind the paper's k = 5 table.
        rounding: "code" rounds tau |P| to the nearest (ties to even), "text" rounds up.
        fixes: The paper's recommendations.
    """

    high: float
    delta: float = DELTA
    floor: int = 4
    slack: float = 1.10
    fraction: float = 0.5
    rounding: Literal["code", "text"] = "code"
    fixes: Fixes = field(default_factory=Fixes)

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise InputError(f"the top-up fraction must be in (0, 1], got {self.fraction}.")
        if self.floor < 1 or self.slack <= 0:
            raise InputError(f"need a floor >= 1 and slack > 0, got {self.floor}, {self.slack}.")

    def topups(self, pool: int) -> int:
        """Returns the number of prompts of a pool that are topped up."""
        share = self.fraction * pool
        return max(1, math.ceil(share) if self.rounding == "text" else round(share))


@dataclass(frozen=True)
class Prediction:
    """A prediction of the paper's surrogate for one prompt.

    Attributes:
        safe: mu, mean probability of "within budget" over its ensemble.
        spread: sigma, standard deviation over its ensemble.
        margin: m, predicted (B_eff - U) / K.
    """

    safe: float
    spread: float
    margin: float

    @property
    def finite(self) -> Prediction:
        """This prediction with the values of the paper's code in place of NaN and infinity."""
        return Prediction(
            self.safe if math.isfinite(self.safe) else 0.5,
            self.spread if math.isfinite(self.spread) else 1.0,
            self.margin if math.isfinite(self.margin) else 0.0,
        )


SATURATED = 0.05
"""A probability this near to 0 or 1 is saturated."""


def is_saturated(predictions: Sequence[Prediction]) -> bool:
    """True if all probabilities are near 0, or all near 1, and hardly spread: they rank nothing."""
    safe = [one.finite.safe for one in predictions]
    sigma = math.fsum(one.finite.spread for one in predictions) / max(1, len(predictions))
    one_end = bool(safe) and (min(safe) >= 1.0 - SATURATED or max(safe) <= SATURATED)
    return one_end and sigma <= SATURATED


UNREADY = Prediction(0.5, 0.0, 0.0)
"""Prediction of a surrogate that was never fitted."""


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def promotion(row: ProxyRow, prediction: Prediction) -> float:
    """Computes [0.45 clip(rho, 0, 2) + 0.20 mu + 0.20 sigma + 0.15 clip(m, -1, 1)] [B_eff > 0]."""
    if not row.budget > 0:
        return 0.0
    said = prediction.finite
    score = 0.45 * _clip(row.stored_rho, 0.0, 2.0) + 0.20 * said.safe + 0.20 * said.spread
    return score + 0.15 * _clip(said.margin, -1.0, 1.0)


def hardness(prediction: Prediction) -> float:
    """Computes clip(0.50 sigma + 0.35 (1 - |mu - 1/2| / (1/2)) + 0.15 clip(-m, 0, 1), 0, 1)."""
    said = prediction.finite
    unsure = 1.0 - abs(said.safe - 0.5) / 0.5
    value = 0.50 * said.spread + 0.35 * unsure + 0.15 * _clip(-said.margin, 0.0, 1.0)
    return _clip(value, 0.0, 1.0)


def hard_size(prediction: Prediction, n: int, floor: int = 4) -> int:
    """Returns the hardness path's number of trajectories, between the floor and n."""
    more = int(np.rint((n - floor) * hardness(prediction)))
    return min(n, max(floor, floor + more))


def choose_topups(
    rows: Sequence[ProxyRow], predictions: Sequence[Prediction], rule: ProxyRule
) -> list[int]:
    """Returns places of prompts to top up: the best survivors, or the best if none survives.

    Ties go to the earlier prompt.
    """
    scores = [promotion(row, said) for row, said in zip(rows, predictions, strict=True)]
    survivors = [i for i, row in enumerate(rows) if row.within(rule.slack)]
    pool = survivors or list(range(len(rows)))
    return sorted(pool, key=lambda i: (-scores[i], i))[: rule.topups(len(rows))]


def survivor_path(
    ids: Sequence[str],
    n: int,
    draw: Draw,
    rule: ProxyRule,
    predictions: Sequence[Prediction] | None = None,
    offset: int = 0,
    before: Sequence[int] | None = None,
) -> list[ProxyRow]:
    """Runs Algorithm 1: a floor for every prompt, then up to n for the chosen ones.

    Args:
        ids: The pool.
        n: Nominal trajectories per prompt.
        draw: Decodes trajectories or reads their records.
        rule: Constants.
        predictions: One per prompt; None if the surrogate is not ready, and then every prompt
            gets n.
        offset: Added to every seed value.
        before: Number of earlier trajectories of each prompt; `min-n` counts on from there,
            instead of the offset.
    """
    floor = max(2, min(rule.floor, n))
    all_prompts = predictions is None or n < 4 or floor >= n
    first = n if all_prompts else floor
    seeds = _Seeds(rule.fixes.min_n, offset, before or (0,) * len(ids))
    found = draw([seeds.request(i, one, first, 0) for i, one in enumerate(ids)])
    rows = [ProxyRow(one, rule.high, rule.delta) for one in found]
    if rule.fixes.min_n:
        doubtful = [i for i, row in enumerate(rows) if row.valid and row.rho > rule.fixes.above]
        rows = _raised(rows, doubtful, rule.fixes.least, draw, rule, seeds)
    if all_prompts or predictions is None:
        return rows
    chosen = choose_topups(rows, predictions, rule)
    return _raised(rows, chosen, n, draw, rule, seeds)


@dataclass(frozen=True)
class _Seeds:
    """Seeds of a pool's requests.

    Attributes:
        fresh: True counts trajectories by number; the paper adds offsets to seed *values*, which
            repeats some seeds.
        offset: Offset of the paper's seeds.
        before: Number of earlier trajectories of each prompt.
    """

    fresh: bool
    offset: int
    before: Sequence[int]

    def request(self, place: int, prompt: str, n: int, so_far: int) -> PaperRequest:
        if self.fresh:
            return PaperRequest(prompt, n, skip=self.before[place] + so_far)
        return PaperRequest(prompt, n, self.offset + so_far)


def _raised(
    rows: Sequence[ProxyRow],
    places: Sequence[int],
    n: int,
    draw: Draw,
    rule: ProxyRule,
    seeds: _Seeds,
) -> list[ProxyRow]:
    """Returns the rows, with up to n trajectories at these places."""
    places = [i for i in places if rows[i].n < n]
    if not places:
        return list(rows)
    asked = [seeds.request(i, rows[i].id, n - rows[i].n, rows[i].n) for i in places]
    raised = dict(zip(places, draw(asked), strict=True))
    return [
        ProxyRow(row.draws + raised[i], rule.high, rule.delta) if i in raised else row
        for i, row in enumerate(rows)
    ]


def hardness_path(
    ids: Sequence[str],
    n: int,
    draw: Draw,
    rule: ProxyRule,
    predictions: Sequence[Prediction] | None = None,
    offset: int = 0,
    before: Sequence[int] | None = None,
) -> list[ProxyRow]:
    """Sets numbers by hardness, then runs the survivor path for each group of equal number."""
    if predictions is None or n <= 1:
        return survivor_path(ids, n, draw, rule, predictions, offset, before)
    groups: dict[int, list[int]] = {}
    for i, said in enumerate(predictions):
        groups.setdefault(hard_size(said, n, rule.floor), []).append(i)
    rows: dict[int, ProxyRow] = {}
    for size in sorted(groups):
        places = groups[size]
        members, said_of = [ids[i] for i in places], [predictions[i] for i in places]
        had = [before[i] for i in places] if before else None
        found = survivor_path(members, size, draw, rule, said_of, offset, had)
        rows |= zip(places, found, strict=True)
    return [rows[i] for i in range(len(ids))]


Pick = Literal["exploit", "boundary", "explore", "fallback", "first"]
EXPLOIT_SHARE, BOUNDARY_SHARE = 0.6, 0.2


@dataclass(frozen=True)
class Screened:
    """Result of the pre-screen.

    Attributes:
        kept: Places of the kept candidates, the first to be decoded first.
        picks: Kind of each pick, in this order.
        rest: Places of the others: the pool of the no-surrogate ablation.
        quotas: Numbers of exploit, boundary and explore picks, as planned.
    """

    kept: tuple[int, ...]
    picks: tuple[Pick, ...]
    rest: tuple[int, ...]
    quotas: tuple[int, int, int] = (0, 0, 0)


def exploit(said: Prediction) -> float:
    """Computes mu - 0.5 sigma + 0.15 clip(m, -1, 1)."""
    return said.safe - 0.5 * said.spread + 0.15 * _clip(said.margin, -1.0, 1.0)


def boundary(said: Prediction) -> float:
    """Computes -|mu - 1/2| + 0.5 sigma."""
    return -abs(said.safe - 0.5) + 0.5 * said.spread


def explore(said: Prediction) -> float:
    """Computes sigma - 0.15 |mu - 1/2| + 0.10 clip(m, -1, 1)."""
    return said.spread - 0.15 * abs(said.safe - 0.5) + 0.10 * _clip(said.margin, -1.0, 1.0)


def fallback(said: Prediction) -> float:
    """Computes mu - 0.25 sigma, for places that no quota filled."""
    return said.safe - 0.25 * said.spread


def quotas(keep: int) -> tuple[int, int, int]:
    """Returns exploit, boundary and explore picks among `keep`: 29, 10 and 9 of 48."""
    first, second = round(EXPLOIT_SHARE * keep), round(BOUNDARY_SHARE * keep)
    return first, second, keep - first - second


def prescreen(predictions: Sequence[Prediction] | None, available: int, keep: int = 48) -> Screened:
    """Chooses up to `keep` of the available candidates.

    Args:
        predictions: One per candidate; None if the surrogate is not ready, and then the first
            are kept in their order.
        available: Number of candidates.
        keep: Largest number to keep.
    """
    keep = min(keep, available)
    if predictions is None:
        places = tuple(range(available))
        first: list[Pick] = ["first" for _ in range(keep)]
        return Screened(places[:keep], tuple(first), places[keep:])
    said = [one.finite for one in predictions]
    wanted = quotas(keep)
    picked: dict[int, Pick] = {}
    rules: tuple[tuple[Pick, Callable[[Prediction], float], int], ...] = (
        ("exploit", exploit, wanted[0]),
        ("boundary", boundary, wanted[1]),
        ("explore", explore, wanted[2]),
        ("fallback", fallback, keep),
    )
    for pick, score, count in rules:
        # The best that are not picked yet; ties go to the earlier one.
        left = [i for i in range(available) if i not in picked]
        left.sort(key=lambda i: -score(said[i]))
        picked |= dict.fromkeys(left[: min(count, keep - len(picked))], pick)
    kept = sorted(picked, key=lambda i: (-exploit(said[i]), i))
    rest = tuple(i for i in range(available) if i not in picked)
    return Screened(tuple(kept), tuple(picked[i] for i in kept), rest, wanted)
