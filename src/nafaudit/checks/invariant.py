"""Kept? No step above its allowance, no prefix above what it was granted."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nafaudit.checks.check import Facts, Worst
from nafaudit.core.finding import (
    MIN_TRAJECTORIES,
    Finding,
    Kept,
    judge_kept,
)
from nafaudit.core.trajectory import Trajectory
from nafaudit.stats import zero_count_upper
from nafaudit.store.gaps import Missing


@dataclass
class Invariant:
    """Compares every charge with its allowance and every prefix with its grant.

    Attributes:
        facts: Of the run; without its ledger only steps and logged grants are compared.
        trajectories: How many were seen.
        violations: How many of them overspent.
        unjudged: How many could not be judged: a number is missing, infinite, negative or
            contradicted by the log's own totals, or it is contested.
        larger: How many state a budget above what k and T grant.
        contested: How many of these spent more than k and T grant and no more than they state.
        lost: How many outputs a decoder failed to deliver.
        refuted: What a replay refutes of a black box, so that its spend is not known.
        gaps: What the run was asked for and does not have; None if it has all.
        counts: How two counts of the debt judge the executions of a black box, in words.
        beyond: How many cost more than k per token although nothing was promised.
        prompts: Ids of the prompts seen.
    """

    facts: Facts
    trajectories: int = 0
    violations: int = 0
    unjudged: int = 0
    larger: int = 0
    contested: int = 0
    lost: int = 0
    refuted: str = ""
    gaps: Missing | None = None
    counts: str = ""
    beyond: int = 0
    prompts: set[str] = field(default_factory=set)
    worst: Worst = field(default_factory=Worst)

    def see(self, trajectory: Trajectory) -> None:
        """Compares every step and every prefix with its limit."""
        key, facts = trajectory.key, self.facts
        self.trajectories += 1
        self.prompts.add(key.prompt)
        excess, over, usable = self._compare(trajectory, facts.ceiling(trajectory))
        stated = facts.stated(trajectory)
        self.larger += stated is not None
        contested = False
        if stated is not None and over.any():
            excess, over, _ = self._compare(trajectory, stated)
            contested = not over.any()
        if not facts.currency.promised:
            self.beyond += trajectory.spend > facts.budget(trajectory)
        elif over.any():
            self.violations += 1
            at = int(np.argmax(np.where(over, excess, -np.inf)))
            self.worst.offer(float(excess[at]), key, at)
        elif contested or not usable:
            self.unjudged += 1
            self.contested += contested

    def _compare(
        self, trajectory: Trajectory, ceiling: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_], bool]:
        """By how much limits are exceeded, which of them are, and whether all can be judged."""
        steps, key, facts = trajectory.steps, trajectory.key, self.facts
        usable = facts.limited(trajectory) and not _contradicts_itself(trajectory, facts)
        if len(trajectory):
            step = _excess(steps.charge, steps.allowance)
            prefix = _excess(np.cumsum(steps.charge), ceiling)
            logged = trajectory.logged
            if logged is not None and logged.cumulative.size == len(trajectory):
                prefix = np.fmax(prefix, _excess(logged.cumulative, ceiling))
            endless = np.isposinf(steps.allowance) & np.isfinite(key.k)
            negative = (steps.charge < 0) & (not facts.currency.signed)
            usable &= not (np.isnan(step) | negative | endless).any()
            slack = facts.tolerance(ceiling if facts.foreign else steps.allowance)
            over = (step > facts.tolerance(steps.allowance)) | (prefix > slack)
            # fmax: a NaN in the sums must not cover an excess of a step.
            excess = np.fmax(step, prefix)
        else:
            excess = _excess(np.array([trajectory.spend]), ceiling)
            usable &= not np.isnan(excess).any()
            usable &= trajectory.spend >= 0 or facts.currency.signed
            over = excess > facts.tolerance(ceiling)
        return excess, over, bool(usable)

    @property
    def verdict(self) -> Kept:
        """The first verdict."""
        # Claims can convict a black box; they cannot acquit it.
        doubtful = self.facts.claimed or self.refuted or not self.facts.currency.promised
        unjudged = self.trajectories if doubtful else self.unjudged
        # What is missing anywhere in the run may have been taken out of any arm.
        unjudged += self.lost + (self.gaps is not None)
        return judge_kept(self.trajectories, self.violations, unjudged)

    def finding(self) -> Finding:
        """VIOLATED with the worst step, WITHIN with what 0 of n says, or INCONCLUSIVE."""
        n = self.trajectories
        if self.violations:
            text = (
                f"{self.violations} of {n} trajectories exceed their budget, the worst by "
                f"{self.worst.value:.3g} nats"
            ) + (f"; {self.counts}" if self.counts else "")
            if self.contested:
                text += f"; {self._contested}"
            return Finding(
                "invariant",
                self.verdict,
                self.violations,
                text,
                self.worst.witness,
                self._numbers,
            )
        if not n:
            return Finding("invariant", self.verdict, 0, "no trajectory recorded")
        if not self.facts.currency.promised:
            text = (
                f"the mechanism promises no budget, so none can be kept; {self.beyond} of {n} "
                "trajectories cost more KL than k nats per token"
            )
            return Finding("invariant", self.verdict, self.beyond, text)
        text = (
            f"0 of {n} trajectories exceed their budget: true rate below "
            f"{zero_count_upper(n):.2%} at 95 % (of prompts: below "
            f"{zero_count_upper(len(self.prompts)):.2%})"
        )
        if self.unjudged:
            said = [self._contested] if self.contested else []
            if unknown := self.unjudged - self.contested:
                said.append(
                    f"{unknown} of {n} trajectories cannot be judged: a number is missing, "
                    "infinite, negative or contradicted by the log's own totals"
                )
            text = "; ".join(said)
        elif n < MIN_TRAJECTORIES:
            text += f"; a verdict needs {MIN_TRAJECTORIES} trajectories"
        if self.larger and not self.contested:
            text += (
                f"; {self.larger} state a budget above k T, and none of them spent more than k T"
            )
        if self.facts.claimed:
            text = (
                f"{n} trajectories, none of whose numbers is believed: they are the decoder's own "
                "claims; nafaudit verify recomputes them"
            )
        elif self.refuted:
            text = f"what {n} trajectories spent is not known, as a replay refutes {self.refuted}"
        # Where it is not known what was spent, no count of the debt says who is over.
        if self.counts and not self.facts.claimed and not self.refuted:
            text += f"; {self.counts}"
        if self.lost:
            text += f"; {self.lost} more outputs were asked for and never delivered"
        if self.gaps is not None:
            text += f"; the run is unfinished: {self.gaps.brief}"
        if self.facts.ledger is None and not self.contested:
            text += "; by its own steps and grants, as its ledger is not known here"
        return Finding("invariant", self.verdict, 0, text, None, self._numbers)

    @property
    def _contested(self) -> str:
        return (
            f"{self.contested} of {self.trajectories} trajectories cannot be judged: they spent "
            "more than k T grants, but no more than the larger budget that the log states "
            f"({self.larger} state a budget above k T). Read the log again with --ledger banking "
            "to judge them by k T, which they exceed, or with --ledger unknown to believe the "
            "log's own budgets, which they keep"
        )

    @property
    def _numbers(self) -> dict[str, float]:
        if not self.larger:
            return {}
        return {"budgets_above_kT": self.larger, "contested": self.contested}


def is_over(trajectory: Trajectory, facts: Facts) -> bool:
    """True if one execution exceeds its budget."""
    alone = Invariant(facts)
    alone.see(trajectory)
    return alone.violations > 0


def _contradicts_itself(trajectory: Trajectory, facts: Facts) -> bool:
    """True if a log's totals say that more was spent than granted, whatever its steps say."""
    logged, k = trajectory.logged, trajectory.key.k
    if logged is None or not len(trajectory) or math.isinf(k):
        return False
    # A total may be of a whole batch, which ran up to T; no output is granted more than K.
    granted = float(np.fmin(logged.budget, facts.promised(k)))
    return logged.spend > max(0.0, granted) + 1e-3 + 1e-6 * abs(granted)


def _excess(spent: NDArray[np.float64], limit: NDArray[np.float64]) -> NDArray[np.float64]:
    """Spent - limit, with no limit meaning no excess even for an infinite charge."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(np.isposinf(limit), -np.inf, spent - limit))
