"""What a benchmark finds: ratios, the aims they are held against, and the table of both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, NamedTuple


class Ratio(NamedTuple):
    """How many times more one side costs than another: of medians, with the range over rounds."""

    middle: float
    least: float
    most: float
    note: str = ""

    def __str__(self) -> str:
        spread = "" if self.least == self.most else f"{_number(self.least)} to {_number(self.most)}"
        said = self.note or spread
        return _number(self.middle) + (f" ({said})" if said else "")


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 30 else f"{value:.0f}"


def ratio(costs: list[float], base: list[float]) -> Ratio:
    """Ratio of medians, with the range over the rounds."""
    each = [a / b for a, b in zip(costs, base, strict=True)]
    return Ratio(median(costs) / median(base), min(each), max(each))


def plainly(costs: list[float]) -> Ratio:
    """Costs themselves, where an aim is in seconds or MiB: the median, with their range."""
    return Ratio(median(costs), min(costs), max(costs))


def exponent(costs: Mapping[int, list[float]]) -> float:
    """To which power of the size cost grows, between the last two: above 1 is superlinear."""
    *_, before, last = costs
    return math.log(median(costs[last]) / median(costs[before])) / math.log(last / before)


def of_bytes(one: float, other: float) -> Ratio:
    """One amount of memory over another, measured once."""
    found = one / other
    return Ratio(found, found, found, f"{one / 1e6:,.0f} / {other / 1e6:,.0f} MB")


class Aim(NamedTuple):
    """Where a ratio is to land."""

    least: float = float("-inf")
    most: float = float("inf")

    def __str__(self) -> str:
        return f">= {self.least:g}" if self.most == float("inf") else f"<= {self.most:g}"

    def met(self, found: Ratio) -> bool:
        """True if the ratio of medians is there; NaN never is."""
        return self.least <= found.middle <= self.most


PEER, LIMIT, MEMORY = "peer/ours", "ours/limit", "memory, peer/ours"
AIMS = {
    ("r32: 8 prompts, binding", PEER): Aim(least=2.3),
    ("r32: 32 prompts, binding", PEER): Aim(least=3.5),
    ("r128: 1 prompt x 10", PEER): Aim(least=5.5),
    ("real: 8 prompts", PEER): Aim(least=1.1),
    ("real: 1 prompt x 10", PEER): Aim(least=2.5),
    ("real: 8 prompts", LIMIT): Aim(most=1.1),
    ("real: 1 prompt x 10", LIMIT): Aim(most=1.1),
    ("r32: 1 prompt x 10", MEMORY): Aim(least=5),
    ("r128: 1 prompt x 10", MEMORY): Aim(least=10),
    ("real: 1 prompt x 10", MEMORY): Aim(least=5),
    ("r32: solver, 8 rows, binding", PEER): Aim(least=22),
    ("r32: solver, 32 rows, binding", PEER): Aim(least=22),
    ("r128: solver, 8 rows, binding", PEER): Aim(least=22),
    ("r128: solver, 32 rows, binding", PEER): Aim(least=22),
    ("r32: solver, 8 rows, free", PEER): Aim(least=6),
    ("r32: solver, 32 rows, free", PEER): Aim(least=6),
    ("r128: solver, 8 rows, free", PEER): Aim(least=6),
    ("r128: solver, 32 rows, free", PEER): Aim(least=6),
    ("r32: five arms", "one run/five runs"): Aim(most=0.8),
    ("lab: nafaudit run", "decoding, ours/earlier"): Aim(most=0.5),
    ("lab: nafaudit run", "clock, ours/earlier"): Aim(most=0.4),
    ("lab: start-up", "seconds beyond imports"): Aim(most=1.5),
    ("lab: replay", "replay/limit"): Aim(most=1.6),
    ("real: replay", "replay/limit"): Aim(most=1.3),
    ("lab: search, occupancy", "rows/room"): Aim(least=0.8),
    ("lab: attack, occupancy", "rows/room"): Aim(least=0.8),
    ("record", "size, JSON Lines/run"): Aim(least=15),
    ("record: check", "seconds, 27,000 outputs"): Aim(most=6),
    ("record: check", "MiB, 27,000 outputs"): Aim(most=200),
    ("record: page", "seconds, 27,000 outputs"): Aim(most=5),
}


@dataclass(frozen=True)
class Row:
    """One thing that was measured.

    Attributes:
        name: Which; with a ratio's name, the key of its aim.
        about: The case: sizes, budget, what happened.
        ratios: What came out, by name.
        invalid: What a gate found wrong; a ratio counts only if this is empty.
        facts: Every other number, for the JSON.
    """

    name: str
    about: str = ""
    ratios: dict[str, Ratio] = field(default_factory=dict)
    invalid: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    def verdict(self, ratio_name: str) -> str:
        """`met`, `missed`, `invalid`, `not measured`, or nothing where there is no aim."""
        aim, found = AIMS.get((self.name, ratio_name)), self.ratios[ratio_name]
        if self.invalid:
            return "invalid"
        if found.middle != found.middle:
            return "not measured"
        return "" if aim is None else "met" if aim.met(found) else "missed"

    def as_json(self) -> dict[str, Any]:
        """The row for a file, its aims and verdicts with it."""
        found = asdict(self)
        for name, value in self.ratios.items():
            aim = AIMS.get((self.name, name))
            judged = {"aim": str(aim) if aim else None, "verdict": self.verdict(name)}
            found["ratios"][name] = value._asdict() | judged
        return found

    def __str__(self) -> str:
        """The row as lines of a table of 90 columns."""
        said = f"INVALID: {self.invalid}" if self.invalid else "" if self.ratios else "passed"
        lines = [f"{self.name:32} {self.about}".rstrip()]
        for name, value in self.ratios.items():
            aim = AIMS.get((self.name, name))
            text = f"    {name:30} {value!s:28} {aim or ''!s:8} {self.verdict(name)}"
            lines.append(text.rstrip())
        return "\n".join([*lines, *([f"    {said}"] if said else [])]) + "\n"


def summary(rows: list[Row]) -> str:
    """How many aims were met, and which were not."""
    judged = [
        (f"{row.name} ({name})", row.verdict(name))
        for row in rows
        for name in row.ratios
        if (row.name, name) in AIMS
    ]
    met = sum(verdict == "met" for _, verdict in judged)
    others = [f"    {verdict}: {name}\n" for name, verdict in judged if verdict != "met"]
    return f"{met} of {len(judged)} aims met\n" + "".join(others)
