"""Compares claimed with replayed numbers, quantity by quantity.

A replay runs another kernel than the decoder did, so equal numbers differ in their last digits. By
how much is measured on the pair itself (`Levels`), not assumed: below `warn` is noise, above
`fail` is not, and what lies between is said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.debt import DebtRule
from nafaudit.core.finding import CheckWord, Finding, Kept, Witness, replayed_tolerance
from nafaudit.core.ledger import is_baseline
from nafaudit.core.trajectory import WEIGHT_SLACK, Arm, Key, Replayed, Trajectory
from nafaudit.store.artifacts import DEBT_COUNTS, QUANTITIES, UNCLAIMED

Array = NDArray[np.float64]

# Of what the noise of a pair was measured to be; a quantity seen on a few thousand steps is
# exceeded several times over on a million.
WARN, FAIL = 8.0, 40.0
# Noise below this is the rounding of a record (float32) and of sums.
_LEAST_NOISE = 5e-6
# Where forwards run in fewer bits, one rounding of a logit is more than that; a few replays may
# happen to agree to the last bit, and say nothing about the next one.
_ROUNDOFF = {"bfloat16": 2.0**-8, "8bit": 2.0**-8, "4bit": 2.0**-8, "float16": 2.0**-11}
# An allowance below this, relative to what was spent before, is the rounding of that sum.
_DUST = 8 * _LEAST_NOISE
# What such a step may be off by at most, whatever its token.
_MOST_BLUR = 0.1
# A token whose perturbed score is this close to the best may have been the best.
TOKEN_SLACK = 1e-4


@dataclass
class Worst:
    """The largest value seen and where; ties go to the first key, whatever the order."""

    value: float = -math.inf
    witness: Witness | None = None

    def offer(self, value: float, key: Key, step: int) -> None:
        """Takes a value that may be the largest."""
        if value > self.value or (
            self.witness is not None and value == self.value and key < self.witness.key
        ):
            self.value, self.witness = value, Witness(key, step)


@dataclass(frozen=True)
class Level:
    """From where on a deviation is remarkable, and from where on it refutes the claim."""

    warn: float
    fail: float


Levels = Mapping[str, Level]

# bfloat16 is off by up to 6e-3 nats in a step and by 1e-4 of a sum, which is harmless; what a
# wrong rule is off by is more than this somewhere.
FOREIGN_STEP = Level(1e-3, 0.05)
FOREIGN_SUM = Level(1e-3, 0.02)
# What a decoder that says that it computes in float32 or float64 may be off by, in steps and sums.
# An honest one was off by at most 1.1e-5 (a charge; 72 answers of 100 tokens at k = 0.5, 1 and 3),
# in float64 by half of that; one in float16 by 0.06, in bfloat16 by 0.8.
DECLARED = Level(1e-4, 1e-3)
CLOSE_TYPES = ("float32", "float64")

UNDECLARED = (
    f"the decoder declares no dtype, so its claims may be off as far as bfloat16 rounds: a step by "
    f"{FOREIGN_STEP.fail:g}, a debt, allowance or sum by {FOREIGN_SUM.fail:g} (of 1 + its size); "
    f'one that declares dtype = "float32" is held to {DECLARED.fail:g}'
)
"""Note on a black box that makes claims and does not say in which type it computes them."""


def levels(
    noise: Mapping[str, float],
    *,
    foreign: bool = False,
    dtype: str = "float32",
    declared: str = "",
) -> dict[str, Level]:
    """Turns measured noise into levels; quantities that were not measured get the least.

    Args:
        noise: Largest difference seen between two replays, by quantity.
        foreign: True for claims of other people's code, which may round to bfloat16.
        dtype: Precision of the forward passes.
        declared: Type in which that code says that it computes; empty if it does not say.
    """
    found = {}
    least_noise = _ROUNDOFF.get(dtype, _LEAST_NOISE)
    for name in QUANTITIES:
        unit = max(least_noise, noise.get(name, 0.0))
        warn, fail = WARN * unit, FAIL * unit
        if foreign:
            sums = name in ("debt", "allowance", "spend")
            least = FOREIGN_SUM if sums else FOREIGN_STEP
            least = DECLARED if declared in CLOSE_TYPES else least
            warn, fail = max(warn, least.warn), max(fail, least.fail)
        found[name] = Level(warn, fail)
    served = found["served"]
    found["token"] = Level(max(TOKEN_SLACK, served.warn), max(TOKEN_SLACK, served.fail))
    found["end"] = Level(0.5, 0.5)
    return found


def deviations(
    claimed: Trajectory, second: Replayed, *, stops: frozenset[int], limit: int = 0
) -> dict[str, Array]:
    """Computes how far each claim is from the replay, step by step; NaN where nothing is claimed.

    Nats are divided by 1 plus the size of the number, as rounding grows with it.

    Args:
        claimed: The record.
        second: The replay of its tokens.
        stops: Ids that end a row.
        limit: Length limit T; 0 if not known.
    """
    steps, again = claimed.steps, second.trajectory.steps
    spent = np.cumsum(again.charge)
    size = 1 + np.where(np.isfinite(spent), np.abs(spent), 0.0)
    charge = 1 + np.where(np.isfinite(again.charge), np.abs(again.charge), 0.0)
    found = {
        "debt": _gap([claimed.debt], [second.trajectory.debt]) / (1 + second.trajectory.debt),
        "allowance": _gap(steps.allowance, again.allowance) / size,
        "charge": _gap(steps.charge, again.charge) / charge,
        "theta": _gap(second.implied, again.charge) / charge,
        "spend": _spend_gap(claimed, spent) / size,
        "token": second.shortfall,
        "end": np.array([_ends_wrongly(claimed, stops, limit)]),
    }
    if np.isnan(second.implied).all():
        found["theta"] = _gap(steps.theta, again.theta)
    # A weight that no mixture has implies no charge; it is as wrong as one can be.
    beyond = (steps.theta < -WEIGHT_SLACK) | (steps.theta > 1 + WEIGHT_SLACK)
    found["theta"] = np.where(beyond, math.inf, found["theta"])
    for name in ("served", "safe", "risky"):
        again_logp = getattr(again, name).astype(np.float64)
        scale = 1 + np.where(np.isfinite(again_logp), np.abs(again_logp), 0.0)
        found[name] = _gap(getattr(steps, name), again_logp) / scale
    blur = _blur(claimed, second, _DUST * size)
    for name in ("served", "token"):
        found[name] = np.maximum(0.0, found[name] - blur)
    return found


def _blur(claimed: Trajectory, second: Replayed, dust: Array) -> Array:
    """Bounds by how much the law of a step with hardly any allowance may differ in a token.

    Where a step earns nothing (a token of no character, say), what is left to spend is the
    rounding of the sums before it, and the weight goes with its square root: a law of KL at most
    m has |log p/p_safe| of at most about sqrt(2 m / p_safe) at a token.
    """
    steps, again = claimed.steps, second.trajectory.steps
    left = np.fmax(np.fmax(steps.allowance, again.allowance), 0.0).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        widest = 2 * np.sqrt(2 * left * np.exp(-again.safe.astype(np.float64)))
    return np.asarray(np.where(left <= dust, np.minimum(widest, _MOST_BLUR), 0.0))


def _spend_gap(claimed: Trajectory, spent: Array) -> Array:
    """Compares running sums; a total that is claimed, with or without steps, counts at the end."""
    gap, logged = _gap(np.cumsum(claimed.steps.charge), spent), claimed.logged
    if logged is not None and gap.size and logged.length == gap.size:
        gap[-1] = np.fmax(gap[-1], _gap(logged.spend, spent[-1]))
    return gap


def _gap(one: object, other: object) -> Array:
    """Computes |one - other|; equal infinities agree, NaN stays NaN."""
    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(a == b, 0.0, np.abs(a - b)))


def _ends_wrongly(claimed: Trajectory, stops: frozenset[int], limit: int) -> float:
    tokens = claimed.steps.token.tolist()
    stopped = bool(tokens) and tokens[-1] in stops
    wrong = stopped != claimed.stopped or any(token in stops for token in tokens[:-1])
    if limit:
        wrong |= len(tokens) > limit or (not stopped and len(tokens) < limit)
    return float(wrong)


@dataclass
class _Largest:
    """The largest deviation of one quantity, and the first that fails."""

    worst: Worst = field(default_factory=Worst)
    first: Witness | None = None
    compared: int = 0

    def see(self, key: Key, values: Array, fail: float) -> None:
        known = np.flatnonzero(~np.isnan(values))
        self.compared += known.size
        if not known.size:
            return
        at = int(known[np.argmax(values[known])])
        self.worst.offer(float(values[at]), key, at)
        over = np.flatnonzero(values > fail)
        if over.size and (self.first is None or key < self.first.key):
            self.first = Witness(key, int(over[0]))


@dataclass
class DebtCounts:
    """Counts of trajectories over budget by the promised count of the debt and by the other.

    A temperature or a penalty makes two counts of one debt: in the laws that are served, and in
    the models' own. A decoder that keeps the one may exceed the other without overspending.

    Attributes:
        promised: The debt that was promised.
        either: Trajectories that are over budget by both counts.
        promised_only: Those that are over by the promised count alone.
        other_only: Those that would be over by the other count alone.
        claimed: Those of `promised_only` whose decoder claims the debt of the other count.
    """

    promised: DebtRule
    either: int = 0
    promised_only: int = 0
    other_only: int = 0
    claimed: int = 0

    @property
    def text(self) -> str:
        """States both counts in words; empty if no trajectory is over by either."""
        other = self.promised.other
        parts = {
            "{} overspent under either count of the debt": self.either,
            f"{{}} within the decoder's own count of the debt, over the promised one: it counts "
            f"the debt from {other.laws}, the promise from {self.promised.laws} (--debt "
            f"{other.definition} promises its count)": self.claimed,
            f"{{}} over the promised count of the debt alone, from {self.promised.laws}: within "
            f"the budget if it is counted from {other.laws} (--debt {other.definition} promises "
            "that)": self.promised_only - self.claimed,
            "{} within the promised budget would be over it if the debt were counted from "
            f"{other.laws}": self.other_only,
        }
        return "; ".join(text.format(count) for text, count in parts.items() if count)

    def finding(self) -> Finding:
        """Returns a remark: the verdict follows the promise."""
        names = ("either", "promised_only", "other_only", "claimed")
        numbers = {name: float(getattr(self, name)) for name in names}
        return Finding(DEBT_COUNTS, CheckWord.INFO, self.promised_only, self.text, None, numbers)


@dataclass
class ClaimComparison:
    """Every record beside its replay: what was found, quantity by quantity and arm by arm.

    Attributes:
        levels: What is noise and what is not, for this pair.
        stops: Ids that end a row.
        limit: Length limit T; 0 if not known.
        own: True for records of our own engine, which leave nothing out.
        promised: False if the mechanism promises no budget.
        debt: The debt that was promised.
        counting: True if this comparison decides which trajectories are over budget; a black box is
            judged by what it really did, in another place.
        counts: By arm, how the two counts of the debt judge trajectories, where there are two.
    """

    levels: Levels
    stops: frozenset[int]
    limit: int = 0
    own: bool = True
    promised: bool = True
    debt: DebtRule = field(default_factory=DebtRule)
    counting: bool = False
    counts: dict[Arm, DebtCounts] = field(default_factory=dict)
    seen: dict[str, _Largest] = field(
        default_factory=lambda: {name: _Largest() for name in QUANTITIES}
    )
    by_arm: dict[Arm, dict[str, _Largest]] = field(default_factory=dict)
    trajectories: int = 0
    budgeted: int = 0
    overspent: int = 0
    excess: Worst = field(default_factory=Worst)

    def add(self, claimed: Trajectory, second: Replayed) -> None:
        """Compares one record with its replay."""
        self.trajectories += 1
        found = deviations(claimed, second, stops=self.stops, limit=self.limit)
        new = {name: _Largest() for name in QUANTITIES}
        here = self.by_arm.setdefault(claimed.key.arm, new)
        for name, values in found.items():
            # A record of ours that lacks a number is as wrong as one can be.
            missing = self.own and name in ("debt", "allowance", "charge", "safe", "spend")
            used = np.where(np.isnan(values), math.inf, values) if missing else values
            for seen in (self.seen[name], here[name]):
                seen.see(claimed.key, used, self.levels[name].fail)
        # True spend at the claimed weights, or at the replayed ones, against the grant.
        key, charge = claimed.key, second.trajectory.steps.charge
        self.budgeted += not is_baseline(key.k)
        if math.isinf(key.k) or not charge.size:
            return
        spent = np.cumsum(np.where(np.isnan(second.implied), charge, second.implied))
        over, excess = self._over(spent, second.granted)
        if over.any():
            self.overspent += 1
            # The largest excess of all prefixes, and the first step at which there is one.
            self.excess.offer(float(excess[over].max()), key, int(np.argmax(over)))
        if self.counting and second.granted_otherwise is not None:
            otherwise, _ = self._over(spent, second.granted_otherwise)
            self.count(claimed, second, bool(over.any()), bool(otherwise.any()))

    def count(self, claimed: Trajectory, second: Replayed, over: bool, otherwise: bool) -> None:
        """Notes by which counts of the debt one trajectory is over budget."""
        key, other = claimed.key, second.other_debt
        if other is None or is_baseline(key.k):
            return
        level = self.levels["debt"].fail
        owed = second.trajectory.debt
        fits = [abs(claimed.debt - debt) <= level * (1 + debt) for debt in (owed, other)]
        counts = self.counts.setdefault(key.arm, DebtCounts(self.debt))
        counts.either += over and otherwise
        counts.promised_only += over and not otherwise
        counts.other_only += otherwise and not over
        counts.claimed += over and not otherwise and fits == [False, True]

    def _over(self, spent: Array, granted: Array) -> tuple[NDArray[np.bool_], Array]:
        """Says which prefixes cost more than they were granted, and by how much each does."""
        limit = np.maximum(granted, 0.0)
        sums, step = self.levels["spend"].fail, self.levels["charge"].fail
        excess = spent - limit
        slack = replayed_tolerance(limit, sums, step)
        if self.own:
            # Each step may be off by its own noise, so a sum of them by more.
            slack = sums * (1 + limit) * np.sqrt(np.arange(1, spent.size + 1))
        return excess > slack, excess

    @property
    def deviation(self) -> dict[str, dict[str, float]]:
        """The largest deviation of every quantity beside its levels; NaN if not compared."""
        return {
            name: {
                "max": seen.worst.value if seen.compared else math.nan,
                "warn": self.levels[name].warn,
                "fail": self.levels[name].fail,
            }
            for name, seen in self.seen.items()
        }

    def findings(self) -> list[Finding]:
        """Returns one finding per quantity, and one on the budget as replayed."""
        found = [self._finding(name, self.seen[name]) for name in QUANTITIES]
        check, n, value = "replay: budget", self.trajectories, self.overspent
        # The safe model alone has a budget of 0, which a false record of it can exceed.
        of = max(self.budgeted, value)
        if not of:
            text = "no trajectory that has a budget was replayed"
            return [*found, Finding(check, CheckWord.UNKNOWN, math.nan, text)]
        text = f"{value} of {of} replayed trajectories spend more than they were granted"
        if not self.promised:
            text = "no budget is promised, so none can be kept"
            return [*found, Finding(check, CheckWord.UNKNOWN, math.nan, text)]
        silent = not (self.seen["theta"].compared or self.seen["charge"].compared)
        if not self.own and not self.counting and silent and not value:
            # Weights of the replay keep the budget by construction.
            text = "nothing is claimed of what was spent; the tests of the tokens judge"
            return [*found, Finding(check, CheckWord.UNKNOWN, math.nan, text)]
        if not value:
            verdict = Kept.WITHIN if n else Kept.INCONCLUSIVE
            return [*found, Finding(check, verdict, 0, text)]
        text += f" by more than a replay's noise, the worst by {self.excess.value:.3g} nats"
        return [*found, Finding(check, Kept.VIOLATED, value, text, self.excess.witness)]

    def failures(self, arm: Arm) -> list[Finding]:
        """Returns what is refuted in one arm, each with its own first step there."""
        found = [self._finding(name, seen) for name, seen in self.by_arm[arm].items()]
        return [finding for finding in found if finding.verdict == CheckWord.FAILED]

    def _finding(self, name: str, seen: _Largest) -> Finding:
        level = self.levels[name]
        check, what = f"replay: {name}", QUANTITIES[name]
        if not seen.compared:
            return Finding(check, CheckWord.UNKNOWN, math.nan, what + UNCLAIMED)
        worst = seen.worst.value
        numbers = {"max": worst, "warn": level.warn, "fail": level.fail}
        size = "" if name in ("token", "end") else " of 1 + its size"
        text = f"{what}: off by at most {worst:.2g}{size} "
        text += f"(warn {level.warn:.1g}, fail {level.fail:.1g})"
        if name == "end" and worst > level.fail:
            text = "an output ends early without a stop token, goes on after one, or is too long"
        if worst > level.fail:
            return Finding(check, CheckWord.FAILED, worst, text, seen.first, numbers)
        verdict = CheckWord.SUSPECT if worst > level.warn else CheckWord.FINE
        witness = seen.worst.witness if verdict == CheckWord.SUSPECT else None
        return Finding(check, verdict, worst, text, witness, numbers)
