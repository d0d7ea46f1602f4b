"""By how much each quantity moved, with prompts as the units of every interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from nafaudit.checks.check import mean
from nafaudit.core.errors import InputError
from nafaudit.report.compare.pairing import ArmPair, Pairing
from nafaudit.report.data import Report
from nafaudit.report.outline import Outline
from nafaudit.stats import Bonferroni, Sample, bound, enough

LEVEL = 0.05
METHOD = "cluster-t"

Values = dict[str, dict[int, float]]
"""Of one quantity: by prompt, then by number."""


@dataclass(frozen=True)
class Quantity:
    """Something that may move.

    Attributes:
        name: In tables.
        unit: nats, share or tokens.
        of: Its value of one execution; NaN if it has none.
        meaning: In words.
        of_baselines: False if one model alone fixes it.
    """

    name: str
    unit: str
    of: Callable[[Outline], float]
    meaning: str
    of_baselines: bool = True


def _share(part: str) -> Callable[[Outline], float]:
    def of(one: Outline) -> float:
        steps = one.forced + one.active + one.free
        return getattr(one, part) / steps if steps else math.nan

    return of


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
    Quantity("L", "nats", lambda one: one.ratio, "log-likelihood ratio of the output"),
    Quantity("length", "tokens", lambda one: one.length or math.nan, "tokens written"),
)


@dataclass(frozen=True)
class Interval:
    """A mean change and how far it can be trusted; NaN where there is none."""

    low: float
    high: float
    level: float

    @property
    def known(self) -> bool:
        """True if there is one."""
        return not math.isnan(self.low)


@dataclass(frozen=True)
class Change:
    """One quantity of one arm, or of one class of it.

    Attributes:
        pair: The two arms.
        label: The class; empty for all prompts.
        quantity: What.
        a: Mean over prompts of the first run.
        b: Mean over prompts of the second.
        interval: Of b - a.
        prompts: Units behind it; the smaller number if nothing is paired.
        executions: Pairs of executions, or the smaller number of executions where only prompts,
            or nothing, could be paired.
        slack: A difference that rounding alone may make.
    """

    pair: ArmPair
    label: str
    quantity: Quantity
    a: float
    b: float
    interval: Interval
    prompts: int
    executions: int
    slack: float

    @property
    def difference(self) -> float:
        """By how much it rose."""
        return self.b - self.a

    @property
    def moved(self) -> str:
        """up, down, same, or unclear where the interval has 0 inside or there is none."""
        if math.isnan(self.difference):
            return "unknown"
        if abs(self.difference) <= self.slack and self._tight:
            return "same"
        if self.interval.known and self.interval.low > self.slack:
            return "up"
        if self.interval.known and self.interval.high < -self.slack:
            return "down"
        return "unclear"

    @property
    def evidence(self) -> bool:
        """True if enough prompts stand behind the interval."""
        return self.interval.known and enough(self.prompts)

    @property
    def _tight(self) -> bool:
        ends = (self.interval.low, self.interval.high)
        return not self.interval.known or max(map(abs, ends)) <= max(self.slack, 1e-9)


def changes(a: Report, b: Report, laid: Pairing, *, by_class: bool) -> list[Change]:
    """Every quantity of every pair of arms; one level is shared by all of them."""
    cells = [
        (pair, label, quantity, *_sides(a, b, pair, laid, label, quantity))
        for pair in laid.pairs
        for label in (_labels(a, pair) if by_class else [""])
        for quantity in QUANTITIES
        if quantity.of_baselines or not pair.a.is_baseline
    ]
    known = [cell for cell in cells if cell[3] and cell[4]]
    level = Bonferroni(LEVEL, max(1, len(known))).each
    slack = 1e-3 if a.facts.foreign or b.facts.foreign else 1e-6
    return [
        _change(pair, label, quantity, ours, theirs, laid, level, slack)
        for pair, label, quantity, ours, theirs in known
    ]


def _labels(a: Report, pair: ArmPair) -> list[str]:
    return sorted({a.facts.label(one.key.prompt) for one in a.of(pair.a)})


def _sides(
    a: Report, b: Report, pair: ArmPair, laid: Pairing, label: str, quantity: Quantity
) -> tuple[Values, Values]:
    """The values that may be compared: of shared prompts, and of shared numbers if they pair."""
    ours, theirs = (
        values_of(
            (one for one in side.of(arm) if not label or side.facts.label(one.key.prompt) == label),
            quantity,
        )
        for side, arm in ((a, pair.a), (b, pair.b))
    )
    if not laid.paired:
        return ours, theirs
    both = sorted(set(ours) & set(theirs) & laid.prompts)
    if not laid.by_number:
        return {p: ours[p] for p in both}, {p: theirs[p] for p in both}
    numbers = {p: sorted(ours[p].keys() & theirs[p].keys()) for p in both}
    return (
        {p: {n: ours[p][n] for n in found} for p, found in numbers.items() if found},
        {p: {n: theirs[p][n] for n in found} for p, found in numbers.items() if found},
    )


def values_of(outlines: Iterable[Outline], quantity: Quantity) -> Values:
    """What is known of a quantity."""
    found: Values = {}
    for one in outlines:
        value = quantity.of(one)
        if math.isfinite(value):
            found.setdefault(one.key.prompt, {})[one.key.trajectory] = value
    return found


def _change(
    pair: ArmPair,
    label: str,
    quantity: Quantity,
    ours: Values,
    theirs: Values,
    laid: Pairing,
    level: float,
    slack: float,
) -> Change:
    mine, other = _means(ours), _means(theirs)
    a, b = mean(list(mine.values())), mean(list(other.values()))
    if laid.paired:
        interval = paired([other[p] - mine[p] for p in mine], level)
    else:
        interval = unpaired(list(mine.values()), list(other.values()), level)
    counts = [sum(map(len, side.values())) for side in (ours, theirs)]
    allowed = slack * (1 + min(abs(a), abs(b)))
    units = min(len(mine), len(other))
    return Change(pair, label, quantity, a, b, interval, units, min(counts), allowed)


def _means(values: Values) -> dict[str, float]:
    return {prompt: mean(list(values[prompt].values())) for prompt in sorted(values)}


def paired(differences: Sequence[float], level: float) -> Interval:
    """Two-sided interval of a mean difference, one difference per prompt."""
    return Interval(
        -_upper([-d for d in differences], level / 2), _upper(differences, level / 2), level
    )


def unpaired(ours: Sequence[float], theirs: Sequence[float], level: float) -> Interval:
    """The same for prompts that have nothing to do with each other.

    Four limits, each at a quarter of the level: right whatever the two variances are.
    """
    each = level / 4
    low = -_upper([-x for x in theirs], each) - _upper(ours, each)
    return Interval(low, _upper(theirs, each) + _upper([-x for x in ours], each), level)


def _upper(values: Sequence[float], level: float) -> float:
    """Upper limit of a mean over prompts; NaN where there are too few."""
    try:
        names = [str(i) for i in range(len(values))]
        return bound(METHOD, Sample.of(values, clusters=names), level).value
    except InputError:
        return math.nan
