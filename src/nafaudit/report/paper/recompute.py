"""The engine: every printed cell and quoted number, judged by one rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from nafaudit.core.errors import InputError, nearest
from nafaudit.report.paper.claim import Claim, Unchecked, Verdict, allowed
from nafaudit.report.paper.interval import Interval, rounded
from nafaudit.report.paper.quantities import QUANTITIES
from nafaudit.report.paper.source import Paper, Row, load
from nafaudit.report.paper.tables import TABLES
from nafaudit.report.paper.unchecked import unchecked

Cell = Claim | Unchecked
# How a printed number is to be read where it is not simply a rounded value.
_LIMITS = {
    "about": "about {}",
    "at most": "at most {}",
    "at least": "at least {}",
    "below": "below {}",
}
# A limit that is broken, but by less than its own last digit: true if the limit is rounded too.
_SLIGHT = ", which holds only once rounded to it"


@dataclass(frozen=True)
class Recomputation:
    """What came out.

    Attributes:
        cells: Every cell and claim, in the order of the paper's tables, then of its text.
    """

    cells: tuple[Cell, ...]

    @cached_property
    def agree(self) -> list[Claim]:
        """What the paper's own numbers support."""
        return [cell for cell in self._claims() if cell.verdict == Verdict.AGREE]

    @cached_property
    def disagree(self) -> list[Claim]:
        """What the paper's own numbers contradict."""
        return [cell for cell in self._claims() if cell.verdict == Verdict.DISAGREE]

    @cached_property
    def not_checkable(self) -> list[Unchecked]:
        """What nothing printed or released can test."""
        return [cell for cell in self.cells if isinstance(cell, Unchecked)]

    @cached_property
    def points(self) -> dict[str, list[Claim]]:
        """Disagreements by what they are about."""
        found: dict[str, list[Claim]] = {}
        for claim in self.disagree:
            found.setdefault(claim.point, []).append(claim)
        return found

    def _claims(self) -> Iterator[Claim]:
        return (cell for cell in self.cells if isinstance(cell, Claim))


def recompute(paper: Paper | None = None) -> Recomputation:
    """Judges the whole paper.

    Args:
        paper: Its printed numbers; those that come with the package if left out.
    """
    source = paper or load()
    claims = [claim for table in TABLES for claim in table(source)]
    return Recomputation((*claims, *quoted(source), *unchecked(source)))


def quoted(paper: Paper) -> list[Claim]:
    """The numbers and words of the running text, beside the quantities that they quote."""
    found = []
    for row in paper.rows("quotes"):
        name = row["quantity"]
        if name not in QUANTITIES:
            raise InputError(f"a quote names the quantity {name!r}{nearest(name, QUANTITIES)}")
        quantity = QUANTITIES[name]
        limits, computed = allowed(row["printed"], row["rule"]), quantity(paper)
        found.append(
            Claim(
                row["point"],
                row["where"],
                row["printed"],
                quantity.says,
                limits,
                computed,
                quantity.released,
                row["reading"] or _reading(row, limits, computed),
            )
        )
    return found


def _reading(row: Row, limits: Interval, computed: Interval) -> str:
    """How a printed number was read; where a limit is broken, whether only by its rounding."""
    reading = _LIMITS.get(row["rule"], "").format(row["printed"])
    if row["rule"] not in ("at most", "at least") or limits.meets(computed):
        return reading
    return reading + (_SLIGHT if rounded(row["printed"]).meets(computed) else "")


def merged(claims: Sequence[Claim]) -> list[tuple[str, Claim]]:
    """Claims that say the same in several places, once, with all places."""
    places: dict[str, list[str]] = {}
    first: dict[str, Claim] = {}
    for claim in claims:
        # One number quoted in several sections is one statement; a table's cells are not.
        same = claim.where if claim.where.startswith(("Table", "Equation")) else claim.text
        places.setdefault(same, []).append(claim.where)
        first.setdefault(same, claim)
    return [("; ".join(places[same]), claim) for same, claim in first.items()]
