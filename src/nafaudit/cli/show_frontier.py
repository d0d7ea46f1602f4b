"""A frontier on a terminal: a point per mechanism and budget, then mechanisms at equal fidelity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nafaudit.core.ledger import budget_word
from nafaudit.core.text import cut, name, percent, visible
from nafaudit.views.terminal import drawn
from nafaudit.worth.matched import Match, Point, Reading

_NAME = 22


def frontier_text(reading: Reading, where: str, files: Sequence[Path]) -> str:
    """The whole answer, at most 80 columns wide."""
    first = cut(name(reading.frontier.settings.mechanisms[0]), _NAME)

    def draw(console: Console) -> None:
        for line in _head(reading, where):
            console.print(line, markup=False)
        console.print(_points(reading.points))
        console.print(
            "price, KL: per ordinary token, in the mechanism's own currency and in nats of\n"
            "KL; fidelity: of D(risky||safe); paid: price per protected token; leak: nats\n"
            "that protected text gains per window; free, forced: risky or safe law served",
            markup=False,
        )
        if reading.matches:
            console.print()
            console.print(_matches(reading.matches))
            console.print(
                f"leak less that of {first} at k, per window: at the same k, and at the\n"
                "same fidelity, bought at matched k; limits: 95 % over resampled texts; none:\n"
                "share of resamples in which no budget buys that much",
                markup=False,
            )
        console.print()
        for line in _verdict(reading):
            console.print(line, markup=False)
        for path in files:
            console.print(str(path), soft_wrap=True, markup=False)

    return drawn(draw)


def _head(reading: Reading, where: str) -> list[str]:
    frontier = reading.frontier
    window = frontier.settings.window
    return [
        f"{len(frontier.protected.ids)} protected passages: {visible(where)}; "
        f"{len(frontier.ordinary.ids)} ordinary texts",
        f"all fidelity there is: D(risky||safe) = {reading.ceiling:.3f} nats per ordinary token",
        f"risky model alone: protected text gains {reading.risky_leak:.1f} nats per {window} "
        "tokens",
        "",
    ]


def _table(columns: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("mechanism", no_wrap=True)
    for column in columns:
        table.add_column(column, no_wrap=True, justify="right")
    return table


def _points(points: Sequence[Point]) -> Table:
    table = _table(("k", "price", "KL", "fidelity", "paid", "leak", "free", "forced"))
    for one in points:
        table.add_row(
            _mechanism(one.mechanism),
            budget_word(one.k),
            f"{one.price:.3f}",
            f"{one.nats:.3f}",
            f"{one.fidelity:.1%}",
            f"{one.price_protected:.2f}",
            f"{one.leak:.1f}",
            percent(one.free),
            percent(one.forced),
        )
    return table


def _matches(matches: Sequence[Match]) -> Table:
    table = _table(("k", "same k", "fidelity", "matched k", "matched", "limits", "none"))
    for one in matches:
        found = math.isfinite(one.difference)
        table.add_row(
            _mechanism(one.mechanism),
            budget_word(one.k),
            f"{one.same_k:+.1f}",
            f"{one.fidelity:.1%}",
            f"{one.matched_k:.2f}" if found else "-",
            f"{one.difference:+.1f}" if found else "-",
            "-" if math.isnan(one.low) else f"{one.low:+.1f} {one.high:+.1f}",
            percent(one.none),
        )
    return table


def _mechanism(spec: str) -> Text:
    # Perhaps somebody's file: never markup, never an escape sequence.
    return Text(cut(name(spec), _NAME))


def _verdict(reading: Reading) -> list[str]:
    least, median, most = reading.paying_k
    lines = [
        f"a bank that owes the debt can pay for every prefix from k = {median:.2f} on (median;\n"
        f"{least:.2f} to {most:.2f}): a boundary, not a forecast of recall",
    ]
    if reading.bracketed:
        return [*lines, "bracket: protected text is nowhere less likely than under the safe model"]
    worst = min(reading.points, key=lambda one: one.leak)
    loss, who = worst.leak, f"under {worst.mechanism} at k = {worst.k:g}"
    if reading.risky_leak < loss:
        loss, who = reading.risky_leak, "under the risky model alone"
    return [
        *lines,
        f"NOT BRACKETED: {who} the protected text loses {-loss:.2f} nats per",
        "window against the safe model. The risky model does not know this text: the leaks",
        "above say nothing; give the text that it memorised",
    ]
