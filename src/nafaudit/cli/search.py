"""`nafaudit search`: stage 2."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nafaudit.cli.output import ProgressLine, answer, echo, remark_on_machine, resumable
from nafaudit.cli.run import protocol_of, refresh_report

if TYPE_CHECKING:
    from nafaudit.paper.settings import PaperSettings
    from nafaudit.search.settings import SearchSettings
    from nafaudit.views.document import Document


def search(settings: SearchSettings | PaperSettings, *, quiet: bool, as_json: bool) -> int:
    """Can an adversary find a prompt that drives spend to the budget?

    Looks for one, confirms what it found on fresh draws, and says whether it beats its controls.
    Running the same command again resumes it. A violation becomes a bundle for nafaudit verify.

    Example: nafaudit search --k 1,3,5 --generations 1

    Example: nafaudit search --safe models/a --risky models/b --prompts prompts.jsonl
    """
    from nafaudit.search.settings import SearchSettings

    progress = ProgressLine(quiet)
    with resumable(progress):
        if isinstance(settings, SearchSettings):
            text, status = _answer_search(settings, progress, as_json)
        else:
            text, status = _answer_paper(settings, progress, as_json)
    echo(text)
    return status


def search_settings(
    design: Path | None, overrides: Mapping[str, Any]
) -> SearchSettings | PaperSettings:
    """Merges defaults, a design file and the command line, in this order.

    Args:
        design: A TOML file with the names of the options, or None.
        overrides: Values from the command line; None means not given.

    Raises:
        InputError: A value is wrong, or belongs to the other protocol.
    """
    from nafaudit.core.errors import InputError
    from nafaudit.core.options import declared, load
    from nafaudit.paper.settings import PaperSettings
    from nafaudit.search.settings import SearchSettings

    kind: type[SearchSettings | PaperSettings] = SearchSettings
    other = "--protocol paper: add that, or leave it out"
    if (overrides.get("protocol") or _read(design).get("protocol")) == "paper":
        kind = PaperSettings
        other = "the protocol sound; the paper's sizes are set by --size NAME=N"
    known = {one.name for one in declared(kind)} | set(kind.refused)
    for name, value in overrides.items():
        if value is not None and name not in known:
            raise InputError(f"--{name.replace('_', '-')} = {value} belongs to {other}.")
    given = {name: value for name, value in overrides.items() if name in known}
    return load(kind, design, given)


def _read(design: Path | None) -> dict[str, Any]:
    """Returns a design file's values; errors in it are raised where all of it is read."""
    if design is None:
        return {}
    try:
        return tomllib.loads(design.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return {}


def _answer_search(
    settings: SearchSettings, progress: ProgressLine, as_json: bool
) -> tuple[str, int]:
    """Searches one budget or several; returns what to print, and the exit status."""
    from nafaudit.mechanisms.cards import verify_options
    from nafaudit.search.search import run_search
    from nafaudit.views.search import search_document, search_json, write_result

    if len(settings.k) > 1:
        return _sweep(settings, progress, as_json)
    found = run_search(settings, progress.update, protocol_of(settings))
    progress.close()
    remark_on_machine(found.batch_free, found.remark)
    write_result(found)
    plugin = verify_options(settings.mechanism)
    then = f"nafaudit verify {found.path}{plugin}"
    return _printed(found.path, search_json(found), search_document(found, plugin), as_json, then)


def _printed(
    path: Path, data: dict[str, Any], document: Document, as_json: bool, then: str
) -> tuple[str, int]:
    """Writes the page of a search; returns what to print, and the exit status of its answer."""
    from nafaudit.measures.audit import AuditResult
    from nafaudit.store.run import Run
    from nafaudit.views.terminal import terminal

    page = refresh_report(Run(path))
    overall = page[0].overall if page else AuditResult.of(Run(path)).overall
    if as_json:
        more = {"report": str(page[1])} if page else {}
        return json.dumps(answer(overall) | data | more, indent=2), overall.exit_status
    files = (f"report: {page[1]}",) if page else ()
    first = f"{overall.verdict}: {overall.why}"
    shown = replace(document, lines=(first, *document.lines), files=(*document.files, *files))
    return terminal(shown, then), overall.exit_status


def _sweep(settings: SearchSettings, progress: ProgressLine, as_json: bool) -> tuple[str, int]:
    """Searches several budgets; returns what to print, and the exit status."""
    from nafaudit.search.search import run_sweep, sweep_json, write_sweep
    from nafaudit.store.run import Run
    from nafaudit.views.search import sweep_document
    from nafaudit.views.terminal import terminal

    sweep = run_sweep(settings, progress.update, protocol_of(settings))
    progress.close()
    remark_on_machine(all(one.batch_free for one in sweep.found), sweep.found[0].remark)
    write_sweep(sweep)
    for one in sweep.found:
        refresh_report(Run(one.path))
    overall = sweep.overall
    if as_json:
        return json.dumps(answer(overall) | sweep_json(sweep), indent=2), overall.exit_status
    document = sweep_document(sweep)
    first = f"{overall.verdict}: {overall.why}"
    then = f"nafaudit verify {sweep.found[0].path}"
    return terminal(replace(document, lines=(first, *document.lines)), then), overall.exit_status


def _answer_paper(
    settings: PaperSettings, progress: ProgressLine, as_json: bool
) -> tuple[str, int]:
    """Runs the paper's search; returns what to print, and the exit status."""
    from nafaudit.mechanisms.cards import verify_options
    from nafaudit.paper.search import run_paper_search
    from nafaudit.paper.search_view import paper_document, paper_json, write_paper_result

    done = run_paper_search(settings, progress.update)
    progress.close()
    remark_on_machine(done.found.batch_free, done.found.remark)
    write_paper_result(done)
    document = paper_document(done, verify_options(settings.mechanism))
    then = f"nafaudit checklist {done.found.path}"
    return _printed(done.found.path, paper_json(done), document, as_json, then)
