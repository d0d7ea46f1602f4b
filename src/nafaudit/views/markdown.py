"""Writes a document as Markdown, with its text escaped so that none of it is read as markup."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from nafaudit.core.text import visible
from nafaudit.views.document import NONE, Document, Section, Table

# Characters that Markdown would read as markup. Others, as in R_eff <= 3, stay as they are.
_MARKUP = re.compile(
    r"""[\\`*\[\]|~$]                              # marks within a line
    | (?<![A-Za-z0-9])_ | _(?![A-Za-z0-9])        # emphasis
    | <(?![\s=0-9]) | ^> | &(?=\#?\w+;)           # tags, quotations, entities
    | :(?=//) | (?<=www)\. | @(?=[\w-]+\.)        # addresses that some readers make links of
    | ^[-+](?=[\s-]|$) | ^[\#=] | (?<!\#)\#+$     # lists, headings, the end of a heading
    """,
    re.VERBOSE | re.IGNORECASE,
)
_NUMBERED = re.compile(r"^([0-9]{1,9})([.)])(?=\s|$)")


def escaped_line(text: str) -> str:
    """Returns any text as one line of Markdown, with everything escaped that would be markup.

    Rendered, it shows the characters of the text and makes no element, image or link; controls
    are shown as code points, and white space of any kind as one space.
    """
    line = " ".join(visible(text).split())
    return _NUMBERED.sub(r"\1\\\2", _MARKUP.sub(_escaped, line))


def markdown(document: Document) -> str:
    """Returns the document as Markdown."""
    lines = [f"# {escaped_line(document.title)}", ""]
    lines += [escaped_line(str(document.answer)), ""] if document.answer else []
    lines += [escaped_line(document.conclusion), ""] if document.conclusion else []
    lines += [f"- {escaped_line(line)}" for line in document.lines]
    for section in document.sections:
        lines += ["", *section_lines(section, 3 if section.inner else 2)]
        while not lines[-1]:
            lines.pop()
    return "\n".join(lines) + "\n"


def section_lines(section: Section, level: int = 2) -> Iterator[str]:
    """Yields one section, whose title is a heading of a level."""
    if section.title:
        yield from (f"{'#' * level} {escaped_line(section.title)}", "")
    if section.pairs:
        for label, text in section.pairs:
            colon = "" if label.endswith("?") else ":"
            yield f"- **{escaped_line(label)}**{colon} {escaped_line(text)}"
        yield ""
    if section.table is not None and section.table.rows:
        yield from (*table_lines(section.table), "")
    yield from (f"- {escaped_line(line)}" for line in section.lines)
    if section.note:
        yield escaped_line(section.note)


def table_lines(table: Table) -> list[str]:
    """Returns a Markdown table, with words aligned to the left and numbers to the right."""
    alignments = "|".join("---" if column.words else "---:" for column in table.columns)
    heads = " | ".join(escaped_line(column.head) for column in table.columns)
    rows = (
        " | ".join("\u2013" if cell == NONE else escaped_line(str(cell)) for cell in row)
        for row in table.cells()
    )
    return [f"| {heads} |", f"|{alignments}|", *(f"| {row} |" for row in rows)]


def _escaped(found: re.Match[str]) -> str:
    mark = found[0]
    return html.escape(mark) if mark in "<>&" else f"\\{mark}"
