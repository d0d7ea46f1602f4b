"""The paper's printed numbers, kept as the text that was printed: 215.00 is not 215.

Files named `released_*` hold what the paper's authors published beside it. Such numbers come from
the same hands, so whatever rests on them says so.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from nafaudit.core.errors import InputError, nearest
from nafaudit.report.paper.interval import Interval, rounded
from nafaudit.stats import paper_range

# Of the Llama 3 tokenizer. The paper prints only the R = T ln|V| that follows from it.
VOCABULARY = 128_256

TABLES = (
    "bernstein",
    "blowup",
    "debt",
    "overlap",
    "projection",
    "quotes",
    "released_archive",
    "released_distinct",
    "released_generations",
    "released_overlap",
    "released_regime",
    "released_report",
    "released_summary",
    "search",
    "settings",
    "stage1",
    "stage2",
    "unchecked",
)


@dataclass(frozen=True)
class Row:
    """One line of a table, by column."""

    cells: Mapping[str, str]

    def __getitem__(self, column: str) -> str:
        return self.cells[column]

    def number(self, column: str) -> Interval:
        """All values that round to what is printed."""
        return rounded(self.cells[column])

    def count(self, column: str) -> int:
        """A whole number, which is exact."""
        return int(self.cells[column])


@dataclass(frozen=True)
class Paper:
    """Every table by name."""

    tables: Mapping[str, tuple[Row, ...]]

    def rows(self, table: str, **wanted: object) -> list[Row]:
        """Lines of a table, those only that agree with every given column."""
        if table not in self.tables:
            raise InputError(f"the paper has no table {table!r}{nearest(table, self.tables)}")
        found = self.tables[table]
        return [r for r in found if all(r[c] == str(v) for c, v in wanted.items())]

    def row(self, table: str, **wanted: object) -> Row:
        """The one line that agrees."""
        found = self.rows(table, **wanted)
        if len(found) != 1:
            raise InputError(f"table {table!r} has {len(found)} lines with {wanted}, need 1.")
        return found[0]

    def setting(self, name: str) -> float:
        """A number of the set-up, which is exact."""
        return float(self.row("settings", name=name)["printed"])

    def budget(self, k: int) -> float:
        """K = k T, in nats."""
        return k * self.setting("T_max")

    def executions(self, label: str) -> float:
        """The M that a class should have: its cap times the trajectories per prompt."""
        return self.setting(f"cap_{label}") * self.setting("trajectories")

    @property
    def worst_range(self) -> float:
        """R = T ln|V|, which the first stage uses as its range."""
        return paper_range(int(self.setting("T_max")), VOCABULARY)

    def stage1_level(self, hypotheses: int | None = None) -> float:
        """The level of one row of the first stage, corrected for so many hypotheses."""
        count = hypotheses or len(self.rows("debt")) * int(self.setting("stage1_budgets"))
        return self.setting("level") / count

    def tampered(self, table: str, line: int, column: str, printed: str) -> Paper:
        """A copy with one printed cell changed, to see what then disagrees."""
        rows = list(self.tables[table])
        rows[line] = replace(rows[line], cells={**rows[line].cells, column: printed})
        return Paper({**self.tables, table: tuple(rows)})


@cache
def load() -> Paper:
    """Reads the tables that come with the package."""
    return Paper(MappingProxyType({name: _read(name) for name in TABLES}))


def _read(name: str) -> tuple[Row, ...]:
    text = (files("nafaudit.report.paper") / "data" / f"{name}.csv").read_text(encoding="utf-8")
    return tuple(Row(MappingProxyType(cells)) for cells in csv.DictReader(text.splitlines()))
