"""The result of an attack: recall under every budget, where it begins, and odometers.

An odometer withholds answers once a user's total budget is spent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nafaudit import __version__
from nafaudit.core.finding import MIN_TRAJECTORIES, Kept, Overall, judge_kept
from nafaudit.core.ledger import SAFE_ONLY, budget_name, is_baseline
from nafaudit.stats import mean
from nafaudit.stats.certificate import critical_k
from nafaudit.stats.rates import Crossing, crossing
from nafaudit.worth.attack import AttackRecords
from nafaudit.worth.attack_run import Method, QueryLog, Reconstruction, replayed
from nafaudit.worth.settings import ADMISSION


@dataclass(frozen=True)
class BudgetRecall:
    """One way to attack under one budget.

    Attributes:
        method: Which way.
        k: The budget; 0 and infinity are the baselines.
        recall: Mean near-verbatim recall over passages.
        passages_recalled: Passages of which anything came back.
        span_words: Longest common run of words, of all passages.
        queries: Mean number of answers to one user.
        spend: Mean cost of attacking one passage, all retries included.
        trajectories: Answers that were judged.
        violations: Those above their budget.
        kept: The first verdict on this budget.
        tested: The second.
        worth: The third: K of one query against what it asks for.
        certificate: The numbers behind the third.
        got: What was reconstructed of each passage.
    """

    method: Method = field(metadata={"json": ...})
    k: float
    recall: float
    passages_recalled: int
    span_words: float
    queries: float
    spend: float
    trajectories: int
    violations: int
    kept: str
    tested: str
    worth: str
    certificate: Mapping[str, float]
    got: tuple[Reconstruction, ...] = field(metadata={"json": None})


@dataclass(frozen=True)
class Onset:
    """The budget at which recall begins in one way to attack."""

    method: Method = field(metadata={"json": ...})
    found: Crossing = field(metadata={"json": ...})


@dataclass(frozen=True)
class UserBudget:
    """Mean results of users under a total budget for all their answers.

    Attributes:
        budget: In nats.
        recall: Near-verbatim recall.
        cut: Share of users from whom an answer was withheld.
        queries: Answers that were served.
        spend: What they cost.
    """

    budget: float
    recall: float
    cut: float
    queries: float
    spend: float


@dataclass(frozen=True)
class Odometer:
    """One way and one budget k under total budgets of a user.

    Attributes:
        method: Which way.
        k: Budget of each query.
        user_budgets: Results by total budget, from 0 up.
        crossing: The total budget at which mean recall reaches the target.
    """

    method: Method = field(metadata={"json": ...})
    k: float
    user_budgets: tuple[UserBudget, ...]
    crossing: Crossing


@dataclass(frozen=True)
class AdmissionRecall:
    """Recall of the risky model's single answers, and what an attack needs."""

    recall: float
    needed: float


@dataclass(frozen=True)
class AttackResult:
    """Result of an attack.

    Attributes:
        attack: Its directory.
        design: Hash of the identity of its first run.
        nafaudit: Version that made it.
        outcome: VIOLATED if an answer is above its budget; INCONCLUSIVE if there is too little.
        admitted: False if the risky model alone recalls too little for an attack to say anything.
        admission: The numbers behind that.
        mechanism: What was attacked.
        passages: Number of passages that were attacked.
        passages_given: Number of passages that were given.
        given: Opening tokens that the attacker knows.
        attempts: Number of times that each query was asked.
        target: Recall whose budget is looked for.
        violations: Answers above their budget, of all ways and budgets.
        rows: Every way under every budget.
        onsets: Where recall reaches the target as k grows, from the safe model alone on.
        odometers: Every way and budget, replayed under total budgets.
        runs: The run directory of each way.
        mixed: A note that records were computed by different arithmetics; empty if they were not.
        wanted: Fewest and most tokens that are asked for of a passage.
        critical_k: Smallest k at which the third verdict on a single answer is VACUOUS: the lower
            median of S/T over passages.
        log: The query log: one object per answer, in the order of each user, without text.
    """

    attack: Path
    design: str
    nafaudit: str
    outcome: Kept
    admitted: bool
    admission: AdmissionRecall
    mechanism: str
    passages: int
    passages_given: int
    given: int
    attempts: int
    target: float
    violations: int
    rows: tuple[BudgetRecall, ...]
    onsets: tuple[Onset, ...]
    odometers: tuple[Odometer, ...]
    runs: tuple[Path, ...]
    mixed: str = field(metadata={"optional": True})
    wanted: tuple[int, int] = field(metadata={"json": None})
    critical_k: float = field(metadata={"json": None})
    log: tuple[dict[str, Any], ...] = field(metadata={"json": None}, repr=False)

    @property
    def methods(self) -> list[Method]:
        """Returns every way to attack, in the order of the runs."""
        return list(dict.fromkeys(row.method for row in self.rows))

    @property
    def overall(self) -> Overall:
        """Returns the outcome, and what decided it."""
        status = self.outcome.exit_status
        if not self.admitted and not self.violations:
            why = "the risky model alone recalls too little of these passages for an attack"
            return Overall(self.outcome, why, status)
        # A model alone has no budget to go over.
        judged = sum(row.trajectories for row in self.rows if 0 < row.k < math.inf)
        why = f"{self.violations or 'none'} of {judged} answers went over budget"
        if self.outcome == Kept.INCONCLUSIVE:
            fewest = min(self.rows, key=lambda row: row.trajectories)
            why += (
                f", but a verdict needs {MIN_TRAJECTORIES} of every method and budget, and "
                f"{fewest.method.name} at {budget_name(fewest.k)} has {fewest.trajectories}; raise "
                "--limit or --attempts"
            )
        return Overall(self.outcome, why, status)

    def row(self, method: Method, k: float) -> BudgetRecall | None:
        """Returns one way under one budget; a baseline is shared by ways with and without debt."""
        return _find(self.rows, method, k)


def attack_result(attacked: AttackRecords) -> AttackResult:
    """Computes the result of a finished attack from its records."""
    settings, logs = attacked.settings, attacked.logs
    lengths = [len(text.tokens) for text in attacked.texts]
    rows = tuple(_row(attacked, log, k) for log in logs for k in log.asked)
    violations = sum(row.violations for row in rows)
    outcome = judge_kept(min(row.trajectories for row in rows), violations)
    if not violations and not attacked.admitted:
        outcome = Kept.INCONCLUSIVE
    surprisals = logs[0].arms[0].passages.surprisals
    middle = surprisals[(len(surprisals) + 1) // 2 - 1]
    judged = logs if attacked.admitted else ()
    return AttackResult(
        attack=attacked.path,
        design=attacked.design,
        nafaudit=__version__,
        outcome=outcome,
        admitted=attacked.admitted,
        admission=AdmissionRecall(attacked.admission, ADMISSION),
        mechanism=settings.mechanism,
        passages=len(attacked.texts),
        passages_given=attacked.given,
        given=settings.given,
        attempts=settings.trajectories,
        target=settings.target,
        violations=violations,
        rows=rows,
        onsets=tuple(_onset(log, rows, settings.target) for log in judged),
        odometers=tuple(
            _odometer(attacked, log, k) for log in judged for k in log.asked if not is_baseline(k)
        ),
        runs=tuple(log.path for log in logs),
        mixed=attacked.mixed,
        wanted=(min(lengths), max(lengths)),
        critical_k=critical_k(middle, logs[0].method.length),
        log=tuple(_queries(logs)),
    )


def _row(attacked: AttackRecords, log: QueryLog, k: float) -> BudgetRecall:
    arm, got = log.arm(k), _users(attacked, log, k)
    worth = arm.finding("worth")
    return BudgetRecall(
        method=log.method,
        k=k,
        recall=mean([one.recall for one in got]),
        passages_recalled=sum(one.recall > 0 for one in got),
        span_words=max(one.span for one in got),
        queries=mean([one.queries for one in got]),
        spend=mean([one.spend for one in got]),
        trajectories=arm.trajectories,
        violations=arm.violations or 0,
        kept=str(arm.kept),
        tested=str(arm.tested),
        worth=str(worth.verdict),
        certificate=worth.numbers,
        got=got,
    )


def _users(
    attacked: AttackRecords, log: QueryLog, k: float, budget: float = float("inf")
) -> tuple[Reconstruction, ...]:
    return tuple(
        replayed(attacked.attacker, text, log.asked[k][text.id], budget) for text in attacked.texts
    )


def _find(rows: Sequence[BudgetRecall], method: Method, k: float) -> BudgetRecall | None:
    same = [row for row in rows if row.k == k and row.method == method]
    if not same and is_baseline(k):
        shape = (method.mode, method.length)
        same = [r for r in rows if r.k == k and (r.method.mode, r.method.length) == shape]
    return same[0] if same else None


def _onset(log: QueryLog, rows: Sequence[BudgetRecall], target: float) -> Onset:
    grid = [SAFE_ONLY, *(k for k in log.asked if not is_baseline(k))]
    found = [_find(rows, log.method, k) for k in grid]
    curves = [[one.recall for one in row.got] for row in found if row is not None]
    return Onset(log.method, crossing(grid, list(zip(*curves, strict=True)), target))


def _odometer(attacked: AttackRecords, log: QueryLog, k: float) -> Odometer:
    budgets = (0.0, *attacked.settings.user_budgets)
    users = {budget: _users(attacked, log, k, budget) for budget in budgets}
    values = list(zip(*([u.recall for u in users[b]] for b in budgets), strict=True))
    return Odometer(
        log.method,
        k,
        tuple(
            UserBudget(
                budget,
                mean([user.recall for user in got]),
                mean([float(user.cut) for user in got]),
                mean([user.queries for user in got]),
                mean([user.spend for user in got]),
            )
            for budget, got in users.items()
        ),
        crossing(budgets, values, attacked.settings.target),
    )


def _queries(logs: tuple[QueryLog, ...]) -> Iterator[dict[str, Any]]:
    for log in logs:
        for k, users in log.asked.items():
            for passage, asked in users.items():
                for one in asked:
                    for answer in one.answers:
                        pairs = enumerate(zip(answer.tokens, one.query.wanted, strict=False))
                        whole = min(len(answer.tokens), len(one.query.wanted))
                        yield {
                            "mode": log.path.name,
                            "k": k,
                            "prompt_id": passage,
                            "window": one.query.window,
                            "attempt": answer.place.attempt,
                            "query": one.query.item.prompt.id,
                            "L": log.method.length,
                            "delta_init": answer.debt,
                            "K": k * log.method.length,
                            "B": answer.budget,
                            "Z": answer.spend,
                            "R": answer.ratio,
                            "n_tokens": answer.length,
                            "forced": answer.forced,
                            "free": answer.free,
                            # Opening tokens that are the true ones.
                            "matched": next((i for i, (a, b) in pairs if a != b), whole),
                        }
