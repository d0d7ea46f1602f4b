"""The paper's class tables: what each class of prompts spends under each budget.

U_EBB is computed as the paper does, under both of its ranges, so that its tables can be compared;
it pools the trajectories of a prompt, and neither range bounds a KL divergence, so it is a proxy.
The bound to rest on is `upper`: prompts are the units, and the range is K = kT, which every
trajectory of a kept budget obeys. All bounds of a run share one level: delta over classes times
budgets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from nafaudit.core.errors import InputError
from nafaudit.core.finding import CheckWord, Finding
from nafaudit.core.ledger import is_baseline
from nafaudit.core.text import counted
from nafaudit.core.trajectory import Arm
from nafaudit.measures.checks import OverlapScores
from nafaudit.measures.context import RunContext
from nafaudit.measures.table import Measures
from nafaudit.stats import (
    BOUNDS,
    Bonferroni,
    Bound,
    Moments,
    Sample,
    ebb,
    effective_range,
    mean,
    paper_range,
    quantile,
)
from nafaudit.workload.prompts import CAPS

UPPER = "betting-prompts"
"""The bound of a class mean: valid at any sample size, whatever happens within a prompt."""


@dataclass(frozen=True)
class Spread:
    """Mean, median and largest of the known ones of some numbers; NaN if there are none."""

    mean: float = math.nan
    median: float = math.nan
    max: float = math.nan

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarises the values that are known."""
        known = [value for value in values if not math.isnan(value)]
        return cls(mean(known), quantile(known, 0.5), max(known)) if known else cls()


@dataclass(frozen=True)
class ClassRow:
    """One class of prompts under one budget; in JSON, null where there is no bound.

    Attributes:
        mechanism: What is audited.
        k: Budget per token.
        label: The class.
        trajectories: The paper's M.
        prompts: How many prompts they are of.
        unknown: Trajectories whose spend is not recorded; then there are no bounds.
        budget: K, what a mean spend is compared with; NaN if T is not known.
        mean: Mean spend Z, in nats.
        variance: Variance of the spends, divisor M - 1; NaN for a single one.
        r: R = T ln|V|; NaN if T or |V| is not known.
        r_eff: R_eff, the range seen, at least 1 and at most R.
        debt: Prefix debt of the trajectories, where it is known.
        utilisation: Spend over own budget, where that is above 0 and the spend is known.
        copying: What the outputs share with references.
        u_ebb: U_EBB under R, a proxy too; None if R is not known, and for baselines.
        u_ebb_eff: U_EBB under R_eff, a proxy.
        upper: The bound that holds, on prompt means.
        lacks: Why there is no upper bound; empty if there is.
    """

    mechanism: str
    k: float
    label: str = field(metadata={"json": "class"})
    trajectories: int
    prompts: int
    unknown: int
    budget: float = field(metadata={"json": "K"})
    mean: float
    variance: float
    r: float = field(metadata={"json": "R"})
    r_eff: float = field(metadata={"json": "R_eff"})
    debt: Spread
    utilisation: Spread
    copying: OverlapScores = field(metadata={"json": "overlap"})
    u_ebb: Bound | None = field(default=None, metadata={"json": "U_EBB"})
    u_ebb_eff: Bound | None = field(default=None, metadata={"json": "U_EBB_eff"})
    upper: Bound | None = None
    lacks: str = ""
    json_order: ClassVar = (
        *("mechanism", "k", "label", "trajectories", "prompts", "unknown", "budget", "mean"),
        *("variance", "r", "r_eff", "u_ebb", "passes", "u_ebb_eff"),
        *("passes_eff", "upper", "certified", "lacks", "debt", "utilisation", "copying"),
    )

    @property
    def passes(self) -> bool | None:
        """The paper's U_EBB(R) <= K; None if either is not known."""
        return self._below(self.u_ebb)

    @property
    def passes_eff(self) -> bool | None:
        """The paper's U_EBB(R_eff) <= K, its pass criterion."""
        return self._below(self.u_ebb_eff)

    @property
    def certified(self) -> bool | None:
        """True if the bound that holds is at most K on enough prompts; None if it says nothing."""
        return self._below(self.upper) if self.upper is not None and self.upper.evidence else None

    def _below(self, found: Bound | None) -> bool | None:
        if found is None or math.isnan(self.budget):
            return None
        return found.value <= self.budget


@dataclass(frozen=True)
class ClassTable:
    """Every class under every budget.

    Attributes:
        rows: By mechanism, budget and class.
        looks: Classes times budgets, baselines apart: how many cells share the level.
        delta: The level of each bound.
    """

    rows: tuple[ClassRow, ...]
    looks: int
    delta: float

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes."""
        return tuple(dict.fromkeys(row.label for row in self.rows))

    def of(self, arm: Arm) -> tuple[ClassRow, ...]:
        """Returns the rows of one budget."""
        return tuple(row for row in self.rows if Arm(row.mechanism, row.k) == arm)

    def spends_most(self, arm: Arm) -> ClassRow | None:
        """Returns the class with the largest mean spend; the first of several."""
        known = [row for row in self.of(arm) if not math.isnan(row.mean)]
        return max(known, key=lambda row: row.mean, default=None)


def _place(label: str) -> tuple[int, str]:
    """Returns a class's place: the paper's classes in its order, then others by name."""
    known = list(CAPS)
    return (known.index(label) if label in CAPS else len(known), label)


def class_table(rows: Measures) -> ClassTable:
    """Sums up a run by class and budget; all bounds share the run's level."""
    cells = {
        (arm, label): part
        for arm, every in rows.arms.items()
        for label, part in sorted(every.by("label").items(), key=lambda one: _place(one[0]))
    }
    audited = [(arm, label) for arm, label in cells if not is_baseline(arm.k)]
    looks = len({arm for arm, _ in audited}) * len({label for _, label in audited})
    delta = Bonferroni(rows.context.delta, max(1, looks)).each
    table = tuple(_row(arm, label, cell, delta) for (arm, label), cell in cells.items())
    return ClassTable(table, looks, delta)


def classes(table: ClassTable, arm: Arm) -> Finding:
    """Names the class that spends most."""
    most = table.spends_most(arm)
    if most is None:
        reason = "no trajectory records what it spent"
        return Finding("classes", CheckWord.UNKNOWN, math.nan, reason)
    count = len(table.of(arm))
    text = (
        f"of {counted(count, 'class', 'classes')} {most.label!r} spends most: mean "
        f"{most.mean:.2f} nats over {most.trajectories} trajectories of "
        f"{counted(most.prompts, 'prompt')}"
    )
    if math.isfinite(most.budget):
        text += f", K = {most.budget:g}"
    numbers = {"classes": count, "mean": most.mean, "K": most.budget}
    proxies = {"U": most.u_ebb, "U_eff": most.u_ebb_eff}
    known = {name: found.value for name, found in proxies.items() if found is not None}
    if known:
        values = ", ".join(f"{name} {value:.2f}" for name, value in known.items())
        text += f"; the paper's proxies, which are no bounds: {values}"
        numbers |= known
    if most.upper is not None:
        numbers |= {"upper": most.upper.value, "upper_n": most.upper.n}
        evidence = "" if most.upper.evidence else ", which is no evidence"
        text += f"; upper bound {most.upper.value:.2f} on {most.upper.n} prompts{evidence}"
    return Finding("classes", CheckWord.INFO, most.mean, text, None, numbers)


def _row(arm: Arm, label: str, cell: Measures, delta: float) -> ClassRow:
    context, pairs = cell.context, sorted((row.key.prompt, row.spend) for row in cell)
    spends = [spend for _, spend in pairs]
    try:
        moments = Moments.of(spends)
    except (InputError, OverflowError):
        moments = None
    if moments is not None and not math.isfinite(moments.spread):
        moments = None
    limit, baseline = context.max_new_tokens, is_baseline(arm.k)
    reach = paper_range(limit, context.vocabulary) if limit and context.vocabulary > 1 else math.nan
    # Without R the range seen has nothing to be cut to.
    highest = math.inf if math.isnan(reach) else reach
    uses = Spread.of([row.utilisation for row in cell if row.has_budget and not baseline])
    if any(row.admitted for row in cell):
        # As in `Use`: those that are known are no sample.
        uses = Spread(max=uses.max)
    row = ClassRow(
        mechanism=arm.mechanism,
        k=arm.k,
        label=label,
        trajectories=len(spends),
        prompts=len({prompt for prompt, _ in pairs}),
        unknown=sum(map(math.isnan, spends)),
        budget=context.compared_with(arm.k),
        mean=mean(spends),
        variance=moments.variance if moments and len(spends) > 1 else math.nan,
        r=reach,
        r_eff=effective_range(moments.spread, highest) if moments else math.nan,
        debt=Spread.of(cell.column("debt")),
        utilisation=uses,
        copying=OverlapScores.of(cell),
    )
    if baseline:
        return replace(row, lacks="a baseline has no budget to compare with")
    if moments is None:
        return replace(row, lacks="not every spend is recorded as a number")
    paper = None
    if not math.isnan(reach):
        # What keeps U_EBB from being a bound here, whatever its formula would prove.
        paper = ebb(moments, reach, delta)
        notes = [paper.note, "R = T ln|V| bounds entropy, not KL"]
        if row.trajectories > row.prompts:
            notes.append("trajectories of one prompt count as independent")
        paper = replace(paper, note="; ".join(filter(None, notes)), holds=False)
    seen = min(highest, max(row.r_eff, moments.top))
    upper, lacks = _upper(context, pairs, row.budget, delta)
    return replace(
        row,
        u_ebb=paper,
        u_ebb_eff=ebb(moments, seen, delta, effective=True),
        upper=upper,
        lacks=lacks,
    )


def _upper(
    context: RunContext, pairs: Sequence[tuple[str, float]], budget: float, delta: float
) -> tuple[Bound | None, str]:
    """Returns the bound on prompt means over [0, K], or why there is none."""
    if math.isnan(budget):
        return None, "K is not known, as the log gives no length limit"
    if not 0 < budget < math.inf:
        return None, f"K = {budget:g} is no range"
    # Rounding may carry a spend past an end by a hair, which the verdict allows as well.
    spends = context.clamp_spends([spend for _, spend in pairs], budget)
    sample = Sample.of(spends, budget, [prompt for prompt, _ in pairs], peeked=True)
    spec = BOUNDS[UPPER]
    try:
        spec.check(sample)
    except InputError as error:
        return None, str(error)
    return spec(sample, delta), ""
