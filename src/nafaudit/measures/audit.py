"""All that a report shows of a run, from its rows: verdicts, findings, classes, prompts, limits.

A page, its Markdown and its JSON follow from this structure alone, so that they cannot disagree.
Thresholds (`--fail-on`) are asked of a command, not of a run: a page has the answer without them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any, ClassVar

from nafaudit.core.errors import InputError
from nafaudit.core.finding import CheckWord, Finding, Kept, Overall, Thresholds
from nafaudit.core.ledger import budget_name, is_baseline
from nafaudit.core.text import plain
from nafaudit.core.trajectory import Arm
from nafaudit.measures.checks import STAGE2_LEVEL
from nafaudit.measures.classes import ClassTable, class_table
from nafaudit.measures.context import RunContext
from nafaudit.measures.measure import Measure
from nafaudit.measures.table import Measures
from nafaudit.measures.verdicts import ArmVerdict, judge, overall_of
from nafaudit.stats import (
    Assumption,
    Bonferroni,
    Bound,
    Moments,
    Sample,
    bound,
    clopper_pearson,
    ebb,
    enough,
    mean,
)
from nafaudit.store.artifacts import (
    READINGS,
    import_report,
    read_search,
    read_verification,
    search_file,
)
from nafaudit.store.missing import Missing
from nafaudit.store.run import Run
from nafaudit.workload import Prompt

RATE_LEVEL = 0.05
"""How often each limit of a rate may miss, by itself, as in the verdicts' own sentences."""

MEANS = ("betting-prompts", "cluster-t")
"""Bounds of a mean spend."""


@dataclass(frozen=True)
class AuditResult:
    """A run, judged.

    Attributes:
        run: Where the records are.
        rows: Every trajectory in numbers, in the order of their keys.
        classes: What each class of prompts spends under each budget.
        arms: The verdicts and findings of every arm, from the smallest budget up.
        thresholds: What is asked of the answer beyond the budgets.
    """

    run: Run
    rows: Measures
    classes: ClassTable
    arms: tuple[ArmVerdict, ...]
    thresholds: Thresholds = Thresholds()

    @classmethod
    def of(cls, run: Run) -> AuditResult:
        """Measures and judges a run; every part is read once.

        A black box is judged by its replay, as its own numbers are claims.
        """
        rows = Measures.of_run(run)
        table = class_table(rows)
        return cls(run, rows, table, judge(rows, table))

    @classmethod
    def for_report(cls, run: Run) -> AuditResult:
        """Judges a run and reads what a report shows beside its records.

        Raises:
            StoreError: RUN/verify.json or RUN/search.json is damaged; nothing is written yet.
        """
        result = cls.of(run)
        # Read now, so that damage is said before anything is written.
        _ = result.verification, result.search
        return result

    @property
    def context(self) -> RunContext:
        """What is known of the run beyond its trajectories."""
        return self.rows.context

    @property
    def missing(self) -> Missing | None:
        """What the run was asked for and does not have; None if it has all."""
        return self.rows.missing

    @cached_property
    def overall(self) -> Overall:
        """The one answer: verdict, reason and exit status; of a search, what the search found.

        Records that say worse than the search are believed. Thresholds come last.
        """
        found = overall_of(self.arms)
        if self.search is not None:
            searched = search_file(self.search).overall
            order = (Kept.VIOLATED, Kept.REFUTED, Kept.INCONCLUSIVE, Kept.WITHIN)
            found = min(searched, found, key=lambda one: order.index(Kept(one.verdict)))
        arms = [arm for arm in self.arms if not arm.baseline]
        words: dict[str, str] = {}
        for arm in arms:
            for one in arm.findings:
                said = f"{one.check} is {one.verdict} at {budget_name(arm.k)}: {one.text}"
                words.setdefault(one.verdict, said)
        for one in self.log_findings:
            words.setdefault(one.verdict, f"{one.check} is {one.verdict}: {one.text}")
        counts = {budget_name(arm.k): arm.trajectories for arm in arms}
        return self.thresholds.decide(found, words, counts)

    @cached_property
    def log_findings(self) -> list[Finding]:
        """What an import dropped, read in another way or noticed: about the whole log."""
        report = import_report(self.run)
        return [
            Finding(
                f"import: {note['kind']}",
                CheckWord.INFO if note["kind"] in READINGS else CheckWord.SUSPECT,
                note["count"],
                # Without the directory: the same log says the same wherever it lies.
                f"{note['text']} (first: {PurePath(note['first']).name})",
            )
            for note in (report["notes"] if report else [])
        ]

    @cached_property
    def prompts(self) -> dict[str, Prompt]:
        """The workload by id."""
        return {item.prompt.id: item.prompt for item in self.run.prompts()}

    @cached_property
    def verification(self) -> dict[str, Any] | None:
        """What a replay from the models found; None if there was none."""
        return read_verification(self.run)

    @cached_property
    def search(self) -> dict[str, Any] | None:
        """What a search found, as RUN/search.json has it; None if there was none."""
        return read_search(self.run)

    @cached_property
    def by_prompt(self) -> list[PromptRow]:
        """One row per arm and prompt, the worst first."""
        return prompt_rows(self)

    @cached_property
    def bounds(self) -> list[BoundRow]:
        """Limits on rates and means, arm by arm."""
        return bound_rows(self)

    def of_arm(self, arm: ArmVerdict) -> Measures:
        """Returns the rows of one arm."""
        return self.rows.of_arm(arm.arm)


def result_json(result: AuditResult, name: str) -> dict[str, Any]:
    """Returns every verdict and finding of a run; strict JSON, NaN and infinity as strings."""
    table = result.classes
    largest = {id(table.spends_most(arm.arm)) for arm in result.arms}
    return {
        **plain(result.overall),
        "run": name,
        "design": result.run.design["hash"],
        "asked": result.run.asked,
        "missing": plain(result.missing),
        "verdicts": plain(result.arms),
        "classes": [plain(row) | {"worst": id(row) in largest} for row in table.rows],
        "findings": [finding.to_json(arm.arm) for arm in result.arms for finding in arm.findings]
        + [finding.to_json(None) for finding in result.log_findings],
    }


@dataclass(frozen=True)
class PromptRow:
    """All trajectories of one prompt in one arm.

    Attributes:
        prompt: Its id.
        label: Its class.
        arm: Which mechanism and budget.
        count: Trajectories.
        violations: How many exceeded their budget.
        debt: Prefix debt, in nats.
        spend: Mean of the spends that are known, in nats.
        proxy: The paper's U_EBB of it with the range seen, at its level for a prompt: no bound.
        width: U_EBB less the mean; NaN with one trajectory, which has no variance.
        utilisation: Mean share of the budget that was spent; NaN without a budget.
        worst_utilisation: The largest.
        ratio: The largest log-likelihood ratio L.
        recall: The largest near-verbatim recall; NaN if unscored.
        active: Share of steps that served a mixture.
        shown: The trajectory to look at.
    """

    prompt: str
    label: str
    arm: Arm
    count: int
    violations: int
    debt: float
    spend: float
    proxy: float
    width: float
    utilisation: float
    worst_utilisation: float
    ratio: float
    recall: float
    active: float
    shown: Measure


def prompt_proxy(group: Sequence[Measure], context: RunContext) -> Bound | None:
    """Returns the paper's U_EBB of one prompt under one budget, with R_eff.

    None with fewer than two trajectories, or where a spend is not known.
    """
    spends = [one.spend for one in group]
    if len(spends) < 2 or not all(map(math.isfinite, spends)):
        return None
    moments, promised = Moments.of(spends), context.promised(group[0].key.k)
    # Without K nothing cuts the range; the range seen is the paper's R_eff then.
    high = min(promised if promised > 0 else math.inf, max(moments.spread, moments.top, 1.0))
    return ebb(moments, high, STAGE2_LEVEL, effective=True)


def prompt_rows(result: AuditResult) -> list[PromptRow]:
    """Returns one row per arm and prompt; violations first, then by use, recall and spend."""
    rows = []
    for arm, every in result.rows.arms.items():
        for prompt, group in every.by("prompt").items():
            known = result.prompts.get(prompt)
            steps = sum(one.forced + one.active + one.free for one in group)
            uses = known_values(group.column("utilisation"))
            proxy = None if is_baseline(arm.k) else prompt_proxy(group, result.context)
            rows.append(
                PromptRow(
                    prompt=prompt,
                    label=known.label if known else "",
                    arm=arm,
                    count=len(group),
                    violations=sum(one.violated for one in group),
                    debt=mean(known_values(group.column("debt"))),
                    spend=mean(known_values(group.column("spend"))),
                    proxy=proxy.value if proxy else math.nan,
                    width=proxy.width if proxy else math.nan,
                    utilisation=mean(uses),
                    worst_utilisation=max(uses, default=math.nan),
                    ratio=largest(group.column("log_ratio")),
                    recall=largest(group.column("recall")),
                    active=sum(one.active for one in group) / steps if steps else math.nan,
                    # Ties go to the first key.
                    shown=max(group, key=lambda one: one.sort_key),
                )
            )

    def order(row: PromptRow) -> tuple[Any, ...]:
        return *(-float(value) for value in row.shown.sort_key), row.arm, row.prompt

    return sorted(rows, key=order)


def known_values(values: Sequence[float]) -> list[float]:
    """Returns the values that are known."""
    return [value for value in values if not math.isnan(value)]


def largest(values: Sequence[float]) -> float:
    """Returns the largest known value; NaN if there is none."""
    return max(known_values(values), default=math.nan)


@dataclass(frozen=True)
class BoundRow:
    """One limit of one arm.

    Attributes:
        arm_index: Place of the arm in `AuditResult.arms`.
        target: What is bounded, in words.
        unit: nats, or share.
        point: The plain estimate.
        upper: The limit: the truth is below it, but for a chance of `level`.
        level: How often it may miss. Limits of means share the run's delta.
        n: Independent units behind it.
        units: What they are.
        method: Name of the bound.
        assumes: What it rests on, in words.
        evidence: False if n is small or the method is approximate or a proxy.
    """

    arm_index: int
    target: str
    unit: str
    point: float
    upper: float
    level: float
    n: int
    units: str
    method: str
    assumes: str
    evidence: bool
    json_order: ClassVar = (
        *("target", "unit", "n", "units", "method", "assumes", "evidence", "point", "upper"),
        *("width", "level"),
    )

    @property
    def width(self) -> float:
        """Distance from the estimate to the limit."""
        return self.upper - self.point


def mean_level(result: AuditResult) -> float:
    """Returns how often each limit of a mean may miss: they share the run's level."""
    return Bonferroni(result.context.delta, max(1, len(MEANS) * len(result.arms))).each


def bound_rows(result: AuditResult) -> list[BoundRow]:
    """Returns limits on the rate of violations and on mean spend, arm by arm.

    A bound that does not apply is left out, and so is every one of an arm that a replay refutes.
    One spend that is not known leaves no limit of a mean: the mean of the others is another mean.
    """
    found: list[BoundRow] = []
    level, context = mean_level(result), result.context
    for index, arm in enumerate(result.arms):
        rows = result.of_arm(arm)
        prompts = {row.key.prompt for row in rows}
        broken = {row.key.prompt for row in rows if row.violated}
        counts = {
            "trajectories": (arm.violations or 0, len(rows)),
            "prompts": (len(broken), len(prompts)),
        }
        judged = rows and not arm.baseline and arm.kept != Kept.REFUTED
        for units, (events, n) in counts.items() if judged else ():
            found.append(
                BoundRow(
                    index, f"{units} that go over budget", "share", events / n,
                    clopper_pearson(events, n, RATE_LEVEL)[1], RATE_LEVEL, n, units,
                    "Clopper-Pearson", "independent units of one rate, n fixed before looking",
                    enough(n),
                )
            )  # fmt: skip
        if arm.k == 0 or not rows or not all(math.isfinite(row.spend) for row in rows):
            continue
        promised = context.promised(arm.k)
        high = promised if math.isfinite(promised) and promised > 0 else math.inf
        spends = context.clamp_spends(rows.column("spend"), high)
        sample = Sample.of(spends, high, (row.key.prompt for row in rows))
        for name in MEANS:
            try:
                limit = bound(name, sample, level)
            except InputError:
                continue
            assumes, approximate = "; ".join(limit.assumes), "approximate" in limit.note
            assumes += "; approximate, rare bursts break it" if approximate else ""
            if Assumption.RANGE in limit.assumes:
                assumes += "; R = K, which holds only where the budget is kept"
            found.append(
                BoundRow(
                    index, "mean spend of a prompt", "nats", limit.point, limit.value, limit.delta,
                    limit.n, "prompts", limit.name, assumes, limit.evidence and not approximate,
                )
            )  # fmt: skip
    return found
