"""The class tables on a terminal: what a mean over all prompts hides."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nafaudit.cli.numbers import nats, percent
from nafaudit.core.ledger import is_baseline
from nafaudit.core.text import cut, name
from nafaudit.core.trajectory import Arm
from nafaudit.measures.classes import ClassRow, ClassTable
from nafaudit.stats import MIN_EVIDENCE, Bound, enough

_MOST_ROWS = 24
_LONGEST = 14

Cell = Callable[[ClassRow], str]


def print_classes(console: Console, table: ClassTable, name_of: Callable[[float], str]) -> None:
    """Prints a row per class and budget; nothing if there is only one class.

    Args:
        console: Where to.
        table: The class tables.
        name_of: How a budget is called.
    """
    rows = [row for row in table.rows if not is_baseline(row.k)]
    if len({row.label for row in rows}) < 2:
        return
    worst = [table.worst(arm) for arm in dict.fromkeys(Arm(r.mechanism, r.k) for r in rows)]
    listed = rows if len(rows) <= _MOST_ROWS else [row for row in worst if row]
    shown = any(_evident(bound) for row in listed for bound in (row.paper, row.upper))
    mechanisms = sorted({row.mechanism for row in listed})
    for mechanism in mechanisms:
        console.print(f"\n{name(mechanism)[:60]}" if len(mechanisms) > 1 else "")
        mine = [row for row in listed if row.mechanism == mechanism]
        console.print(_table(mine, set(map(id, worst)), name_of, _columns(shown)))
    if len(listed) < len(rows):
        console.print(f"only the worst of {len(table.labels)} classes each; --json has them all")
    console.print(_legend(table, listed, shown))


def _columns(bounds: bool) -> dict[str, Cell]:
    columns: dict[str, Cell] = {
        "n": lambda row: str(row.trajectories),
        "of": lambda row: str(row.prompts),
        "spend": lambda row: nats(row.mean),
    }
    if bounds:
        columns |= {
            "U": lambda row: _bound(row.paper, row.passes),
            "U_eff": lambda row: _bound(row.paper_seen, row.passes_seen),
            "upper": lambda row: _bound(row.upper, row.certified),
        }
    else:
        columns |= {
            "use": lambda row: percent(row.utilisation.mean),
            "worst": lambda row: percent(row.utilisation.max),
        }
    return columns | {
        "debt": lambda row: nats(row.debt.mean),
        "ROUGE": lambda row: _share(row.copying.mean("rouge_l_f1")),
        "recall": lambda row: percent(row.copying.mean("near_verbatim_recall")),
    }


def _table(
    rows: Sequence[ClassRow],
    worst: set[int],
    name_of: Callable[[float], str],
    columns: dict[str, Cell],
) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("budget", no_wrap=True)
    table.add_column("class", no_wrap=True)
    for column in columns:
        table.add_column(column, no_wrap=True, justify="right")
    for row in rows:
        # A class is named in somebody's file: never markup, never an escape sequence.
        label = Text(cut(name(row.label), _LONGEST) + ("*" if id(row) in worst else ""))
        table.add_row(name_of(row.k), label, *(cell(row) for cell in columns.values()))
    return table


def _legend(table: ClassTable, rows: Sequence[ClassRow], shown: bool) -> str:
    lines = ["n: trajectories, of so many prompts; *: spends most; ROUGE: mean ROUGE-L F1"]
    if shown:
        lines += [
            "U, U_eff: the paper's U_EBB of the mean spend with R = T ln|V| and with the",
            "range seen, both proxies; upper: a bound that holds, with prompts as units and",
            f"R = kT; each at level {table.delta:.2g} for {table.looks} looks; !: above K = kT",
            f"-: not known, or no evidence on fewer than {MIN_EVIDENCE}",
        ]
        lines += [f"no upper bound: {why}" for why in sorted({r.lacks for r in rows if r.lacks})]
    else:
        lines += [
            f"bounds of means on fewer than {MIN_EVIDENCE} are no evidence; --json has them",
        ]
    return "\n".join(lines)


def _evident(found: Bound | None) -> bool:
    return found is not None and enough(found.n)


def _bound(found: Bound | None, passes: bool | None) -> str:
    if found is None or not enough(found.n):
        return "-"
    return nats(found.value) + ("!" if passes is False else "")


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"
