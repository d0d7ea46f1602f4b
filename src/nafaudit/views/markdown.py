"""A document as Markdown: all text is quoted, none of it is markup."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from nafaudit.core.text import visible
from nafaudit.views.document import NONE, Document, Section, Table

# Marks within a line; tags and entities; addresses that some readers make links of; what makes a
# block of a line; what a heading loses at its end. What is none of these, as in R_eff <= 3, stays.
_MARKUP = re.compile(
    r"""[\\`*\[\]|~$]
    | (?<![A-Za-z0-9])_ | _(?![A-Za-z0-9])
    | <(?![\s=0-9]) | ^> | &(?=\#?\w+;)
    | :(?=//) | (?<=www)\. | @(?=[\w-]+\.)
    | ^[-+](?=[\s-]|$) | ^[\#=] | (?<!\#)\#+$""",
    re.VERBOSE | re.IGNORECASE,
)
_NUMBERED = re.compile(r"^([0-9]{1,9})([.)])(?=\s|$)")


def plain_text(text: str) -> str:
    """Writes hostile text on one line of Markdown, without markup of its own.

    Rendered, it shows the characters of the text and makes no element, image or link; controls
    are shown as code points, and white space of any kind as one space.
    """
    line = " ".join(visible(text).split())
    return _NUMBERED.sub(r"\1\\\2", _MARKUP.sub(_escaped, line))


def markdown(document: Document) -> str:
    """Returns the document as Markdown."""
    lines = [f"# {plain_text(document.title)}", ""]
    lines += [plain_text(str(document.answer)), ""] if document.answer else []
    lines += [plain_text(document.conclusion), ""] if document.conclusion else []
    lines += [f"- {plain_text(line)}" for line in document.lines]
    for section in document.sections:
        lines += ["", *section_lines(section, 3 if section.inner else 2)]
        while not lines[-1]:
            lines.pop()
    return "\n".join(lines) + "\n"


def section_lines(section: Section, level: int = 2) -> Iterator[str]:
    """Yields one section, whose title is a heading of a level."""
    if section.title:
        yield from (f"{'#' * level} {plain_text(section.title)}", "")
    if section.pairs:
        for label, text in section.pairs:
            colon = "" if label.endswith("?") else ":"
            yield f"- **{plain_text(label)}**{colon} {plain_text(text)}"
        yield ""
    if section.table is not None and section.table.rows:
        yield from (*table_lines(section.table), "")
    yield from (f"- {plain_text(line)}" for line in section.lines)
    if section.note:
        yield plain_text(section.note)


def table_lines(table: Table) -> list[str]:
    """Returns a Markdown table: words on the left, numbers on the right."""
    rule = "|".join("---" if column.words else "---:" for column in table.columns)
    heads = " | ".join(plain_text(column.head) for column in table.columns)
    rows = (
        " | ".join("\u2013" if cell == NONE else plain_text(str(cell)) for cell in row)
        for row in table.cells()
    )
    return [f"| {heads} |", f"|{rule}|", *(f"| {row} |" for row in rows)]


def _escaped(found: re.Match[str]) -> str:
    mark = found[0]
    return html.escape(mark) if mark in "<>&" else f"\\{mark}"
