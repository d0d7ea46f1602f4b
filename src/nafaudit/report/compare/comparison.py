"""Two runs side by side: verdicts, quantities, prompts, and where executions part."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from nafaudit.checks.check import mean
from nafaudit.checks.verdict import ArmResult
from nafaudit.core.errors import InputError
from nafaudit.core.finding import Answer, Kept
from nafaudit.report.compare.changes import QUANTITIES, Change, Quantity, changes, values_of
from nafaudit.report.compare.diverge import Partings, partings
from nafaudit.report.compare.pairing import ArmPair, Draws, Pairing, designs_apart, pairing
from nafaudit.report.data import Report, collect
from nafaudit.report.outline import Outline
from nafaudit.store.gaps import Missing
from nafaudit.store.run import Run
from nafaudit.views.words import budget_name


@dataclass(frozen=True)
class Side:
    """One quantity of one prompt in both runs."""

    a: float
    b: float

    @property
    def difference(self) -> float:
        """By how much it rose."""
        return self.b - self.a


@dataclass(frozen=True)
class PromptChange:
    """One prompt under one budget.

    Attributes:
        pair: The two arms.
        prompt: Its id.
        label: Its class.
        values: By the name of the quantity.
        violations: Executions over budget, in each run.
        token_step: The earliest step at which an execution of it parts; None if none does.
    """

    pair: ArmPair
    prompt: str
    label: str
    values: dict[str, Side]
    violations: tuple[int, int]
    token_step: int | None

    @property
    def moved(self) -> bool:
        """True if anything differs."""
        sides = self.values.values()
        differs = any(not math.isnan(s.difference) and s.difference != 0 for s in sides)
        return differs or self.token_step is not None or self.violations[0] != self.violations[1]

    @property
    def size(self) -> tuple[float, ...]:
        """Where to look first: new violations, then change of use, of recall, of spend."""
        use, recall, spend = (
            abs(self.values[name].difference) for name in ("use", "recall", "spend")
        )
        worse = self.violations[1] - self.violations[0]
        return (worse, *(0.0 if math.isnan(x) else x for x in (use, recall, spend)))


@dataclass(frozen=True)
class FindingChange:
    """A check that says another word than before."""

    pair: ArmPair
    check: str
    a: str
    b: str
    text: str


@dataclass(frozen=True)
class Comparison:
    """Everything that `nafaudit compare` says.

    Attributes:
        a: The first run, judged.
        b: The second.
        laid: What belongs together.
        design: Key and both values of whatever the designs differ in.
        findings: Checks that changed their word.
        overall: Every quantity of every budget.
        classes: The same by class; empty if there is only one.
        prompts: Every prompt under every budget that moved, the largest move first.
        partings: Where executions part; empty if their numbers pair nothing.
    """

    a: Report
    b: Report
    laid: Pairing
    design: tuple[tuple[str, str, str], ...]
    findings: tuple[FindingChange, ...]
    overall: tuple[Change, ...]
    classes: tuple[Change, ...]
    prompts: tuple[PromptChange, ...]
    partings: tuple[Partings, ...]

    @property
    def newly_violated(self) -> list[ArmResult]:
        """Budgets that the second run breaks and the first does not, or does not have."""
        judged = [pair.b for pair in self.laid.pairs if pair.a.kept != Kept.VIOLATED]
        return [arm for arm in (*judged, *self.laid.only_b) if _broken(arm)]

    @property
    def newly_open(self) -> list[ArmResult]:
        """Budgets that the first run keeps, and of which the second does not say enough."""
        return [
            pair.b
            for pair in self.laid.pairs
            if not pair.b.is_baseline
            and pair.a.kept == Kept.WITHIN
            and pair.b.kept == Kept.INCONCLUSIVE
        ]

    @property
    def unfinished(self) -> list[tuple[str, Missing]]:
        """Which of the runs, A or B, lacks what of all that it was asked for."""
        sides = (("A", self.a.gaps), ("B", self.b.gaps))
        return [(letter, gaps) for letter, gaps in sides if gaps is not None]

    @property
    def exit_status(self) -> int:
        """0 nothing worse, 1 newly violated, 3 no longer known to be kept, or unfinished."""
        if self.newly_violated:
            return 1
        return 3 if self.newly_open or self.unfinished else 0


def compare(a: Run, b: Run) -> Comparison:
    """Compares two runs.

    Raises:
        InputError: They have no budget in common.
    """
    ours, theirs = collect(a), collect(b)
    laid = pairing(ours, theirs)
    if not laid.pairs:
        raise InputError(
            f"there is nothing to compare: {a.path} has {_budgets(ours.arms)}, {b.path} has "
            f"{_budgets(theirs.arms)}. Arms are matched by budget; run both with the same --k."
        )
    labels = {ours.facts.label(one.key.prompt) for one in ours.outlines}
    parted = [] if laid.draws == Draws.OTHER else partings(a, b, laid.pairs, laid.prompts)
    return Comparison(
        ours,
        theirs,
        laid,
        tuple(designs_apart(a.design["identity"], b.design["identity"])),
        tuple(_findings(laid.pairs)),
        tuple(changes(ours, theirs, laid, by_class=False)),
        tuple(changes(ours, theirs, laid, by_class=True)) if len(labels) > 1 else (),
        tuple(_prompts(ours, theirs, laid, parted)),
        tuple(one for one in parted if one.of),
    )


def _broken(arm: ArmResult) -> bool:
    return not arm.is_baseline and arm.kept == Kept.VIOLATED


def _budgets(arms: Iterable[ArmResult]) -> str:
    return ", ".join(dict.fromkeys(budget_name(arm.k) for arm in arms)) or "no executions"


def _findings(pairs: Iterable[ArmPair]) -> Iterable[FindingChange]:
    """Checks whose word changed; the three verdicts have a table of their own."""
    for pair in pairs:
        before = {finding.check: finding for finding in pair.a.findings}
        after = {finding.check: finding for finding in pair.b.findings}
        for check in dict.fromkeys([*before, *after]):
            words = [str(f.verdict) if f else "-" for f in (before.get(check), after.get(check))]
            if words[0] != words[1] and Answer.SUSPECT in words:
                said = after.get(check) or before[check]
                yield FindingChange(pair, check, words[0], words[1], said.text)


def _prompts(a: Report, b: Report, laid: Pairing, parted: Iterable[Partings]) -> list[PromptChange]:
    steps: dict[tuple[int, str], int] = {}
    for index, one in enumerate(parted):
        for (prompt, _), found in one.of.items():
            if found.token_step is not None:
                key = (index, prompt)
                steps[key] = min(found.token_step, steps.get(key, found.token_step))
    rows = []
    for index, pair in enumerate(laid.pairs):
        ours, theirs = _grouped(a, pair.a, laid), _grouped(b, pair.b, laid)
        rows += [
            _prompt(a, pair, prompt, ours[prompt], theirs[prompt], steps.get((index, prompt)))
            for prompt in sorted(ours.keys() & theirs.keys())
        ]
    moved = [row for row in rows if row.moved]
    return sorted(moved, key=lambda row: (*(-x for x in row.size), row.pair.a.k, row.prompt))


def _grouped(side: Report, arm: ArmResult, laid: Pairing) -> dict[str, list[Outline]]:
    found: dict[str, list[Outline]] = {}
    for one in side.of(arm):
        if one.key.prompt in laid.prompts:
            found.setdefault(one.key.prompt, []).append(one)
    return found


def _prompt(
    a: Report,
    pair: ArmPair,
    prompt: str,
    ours: list[Outline],
    theirs: list[Outline],
    step: int | None,
) -> PromptChange:
    shared = {o.key.trajectory for o in ours} & {o.key.trajectory for o in theirs}
    kept = [[o for o in group if o.key.trajectory in shared] or group for group in (ours, theirs)]
    return PromptChange(
        pair,
        prompt,
        a.facts.label(prompt),
        {q.name: Side(*(_mean(group, q) for group in kept)) for q in QUANTITIES},
        (sum(o.violated for o in kept[0]), sum(o.violated for o in kept[1])),
        step,
    )


def _mean(group: list[Outline], quantity: Quantity) -> float:
    values = values_of(group, quantity)
    return mean([x for numbers in values.values() for x in numbers.values()])
