"""A document on a terminal, or as plain text of 80 columns where there is none."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from nafaudit.core.text import cut, visible
from nafaudit.views.document import Document, Section, Table

_PROSE = 79
# A name that is cut further than this says nothing.
_NARROWEST = 8
_EQUALS = "\0=\0"


def terminal(document: Document) -> str:
    """Returns the document as text; on a terminal, titles and heads are bold."""
    return drawn(lambda console: draw(document, console))


def draw(document: Document, console: Console) -> None:
    """Draws the document on a console."""
    end = Section(note=document.conclusion)
    blocks = [Section(lines=document.lines), *document.sections, end]
    blocks = [
        one
        for one in blocks
        if one.title or one.pairs or one.lines or one.note or (one.table and one.table.rows)
    ]
    for number, section in enumerate(blocks):
        if number:
            console.print()
        _draw_section(console, section)
    if document.files:
        console.print()
    for path in document.files:
        console.print(visible(path), soft_wrap=True)


def drawn(draw: Callable[[Console], None]) -> str:
    """Returns what is drawn on a console: as wide as the terminal, 80 columns elsewhere.

    It is captured because rich answers a closed pipe with exit status 1, which means violated.
    """
    width = None if Console().is_terminal else 80
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        draw(console)
    return "\n".join(line.rstrip() for line in captured.get().rstrip().split("\n"))


def wrapped(text: str, first: str = "") -> str:
    """Returns prose in lines of at most 79 characters.

    Args:
        text: May have line breaks and indented lines of its own.
        first: What stands before it; further lines are indented by its width, or by two.
    """
    lines = []
    for line in visible(text).split("\n"):
        inner = " " * (len(first) or len(line) - len(line.lstrip()) + 2)
        # A path is copied whole, however long it is, and "k = 3" is not torn apart.
        lines += textwrap.wrap(
            line.replace(" = ", _EQUALS),
            _PROSE,
            initial_indent=first,
            subsequent_indent=inner,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(lines).replace(_EQUALS, " = ")


def _draw_section(console: Console, section: Section) -> None:
    if section.title:
        console.print(Text(wrapped(section.title)), style="bold", soft_wrap=True)
    widest = max((len(label) for label, _ in section.pairs), default=0)
    for label, text in section.pairs:
        console.print(wrapped(text, f"  {visible(label):<{widest}}  "), soft_wrap=True)
    if section.table is not None and section.table.rows:
        _draw_table(console, section.table)
    for text in (*section.lines, *([section.note] if section.note else [])):
        console.print(wrapped(text), soft_wrap=True)


def _draw_table(console: Console, table: Table) -> None:
    """Draws columns side by side; where they do not fit, words are cut and numbers are not."""
    cells = [[visible(str(cell)) for cell in row] for row in table.cells()]
    rows = [[column.head for column in table.columns], *cells]
    for row in rows:
        row[:] = [
            cut(text, column.most) if column.most else text
            for text, column in zip(row, table.columns, strict=True)
        ]
    widths = [max(map(cell_len, texts)) for texts in zip(*rows, strict=True)]
    gap = 2 if sum(widths) + 2 * (len(widths) - 1) <= console.width else 1
    shown = RichTable(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for column, head, width in zip(table.columns, rows[0], widths, strict=True):
        shown.add_column(
            Text(head),
            justify="left" if column.words else "right",
            no_wrap=not column.words,
            min_width=min(width, _NARROWEST) if column.words else width,
        )
    for row in rows[1:]:
        shown.add_row(
            *(
                Text(text, no_wrap=not column.wraps, overflow="ellipsis")
                for text, column in zip(row, table.columns, strict=True)
            )
        )
    console.print(shown)
