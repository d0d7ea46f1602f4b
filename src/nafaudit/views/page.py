"""RUN/report: a page that loads nothing and fits in 5 MB, Markdown and JSON, written whole.

All three are pure functions of the run. The page runs nothing but its own script.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined

from nafaudit import __version__
from nafaudit.core.text import as_number, plain, script_json
from nafaudit.measures.audit import AuditResult, bound_rows, prompt_rows, result_json
from nafaudit.store.files import make_directory, write_whole
from nafaudit.store.run import Run
from nafaudit.views.audit import page_sections, report_markdown
from nafaudit.views.payload import choose, payload
from nafaudit.views.records import record_name
from nafaudit.views.search import reported_search
from nafaudit.views.words import refuted, summary, verdict_texts

if TYPE_CHECKING:
    from nafaudit.views.figures import RunFigure

LARGEST = 5_000_000
"""Bytes a page may have."""

_ROOM = 3_000_000
_SCRIPTS = ("dom.js", "charts.js", "tables.js", "viewer.js", "main.js")


@dataclass(frozen=True)
class Extra:
    """What rooms above the views add to a report.

    Attributes:
        checklist: Answers the paper's checklist, as rows of report.json.
        figures: Returns more figures; called only when figures are drawn.
    """

    checklist: Callable[[AuditResult], list[dict[str, Any]]] = lambda report: []
    figures: Callable[[], Sequence[RunFigure]] = lambda: ()


def write_report(
    run: Run, extra: Extra | None = None, *, redact: bool = False, figures: bool = False
) -> tuple[AuditResult, list[Path]]:
    """Writes RUN/report/index.html, report.md and report.json; returns what they show.

    Args:
        run: What to report on; only read.
        extra: What the paper's room adds; nothing if left out.
        redact: Leave the text of prompts, outputs and references out.
        figures: Draw figures/*.svg and *.pdf too, which takes some seconds.
    """
    report = AuditResult.for_report(run)
    return report, save_report(report, extra, redact=redact, figures=figures)


def save_report(
    report: AuditResult, extra: Extra | None = None, *, redact: bool = False, figures: bool = False
) -> list[Path]:
    """Writes the files of a report that was collected; options as for `write_report`."""
    extra = extra or Extra()
    data = report_json(report, extra.checklist(report), redact=redact)
    directory = report.run.path / "report"
    make_directory(directory)
    drawn: list[Path] = []
    if figures:
        # Imported late: loading the drawing library takes a second.
        from nafaudit.views.figures import draw_figures

        found = draw_figures(report, directory / "figures", extra.figures())
        data["figures"] = [asdict(one) for one in found]
        drawn = [directory / "figures" / name for one in found for name in one.files]
    contents = {
        "index.html": render(report, data, redact=redact),
        "report.md": report_markdown(report, data),
        "report.json": json.dumps(data, indent=1, ensure_ascii=False) + "\n",
    }
    for name, content in contents.items():
        write_whole(directory / name, content.encode())
    return [*(directory / name for name in contents), *drawn]


def report_json(
    report: AuditResult, checklist: Sequence[Mapping[str, Any]] = (), *, redact: bool = False
) -> dict[str, Any]:
    """Returns every verdict, finding and table of a run; strict JSON.

    Equal wherever the records are, but for `made`.

    Args:
        report: What to write down.
        checklist: Rows of the paper's checklist.
        redact: Leave out the text of prompts, which only a search has here.
    """
    design, replay = report.run.design, report.verification
    contradicted = refuted(replay)
    # How much was replayed is true on every machine; what a machine saw is not.
    extent = ("recorded", "replayed", "tokens", "current")
    result = result_json(report, f"run-{design['hash'][:10]}") | {
        "summary": summary(report.arms, refuted=contradicted),
        "words": [
            {"mechanism": arm.mechanism, "k": as_number(arm.k)}
            | {
                said.question: f"{said.headline}. {said.text}"
                for said in verdict_texts(arm, refuted=contradicted)
            }
            for arm in report.arms
            if not arm.baseline
        ],
        "bounds": [
            {"mechanism": report.arms[row.arm].mechanism, "k": as_number(report.arms[row.arm].k)}
            | row.to_json()
            for row in bound_rows(report)
        ],
        "prompts": [
            {
                field.name: plain(getattr(row, field.name))
                for field in fields(row)
                if field.name not in ("arm", "worst")
            }
            | {
                "mechanism": row.arm.mechanism,
                "k": as_number(row.arm.k),
                "worst": {
                    "trajectory": row.worst.key.trajectory,
                    "record": record_name(report, row.worst),
                },
            }
            for row in prompt_rows(report)
        ],
        "checklist": list(checklist),
        "verification": replay and {key: replay[key] for key in extent} | {"refuted": contradicted},
        "decided": {key: design[key] for key in design if key != "extents"},
    }
    # A run without a search does not speak of one.
    if report.search is not None:
        result["search"] = reported_search(report.search, redact=redact)
    result["made"] = {
        "extents": design["extents"],
        "sessions": report.run.sessions,
        "mixed": report.run.mixed,
        "parts": report.run.journal(),
        "verification": replay
        and {key: replay[key] for key in replay if key not in (*extent, "run", "seconds")},
    }
    return result


def render(report: AuditResult, data: dict[str, Any], *, redact: bool = False) -> str:
    """Writes the page of a run, with fewer executions in full if it would be too large.

    Args:
        report: What is shown.
        data: The content of report.json; numbers name their place there.
        redact: Leave out the text of prompts, outputs and references.
    """
    searched = report.search is not None
    css = _asset("page.css") + (_asset("search.css") if searched else "")
    names = (*_SCRIPTS, "search.js") if searched else _SCRIPTS
    js = '"use strict";\n(() => {\n' + "\n".join(map(_asset, names)) + "\n})();\n"
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(_asset("page.html.j2"))
    room = _ROOM
    while True:
        chosen = choose(report, room)
        shown = {one.key: index for index, one in enumerate(chosen)}
        page = template.render(
            page_sections(report, data, shown, redact=redact),
            css=css,
            js=js,
            data=script_json(payload(report, chosen, redact=redact)),
            policy=_policy(css, js),
            version=__version__,
            redacted=redact,
        )
        if len(page.encode()) < LARGEST or room < 10_000:
            return page
        room //= 2


def _policy(css: str, js: str) -> str:
    """A Content-Security-Policy that allows this script and this style, and nothing else."""

    def digest(text: str) -> str:
        return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    return (
        f"default-src 'none'; script-src '{digest(js)}'; style-src '{digest(css)}'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    )


@cache
def _asset(name: str) -> str:
    return files("nafaudit.views").joinpath("assets", name).read_text(encoding="utf-8")
