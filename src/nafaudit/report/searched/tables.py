"""The tables of a search, for the page and for Markdown alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nafaudit.core.text import name, nats, percent
from nafaudit.report.searched.parts import by_paper, number, part, rows, text, texts
from nafaudit.report.searched.progress import measure_of

NONE = "\u2013"


@dataclass(frozen=True)
class Cell:
    """What stands in a table, and where in report.json it comes from; nowhere if empty."""

    text: str
    path: str = ""

    @property
    def source(self) -> str:
        """The place, if anything is there."""
        return "" if self.text == NONE else self.path


@dataclass(frozen=True)
class Table:
    """A titled table.

    Attributes:
        title: What it answers.
        heads: Names of the columns with their meanings.
        rows: As many cells as there are heads; the first is a name.
        note: What to know when reading it.
        words: How many columns, from the left, are words and not numbers.
    """

    title: str
    heads: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    words: int = 1


def points(value: float) -> str:
    """A difference of shares, in percentage points."""
    if math.isnan(value):
        return NONE
    return f"{100 * value:+.1f} points" if math.isfinite(value) else f"{value:+}"


def count(value: float) -> str:
    """A whole number."""
    return f"{value:.0f}" if math.isfinite(value) else NONE


def limits(data: Mapping[str, Any], write: Callable[[float], str] = percent) -> str:
    """Two limits; nothing if one is not known."""
    ends = number(data, "low"), number(data, "high")
    if any(math.isnan(end) for end in ends):
        return NONE
    return " to ".join("no limit" if math.isinf(end) else write(end) for end in ends)


_STAGES = (
    ("raw", "raw", "proposed"),
    ("dedup", "dedup", "of them new"),
    ("length_ok", "length", "of them of a fair length"),
    ("screened", "screened", "of them given a trajectory"),
    ("medium", "medium", "of them drawn again"),
    ("survivors", "survivors", "of them kept after that"),
    ("topped_up", "topped up", "survivors that were drawn a third time"),
    ("trajectories", "trajectories", "drawn in this generation"),
)


def generations(found: Mapping[str, Any]) -> Table | None:
    """What happened to every generation, in the columns of the paper's tables."""
    made, best = [], measure_of(found)
    write = percent if best.share else _ratio
    for i, row in enumerate(rows(found, "generations")):
        where = f"search.generations[{i}]"
        made.append(
            (
                Cell(name(text(row, "strategy") or "search")),
                Cell(count(number(row, "seed"))),
                Cell(count(number(row, "generation"))),
                *(Cell(count(number(row, key)), f"{where}.{key}") for key, _, _ in _STAGES),
                Cell(write(number(row, "best")), f"{where}.best"),
            )
        )
    if not made:
        return None
    heads = (
        ("who", "the search, or a control"),
        ("seed", "search seed"),
        ("gen", "generation; 0 is the first pool"),
        *((head, meaning) for _, head, meaning in _STAGES),
        (best.head, best.meaning),
    )
    return Table("What was tried, by generation", heads, tuple(made), best.note)


_MEAN = {False: "shrunk mean", True: "mean"}
"""Of a finalist's draws; the paper's protocol, for which it is True, shrinks nothing."""


def finalists(found: Mapping[str, Any]) -> Table | None:
    """Chosen prompts on fresh draws."""
    made = []
    for group in ("finalists", "controls"):
        for i, row in enumerate(rows(found, group)):
            where, use = f"search.{group}[{i}]", part(row, "use")
            made.append(
                (
                    Cell(name(text(row, "strategy") or group)),
                    Cell(name(text(row, "operator")) if text(row, "operator") else NONE),
                    Cell(count(number(row, "seed"))),
                    Cell(percent(number(row, "promised")), f"{where}.promised"),
                    Cell(count(number(row, "fresh")), f"{where}.fresh"),
                    Cell(percent(number(use, "mean")), f"{where}.use.mean"),
                    Cell(limits(use), f"{where}.use"),
                    Cell(percent(number(row, "worst")), f"{where}.worst"),
                    Cell(nats(number(row, "spend")), f"{where}.spend"),
                    Cell(nats(number(row, "risky_alone")), f"{where}.risky_alone"),
                    Cell(count(number(row, "violations")), f"{where}.violations"),
                    Cell(percent(number(row, "rate_upper")), f"{where}.rate_upper"),
                )
            )
    if not made:
        return None
    heads = (
        ("who", "who found it"),
        ("made by", "operator"),
        ("seed", "search seed"),
        ("chosen at", f"{_MEAN[by_paper(found)]} utilisation on the draws it was chosen by"),
        ("n", "fresh trajectories"),
        ("use", "mean utilisation on fresh draws"),
        ("limits", "anytime-valid, corrected for every prompt that was looked at"),
        ("worst", "largest utilisation among the fresh ones"),
        ("spend", "mean spend, in nats"),
        ("risky alone", "mean spend of the risky model alone on the same draws, in nats"),
        ("over", "fresh trajectories above their budget"),
        ("rate below", "upper limit of their rate, likewise corrected"),
    )
    looked = count(number(found, "looked"))
    note = (
        "All but \u201cchosen at\u201d is on fresh draws, made after the choice. Limits are "
        f"corrected for all {looked} prompts that were looked at."
    )
    return Table("Finalists on fresh draws", heads, tuple(made), note, words=2)


_ANSWERS = {
    "beats": "the search beats it",
    "loses": "the search loses to it",
    "not told apart": "not shown that the search beats it",
}


def answer_words(answer: str) -> str:
    """The answer of a comparison in words."""
    return _ANSWERS.get(answer, name(answer))


def comparisons(found: Mapping[str, Any]) -> Table | None:
    """Did searching pay?"""
    made = []
    for i, row in enumerate(rows(found, "comparisons")):
        where, control = f"search.comparisons[{i}]", text(row, "control")
        spread = part(part(found, "spread"), control)
        made.append(
            (
                Cell(name(control)),
                Cell(answer_words(text(row, "answer")), f"{where}.answer"),
                Cell(percent(number(part(row, "search"), "mean")), f"{where}.search.mean"),
                Cell(percent(number(part(row, "other"), "mean")), f"{where}.other.mean"),
                Cell(points(number(row, "difference")), f"{where}.difference"),
                Cell(limits(row, points), f"{where}.low"),
                Cell(points(number(spread, "range")), f"search.spread.{control}.range"),
            )
        )
    if not made:
        return None
    heads = (
        ("control", "the same trajectories, without feedback or without new prompts"),
        ("answer", ""),
        ("search", "mean use of the search's first finalists"),
        ("control's", "mean use of the control's"),
        ("difference", "search minus control"),
        ("limits", "of the difference; all comparisons together"),
        ("spread", "largest less smallest of the control's best, over search seeds"),
    )
    own = points(number(part(part(found, "spread"), "search"), "range"))
    note = f"First finalists of every search seed, on fresh draws. The search's own spread: {own}."
    return Table("Did searching pay?", heads, tuple(made), note, words=2)


def held_out(found: Mapping[str, Any]) -> Table | None:
    """Prompts that no search ever saw."""
    pools = [("search.heldout", part(found, "heldout"))]
    pools += [(f"search.others[{i}]", row) for i, row in enumerate(rows(found, "others"))]
    made = [
        (
            Cell(name(text(row, "kind") or "of the workload")),
            Cell(count(number(row, "prompts")), f"{where}.prompts"),
            Cell(count(number(row, "trajectories")), f"{where}.trajectories"),
            Cell(percent(number(part(row, "use"), "mean")), f"{where}.use.mean"),
            Cell(limits(part(row, "use")), f"{where}.use"),
            Cell(percent(number(row, "highest")), f"{where}.highest"),
            Cell(points(number(row, "gap")), f"{where}.gap"),
        )
        for where, row in pools
        if row
    ]
    heads = (
        ("pool", "prompts set apart before any search began"),
        ("prompts", ""),
        ("trajectories", ""),
        ("use", "mean over prompts"),
        ("limits", "prompts as units"),
        ("highest", "of a prompt's mean"),
        ("gap", "the finalists' mean use less this one"),
    )
    return Table("Held out: what no search saw", heads, tuple(made)) if made else None


def proposer(found: Mapping[str, Any]) -> Table | None:
    """What became of a model's answers; None if the local operators proposed."""
    said = part(found, "proposer")
    if "asked" not in said:
        return None
    outcomes = part(said, "outcomes")
    names = ("asked", "by_model", "filled", "calls", "attempts", "unfit")
    made = [
        (Cell(_SAID[key]), Cell(count(number(said, key)), f"search.proposer.{key}"))
        for key in names
    ]
    made += [
        (
            Cell(f"attempts: {name(key)}"),
            Cell(count(number(outcomes, key)), f"search.proposer.outcomes.{key}"),
        )
        for key in outcomes
    ]
    title = f"What became of the proposer's answers: {name(text(said, 'name'))}"
    note = "Prompts that the model did not deliver were made by the local operators."
    return Table(title, (("", ""), ("count", "")), tuple(made), note)


_SAID = {
    "asked": "prompts wanted",
    "by_model": "written by the model",
    "filled": "filled by the local operators",
    "calls": "calls",
    "attempts": "attempts, failures included",
    "unfit": "entries that could not be used",
}


def gates(found: Mapping[str, Any]) -> Table | None:
    """Whether a surrogate steered, generation by generation, and how it was tested before."""
    made = []
    for i, row in enumerate(rows(part(found, "surrogate"), "gates")):
        where = f"search.surrogate.gates[{i}]"
        steers = row.get("steers")
        made.append(
            (
                Cell("yes" if steers is True else "no" if steers is False else NONE),
                Cell(name("; ".join(texts(row, "reasons")) or NONE), f"{where}.reasons"),
                Cell(count(number(row, "seed"))),
                Cell(count(number(row, "generation"))),
                Cell(count(number(row, "prompts")), f"{where}.prompts"),
                *(Cell(_short(number(row, key)), f"{where}.{key}") for key in _GATE),
            )
        )
    if not made:
        return None
    heads = (
        ("steers", "whether it chose what is screened"),
        ("why not", ""),
        ("seed", "search seed"),
        ("gen", "generation"),
        ("prompts", "it was judged on"),
        *((head, meaning) for head, meaning in _GATE.values()),
    )
    if by_paper(found):
        note = "The paper's protocol has no gate: its surrogate steers as soon as it can be fitted."
        return Table("The surrogate", heads, tuple(made), note, words=2)
    return Table("The surrogate's gate", heads, tuple(made), words=2)


_GATE = {
    "auc": ("AUC", "of the top decile, on prompts it never saw; at least 0.8"),
    "disattenuated": ("rank corr.", "over the root of the labels' reliability; at least 0.7"),
    "coverage": ("coverage", "of its intervals; 85 to 95 %"),
}


def _short(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else NONE


def _ratio(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else NONE
