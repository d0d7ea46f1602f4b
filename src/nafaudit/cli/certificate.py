"""A certificate on a terminal: a card per budget, then the passages that are worst off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nafaudit.cli.echo import echo
from nafaudit.core.finding import Worth
from nafaudit.core.text import cut, name, visible
from nafaudit.views.terminal import drawn

if TYPE_CHECKING:
    from nafaudit.worth.certify import BudgetCard, Certification

_ID = 26
# More columns do not fit; the files have them all.
_BUDGETS = 4


def print_certificate(
    certification: Certification, where: str, files: Sequence[Path], *, most: int
) -> None:
    """Prints cards, table and file names.

    Args:
        certification: What came out.
        where: What the passages are called.
        files: What was written.
        most: Passages in the table.
    """

    def draw(console: Console) -> None:
        _head(console, certification, where)
        for card in certification.cards:
            _card(console, card, certification)
        console.print()
        console.print(_table(certification, most))
        if most < len(certification.rows):
            console.print(
                f"({most} of {len(certification.rows)}, worst first; all are in the files)"
            )
        console.print(
            f"S: nats of the first {certification.settings.decoding.max_new_tokens} tokens; "
            "critical k: from here on K = kT says nothing;\n"
            "under each k: the largest chance of reproduction that it leaves\n"
        )
        for path in files:
            console.print(str(path), soft_wrap=True)

    echo(drawn(draw))


def _head(console: Console, certification: Certification, where: str) -> None:
    settings, rows = certification.settings, certification.rows
    surprisals = sorted(row.surprisal for row in rows)
    lines = (
        f"{len(rows)} passages: {where}",
        f"surprisal of {certification.scores.anchor}, in nats: least {surprisals[0]:.1f}, median "
        f"{_median(surprisals):.1f}, most {surprisals[-1]:.1f}",
        f"before each passage: {certification.scores.context}",
        f"one output has at most T = {settings.decoding.max_new_tokens} tokens; K = kT, without "
        "any debt",
    )
    for line in lines:
        console.print(visible(line))


def _card(console: Console, card: BudgetCard, certification: Certification) -> None:
    word = "VACUOUS" if card.worth == Worth.VACUOUS else "INFORMATIVE"
    n = card.vacuous if card.worth == Worth.VACUOUS else card.passages - card.vacuous
    share = f"{n} of {card.passages} passages"
    title = f"k = {card.k:g}, K = {card.budget:g} nats: {word} ({share})"
    console.print(f"\n{title}", style="bold")
    window = certification.settings.window
    reached = f"{card.windows_vacuous} of {card.windows}" if card.windows else "no"
    lines = (
        ("largest chance of reproduction", f"{_chance(card.cap_max)}; median passage "
         f"{_chance(card.cap_median)}"),
        ("were K a Renyi-2 or pathwise bound", f"{_power(card.log10_renyi)} or "
         f"{_power(card.log10_pathwise)}"),
        ("queries that it survives", _count(card.queries)),
        ("best-of-n draws that it survives", "0" if card.worth == Worth.VACUOUS and
         card.log10_draws <= 0 else _power(card.log10_draws)),
        ("K alone is worth the best of", f"{_power(card.log10_best_of)} safe draws"),
        (f"windows of {window}, K = {card.window_budget:g}", f"{reached} windows vacuous"),
        ("opening tokens a debt can force", f"at most {card.forced_at_most:g}"),
    )  # fmt: skip
    for label, text in lines:
        console.print(f"  {label:<36}{text}")


def _table(certification: Certification, most: int) -> Table:
    budgets = certification.settings.k[:_BUDGETS]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("passage", no_wrap=True)
    for column in ("tokens", "S", "critical k", *(f"k={k:g}" for k in budgets)):
        table.add_column(column, no_wrap=True, justify="right")
    for row in certification.rows[:most]:
        table.add_row(
            # Named in somebody's file: never markup, never an escape sequence.
            Text(cut(name(row.id), _ID)),
            str(row.tokens),
            f"{row.surprisal:.0f}",
            f"{row.critical_k:.2f}",
            *(_chance(value) for value in row.caps[: len(budgets)]),
        )
    return table


def _median(values: Sequence[float]) -> float:
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2


def _chance(value: float) -> str:
    """A probability with the digits it deserves."""
    return "1" if value == 1 else f"{value:.3f}" if value >= 1e-3 else f"{value:.0e}"


def _power(exponent: float) -> str:
    """10^x: as a number where it is short."""
    if math.isinf(exponent):
        return "infinitely many" if exponent > 0 else "0"
    return f"{10**exponent:.3g}" if abs(exponent) < 4 else f"10^{exponent:.1f}"


def _count(value: float) -> str:
    return "any number" if math.isinf(value) else f"{value:.0f}"
