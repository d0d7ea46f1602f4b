"""From records to verdicts, arm by arm, in one pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nafaudit.checks.accounting import Accounting
from nafaudit.checks.burst import Burst
from nafaudit.checks.check import Check, Facts, RunCheck
from nafaudit.checks.classes import Classes, ClassTable
from nafaudit.checks.copying import Copying, Scores
from nafaudit.checks.duplicates import Duplicates
from nafaudit.checks.faults import Faults
from nafaudit.checks.hygiene import Hygiene
from nafaudit.checks.identity import Identity
from nafaudit.checks.invariant import Invariant
from nafaudit.checks.martingale import Martingale
from nafaudit.checks.opening import Opening
from nafaudit.checks.refuted import Refuted, debt_counts, refuted
from nafaudit.checks.regime import Regime
from nafaudit.checks.tails import Tails
from nafaudit.checks.utilisation import Utilisation
from nafaudit.checks.worth import WorthCheck
from nafaudit.core.errors import StoreError
from nafaudit.core.finding import Finding, Kept, Overall, Tested, Worth
from nafaudit.core.ledger import budget_word, is_baseline, ledger_of, recorded_currency
from nafaudit.core.trajectory import Arm, Key, Trajectory
from nafaudit.store.artifacts import PASSAGES, read_passages_file, read_truth, read_verification
from nafaudit.store.gaps import Missing, plan_of
from nafaudit.store.run import Run

# A new check is one line here, whatever it answers; no verdict rests on these.
CHECKS: tuple[Callable[[Facts], Check], ...] = (
    Accounting,
    Opening,
    Tails,
    Martingale,
    lambda _: Burst(),
    lambda _: Duplicates(),
    Hygiene,
)
# The same for checks that compare arms.
RUN_CHECKS: tuple[Callable[[Facts], RunCheck], ...] = (Identity, Classes, Faults, Refuted)


@dataclass(frozen=True)
class ArmResult:
    """Every check of one mechanism at one budget.

    Attributes:
        mechanism: What is audited.
        k: The budget.
        invariant: Decides the first verdict.
        regime: Decides the second verdict.
        worth_check: Decides the third verdict.
        utilisation: How much of the budget was spent.
        copying: How much of the references came back.
        others: Checks that decide no verdict.
        shared: Checks that saw every arm of the run.
    """

    mechanism: str
    k: float
    invariant: Invariant
    regime: Regime
    worth_check: WorthCheck
    utilisation: Utilisation
    copying: Copying
    others: tuple[Check, ...] = ()
    shared: tuple[RunCheck, ...] = ()

    @property
    def checks(self) -> tuple[Check, ...]:
        """All checks of this arm alone, in the order of their findings."""
        deciding = (self.invariant, self.regime, self.worth_check)
        return (*deciding, self.utilisation, self.copying, *self.others)

    @property
    def findings(self) -> list[Finding]:
        """What every check says of this arm."""
        arm = Arm(self.mechanism, self.k)
        compared = [finding for check in self.shared for finding in check.findings(arm)]
        return [*(check.finding() for check in self.checks), *compared]

    @property
    def kept(self) -> Kept:
        """The first verdict."""
        return self.invariant.verdict

    @property
    def tested(self) -> Tested:
        """The second verdict."""
        return self.regime.verdict

    @property
    def worth(self) -> Worth:
        """The third verdict; unknown without passages."""
        return self.worth_check.verdict

    @property
    def is_baseline(self) -> bool:
        """True for the safe model alone and the risky model alone."""
        return is_baseline(self.k)


def judge(
    trajectories: Iterable[Trajectory],
    facts: Facts,
    watch: Callable[[Trajectory, ArmResult], None] | None = None,
) -> list[ArmResult]:
    """Runs every check over a run's trajectories; arms from the smallest budget up.

    Args:
        trajectories: In any order; the findings do not depend on it.
        facts: What checks need to know of the run.
        watch: Called after the checks of its arm have seen a trajectory.

    Raises:
        StoreError: A trajectory was recorded twice.
    """
    arms: dict[Arm, ArmResult] = {}
    shared = tuple(build(facts) for build in RUN_CHECKS)
    seen: set[Key] = set()
    for trajectory in trajectories:
        key = trajectory.key
        if key in seen:
            raise StoreError(
                f"trajectory {tuple(key)} is recorded twice, which no run of ours does; the "
                "directory was edited or merged. Restore it, or start again with another --out."
            )
        seen.add(key)
        if key.arm not in arms:
            arms[key.arm] = _new_arm(key.arm, facts.of_budget(key.k), shared)
        # Infinite and absurd numbers in a log are findings, not warnings.
        with np.errstate(over="ignore", invalid="ignore"):
            for check in arms[key.arm].checks:
                check.see(trajectory)
            for run_check in shared:
                run_check.see(trajectory)
        if watch is not None:
            watch(trajectory, arms[key.arm])
    # What a decoder failed to deliver is missing from the record, but not from the verdict.
    missing = {f.key for f in facts.faults if f.lost and f.key is not None} - seen
    for key in missing:
        if key.arm not in arms:
            arms[key.arm] = _new_arm(key.arm, facts.of_budget(key.k), shared)
        arms[key.arm].invariant.lost += 1
    gaps = None if facts.plan is None else facts.plan.missing(seen, missing)
    for arm, result in arms.items():
        result.invariant.gaps = gaps
        result.invariant.counts = debt_counts(facts.verified, arm)
        result.invariant.refuted = ", ".join(f.check for f in refuted(facts.verified, arm))
    return [arms[arm] for arm in sorted(arms)]


def overall_of(arms: Sequence[ArmResult]) -> Overall:
    """The answer of an audit: 0 within, 1 violated or refuted, 3 inconclusive.

    Baselines promise no budget. A black box that is refuted at k = 0 or inf did not serve the model
    that it was asked for.
    """

    def budgets(word: Kept) -> str:
        found = [arm.k for arm in arms if not arm.is_baseline and arm.kept == word]
        return ", ".join(dict.fromkeys(f"k = {budget_word(k)}" for k in found))

    if broken := budgets(Kept.VIOLATED):
        return Overall(Kept.VIOLATED, f"the promise was broken at {broken}", 1)
    if refuted := [arm.invariant.refuted for arm in arms if arm.invariant.refuted]:
        return Overall("REFUTED", f"a replay refutes {', '.join(dict.fromkeys(refuted))}", 1)
    if unsure := budgets(Kept.INCONCLUSIVE):
        why = f"the records do not decide whether the promise was kept at {unsure}"
        return Overall(Kept.INCONCLUSIVE, why, 3)
    if within := budgets(Kept.WITHIN):
        return Overall(Kept.WITHIN, f"no execution went over budget at {within}", 0)
    return Overall(Kept.INCONCLUSIVE, "no budget was run, so there is none to judge", 3)


def judge_run(run: Run) -> list[ArmResult]:
    """Runs every check over a run directory; a black box is judged by its replay."""
    return judge(records_of(run), facts_of(run))


def gaps_of(run: Run, arms: Sequence[ArmResult]) -> Missing | None:
    """What a run lacks that was judged: no second reading of its records."""
    if arms:
        return arms[0].invariant.gaps
    plan = plan_of(run)
    return None if plan is None else plan.missing(())


def truth_of(run: Run) -> dict[Key, Trajectory]:
    """What a replay found a black box to have done; nothing for other runs."""
    return read_truth(run) if "promise" in run.design["identity"] else {}


def records_of(run: Run) -> Iterator[Trajectory]:
    """The trajectories that verdicts rest on: as recorded, or, of a black box, as replayed."""
    truth = truth_of(run)
    for trajectory in run.trajectories():
        yield truth.get(trajectory.key, trajectory)


def class_table(run: Run) -> ClassTable:
    """The class tables of a run directory, as the paper's."""
    return classes_of(judge_run(run))


def classes_of(arms: Sequence[ArmResult]) -> ClassTable:
    """The class tables of a run that was judged: no second reading of its records."""
    seen = [check for arm in arms for check in arm.shared if isinstance(check, Classes)]
    if not seen:
        return ClassTable((), 0, math.nan)
    table = seen[0].table
    copying = {Arm(arm.mechanism, arm.k): arm.copying.classes for arm in arms}
    rows = (
        replace(row, copying=copying[Arm(row.mechanism, row.k)].get(row.label, Scores()))
        for row in table.rows
    )
    return replace(table, rows=tuple(rows))


def facts_of(run: Run) -> Facts:
    """What a run's own files say of it."""
    identity = run.design["identity"]
    boxed = "promise" in identity
    prompts, pieces = [tokenized.prompt for tokenized in run.prompts()], run.pieces
    return Facts(
        ledger=ledger_of(identity["ledger"], pieces),
        # A black box's numbers are claims, like those of a log.
        foreign=identity["protocol"] == "imported" or boxed,
        max_new_tokens=identity["decoding"]["max_new_tokens"],
        stops=run.stops,
        passages=read_passages_file(run.path / PASSAGES),
        references={prompt.id: prompt.reference for prompt in prompts},
        pieces=pieces,
        labels={prompt.id: prompt.label for prompt in prompts},
        vocabulary=run.vocabulary_size,
        faults=run.faults(),
        claimed=boxed and read_truth(run).keys() != run.keys(),
        verified=_verified(run) if boxed else None,
        level=run.delta,
        currency=recorded_currency(identity),
        plan=plan_of(run),
    )


def _verified(run: Run) -> dict[str, Any] | None:
    result = read_verification(run)
    return result if result is not None and result["current"] else None


def _new_arm(arm: Arm, facts: Facts, shared: tuple[RunCheck, ...]) -> ArmResult:
    return ArmResult(
        *arm,
        Invariant(facts),
        Regime(facts.edge, own=not facts.foreign),
        WorthCheck(facts, arm.k),
        Utilisation(facts),
        Copying(facts),
        tuple(build(facts) for build in CHECKS),
        shared,
    )
