"""What is shown, before it is decided where: a document of sections, tables and lines.

Cells and lines are text from any source, other people's logs included. None of it is markup: each
writer (terminal, Markdown, HTML) makes hostile text harmless in its own way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from nafaudit.core import text
from nafaudit.core.finding import Overall
from nafaudit.core.text import value_at

NONE = "-"
"""What stands for an unknown number; Markdown and the page write a longer dash."""

nats = partial(text.nats, unknown=NONE)
percent = partial(text.percent, unknown=NONE)

Tone = Literal["good", "bad", "open", ""]

TONES: dict[str, Tone] = {
    **dict.fromkeys(("WITHIN", "ACTIVE", "INFORMATIVE", "FINE", "PASS", "YES"), "good"),
    **dict.fromkeys(("PASSED", "CONFORMS", "ENOUGH"), "good"),
    **dict.fromkeys(("VIOLATED", "REFUTED", "VACUOUS", "SUSPECT", "FAILED", "FAIL", "NO"), "bad"),
    "BROKEN": "bad",
    **dict.fromkeys(("INCONCLUSIVE", "IDLE", "UNKNOWN", "TOO FEW"), "open"),
}
"""What each verdict word says of what is audited."""


@dataclass(frozen=True)
class Verdict:
    """A verdict word as a cell, so that a writer can colour it or count it.

    Attributes:
        word: WITHIN, VACUOUS, FAILED, or another word of `core.finding`.
        more: What stands behind the word.
        before: Word that it was before, which stands in front of it; empty if it did not change.
    """

    word: str
    more: str = ""
    before: str = ""

    @property
    def tone(self) -> Tone:
        """Good, bad or open; empty for a word that judges nothing."""
        return TONES.get(self.word, "")

    def __str__(self) -> str:
        before = f"{self.before} -> " if self.before else ""
        return f"{before}{self.word} {self.more}".rstrip()


@dataclass(frozen=True)
class Column:
    """One column of a table: where its values come from and how they are written.

    Attributes:
        head: As short as a terminal needs it.
        path: Where the value is in a row's result, as its JSON has it; empty for the whole result.
        meaning: The head in words, for a tooltip or a legend; empty if the head says it.
        write: Value to text; None for the value's own text.
        words: True for text, on the left; numbers stand on the right.
        most: Characters that a terminal cuts it to; 0 for no limit.
        wraps: True for sentences, which a terminal breaks instead of cutting them.
    """

    head: str
    path: str = ""
    meaning: str = ""
    write: Callable[[Any], str | Verdict] | None = None
    words: bool = False
    most: int = 0
    wraps: bool = False


@dataclass(frozen=True)
class Table:
    """Values in rows.

    Attributes:
        columns: From left to right.
        rows: A value for each column.
        places: Where each row's result is in the JSON, as `verdicts[3]`; empty if nowhere.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[object, ...], ...]
    places: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, columns: Sequence[Column], results: Iterable[object], places: Iterable[str] = ()
    ) -> Table:
        """Returns the table with a row for each result, whose values are at the columns' paths."""
        rows = (tuple(value_at(result, column.path) for column in columns) for result in results)
        return cls(tuple(columns), tuple(rows), tuple(places))

    def cells(self) -> list[list[str | Verdict]]:
        """Returns every cell as text or as a verdict."""
        return [
            [_cell(value, column) for value, column in zip(row, self.columns, strict=True)]
            for row in self.rows
        ]

    def place(self, row: int, column: Column) -> str:
        """Returns where in the JSON a value is, as `verdicts[3].spend.mean`; empty if nowhere."""
        where = self.places[row] if self.places else ""
        return f"{where}.{column.path}" if where and column.path else where


@dataclass(frozen=True)
class Section:
    """A title and what stands below it, in the order of the attributes.

    Attributes:
        title: Empty for none.
        pairs: A label and what it says.
        table: Left out if it has no rows.
        lines: Paragraphs; one that is indented belongs to the one above it.
        note: Explains the table; it may have several lines.
        inner: True if it belongs to the section above it.
    """

    title: str = ""
    table: Table | None = None
    note: str = ""
    lines: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    inner: bool = False


@dataclass(frozen=True)
class Document:
    """A whole answer.

    Attributes:
        title: Title of a page; a terminal shows the command instead.
        sections: In the order in which they are read.
        conclusion: In a sentence or two; last on a terminal, first on a page.
        lines: What the document is about.
        files: What was written.
        answer: The one answer of the command, which stands first; None if it judges nothing.
    """

    title: str
    sections: tuple[Section, ...]
    conclusion: str = ""
    lines: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    answer: Overall | None = None


def _cell(value: object, column: Column) -> str | Verdict:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NONE
    written = value if column.write is None else column.write(value)
    return written if isinstance(written, Verdict) else str(written)
