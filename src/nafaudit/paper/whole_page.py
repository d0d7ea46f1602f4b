"""The page of `nafaudit paper run`: the report's style, tables that fit on paper and on a phone."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from nafaudit.core.finding import Overall
from nafaudit.core.text import visible
from nafaudit.paper.whole_view import BEHIND, PRINTED
from nafaudit.views.document import TONES, Section
from nafaudit.views.html import asset, section_lines

if TYPE_CHECKING:
    from nafaudit.paper.whole import WholePaper

_STYLE = """
nav ol { columns: 20rem; column-gap: 1.5rem; font-size: .9em; padding: 0; margin: 0; flex: 1 }
nav li { break-inside: avoid; margin-left: 2.2em }
main section { border: 0; padding: 1.2rem 0 0 }
section h2 { font-size: 1.15rem; margin: 0 0 .4rem }
section.inner { padding: .6rem 0 0 } section.inner h2 { font-size: .95rem; font-weight: 600 }
section.theirs { border-left: 3px solid var(--line); padding-left: .8rem }
th.n { white-space: normal } td:last-child:not(.n) { min-width: 14rem }
td.good, td.bad, td.open { white-space: nowrap }
.lead .badge { font-size: .9rem }
ul.parts { margin: 0 0 .6rem; padding-left: 1.2rem }
img { background: #fff; max-width: 100%; padding: .3rem } figure { margin: 1rem 0 }
dl { display: grid; grid-template-columns: 10rem minmax(0, 1fr); gap: .15rem 1rem; margin: 0;
  font-size: .9rem }
dt { color: var(--muted) } dd { margin: 0 }
p.phone { display: none }
.scroll { background:
  linear-gradient(to right, var(--paper) 40%, transparent) left / 2rem 100% no-repeat local,
  linear-gradient(to left, var(--paper) 40%, transparent) right / 2rem 100% no-repeat local,
  linear-gradient(to right, var(--line), transparent) left / .7rem 100% no-repeat scroll,
  linear-gradient(to left, var(--line), transparent) right / .7rem 100% no-repeat scroll }
@media (max-width: 45rem) {
  p.phone { display: block } dl { grid-template-columns: 1fr } dd { margin: 0 0 .4rem }
  th, td { padding: .25rem .4rem }
}
@page { size: A4 landscape; margin: 12mm }
@media print {
  nav, p.phone { display: none !important } .scroll { background: none }
  table { font-size: 10.5px; width: auto; max-width: 100% } thead th { font-size: 10px }
  thead { display: table-header-group }
  th, td { padding: .15rem .35rem } thead th { white-space: normal }
  td:last-child:not(.n) { min-width: 8rem }
  section { padding-top: .8rem } img { max-height: 120mm }
}
"""
"""Beside the style of the report's page, whose colours, dark style and prints it keeps."""


def page(
    title: str,
    found: WholePaper,
    sections: Sequence[Section],
    figures: Sequence[tuple[str, str, int]],
    out: Path,
    held: Mapping[Path, Sequence[str]],
) -> str:
    """Returns one page without script or network; figures are inside it.

    Args:
        title: Its title.
        found: What it is about; its one answer stands first.
        sections: What it says.
        figures: Caption, file and place of each: the section after which it stands.
        out: Directory of the page.
        held: Names of the paper's files by their directory, to be linked at the end.
    """
    body, links = [], []
    beside: dict[int, list[tuple[str, str]]] = {}
    for caption, file, place in figures:
        beside.setdefault(place, []).append((caption, file))
    for i, section in enumerate(sections):
        body += _section(i, section)
        if section.title and not section.inner:
            links.append(f'<li><a href="#s{i}">{escape(section.title)}</a></li>')
        while i + 1 < len(sections) and i in beside and sections[i + 1].inner:
            beside.setdefault(i + 1, []).extend(beside.pop(i))
        for caption, file in beside.get(i, ()):
            code = base64.b64encode((out / "figures" / file).read_bytes()).decode()
            image = f'<img alt="{escape(caption)}" src="data:image/svg+xml;base64,{code}">'
            body.append(f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>")
    body.append('<section id="files">\n<h2>The paper\'s files of these runs</h2>')
    links.append('<li><a href="#files">The paper\'s files of these runs</a></li>')
    for folder, names in held.items():
        listed = ", ".join(
            f'<a href="{quote((folder / one).as_posix())}">{escape(one)}</a>' for one in names
        )
        shown = f"{escape(folder.as_posix())}: {len(names)} files"
        body.append(f"<details><summary>{shown}</summary><p>{listed}</p></details>")
    body.append("</section>")
    css = asset("page.css") + _STYLE
    lead = (
        f'<p class="lead {_tone(found.overall)}">{_badge(found.overall)} is the answer of '
        f"{len(found.parts)} parts together, which is that of the worst.</p>"
    )
    parts = "".join(
        f'<li class="{_tone(one.overall)}">{_badge(one.overall)} {escape(where)}: '
        f"{escape(visible(one.overall.why))}</li>"
        for where, one in found.parts
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; img-src data:\">\n"
        f"<title>{escape(title)}</title>\n<style>{css}</style></head><body>\n"
        f'<main class="plain">\n<h1>{escape(title)}</h1>\n'
        f'{lead}\n<ul class="parts">{parts}</ul>\n'
        '<p class="phone note">Wide tables scroll sideways.</p>\n'
        f"{body[0]}\n<nav><ol>{''.join(links[1:])}</ol></nav>\n"
        + "\n".join(body[1:])
        + "\n</main></body></html>\n"
    )


def _tone(answer: Overall) -> str:
    return TONES.get(answer.verdict, "")


def _badge(answer: Overall) -> str:
    return f'<span class="badge">{escape(str(answer.verdict))}</span>'


def _section(place: int, section: Section) -> list[str]:
    """Returns a section: the paper's own tables have a bar, a part's checklist is folded away."""
    kind = ' class="inner"' if section.inner else ""
    if section.inner and section.title.startswith(PRINTED):
        kind = ' class="inner theirs"'
    lines = "\n".join(section_lines(section))
    if section.title.startswith(BEHIND):
        lines = f"<details><summary>{escape(section.title)}</summary>\n{lines}\n</details>"
    return [f'<section{kind} id="s{place}">\n{lines}\n</section>']
