"""How a search went: the best against what it had cost, for each strategy and seed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nafaudit.report.searched.parts import by_paper, number, part, rows, text


@dataclass(frozen=True)
class Measure:
    """What a search ranks prompts by, in the words of its figure and table.

    Attributes:
        share: True if it is a share of a budget, shown in percent.
        axis: The best one, for an axis.
        head: The same, for the head of a column.
        meaning: What exactly it is.
        note: What to know when reading it.
    """

    share: bool
    axis: str
    head: str
    meaning: str
    note: str


USE = Measure(
    True,
    "best utilisation so far",
    "best",
    "largest shrunk mean utilisation so far, on the draws that prompts are chosen by",
    "best flatters: it is on the draws that prompts were chosen by.",
)
RHO = Measure(
    False,
    "best rho in the archive",
    "best rho",
    "largest rho = U_EBB / B_eff in the archive, on the draws that prompts are chosen by",
    "rho = U_EBB / B_eff is the paper's proxy, not a share of a budget that was spent; a prompt "
    "with a rho above 1, or with none, is never archived.",
)


def measure_of(found: Mapping[str, Any]) -> Measure:
    """What `best` of a generation is."""
    return RHO if by_paper(found) else USE


@dataclass(frozen=True)
class Point:
    """After one generation: its number, trajectories spent so far, best of what it ranks by."""

    generation: int
    spent: int
    best: float


@dataclass(frozen=True)
class Series:
    """One search, or one control.

    Attributes:
        strategy: Who.
        seed: Search seed.
        points: After every generation whose best is known.
        confirmed: Use of its first finalist on fresh draws; NaN if there is none.
        low: Lower limit of that.
        high: Upper limit.
    """

    strategy: str
    seed: int
    points: tuple[Point, ...]
    confirmed: float = math.nan
    low: float = math.nan
    high: float = math.nan


def progress_of(found: Mapping[str, Any]) -> list[Series]:
    """One series per strategy and seed, in the order of the file."""
    groups: dict[tuple[str, int], list[Point]] = {}
    spent: dict[tuple[str, int], int] = {}
    for row in rows(found, "generations"):
        cost, seed = number(row, "trajectories"), number(row, "seed")
        generation, best = number(row, "generation"), number(row, "best")
        if not all(math.isfinite(value) for value in (cost, generation)):
            continue
        who = text(row, "strategy") or "search", int(seed) if math.isfinite(seed) else 0
        spent[who] = spent.get(who, 0) + int(cost)
        group = groups.setdefault(who, [])
        if math.isfinite(best):
            group.append(Point(int(generation), spent[who], best))
    firsts = {
        (text(row, "strategy"), number(row, "seed")): part(row, "use")
        for row in (*rows(found, "finalists"), *rows(found, "controls"))
        if number(row, "rank") == 1
    }
    made = []
    for (strategy, seed), group in groups.items():
        use = firsts.get((strategy, float(seed)), {})
        ends = (number(use, end) for end in ("mean", "low", "high"))
        if group:
            made.append(Series(strategy, seed, tuple(group), *ends))
    return made
