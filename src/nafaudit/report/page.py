"""The page: one HTML file that loads nothing, runs nothing but its own script, and fits in 5 MB."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from nafaudit import __version__
from nafaudit.core.text import script_json
from nafaudit.report.choose import choose
from nafaudit.report.data import Report
from nafaudit.report.payload import payload
from nafaudit.report.sections import sections

LARGEST = 5_000_000
"""Bytes a page may have."""

_ROOM = 3_000_000
_SCRIPTS = ("dom.js", "charts.js", "tables.js", "viewer.js", "main.js")


def render(report: Report, plain: dict[str, Any], *, redact: bool = False) -> str:
    """The page of a run.

    Args:
        report: What is shown.
        plain: The same as report.json has it; numbers name their place there.
        redact: Leave out the text of prompts, outputs and references.
    """
    room = _ROOM
    while True:
        page = _render(report, plain, redact, room)
        if len(page.encode()) < LARGEST or room < 10_000:
            return page
        room //= 2


def _render(report: Report, plain: dict[str, Any], redact: bool, room: int) -> str:
    chosen = choose(report, room)
    data = payload(report, chosen, redact=redact)
    shown = {one.key: index for index, one in enumerate(chosen)}
    searched = report.search is not None
    css = _asset("page.css") + (_asset("search.css") if searched else "")
    js = _script(searched=searched)
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(_asset("page.html.j2"))
    return template.render(
        sections(report, plain, shown, redact=redact),
        css=css,
        js=js,
        data=script_json(data),
        policy=policy(css, js),
        version=__version__,
        redacted=redact,
    )


def policy(css: str, js: str) -> str:
    """A Content-Security-Policy that allows this script and this style, and nothing else."""
    return (
        f"default-src 'none'; script-src '{_digest(js)}'; style-src '{_digest(css)}'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _asset(name: str) -> str:
    return files("nafaudit.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _script(*, searched: bool) -> str:
    names = (*_SCRIPTS, "search.js") if searched else _SCRIPTS
    return '"use strict";\n(() => {\n' + "\n".join(map(_asset, names)) + "\n})();\n"
