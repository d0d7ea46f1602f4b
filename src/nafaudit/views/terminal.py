"""A document on a terminal, or as plain text of 80 columns where there is none."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from nafaudit.core.text import cut, visible
from nafaudit.views.document import TONES, Column, Document, Section, Table, Verdict

_PROSE = 79
_STYLES = {"good": "bold green", "bad": "bold red", "open": "bold yellow", "": ""}
# Answers to a question are words of prose too: only a cell says that they are verdicts.
_IN_PROSE = {
    _STYLES[tone]: re.compile(
        rf"\b({'|'.join(w for w, t in TONES.items() if t == tone and w not in ('YES', 'NO'))})\b"
    )
    for tone in ("good", "bad", "open")
}
# A name that is cut further than this says nothing.
_NARROWEST = 8
_COMMAND = re.compile("[a-z]+: nafaudit [a-z]+ [^ ]*$|[a-z]+: nafaudit [a-z]+ [^ ]* --")
_EQUALS = "\0=\0"


def terminal(document: Document, then: str = "") -> str:
    """Returns the document as text; on a terminal, titles are bold and verdicts have a colour.

    Args:
        document: What is shown.
        then: What to do next, as a command or in a few words; it is the last line.
    """
    return drawn(lambda console: draw(document, console, then))


def draw(document: Document, console: Console, then: str = "") -> None:
    """Draws the document on a console."""
    end = Section(note=document.conclusion)
    first = Section(lines=(str(document.answer),) if document.answer else ())
    blocks = [first, Section(lines=document.lines), *document.sections, end]
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
    if then:
        _print(console, next_step(then, _prose(console)))


def drawn(draw: Callable[[Console], None]) -> str:
    """Returns what is drawn on a console: as wide as the terminal, 80 columns elsewhere.

    It is captured because rich answers a closed pipe with exit status 1, which means violated.
    """
    width = None if Console().is_terminal else 80
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        draw(console)
    return "\n".join(line.rstrip() for line in captured.get().rstrip().split("\n"))


def text_of(document: Document) -> str:
    """Returns the document as text of 80 columns, without colours, wherever it is asked for."""
    stream = io.StringIO()
    console = Console(
        file=stream, width=80, color_system=None, force_jupyter=False, force_terminal=False,
        highlight=False, markup=False, emoji=False,
    )  # fmt: skip
    draw(document, console)
    return "\n".join(line.rstrip() for line in stream.getvalue().rstrip().split("\n"))


def wrapped(text: str, first: str = "", width: int = _PROSE) -> str:
    """Returns prose in lines of at most 79 characters.

    Args:
        text: May have line breaks and indented lines of its own.
        first: What stands before it; further lines are indented by its width, or by two.
        width: Characters of a line, if not 79.
    """
    lines = []
    for line in visible(text).split("\n"):
        inner = " " * (len(first) or len(line) - len(line.lstrip()) + 2)
        # A path is copied whole, however long it is, and "k = 3" is not torn apart.
        lines += textwrap.wrap(
            line.replace(" = ", _EQUALS),
            width,
            initial_indent=first,
            subsequent_indent=inner,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(lines).replace(_EQUALS, " = ")


def next_step(text: str, width: int = _PROSE) -> str:
    """Returns the last line of an answer; a command that needs two lines can still be pasted."""
    lines = wrapped(text, "next: ", width - 2).split("\n")
    return (" \\\n" if text.startswith("nafaudit ") else "\n").join(lines)


def _line(text: str, width: int) -> str:
    """Returns a line of a section in lines of prose; a command in it can still be pasted."""
    if not _COMMAND.match(text):
        return wrapped(text, width=width)
    return " \\\n".join(wrapped(text, width=width - 2).split("\n"))


def _prose(console: Console) -> int:
    """Returns how wide prose is: lines of more than 79 characters are hard to read."""
    return min(_PROSE, console.width - 1)


def _print(console: Console, text: str, style: str = "") -> None:
    """Prints prose that is wrapped already, its verdict words in colour."""
    shown = Text(text, style=style)
    for tone, words in _IN_PROSE.items():
        shown.highlight_regex(words, tone)
    console.print(shown, soft_wrap=True)


def _draw_section(console: Console, section: Section) -> None:
    width = _prose(console)
    if section.title:
        _print(console, wrapped(section.title, width=width), "bold")
    widest = max((len(label) for label, _ in section.pairs), default=0)
    for label, text in section.pairs:
        _print(console, wrapped(text, f"  {visible(label):<{widest}}  ", width))
    if section.table is not None and section.table.rows:
        _draw_table(console, section.table)
    for text in section.lines:
        _print(console, _line(text, width))
    if section.note:
        _print(console, wrapped(section.note, width=width))


def _draw_table(console: Console, table: Table) -> None:
    """Draws columns side by side; where they do not fit, words are cut and numbers are not.

    Columns that fit in no case stand below the others, after the words that name their rows.
    """
    rows: list[list[Text]] = [[Text(visible(column.head)) for column in table.columns]]
    for row in table.cells():
        cells = []
        for cell, column in zip(row, table.columns, strict=True):
            text = visible(str(cell))
            shown = Text(cut(text, column.most) if column.most else text)
            if isinstance(cell, Verdict):
                at = len(f"{cell.before} -> ") if cell.before else 0
                shown.stylize(_STYLES[cell.tone], at, at + len(cell.word))
            cells.append(shown)
        rows.append(cells)
    widths = [max(cell_len(text.plain) for text in texts) for texts in zip(*rows, strict=True)]
    verdicts = [
        any(isinstance(row[at], Verdict) for row in table.cells()) for at in range(len(widths))
    ]
    least = [
        min(width, _NARROWEST) if column.words and not is_verdict else width
        for width, column, is_verdict in zip(widths, table.columns, verdicts, strict=True)
    ]
    for chosen in _parts(table.columns, least, console.width):
        _draw_columns(console, table.columns, rows, widths, least, chosen)


def _parts(columns: Sequence[Column], least: Sequence[int], width: int) -> list[list[int]]:
    """Returns which columns stand side by side, so that no number is cut.

    Args:
        columns: All of them.
        least: Characters that each needs.
        width: Characters that there are.
    """
    if sum(least) + len(least) - 1 <= width:
        return [list(range(len(columns)))]
    names = 0
    while names < len(columns) - 1 and columns[names].words and not columns[names].wraps:
        names += 1
    while names > 1 and sum(least[:names]) + names > width // 2:
        names -= 1
    parts, room = [list(range(names))], width - sum(least[:names]) - names
    left = room
    for at in range(names, len(columns)):
        if least[at] > left and len(parts[-1]) > names:
            parts.append(list(range(names)))
            left = room
        parts[-1].append(at)
        left -= least[at] + 1
    return parts


def _draw_columns(
    console: Console,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Text]],
    widths: Sequence[int],
    least: Sequence[int],
    chosen: Sequence[int],
) -> None:
    gap = 2 if sum(widths[at] + 2 for at in chosen) - 2 <= console.width else 1
    shown = RichTable(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for at in chosen:
        shown.add_column(
            rows[0][at],
            justify="left" if columns[at].words else "right",
            no_wrap=not columns[at].words,
            min_width=least[at],
        )
    for row in rows[1:]:
        for at in chosen:
            row[at].no_wrap, row[at].overflow = not columns[at].wraps, "ellipsis"
        shown.add_row(*(row[at] for at in chosen))
    console.print(shown)
