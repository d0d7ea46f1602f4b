"""An attack on a terminal: recall by way and budget, where it begins, what an odometer leaves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from nafaudit.stats import mean
from nafaudit.core.finding import MIN_TRAJECTORIES, Kept
from nafaudit.core.ledger import budget_word
from nafaudit.core.text import percent, visible
from nafaudit.stats.rates import Crossing
from nafaudit.views.terminal import drawn
from nafaudit.worth.attack_result import Answered, Odometer, Row
from nafaudit.worth.settings import ADMISSION

EXIT = {Kept.WITHIN: 0, Kept.VIOLATED: 1, Kept.INCONCLUSIVE: 3}
_COLUMNS = 8


def attack_text(answered: Answered, where: str, files: Sequence[Path]) -> str:
    """The whole answer, at most 80 columns wide."""

    def draw(console: Console) -> None:
        for line in _head(answered, where):
            console.print(line, markup=False)
        if answered.attacked.admitted:
            _body(console, answered)
        for line in _verdict(answered):
            console.print(line, markup=False)
        console.print()
        for path in files:
            console.print(str(path), soft_wrap=True, markup=False)

    return drawn(draw)


def _head(answered: Answered, where: str) -> list[str]:
    attacked = answered.attacked
    settings, n = attacked.settings, len(attacked.texts)
    lengths = sorted(len(text.tokens) for text in attacked.texts)
    admitted = f"risky model alone: recall {attacked.admission:.3f} of its single answers"
    if not attacked.admitted:
        return [
            f"{n} of {attacked.given} passages: {visible(where)}",
            f"{admitted}; an attack needs {ADMISSION:.2f}.",
            "NOT ADMITTED: this model has not memorised these passages (or was given too",
            "little of them), so what a budget does to recall cannot be seen here.",
        ]
    return [
        f"{n} of {attacked.given} passages: {visible(where)}",
        f"known of each: {settings.given} tokens; wanted: {lengths[0]} to {lengths[-1]} tokens; "
        f"every query asked {settings.trajectories} times",
        f"{admitted} (needs {ADMISSION:.2f})",
        "",
    ]


def _body(console: Console, answered: Answered) -> None:
    console.print(_by_budget(answered, "near-verbatim recall", lambda row: f"{row.recall:.3f}"))
    console.print()
    console.print(_by_budget(answered, "longest run, words", lambda row: f"{row.span:.0f}"))
    console.print()
    for line in _onsets(answered):
        console.print(line, markup=False)
    console.print()
    console.print(_odometers(answered))
    console.print(
        "recall if all answers to one user, retries included, may cost B nats; B*: where\n"
        f"it reaches {answered.attacked.settings.target:g}; limits: 95 % over resampled "
        "passages; none: share of\nresamples that never reach it",
        markup=False,
    )
    console.print()


def _table(first: str, columns: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, no_wrap=True, justify="right")
    return table


def _by_budget(answered: Answered, title: str, cell: Callable[[Row], str]) -> Table:
    """A row per way to attack, a column per budget, both baselines at the ends."""
    budgets = answered.attacked.settings.budgets
    # Of many budgets the ends and the first few; the files have all.
    shown = budgets if len(budgets) <= _COLUMNS else (*budgets[: _COLUMNS - 1], budgets[-1])
    table = _table(title, [f"k={budget_word(k)}" for k in shown])
    for log in answered.attacked.logs:
        rows = [next((r for r in answered.rows if r.method == log.method and r.k == k), None)
                for k in shown]  # fmt: skip
        table.add_row(log.method.words, *("-" if row is None else cell(row) for row in rows))
    return table


def _onsets(answered: Answered) -> list[str]:
    target = answered.attacked.settings.target
    lines = [f"recall reaches {target:g} at k ="]
    for one in answered.onsets:
        found = one.found
        lines.append(f"  {one.method.words:<21}{_at(found)}; none {percent(found.none)}")
    numbers = answered.rows[0].worth.numbers
    if numbers:
        lines.append(
            f"certificate of one answer (K = {numbers['T']:.0f} k, median surprisal "
            f"{numbers['surprisal_median']:.0f} nats): vacuous\nfrom k = "
            f"{answered.critical_k:.2f} on, for half of the passages"
        )
    return lines


def _at(found: Crossing) -> str:
    limits = f"limits {_number(found.low)} to {_number(found.high)}"
    if math.isinf(found.at):
        return f"none up to {found.below:g}, {limits}"
    return f"{_number(found.at)}, linear after {found.below:g}, {limits}"


def _number(value: float) -> str:
    if math.isinf(value):
        return "beyond"
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _odometers(answered: Answered) -> Table:
    budgets = answered.attacked.settings.user_budgets[:5]
    columns = ["k", *(f"B={b:g}" for b in budgets), "B*", "limits", "none"]
    table = _table("odometer", columns)
    for one in answered.odometers:
        if one.method.debt == answered.attacked.logs[0].method.debt:
            table.add_row(one.method.words, *_odometer(one, budgets))
    return table


def _odometer(one: Odometer, budgets: Sequence[float]) -> list[str]:
    recalls = [f"{mean([user.recall for user in one.users[b]]):.3f}" for b in budgets]
    found = one.found
    limits = f"{_number(found.low)}-{_number(found.high)}"
    return [budget_word(one.k), *recalls, _number(found.at), limits, percent(found.none)]


def _verdict(answered: Answered) -> list[str]:
    if not answered.attacked.admitted:
        return []
    judged = sum(row.trajectories for row in answered.rows)
    if answered.outcome == Kept.VIOLATED:
        bad = sorted({(r.method.name, r.k) for r in answered.rows if r.violations})
        name, k = bad[0]
        return [
            f"VIOLATED: {answered.violations} of {judged} answers exceed their budget, first in",
            f"k = {k:g}: nafaudit check {answered.attacked.path / name}",
        ]
    if answered.outcome == Kept.INCONCLUSIVE:
        return [
            f"INCONCLUSIVE: none of {judged} answers exceeds its budget, but a verdict needs "
            f"{MIN_TRAJECTORIES}",
            "of every budget; raise --limit or --attempts",
        ]
    return [f"WITHIN: 0 of {judged} answers exceed their budget"]
