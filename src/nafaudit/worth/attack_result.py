"""What an attack says: recall under every budget, where it begins, and what an odometer leaves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from nafaudit.stats import mean
from nafaudit.core.finding import Finding, Kept, judge_kept
from nafaudit.core.ledger import SAFE_ONLY, is_baseline
from nafaudit.stats.certificate import critical_k
from nafaudit.stats.rates import Crossing, crossing
from nafaudit.worth.attack import Attacked
from nafaudit.worth.attack_run import Log, Method, Reconstruction, replayed


@dataclass(frozen=True)
class Row:
    """One way to attack under one budget.

    Attributes:
        method: Which way.
        k: The budget; 0 and infinity are the baselines.
        got: What was reconstructed of each passage.
        trajectories: Answers that were judged.
        violations: Those above their budget.
        kept: The first verdict on this budget.
        tested: The second.
        worth: The finding behind the third: K of one query against what it asks for.
    """

    method: Method
    k: float
    got: tuple[Reconstruction, ...]
    trajectories: int
    violations: int
    kept: str
    tested: str
    worth: Finding

    @property
    def recall(self) -> float:
        """Mean near-verbatim recall over passages."""
        return mean([one.recall for one in self.got])

    @property
    def span(self) -> float:
        """Longest common run of words, of all passages."""
        return max(one.span for one in self.got)

    @property
    def spend(self) -> float:
        """Mean cost of attacking one passage, all retries included."""
        return mean([one.spend for one in self.got])


@dataclass(frozen=True)
class Onset:
    """Where recall begins, as k grows, in one way to attack."""

    method: Method
    found: Crossing


@dataclass(frozen=True)
class Odometer:
    """One way and one budget k under total budgets of a user.

    Attributes:
        method: Which way.
        k: Budget of each query.
        users: What each user got, by total budget.
        found: The total budget at which mean recall reaches the target.
    """

    method: Method
    k: float
    users: dict[float, tuple[Reconstruction, ...]]
    found: Crossing


@dataclass(frozen=True)
class Answered:
    """Everything that an attack says."""

    attacked: Attacked

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Every way under every budget."""
        return tuple(self._row(log, k) for log in self.attacked.logs for k in log.asked)

    @property
    def violations(self) -> int:
        """Answers above their budget, of all ways and budgets."""
        return sum(row.violations for row in self.rows)

    @property
    def outcome(self) -> Kept:
        """VIOLATED if an answer is above its budget; INCONCLUSIVE if the attack says nothing."""
        fewest = min(row.trajectories for row in self.rows)
        if not self.violations and not self.attacked.admitted:
            return Kept.INCONCLUSIVE
        return judge_kept(fewest, self.violations)

    @cached_property
    def onsets(self) -> tuple[Onset, ...]:
        """Where recall reaches the target as k grows; from the safe model alone on."""
        return tuple(self._onset(log) for log in self._judged)

    @cached_property
    def odometers(self) -> tuple[Odometer, ...]:
        """Every way and budget, replayed under total budgets."""
        return tuple(
            self._odometer(log, k) for log in self._judged for k in log.asked if not is_baseline(k)
        )

    @property
    def critical_k(self) -> float:
        """The budget from which on K = kT of a single answer is vacuous, by the third verdict.

        That takes half of the passages: S/T of the passage in the middle, the lower one of two.
        """
        first = self.attacked.logs[0]
        surprisals = sorted(first.arms[0].worth_check.surprisals)
        return critical_k(surprisals[(len(surprisals) + 1) // 2 - 1], first.method.length)

    def row(self, method: Method, k: float) -> Row | None:
        """One way under one budget; a baseline of a way without debt is that with it."""
        same = [row for row in self.rows if row.k == k and row.method == method]
        if not same and is_baseline(k):
            shape = (method.mode, method.length)
            same = [r for r in self.rows if r.k == k and (r.method.mode, r.method.length) == shape]
        return same[0] if same else None

    @property
    def _judged(self) -> Sequence[Log]:
        return self.attacked.logs if self.attacked.admitted else ()

    def _row(self, log: Log, k: float) -> Row:
        arm = log.arm(k)
        return Row(
            log.method,
            k,
            tuple(self._users(log, k)),
            arm.invariant.trajectories,
            arm.invariant.violations,
            str(arm.invariant.verdict),
            str(arm.regime.verdict),
            arm.worth_check.finding(),
        )

    def _users(self, log: Log, k: float, budget: float = float("inf")) -> Iterator[Reconstruction]:
        for text in self.attacked.texts:
            yield replayed(self.attacked.attacker, text, log.asked[k][text.id], budget)

    def _onset(self, log: Log) -> Onset:
        grid = [SAFE_ONLY, *(k for k in log.asked if not is_baseline(k))]
        rows = [self.row(log.method, k) for k in grid]
        curves = [[one.recall for one in row.got] for row in rows if row is not None]
        values = list(zip(*curves, strict=True))
        return Onset(log.method, crossing(grid, values, self.attacked.settings.target))

    def _odometer(self, log: Log, k: float) -> Odometer:
        budgets = (0.0, *self.attacked.settings.user_budgets)
        users = {budget: tuple(self._users(log, k, budget)) for budget in budgets}
        values = list(zip(*([u.recall for u in users[b]] for b in budgets), strict=True))
        found = crossing(budgets, values, self.attacked.settings.target)
        return Odometer(log.method, k, users, found)
