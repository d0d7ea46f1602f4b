"""A document as HTML: all text is escaped, and there is no script."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from nafaudit.core.text import visible
from nafaudit.views.document import TONES, Document, Section, Table, Verdict


@cache
def asset(file: str) -> str:
    """Returns a style, a script or a template of a page."""
    return files("nafaudit.views").joinpath("assets", file).read_text(encoding="utf-8")


def policy(css: str, js: str = "") -> str:
    """Returns a Content-Security-Policy that allows only this script and this style."""

    def digest(text: str) -> str:
        return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    return (
        f"default-src 'none'; script-src '{digest(js)}'; style-src '{digest(css)}'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    )


# A page without a template may have long names in its lines.
_WRAPPED = ".plain li, .plain p { overflow-wrap: anywhere; }\n"


def page(document: Document) -> str:
    """Returns the document as a whole page, which loads nothing and runs no script."""
    css, word = asset("page.css") + _WRAPPED, document.answer.verdict if document.answer else ""
    title = " \u00b7 ".join(filter(None, (word, document.title)))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_shown(policy(css))}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="color-scheme" content="light dark">
<title>{_shown(title)}</title>
<style>{css}</style>
</head>
<body>
<main class="plain">
{fragment(document)}</main>
</body>
</html>
"""


def fragment(document: Document) -> str:
    """Returns the document as the body of a page, or as a cell of a notebook."""
    lines = [f"<h1>{_shown(document.title)}</h1>"]
    if (answer := document.answer) is not None:
        word = f'<span class="badge">{_shown(answer.verdict)}</span>'
        lines.append(
            f'<p class="lead {TONES.get(answer.verdict, "")}">{word} {_shown(answer.why)}</p>'
        )
    if document.conclusion:
        lines.append(f"<p>{_shown(document.conclusion)}</p>")
    lines += _list(document.lines)
    for section in document.sections:
        lines += ["<section>", *section_lines(section), "</section>"]
    return "\n".join([*lines, *_list(document.files)]) + "\n"


_NOTEBOOK = """
.nafaudit h1 { font-size: 1.2em; margin: 0 0 .3em } .nafaudit h2 { font-size: 1.05em }
.nafaudit td, .nafaudit th { text-align: left; padding: .1em .6em }
.nafaudit td.n, .nafaudit th.n { text-align: right }
.nafaudit td.good { color: #00734f } .nafaudit td.bad { color: #b34700 }
.nafaudit td.good, .nafaudit td.bad, .nafaudit td.open { font-weight: bold }
.nafaudit p.note { font-size: .85em; opacity: .75; max-width: 60em }
"""


def notebook(document: Document) -> str:
    """Returns the document as the output of a notebook's cell, with a style of its own."""
    return f'<div class="nafaudit"><style>{_NOTEBOOK}</style>\n{fragment(document)}</div>\n'


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
        # A wide table scrolls by itself, by keyboard too.
        named = _shown(section.title or "table")
        yield f'<div class="scroll" tabindex="0" role="region" aria-label="{named}">'
        yield from _table(section.table)
        yield "</div>"
    for line in section.lines:
        yield f"<p>{_shown(line)}</p>"
    for line in section.note.split("\n") if section.note else ():
        yield f'<p class="note">{_shown(line)}</p>'


def _table(table: Table) -> Iterator[str]:
    sides = ["" if column.words else ' class="n"' for column in table.columns]
    heads = []
    for column, side in zip(table.columns, sides, strict=True):
        meaning = f' title="{_shown(column.meaning)}"' if column.meaning else ""
        heads.append(f'<th scope="col"{side}{meaning}>{_shown(column.head)}</th>')
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
