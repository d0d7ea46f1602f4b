"""Is the log itself sound?"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from nafaudit.checks.check import Facts, Worst
from nafaudit.core.finding import Answer, Finding
from nafaudit.core.ledger import Whole
from nafaudit.core.trajectory import STEP_TYPES, Trajectory

_NUMBERS = tuple(name for name in STEP_TYPES if name != "token")
_SURE = math.log(0.999)
# A log-probability may exceed 0, or a weight 1, by rounding only.
_ROUNDING = 1e-4

FLAWS = {
    "long": "longer than the limit",
    "holes": "missing numbers among recorded ones",
    "pad": "steps after the end, written as padding",
    "impossible": "a log-probability above 0 or a weight outside 0 and 1",
}


@dataclass
class Hygiene:
    """Lengths beyond the limit, missing numbers, pad tails, impossible numbers.

    A column that an arm never has is not a flaw of a foreign log: it is named, and whatever
    needs it says UNKNOWN. In our own records only a weight may be missing, as not every
    mechanism has one, and the served law where whole outputs are chosen.

    A pad tail is a suffix of at least two steps with one token id, no allowance, charge and
    weight, and probabilities above 0.999, although budget had been granted.
    """

    facts: Facts
    trajectories: int = 0
    steps: int = 0
    flawed: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FLAWS, 0))
    pad_steps: int = 0
    # Trajectories by column: with some of it, with none of it.
    filled: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_NUMBERS, 0))
    absent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_NUMBERS, 0))
    absent_debt: int = 0
    worst: Worst = field(default_factory=Worst)

    def see(self, trajectory: Trajectory) -> None:
        """Looks for every flaw in one trajectory."""
        steps, length = trajectory.steps, len(trajectory)
        self.trajectories += 1
        self.steps += length
        self.absent_debt += math.isnan(trajectory.debt)
        flaws: dict[str, int] = {}
        logged = trajectory.logged.length if trajectory.logged is not None else math.nan
        limit = self.facts.max_new_tokens
        if limit and (length > limit or logged > limit):
            flaws["long"] = max(0, min(limit, length - 1))
        for name in _NUMBERS:
            if not length or (name in self._optional and not self.facts.foreign):
                continue
            column = getattr(steps, name)
            if not np.isnan(column.min()):
                self.filled[name] += 1
            elif (missing := np.isnan(column)).all():
                self.absent[name] += 1
            else:
                self.filled[name] += 1
                flaws.setdefault("holes", int(np.argmax(missing)))
        if tail := self._pad_tail(trajectory):
            self.pad_steps += tail
            flaws["pad"] = length - tail
        if (wrong := _impossible(trajectory)) is not None:
            flaws["impossible"] = wrong
        for name in flaws:
            self.counts[name] += 1
        if flaws:
            self.flawed += 1
            self.worst.offer(len(flaws), trajectory.key, next(iter(flaws.values())))

    @property
    def _optional(self) -> tuple[str, ...]:
        return ("theta", "served") if isinstance(self.facts.ledger, Whole) else ("theta",)

    def finding(self) -> Finding:
        """FINE or SUSPECT with how many trajectories have which flaw."""
        numbers: dict[str, float] = {**self.counts, "pad_steps": self.pad_steps}
        n = self.trajectories
        if not n:
            return Finding("hygiene", Answer.UNKNOWN, math.nan, "no trajectory recorded")
        said = [f"{FLAWS[name]} in {self.counts[name]} of {n}" for name in FLAWS]
        said = [text for text, count in zip(said, self.counts.values(), strict=True) if count]
        if self.pad_steps:
            said.append(f"{self.pad_steps / self.steps:.1%} of all steps are padding")
        absent = self.absent | {"debt": self.absent_debt}
        filled = self.filled | {"debt": n - self.absent_debt}
        if uneven := [name for name in absent if absent[name] and filled[name]]:
            said.append(f"only some trajectories record {', '.join(uneven)}")
        never = [name for name in absent if absent[name] and not filled[name]]
        lacking = f"not recorded: {', '.join(never)}" if never else ""
        if never and not self.facts.foreign:
            said.append(lacking)
        if said:
            text, witness = "; ".join(said), self.worst.witness
            return Finding("hygiene", Answer.SUSPECT, self.flawed, text, witness, numbers)
        if not self.steps:
            lacking = "only totals are logged, no steps"
        text = f"no flaw in {n} trajectories" + (f"; {lacking}" if lacking else "")
        return Finding("hygiene", Answer.FINE, 0, text, None, numbers)

    def _pad_tail(self, trajectory: Trajectory) -> int:
        """Steps of the pad tail; 0 if there is none."""
        steps = trajectory.steps
        if len(trajectory) < 2 or steps.allowance[-1] != 0 or steps.charge[-1] != 0:
            return 0
        idle = (steps.allowance == 0) & (steps.charge == 0) & (steps.theta <= self.facts.edge)
        pad = idle & (steps.served > _SURE) & (steps.safe > _SURE)
        pad &= steps.token == steps.token[-1]
        granted = self.facts.granted(trajectory)
        if granted is not None and granted.size == pad.size:
            # Before its debt is paid a row has no allowance either, and may repeat itself.
            pad &= granted > 0
        tail = int(np.argmin(pad[::-1])) if not pad.all() else pad.size
        return tail if tail >= 2 else 0


def _impossible(trajectory: Trajectory) -> int | None:
    """The first step with a number that cannot be, or None."""
    steps, found = trajectory.steps, []
    weight = np.abs(steps.theta - 0.5) - 0.5
    for excess in (weight, steps.served, steps.safe, steps.risky):
        if (wrong := excess > _ROUNDING).any():
            found.append(int(np.argmax(wrong)))
    return min(found, default=None)
