"""What moved between two runs, two decoders or two versions, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from nafaudit.core.errors import InputError
from nafaudit.core.finding import CheckWord, Kept, Overall
from nafaudit.core.ledger import budget_name
from nafaudit.core.trajectory import Arm
from nafaudit.measures.audit import AuditResult
from nafaudit.measures.measure import Measure
from nafaudit.measures.pairing import (
    ArmPair,
    Differences,
    Pairing,
    SharedDraws,
    designs_apart,
    differences,
    pairing,
)
from nafaudit.measures.verdicts import ArmVerdict
from nafaudit.stats import Bonferroni, Sample, bound, enough, mean
from nafaudit.stats.bound import check_level
from nafaudit.store.missing import Missing
from nafaudit.store.run import Run

LEVEL = 0.05
METHOD = "cluster-t"

Values = dict[str, dict[int, float]]
"""Values of one quantity: by prompt, then by number."""


@dataclass(frozen=True)
class Quantity:
    """Something that may move.

    Attributes:
        name: Name in tables.
        unit: nats, share or tokens.
        value: Function from a trajectory to its value; NaN if it has none.
        meaning: Meaning, for the legend.
        of_baselines: False if one model alone fixes it.
    """

    name: str = field(metadata={"json": "quantity"})
    unit: str
    value: Callable[[Measure], float] = field(metadata={"json": None})
    meaning: str
    of_baselines: bool = field(default=True, metadata={"json": None})


def _share(part: str) -> Callable[[Measure], float]:
    def value(one: Measure) -> float:
        steps = one.forced + one.active + one.free
        return getattr(one, part) / steps if steps else math.nan

    return value


QUANTITIES = (
    Quantity("spend", "nats", lambda one: one.spend, "total charge Z"),
    Quantity("use", "share", lambda one: one.utilisation, "spend over own budget", False),
    *(
        Quantity(part, "share", _share(part), f"steps that served {what}", False)
        for part, what in (
            ("forced", "the safe model"),
            ("active", "a mixture"),
            ("free", "the risky model"),
        )
    ),
    Quantity("recall", "share", lambda one: one.recall, "near-verbatim recall of the reference"),
    Quantity("L", "nats", lambda one: one.log_ratio, "log-likelihood ratio of the output"),
    Quantity("length", "tokens", lambda one: one.length or math.nan, "tokens written"),
)


@dataclass(frozen=True)
class ChangeLimits:
    """Between which values a mean change lies; NaN where that is not known."""

    low: float
    high: float
    level: float
    method: str = METHOD

    @property
    def known(self) -> bool:
        """True if the limits are known."""
        return not math.isnan(self.low)


@dataclass(frozen=True)
class Change:
    """One quantity of one arm, or of one class of it.

    Attributes:
        pair: The two arms.
        label: The class; empty for all prompts.
        quantity: Quantity that may have changed.
        a: Mean over prompts of the first run.
        b: Mean over prompts of the second.
        interval: Limits of b - a.
        prompts: Units behind it; the smaller number if nothing is paired.
        trajectories: Pairs of trajectories, or the smaller number of trajectories where only
            prompts, or nothing, could be paired.
        slack: A difference that rounding alone may make.
    """

    pair: ArmPair = field(metadata={"json": ...})
    label: str = field(metadata={"json": "class", "optional": True})
    quantity: Quantity = field(metadata={"json": ...})
    a: float
    b: float
    interval: ChangeLimits = field(metadata={"json": ...})
    prompts: int
    trajectories: int = field(metadata={"json": "executions"})
    slack: float = field(metadata={"json": None})
    json_properties: ClassVar = ("change", "moved", "evidence")

    @property
    def change(self) -> float:
        """Second run minus first; negative if it fell."""
        return self.b - self.a

    @property
    def moved(self) -> str:
        """up, down or same; unclear if the interval holds 0 or is unknown; unknown if a mean is."""
        if math.isnan(self.change):
            return "unknown"
        low, high = self.interval.low, self.interval.high
        tight = not self.interval.known or max(abs(low), abs(high)) <= max(self.slack, 1e-9)
        if abs(self.change) <= self.slack and tight:
            return "same"
        if low > self.slack:
            return "up"
        return "down" if high < -self.slack else "unclear"

    @property
    def evidence(self) -> bool:
        """True if enough prompts stand behind the interval."""
        return self.interval.known and enough(self.prompts)


def changes(a: AuditResult, b: AuditResult, found: Pairing, *, by_class: bool) -> list[Change]:
    """Returns every quantity of every pair of arms; one level is shared by all of them."""
    cells = []
    for pair in found.pairs:
        rows_a, rows_b = a.of_arm(pair.a), b.of_arm(pair.b)
        for label in sorted(rows_a.by("label")) if by_class else [""]:
            rows_of = [[r for r in rows if label in ("", r.label)] for rows in (rows_a, rows_b)]
            for quantity in QUANTITIES:
                # Steps of a refuted decoder are those of the law that it promised: no facts.
                shares = quantity.name in ("forced", "active", "free")
                unknown = shares and Kept.REFUTED in (pair.a.kept, pair.b.kept)
                if not unknown and (quantity.of_baselines or not pair.a.baseline):
                    values = [values_of(rows, quantity) for rows in rows_of]
                    values_a, values_b = _comparable(values[0], values[1], found)
                    if values_a and values_b:
                        cells.append((pair, label, quantity, values_a, values_b))
    level = Bonferroni(LEVEL, max(1, len(cells))).each
    slack = 1e-3 if a.context.foreign or b.context.foreign else 1e-6
    rows = []
    for pair, label, quantity, values_a, values_b in cells:
        means_a, means_b = (
            {prompt: mean(list(values[prompt].values())) for prompt in sorted(values)}
            for values in (values_a, values_b)
        )
        mean_a, mean_b = mean(list(means_a.values())), mean(list(means_b.values()))
        rounding = slack * (1 + min(abs(mean_a), abs(mean_b)))
        if found.paired:
            samples = [[means_b[p] - means_a[p] for p in means_a]]
            interval = paired(samples[0], level)
        else:
            samples = [list(means_a.values()), list(means_b.values())]
            interval = unpaired(samples[0], samples[1], level)
        # A few equal differences do not tell how much others would vary.
        if abs(mean_b - mean_a) > rounding and any(
            not enough(len(s)) and max(s) - min(s) <= rounding for s in samples
        ):
            interval = ChangeLimits(math.nan, math.nan, level)
        rows.append(
            Change(
                pair,
                label,
                quantity,
                mean_a,
                mean_b,
                interval,
                prompts=min(len(means_a), len(means_b)),
                trajectories=min(sum(map(len, v.values())) for v in (values_a, values_b)),
                slack=rounding,
            )
        )
    return rows


def values_of(rows: Iterable[Measure], quantity: Quantity) -> Values:
    """Returns the known values of a quantity."""
    found: Values = {}
    for one in rows:
        value = quantity.value(one)
        if math.isfinite(value):
            found.setdefault(one.key.prompt, {})[one.key.trajectory] = value
    return found


def _comparable(a: Values, b: Values, found: Pairing) -> tuple[Values, Values]:
    """Returns the values of shared prompts, and of shared trajectory numbers if these pair."""
    if not found.paired:
        return a, b
    both = sorted(set(a) & set(b) & found.prompts)
    if not found.by_number:
        return {p: a[p] for p in both}, {p: b[p] for p in both}
    numbers = {p: sorted(a[p].keys() & b[p].keys()) for p in both}
    return (
        {p: {n: a[p][n] for n in shared} for p, shared in numbers.items() if shared},
        {p: {n: b[p][n] for n in shared} for p, shared in numbers.items() if shared},
    )


def paired(differences: Sequence[float], level: float) -> ChangeLimits:
    """Returns two-sided limits of a mean difference, one difference per prompt."""
    return ChangeLimits(
        -_upper([-d for d in differences], level / 2), _upper(differences, level / 2), level
    )


def unpaired(a: Sequence[float], b: Sequence[float], level: float) -> ChangeLimits:
    """Returns two-sided limits of a difference of means, for runs that share no prompt.

    Four limits, each at a quarter of the level: right for any two variances.
    """
    each = level / 4
    low = -_upper([-x for x in b], each) - _upper(a, each)
    return ChangeLimits(low, _upper(b, each) + _upper([-x for x in a], each), level)


def difference_of(
    a: Sequence[float],
    b: Sequence[float],
    *,
    clusters: Iterable[Any] | None = None,
    clusters_b: Iterable[Any] | None = None,
    pairs: bool = True,
    delta: float = LEVEL,
) -> ChangeLimits:
    """Returns two-sided limits of the mean of b - a, of anybody's numbers, with prompts as units.

    Args:
        a: Values before.
        b: Values after.
        clusters: The prompt of each value of `a`; None if each value has a prompt of its own.
        clusters_b: The same of `b`; that of `a` if None.
        pairs: True if a prompt belongs to both.
        delta: How often either limit may miss.

    Raises:
        InputError: A value has no prompt, a prompt no partner, or a value is not finite.
    """
    check_level(delta)
    means = []
    own = None if clusters is None else [str(one) for one in clusters]
    other = own if clusters_b is None else [str(one) for one in clusters_b]
    for values, names in ((a, own), (b, other)):
        sample = Sample.of(
            values, clusters=names if names is not None else map(str, range(len(values)))
        )
        groups: dict[str, list[float]] = {}
        for name, value in zip(sample.clusters or (), sample.values.tolist(), strict=True):
            groups.setdefault(name, []).append(value)
        means.append({name: mean(found) for name, found in groups.items()})
    if not pairs:
        return unpaired(list(means[0].values()), list(means[1].values()), delta)
    if alone := sorted(means[0].keys() ^ means[1].keys()):
        raise InputError(
            f"{len(alone)} prompts are in one list only, for example {alone[0]!r}: paired values "
            "need the same prompts before and after. Leave them out, or give paired=False."
        )
    return paired([means[1][name] - means[0][name] for name in sorted(means[0])], delta)


def _upper(values: Sequence[float], level: float) -> float:
    """Returns the upper limit of a mean over prompts; NaN where there are too few."""
    try:
        names = [str(i) for i in range(len(values))]
        return bound(METHOD, Sample.of(values, clusters=names), level).value
    except InputError:
        return math.nan


@dataclass(frozen=True)
class Both:
    """One quantity of one prompt in both runs."""

    a: float
    b: float

    @property
    def difference(self) -> float:
        """Second run minus first; negative if it fell."""
        return self.b - self.a


@dataclass(frozen=True)
class PromptChange:
    """One prompt under one budget.

    Attributes:
        pair: The two arms.
        prompt: Id of the prompt.
        label: Class of the prompt.
        values: Both values, by the name of the quantity.
        violations: Trajectories over budget, in each run.
        token_step: The earliest step at which a trajectory of it parts; None if none does.
    """

    pair: ArmPair = field(metadata={"json": ...})
    prompt: str
    label: str = field(metadata={"json": "class"})
    values: dict[str, Both]
    violations: tuple[int, int]
    token_step: int | None = field(metadata={"json": "first_token_step"})

    @property
    def moved(self) -> bool:
        """True if anything differs."""
        sides = self.values.values()
        differs = any(not math.isnan(s.difference) and s.difference != 0 for s in sides)
        return differs or self.token_step is not None or self.violations[0] != self.violations[1]

    @property
    def sort_key(self) -> tuple[float, ...]:
        """Where to look first: new violations, then change of use, of recall, of spend."""
        use, recall, spend = (
            abs(self.values[name].difference) for name in ("use", "recall", "spend")
        )
        worse = self.violations[1] - self.violations[0]
        return (worse, *(0.0 if math.isnan(x) else x for x in (use, recall, spend)))


@dataclass(frozen=True)
class FindingChange:
    """A check that says another word than before."""

    pair: ArmPair = field(metadata={"json": ...})
    check: str
    a: str
    b: str
    text: str


@dataclass(frozen=True)
class Side:
    """One of two runs that are compared.

    Attributes:
        run: Directory of the run.
        design: Hash of its design.
        trajectories: How many it has.
        missing: What it was asked for and does not have; None if it has all.
        answer: The answer of `check` to it.
        search: Answer of the search that made it; None if none did.
    """

    run: str
    design: str
    trajectories: int = field(metadata={"json": "executions"})
    missing: Missing | None
    answer: Overall = field(metadata={"json": None})
    search: Overall | None = field(metadata={"optional": True})

    @classmethod
    def of(cls, result: AuditResult) -> Side:
        """Returns what a comparison says of a run."""
        run, answer = result.run, result.overall
        searched = None if result.search is None else answer
        return cls(
            str(run.path), run.design["hash"], len(result.rows), result.missing, answer, searched
        )


@dataclass(frozen=True)
class Comparison:
    """Everything that `nafaudit compare` says.

    Attributes:
        a: The first run.
        b: The second.
        pairing: What belongs together.
        design: Key and both values of all that the designs differ in.
        findings: Checks that changed their word.
        changes: Every quantity of every budget.
        classes: Every quantity by class; empty if there is only one.
        prompts: Every prompt under every budget that moved, the largest move first.
        differences: Where trajectories part; empty if their numbers pair nothing.
    """

    a: Side
    b: Side
    pairing: Pairing
    design: tuple[tuple[str, str, str], ...]
    findings: tuple[FindingChange, ...]
    changes: tuple[Change, ...]
    classes: tuple[Change, ...]
    prompts: tuple[PromptChange, ...]
    differences: tuple[Differences, ...]

    @property
    def overall(self) -> Overall:
        """The one answer.

        0 nothing got worse, 1 newly violated or refuted, 3 no longer known, unfinished, or
        without a prompt in common.
        """
        pairs, parts = self.pairing.pairs, []
        judged = [*(p.b for p in pairs if p.a.kept != Kept.VIOLATED), *self.pairing.only_b]
        broken = [arm for arm in judged if not arm.baseline and arm.kept == Kept.VIOLATED]
        # A budget that A was not run at is not one that it kept.
        alone = [arm for arm in broken if any(arm is one for one in self.pairing.only_b)]
        if newly := [arm for arm in broken if not any(arm is one for one in alone)]:
            parts.append(f"B violates {_budgets(newly)}, which A does not")
        if alone:
            parts.append(f"B violates {_budgets(alone)}, which is not in A")
        refuted = [arm for arm in judged if not arm.baseline and arm.kept == Kept.REFUTED]
        refuted = [arm for arm in refuted if not any(p.b is arm and p.a.refuted for p in pairs)]
        if refuted:
            parts.append(f"a replay refutes B at {_budgets(refuted)}, and not A")
        unsure = [
            pair.b
            for pair in pairs
            if not pair.b.baseline
            and (pair.a.kept, pair.b.kept) == (Kept.WITHIN, Kept.INCONCLUSIVE)
        ]
        if unsure:
            parts.append(f"A keeps {_budgets(unsure)}, and B's records do not decide it")
        # Arms are of the draws that a search chose by; its answer rests on fresh ones too.
        searched = self.a.search is not None or self.b.search is not None
        words = self.a.answer.verdict, self.b.answer.verdict
        exceeds = searched and words[1] == Kept.VIOLATED != words[0]
        if exceeds and not broken:
            parts.append(f"B is VIOLATED, and A is {words[0]}: {self.b.answer.why}")
        elif searched and not unsure and words == (Kept.WITHIN, Kept.INCONCLUSIVE):
            parts.append(f"A is WITHIN, and B is INCONCLUSIVE: {self.b.answer.why}")
        for letter, side in (("A", self.a), ("B", self.b)):
            if side.missing is not None:
                parts.append(f"{letter} is unfinished: {side.missing.brief}")
        if not self.pairing.paired:
            parts.append(
                f"the runs share {len(self.pairing.changed)} ids of prompts, but with other texts"
                if self.pairing.changed
                else "the runs have no prompt in common"
            )
        if broken or exceeds:
            return Overall(Kept.VIOLATED, "; ".join(parts), 1)
        if refuted:
            return Overall(Kept.REFUTED, "; ".join(parts), 1)
        if parts:
            return Overall(Kept.INCONCLUSIVE, "; ".join(parts), 3)
        why = "nothing got worse: B violates no budget that A does not"
        return Overall(CheckWord.FINE, why, 0)


def compare(a: Run, b: Run) -> Comparison:
    """Compares two runs.

    Raises:
        InputError: They have no budget in common.
    """
    result_a, result_b = AuditResult.of(a), AuditResult.of(b)
    found = pairing(result_a, result_b)
    if not found.pairs:
        has = [
            ", ".join(dict.fromkeys(budget_name(arm.k) for arm in side.arms)) or "no trajectories"
            for side in (result_a, result_b)
        ]
        raise InputError(
            f"there is nothing to compare: {a.path} has {has[0]}, {b.path} has {has[1]}. Arms are "
            "matched by budget; run both with the same --k."
        )
    differing = []
    if found.draws != SharedDraws.OTHER:
        differing = differences(a, b, found.pairs, found.prompts)
    several = len({row.label for row in result_a.rows}) > 1
    return Comparison(
        Side.of(result_a),
        Side.of(result_b),
        found,
        tuple(designs_apart(a.design["identity"], b.design["identity"])),
        tuple(_findings(found.pairs)),
        tuple(changes(result_a, result_b, found, by_class=False)),
        tuple(changes(result_a, result_b, found, by_class=True)) if several else (),
        tuple(_prompts(result_a, result_b, found, differing)),
        tuple(one for one in differing if one.by_unit),
    )


def _budgets(arms: Iterable[ArmVerdict]) -> str:
    return ", ".join(budget_name(arm.k) for arm in arms)


def _findings(pairs: Iterable[ArmPair]) -> Iterable[FindingChange]:
    """Yields checks whose word changed; the three verdicts have a table of their own."""
    for pair in pairs:
        before = {finding.check: finding for finding in pair.a.findings}
        after = {finding.check: finding for finding in pair.b.findings}
        for check in dict.fromkeys([*before, *after]):
            words = [str(f.verdict) if f else "-" for f in (before.get(check), after.get(check))]
            if words[0] != words[1] and CheckWord.SUSPECT in words:
                said = after.get(check) or before[check]
                yield FindingChange(pair, check, words[0], words[1], said.text)


def _prompts(
    a: AuditResult, b: AuditResult, found: Pairing, differing: Iterable[Differences]
) -> list[PromptChange]:
    """Returns every shared prompt under every budget that moved, the largest move first."""
    first: dict[tuple[Arm, str], int] = {}
    for one in differing:
        for (prompt, _), difference in one.by_unit.items():
            if (step := difference.token_step) is not None:
                key = (one.pair.a.arm, prompt)
                first[key] = min(step, first.get(key, step))

    def value(group: Iterable[Measure], quantity: Quantity) -> float:
        values = values_of(group, quantity).values()
        return mean([x for numbers in values for x in numbers.values()])

    moved = []
    for pair in found.pairs:
        rows_a, rows_b = a.of_arm(pair.a).by("prompt"), b.of_arm(pair.b).by("prompt")
        for prompt in sorted(rows_a.keys() & rows_b.keys() & found.prompts):
            groups = [rows_a[prompt].rows, rows_b[prompt].rows]
            numbers = [{row.key.trajectory for row in group} for group in groups]
            shared = numbers[0] & numbers[1]
            kept = [[r for r in group if r.key.trajectory in shared] or group for group in groups]
            row = PromptChange(
                pair,
                prompt,
                groups[0][0].label,
                {q.name: Both(value(kept[0], q), value(kept[1], q)) for q in QUANTITIES},
                (sum(r.violated for r in kept[0]), sum(r.violated for r in kept[1])),
                first.get((pair.a.arm, prompt)),
            )
            if row.moved:
                moved.append(row)
    return sorted(moved, key=lambda row: (*(-x for x in row.sort_key), row.pair.a.k, row.prompt))
