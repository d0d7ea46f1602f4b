"""A document as HTML: all text is escaped, and there is no script."""

from __future__ import annotations

import html
from collections.abc import Iterator

from nafaudit.core.text import visible
from nafaudit.views.document import Document, Section, Table, Verdict


def fragment(document: Document) -> str:
    """Returns the document as the body of a page, or as a cell of a notebook."""
    lines = [f"<h1>{_shown(document.title)}</h1>"]
    if document.conclusion:
        lines.append(f"<p>{_shown(document.conclusion)}</p>")
    lines += _list(document.lines)
    for section in document.sections:
        lines += ["<section>", *section_lines(section), "</section>"]
    return "\n".join([*lines, *_list(document.files)]) + "\n"


def section_lines(section: Section) -> Iterator[str]:
    """Yields one section, without its element."""
    if section.title:
        yield f"<h2>{_shown(section.title)}</h2>"
    if section.pairs:
        yield "<dl>"
        for label, text in section.pairs:
            yield f"<dt>{_shown(label)}</dt><dd>{_shown(text)}</dd>"
        yield "</dl>"
    if section.table is not None and section.table.rows:
        yield from _table(section.table)
    for line in section.lines:
        yield f"<p>{_shown(line)}</p>"
    for line in section.note.split("\n") if section.note else ():
        yield f'<p class="note">{_shown(line)}</p>'


def _table(table: Table) -> Iterator[str]:
    sides = ["" if column.words else ' class="n"' for column in table.columns]
    heads = (
        f"<th{side}{f' title={chr(34)}{_shown(column.meaning)}{chr(34)}' if column.meaning else ''}"
        f">{_shown(column.head)}</th>"
        for column, side in zip(table.columns, sides, strict=True)
    )
    yield f"<table><thead><tr>{''.join(heads)}</tr></thead><tbody>"
    for row in table.cells():
        cells = (
            f'<td class="{cell.tone}">{_shown(str(cell))}</td>'
            if isinstance(cell, Verdict) and cell.tone
            else f"<td{side}>{_shown(str(cell))}</td>"
            for cell, side in zip(row, sides, strict=True)
        )
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table>"


def _list(lines: tuple[str, ...]) -> list[str]:
    return ["<ul>", *(f"<li>{_shown(line)}</li>" for line in lines), "</ul>"] if lines else []


def _shown(text: str) -> str:
    return html.escape(visible(text))
