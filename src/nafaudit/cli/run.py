"""`nafaudit run` and `nafaudit plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nafaudit.cli.output import ProgressLine, echo, note, remark_on_machine, resumable, show

if TYPE_CHECKING:
    from nafaudit.core.settings import PlanSettings, RunSettings
    from nafaudit.measures.audit import AuditResult
    from nafaudit.runner.pairs import AuditProtocol
    from nafaudit.store.run import Run


def run(settings: RunSettings, *, quiet: bool, as_json: bool) -> int:
    """Does the mechanism stay in budget over a fixed workload?

    Writes a run directory and its report; running the same command again resumes it.

    Example: nafaudit run --k 0.5,3 --trajectories 2

    Example: nafaudit run --decoder mine.py:Decoder --prompts prompts.jsonl
    """
    from nafaudit.runner import execute

    progress = ProgressLine(quiet)
    with resumable(progress):
        outcome = execute.run(
            settings,
            progress.update,
            protocol_of(settings),
            lambda text: note(f"nafaudit: {text}"),
        )
    remark_on_machine(outcome.batch_free, *outcome.remarks)
    paper = _paper_files(outcome.run, quiet) if settings.protocol == "paper" else None
    written = refresh_report(outcome.run)
    result, page = written or (outcome.result, None)
    if paper is not None and not as_json:
        echo(f"the paper's files: {paper}")
    return show(result, as_json=as_json, page=page)


def protocol_of(settings: RunSettings) -> AuditProtocol:
    """Returns what reads the workload; nafaudit.paper only where the settings ask for it."""
    if settings.protocol == "paper" or settings.data is not None:
        from nafaudit.paper.workload import PAPER

        return PAPER
    from nafaudit.runner.pairs import SOUND

    return SOUND


def refresh_report(run: Run) -> tuple[AuditResult, Path] | None:
    """Writes the report; if the disk refuses, the verdict is shown all the same.

    A page that hides text goes on hiding it, and one with figures gets them anew.
    """
    from nafaudit.core.errors import StoreError
    from nafaudit.paper.checklist_run import PAPER_EXTRA
    from nafaudit.views.page import hides_text, write_report

    page = run.path / "report" / "index.html"
    figures = (page.parent / "figures").is_dir()
    try:
        report, files = write_report(run, PAPER_EXTRA, redact=hides_text(page), figures=figures)
        return report, files[0]
    except StoreError as error:
        note(f"nafaudit: no report: {error} Or: nafaudit report {run.path}")
        return None


def _paper_files(run: Run, quiet: bool) -> Path | None:
    """Writes the paper's files; if the disk refuses, the verdict is shown all the same."""
    if not quiet:
        note("writing the paper's files")
    from nafaudit.core.errors import StoreError
    from nafaudit.paper.files import write_paper_files

    try:
        return write_paper_files(run, run.path / "paper", replace=True)[0].parent
    except StoreError as error:
        note(f"nafaudit: {error} Or: nafaudit export {run.path} --paper")
        return None


def plan(settings: PlanSettings, *, as_json: bool) -> int:
    """How many trajectories, how long, what could be detected?

    Decodes for a few seconds and records nothing; without torch or models it still counts.

    Example: nafaudit plan --trajectories 10 --limit 0

    Example: nafaudit plan --pair paper --protocol paper --gpu h100 --gpus 8
    """
    from nafaudit.runner.plan import Hardware
    from nafaudit.runner.plan import plan as make_plan
    from nafaudit.views.plan import plan_document, plan_json
    from nafaudit.views.terminal import terminal

    hardware = None
    if settings.gpu:
        hardware = Hardware(settings.gpu, settings.gpus, settings.shapes)
    made = make_plan(
        settings, seconds=settings.seconds, hardware=hardware, protocol=protocol_of(settings)
    )
    if as_json:
        import json

        echo(json.dumps(plan_json(made), indent=2))
    else:
        echo(terminal(plan_document(made), "nafaudit run, with the same options"))
    return made.overall.exit_status
