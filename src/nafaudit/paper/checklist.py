"""The paper's seven practitioner items: what they ask, the numbers they need, how they are shown.

`checklist_run.of_run` answers them for a run, `checklist_paper.of_paper` for the paper itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NotRequired, TypedDict, cast

from nafaudit.core.errors import InputError
from nafaudit.core.finding import Kept, Outcome, Overall
from nafaudit.core.text import as_number, counted
from nafaudit.measures.audit import AuditResult
from nafaudit.measures.measure import Measure
from nafaudit.stats import Moments, ebb
from nafaudit.views.document import Document, Section

# The paper's numbers.
MIN_EXECUTIONS = 1500
MIN_TRAJECTORIES = 20
HIGH_RATIO = 0.9
ANCHOR_DIFFERENCE = 0.20
MIN_AUC = 0.8
MIN_SEEDS = 2
# The level of its per-prompt bounds.
PROMPT_LEVEL = 0.0033
# Mean overlaps that differ by less than this from smallest to largest do not differ.
LEAST_OVERLAP = 0.01

LOOK = "look at these classes' outputs, which changes no answer"
_NO_WAY = ("look at ", "nothing to pass")
"""Beginnings of advice that is no way to pass; it is shown without these words before it."""

TITLES = {
    1: "anchors matched in capability",
    2: f"M >= {MIN_EXECUTIONS} per class, U_EBB (R_eff) <= K",
    3: "overlap and spend agree",
    4: f"N >= {MIN_TRAJECTORIES} wherever rho > {HIGH_RATIO}",
    5: "a width beside every estimate",
    6: f"surrogate AUC >= {MIN_AUC}",
    7: f"at least {MIN_SEEDS} search seeds",
}


class ItemAnswer(StrEnum):
    """Answer of the checklist to an item."""

    PASS = "pass"
    FAIL = "fail"
    DEPENDS = "depends on the reading"
    """Of a paper's claim only: it holds by one fair reading of the item, and not by another."""
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class ChecklistItem:
    """One item, answered.

    Attributes:
        number: Its number in the paper, 1 to 7.
        answer: The word.
        text: Reason, with its number.
        todo: Command or advice to pass it, or what to look at; empty if it passes.
        value: The number that decided; NaN if there is none.
        claimed: The paper's own answer; empty for a run.
    """

    number: int
    answer: ItemAnswer
    text: str
    todo: str = ""
    value: float = math.nan
    claimed: str = ""

    @property
    def title(self) -> str:
        """The item in a few words."""
        return TITLES[self.number]

    @property
    def holds(self) -> bool | None:
        """True if what is claimed is what was found; None for no claim, or if it depends."""
        if not self.claimed or self.answer is ItemAnswer.DEPENDS:
            return None
        return self.claimed == str(self.answer)


def judged(
    number: int, good: bool, text: str, todo: str = "", value: float = math.nan
) -> ChecklistItem:
    """Returns an item that passes or fails."""
    answer = ItemAnswer.PASS if good else ItemAnswer.FAIL
    return ChecklistItem(number, answer, text, "" if good else todo, value)


def not_applicable(number: int, text: str, todo: str) -> ChecklistItem:
    """Returns an item that these records cannot answer."""
    return ChecklistItem(number, ItemAnswer.NOT_APPLICABLE, text, todo)


def out_of_step(
    spend: Mapping[str, float], overlap: Mapping[str, float], least: float = LEAST_OVERLAP
) -> dict[str, str]:
    """Returns classes whose spend and overlap contradict each other, with how.

    It is a number for the paper's "agree qualitatively". Classes are placed on the line from the
    smallest to the largest; the lower third is low, the upper third high, and a class that is low
    in one and high in the other is out of step. The rule has no unit, so it works for any overlap
    metric; it says nothing about how much overlap there is.

    Args:
        spend: Mean spend by class.
        overlap: Mean overlap by class; classes without one are left out.
        least: Overlaps that differ by less than this from smallest to largest do not differ.
    """

    def thirds(values: Mapping[str, float], apart: float) -> dict[str, int]:
        low, high = min(values.values(), default=0.0), max(values.values(), default=0.0)
        if high - low <= apart:
            return dict.fromkeys(values, 0)
        place = {name: (value - low) / (high - low) for name, value in values.items()}
        return {name: (at > 2 / 3) - (at < 1 / 3) for name, at in place.items()}

    shared = [name for name in spend if name in overlap]
    first = thirds({name: spend[name] for name in shared}, 0.0)
    second = thirds({name: overlap[name] for name in shared}, least)
    words = {2: "low spend, high overlap", -2: "high spend, low overlap"}
    between = {name: second[name] - first[name] for name in shared}
    return {name: words[apart] for name, apart in between.items() if apart in words}


def cells_out_of_step(
    odd: Mapping[str, Sequence[str]], compared: int, shown: int | None = None
) -> tuple[str, int]:
    """Returns the text of item 3, and how many cells of class and k are out of step.

    Args:
        odd: Such cells in words, by class.
        compared: How many cells there are.
        shown: How many of them the text names; all if None.
    """
    every = [cell for cells in odd.values() for cell in cells]
    text = f"{len(every)} of {counted(compared, 'cell')} of class and k"
    text += f", in {counted(len(odd), 'class', 'classes')}," if odd else ""
    text += " out of step by ROUGE-L in thirds"
    named = every[:shown]
    text += f": {'; '.join(named)}{' ...' if len(named) < len(every) else ''}" if odd else ""
    return text, len(every)


@dataclass(frozen=True)
class PromptRatio:
    """One prompt under one budget, as the paper's second stage has it.

    Attributes:
        prompt: Id of the prompt.
        mechanism: Name of the audited mechanism.
        k: Budget per token.
        n: Trajectories, N.
        mean: Mean spend, in nats.
        upper: U_EBB under R_eff, a proxy.
        width: U_EBB less the mean; NaN with one trajectory, which has no variance.
        budget: B_eff, the smallest budget of its trajectories, at least 0.
        rho: U_EBB / B_eff; NaN if invalid (B_eff = 0) or not known.
    """

    prompt: str
    mechanism: str
    k: float
    n: int
    mean: float
    upper: float
    width: float
    budget: float
    rho: float


def ratios(result: AuditResult) -> list[PromptRatio]:
    """Returns every prompt under every audited budget, those without recorded spends left out.

    A prompt of a pool of the paper's search is as in the search's own table, where a seed that was
    used twice counts twice: one N and one rho wherever it is shown.
    """
    found = []
    paper = (result.search or {}).get("paper") or {}
    pooled = {row["id"]: row for rows in paper.get("pools", {}).values() for row in rows}
    for arm in result.arms:
        groups: dict[str, list[Measure]] = {}
        for one in result.of_arm(arm) if not arm.baseline else ():
            groups.setdefault(one.key.prompt, []).append(one)
        promised = result.context.promised(arm.k)
        for prompt, group in groups.items():
            try:
                moments = Moments.of(one.spend for one in group)
            except InputError:
                continue
            # Without K nothing cuts the range; the range seen is the paper's R_eff then.
            high = promised if promised > 0 else math.inf
            r_eff = min(high, max(moments.spread, moments.top, 1.0))
            bound = ebb(moments, r_eff, PROMPT_LEVEL, effective=True)
            if (row := pooled.get(prompt)) is not None:
                mean, upper, width, least, rho = (
                    float(row[key]) for key in ("mean_spend", "U_EBB", "width", "B_eff", "rho")
                )
                about = (prompt, arm.mechanism, arm.k, int(row["N"]))
                found.append(PromptRatio(*about, mean, upper, width, least, rho))
                continue
            budgets = [one.budget for one in group]
            least = math.nan if any(map(math.isnan, budgets)) else max(0.0, min(budgets))
            found.append(
                PromptRatio(
                    prompt=prompt,
                    mechanism=arm.mechanism,
                    k=arm.k,
                    n=moments.n,
                    mean=moments.mean,
                    upper=bound.value,
                    width=bound.width if moments.n > 1 else math.nan,
                    budget=least,
                    rho=bound.value / least if least > 0 else math.nan,
                )
            )
    return found


def checklist_overall(items: Sequence[ChecklistItem], unfinished: bool = False) -> Overall:
    """Returns counts: no item is a verdict, so that only an unfinished run changes the word."""
    counts = {a: sum(i.answer == a for i in items) for a in ItemAnswer}
    open_ones = counts.pop(ItemAnswer.DEPENDS)
    words = [f"{count} {answer}" for answer, count in counts.items()]
    if open_ones:
        verb = "depends" if open_ones == 1 else "depend"
        words.insert(2, f"{open_ones} {verb} on the reading")
    why = ", ".join(words)
    if unfinished:
        return Overall(Kept.INCONCLUSIVE, f"the run is unfinished; so far {why}", 3)
    return Overall(Outcome.ANSWERED, why, 0)


def checklist_document(
    items: Sequence[ChecklistItem], about: Sequence[str] = (), *, unfinished: bool = False
) -> Document:
    """Returns counts, then every item in a few lines, then what they are about."""
    lines: list[str] = []
    if any(item.claimed for item in items):
        held = {h: [str(i.number) for i in items if i.holds is h] for h in (True, False, None)}
        words = {h: ", ".join(numbers) or "none" for h, numbers in held.items()}
        lines.append(
            f"claims about itself that hold: {words[True]}; that do not: {words[False]}; "
            f"that depend on the reading: {words[None]}"
        )
    for item in items:
        word = "depends" if item.answer is ItemAnswer.DEPENDS else item.answer
        claim = f" (claims: {item.claimed})" if item.claimed else ""
        lines.append(f"{item.number}. {word.upper():15}{item.title}{claim}")
        lines.append(f"   {' '.join(item.text.split())}")
        if item.todo:
            before = "" if item.todo.startswith(_NO_WAY) else "to pass: "
            lines.append(f"   {before}{' '.join(item.todo.split())}")
    section, answer = Section(lines=(*lines, *about)), checklist_overall(items, unfinished)
    return Document("nafaudit checklist", (section,), answer=answer)


class ItemJson(TypedDict):
    """An item of the paper's checklist."""

    item: int
    title: str
    answer: str
    value: float
    text: str
    to_pass: str
    claimed: NotRequired[str]
    holds: NotRequired[bool | None]


def item_rows(items: Sequence[ChecklistItem]) -> list[ItemJson]:
    """Returns items for JSON."""
    found = []
    for item in items:
        row: ItemJson = {
            "item": item.number,
            "title": item.title,
            "answer": str(item.answer),
            "value": cast(float, as_number(item.value)),
            "text": item.text,
            "to_pass": item.todo,
        }
        if item.claimed:
            row |= {"claimed": item.claimed, "holds": item.holds}
        found.append(row)
    return found


def prompt_rows(prompts: Sequence[PromptRatio]) -> list[dict[str, Any]]:
    """Returns per-prompt estimates, each with its width, for JSON."""
    return [
        {name: as_number(v) if isinstance(v, float) else v for name, v in asdict(row).items()}
        for row in prompts
    ]
