"""Do the numbers of a record agree with each other and with the ledger?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nafaudit.checks.check import Facts, Worst
from nafaudit.core.finding import Answer, Finding, own_tolerance
from nafaudit.core.ledger import replay
from nafaudit.core.trajectory import Trajectory

# What is compared, in the order in which it is said: the words, and the unit of a gap.
IDENTITIES = {
    "allowance": ("allowances against the ledger", "nats"),
    "cumulative": ("logged cumulative charges against the steps", "nats"),
    "spend": ("logged spend against the steps", "nats"),
    "granted": ("logged grants against the ledger", "nats"),
    "budget": ("logged budget against the own length", "nats"),
    "length": ("logged length against the steps", "steps"),
    "stop": ("nothing after a stop token", "steps"),
    "limit": ("no more steps than the limit", "steps"),
    "ending": ("a stop token at the end if it says so", "steps"),
}


@dataclass
class _Tally:
    compared: int = 0
    broken: int = 0
    worst: Worst = field(default_factory=Worst)


@dataclass
class Accounting:
    """Replays the allowance recursion and adds up what a log claims.

    A record that does not add up is SUSPECT, whether or not anything was overspent: that is
    the invariant's question.
    """

    facts: Facts
    trajectories: int = 0
    broken: int = 0
    tallies: dict[str, _Tally] = field(
        default_factory=lambda: {name: _Tally() for name in IDENTITIES}
    )

    def see(self, trajectory: Trajectory) -> None:
        """Compares whatever this record has two sources for."""
        self.trajectories += 1
        any_broken = False
        for name, gap, step in self._gaps(trajectory):
            if math.isnan(gap):
                continue
            tally = self.tallies[name]
            tally.compared += 1
            if gap > 0:
                any_broken = True
                tally.broken += 1
                tally.worst.offer(gap, trajectory.key, step)
        self.broken += any_broken

    def finding(self) -> Finding:
        """FINE with what was compared, SUSPECT with what does not add up."""
        compared = [name for name in IDENTITIES if self.tallies[name].compared]
        broken = [name for name in compared if self.tallies[name].broken]
        numbers = {f"{name}_broken": self.tallies[name].broken for name in compared}
        if broken:
            text = f"{self.broken} of {self.trajectories} trajectories do not add up: " + "; ".join(
                f"{IDENTITIES[name][0]} in {self.tallies[name].broken} "
                f"(by up to {self.tallies[name].worst.value:.3g} {IDENTITIES[name][1]})"
                for name in broken
            )
            witness = self.tallies[broken[0]].worst.witness
            return Finding("accounting", Answer.SUSPECT, self.broken, text, witness, numbers)
        if not any(IDENTITIES[name][1] == "nats" for name in compared):
            return Finding("accounting", Answer.UNKNOWN, math.nan, self._missing(), None, numbers)
        said = ", ".join(IDENTITIES[name][0] for name in compared)
        fewest = min(self.tallies[name].compared for name in compared)
        text = f"everything adds up in {fewest} of {self.trajectories} trajectories: {said}"
        return Finding("accounting", Answer.FINE, 0, text, None, numbers)

    def _missing(self) -> str:
        if self.facts.ledger is None:
            return "nothing to compare: the ledger is not known here and the log claims no sums"
        return "nothing to compare: no steps with charges, allowances and debt, no claimed sums"

    def _gaps(self, trajectory: Trajectory) -> Iterator[tuple[str, float, int]]:
        """Yields name, gap (0 if it holds, NaN if it cannot be told) and step."""
        steps, facts, length = trajectory.steps, self.facts, len(trajectory)
        if not length:
            return
        granted = None
        if facts.ledger is not None and not math.isnan(trajectory.debt):
            granted = facts.granted(trajectory)
            yield "allowance", *self._compare(steps.allowance, self._replayed(trajectory))
        logged = trajectory.logged
        if logged is not None:
            sums = np.cumsum(steps.charge)
            if logged.cumulative.size:
                yield "cumulative", *self._compare(logged.cumulative, sums)
            yield "spend", self._compare(np.array([logged.spend]), sums[-1:])[0], length - 1
            if granted is not None:
                if logged.granted.size:
                    yield "granted", *self._compare(logged.granted, granted)
                yield (
                    "budget",
                    self._compare(np.array([logged.budget]), granted[-1:])[0],
                    length - 1,
                )
            # Some logs do not count the stop token.
            off = min(abs(logged.length - length), abs(logged.length - length + trajectory.stopped))
            yield "length", off, length - 1
        if facts.max_new_tokens:
            yield "limit", max(0, length - facts.max_new_tokens), length - 1
        if facts.stops and (steps.token >= 0).all():
            stops = np.zeros(length, bool)
            for stop in facts.stops:
                stops |= steps.token == stop
            first = int(np.argmax(stops)) if stops.any() else length - 1
            yield "stop", length - 1 - first, first
            wrong = bool(stops[-1]) != trajectory.stopped
            # Ours end at a stop token or at the limit; a foreign decoder may have other reasons.
            cut = not facts.foreign and not trajectory.stopped and length < facts.max_new_tokens
            yield "ending", float(wrong or cut), length - 1

    def _replayed(self, trajectory: Trajectory) -> NDArray[np.float64]:
        assert self.facts.ledger is not None
        steps = trajectory.steps
        with np.errstate(over="ignore", invalid="ignore"):
            found = replay(self.facts.ledger, trajectory.key.k, trajectory.debt, steps)
        if np.isnan(steps.charge.min()):
            # After a charge that is not known, neither is any allowance.
            found[int(np.argmax(np.isnan(steps.charge))) + 1 :] = np.nan
        return found

    def _compare(
        self, claimed: NDArray[np.float64], true: NDArray[np.float64]
    ) -> tuple[float, int]:
        """The largest gap beyond the tolerance, and where."""
        if claimed.size != true.size:
            return math.inf, min(claimed.size, true.size) - 1
        if (claimed == true).all():
            return 0.0, 0
        with np.errstate(invalid="ignore"):
            gap = np.where(claimed == true, 0.0, np.abs(claimed - true))
            # Sums of float32 numbers lose digits in proportion to their size.
            slack = np.maximum(self.facts.tolerance(true), own_tolerance(np.abs(true)))
        if np.isnan(gap).all():
            return math.nan, 0
        gap = np.where(gap > slack, gap, np.where(np.isnan(gap), -1.0, 0.0))
        at = int(np.argmax(gap))
        return float(gap[at]), at
