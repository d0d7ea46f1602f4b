"""Commands on records: check, report, compare, import, export, verify."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nafaudit.answers import latest_runs
from nafaudit.cli.output import broken, echo, hand_over, note, printed, remark, show
from nafaudit.core.errors import InputError
from nafaudit.core.options import Group, option
from nafaudit.core.text import plain
from nafaudit.views.progress import ProgressLine

if TYPE_CHECKING:
    from nafaudit.core.settings import VerifySettings
    from nafaudit.store.importers.entry import CheckSettings, ImportSettings
    from nafaudit.store.run import Run

_RUN = "Run directory; the latest under runs/ if left out."


@dataclass(frozen=True, kw_only=True)
class ReportSettings(Group):
    """Everything that `nafaudit report` takes."""

    run: Path | None = option(None, _RUN, argument=True)
    redact: bool = option(
        False, "Hide the text of prompts, outputs and references.", unset="-", common=True
    )
    figures: bool = option(
        False, "Draw RUN/report/figures too, as SVG and PDF.", unset="-", common=True
    )
    record: str | None = option(
        None,
        "Print one record as JSON and write nothing; PART:ROW names one too.",
        metavar="PROMPT@K#TRAJECTORY",
        common=True,
    )


def report(settings: ReportSettings, *, as_json: bool) -> int:
    """Writes RUN/report: a page, Markdown and JSON, from the records alone. Needs no models.

    The same run gives the same bytes. Exit status as for nafaudit check. Where RUN cannot be
    written, the Markdown is printed instead, with status 2; --json prints the JSON as ever.

    Example: nafaudit report
    """
    import json

    from nafaudit.core.errors import StoreError
    from nafaudit.measures.audit import AuditResult
    from nafaudit.paper.checklist_run import PAPER_EXTRA
    from nafaudit.store.run import Run
    from nafaudit.views.document import Document
    from nafaudit.views.page import report_json, report_markdown, save_report
    from nafaudit.views.records import record_json
    from nafaudit.views.terminal import terminal

    source, redact = Run(settings.run or latest_runs(1)[0]), settings.redact
    if settings.record is not None:
        echo(json.dumps(record_json(source, settings.record, redact=redact), indent=1))
        return 0
    result = AuditResult.for_report(source)
    files, failed = [], None
    try:
        files = save_report(result, PAPER_EXTRA, redact=redact, figures=settings.figures)
    except StoreError as error:
        failed = error
    names = [str(path) for path in files]
    if as_json or failed is not None:
        data = report_json(result, PAPER_EXTRA.checklist(result), redact=redact)
    if as_json:
        data["made"] |= {"run": str(source.path), "files": names}
        echo(json.dumps(data, indent=1))
    elif failed is None:
        document = Document("nafaudit report", (), files=tuple(names), answer=result.overall)
        echo(terminal(document, f"open {names[0]} in a browser"))
    else:
        echo(report_markdown(result, data))
    if failed is not None:
        note(
            f"nafaudit: {failed} The report is printed above; for the page, copy {source.path} to "
            "a place that can be written and name the copy."
        )
    if failed is not None and not as_json:
        # A script that asked for files must not go on without them.
        return failed.exit_status
    return result.overall.exit_status


@dataclass(frozen=True, kw_only=True)
class CompareSettings(Group):
    """Everything that `nafaudit compare` takes."""

    a: Path | None = option(
        None, "The run before; the second latest if left out.", argument=True, metavar="[A]"
    )
    b: Path | None = option(
        None, "The run after; the latest if left out.", argument=True, metavar="[B]"
    )
    out: Path | None = option(
        None,
        "Where the page, compare.md and compare.json go.",
        unset="a directory of comparisons/, by content",
        common=True,
    )


def compare(settings: CompareSettings, *, as_json: bool) -> int:
    """What moved between two runs, two decoders or two versions? Needs no models.

    Arms are matched by mechanism and budget, else by budget alone; trajectories by prompt and
    number if both runs used the same random numbers, else by prompt; intervals have prompts as
    units.

    Writes a page. Exit status: 0 nothing got worse, 1 B violates a budget that A does not, 2 bad
    input, 3 B no longer shows that a budget is kept which A keeps, or a run is unfinished. What
    moved is no verdict.

    Example: nafaudit compare
    """
    from nafaudit.answers import answer_compare
    from nafaudit.store.run import Run

    before, after = settings.a, settings.b
    if before is None:
        before, after = latest_runs(2)
    after = after or latest_runs(1)[0]
    found = answer_compare(Run(before), Run(after), settings.out, Path("comparisons"))
    then = f"open {found.files[-1]} in a browser" if found.files else f"nafaudit report {after}"
    status = printed(found, then, as_json=as_json)
    for text in found.remarks:
        remark(text)
    return status


def import_(settings: ImportSettings, *, as_json: bool) -> None:
    """Reads other people's logs into a run directory. Needs no models.

    Nothing is mended in silence: what was dropped or read in another way is printed, and kept in
    import.json. The schemas: docs/foreign-logs.md.

    Example: nafaudit import anchored.csv --max-new-tokens 100 --out runs/anchored
    """
    import json

    from nafaudit.store.artifacts import import_report
    from nafaudit.store.importers import describe, import_logs

    run = import_logs(settings.logs, settings.out, settings)
    report = import_report(run) or {}
    if as_json:
        echo(json.dumps({"run": str(settings.out)} | report, indent=2))
        return
    schemas = ", ".join(sorted({source["schema"] for source in report["sources"]}))
    lines = [
        f"{report['trajectories']} trajectories, {report['steps']} steps, {report['prompts']} "
        f"prompts ({schemas})",
        *(f"  {line}" for line in describe(report)),
        f"run directory: {settings.out}",
        f"next: nafaudit check {settings.out}",
    ]
    echo(broken("\n".join(lines), sys.stdout))


def check(settings: CheckSettings, *, as_json: bool) -> int:
    """What do the records alone show? Needs no models.

    Reads a run, or another tool's logs (docs/foreign-logs.md). What says how to read a log
    is for logs only.

    Example: nafaudit check
    """
    from nafaudit.answers import answer_check

    found = answer_check(settings)
    for text in found.remarks:
        remark(text)
    return show(found, settings, "nafaudit check", as_json=as_json)


@dataclass(frozen=True, kw_only=True)
class ExportSettings(Group):
    """Everything that `nafaudit export` takes."""

    run: Path | None = option(None, _RUN, argument=True)
    out: Path = option(Path("export"), "Directory to write.", common=True)
    paper: bool = option(
        False,
        "The paper's own files: budgets only, scored, with its summary.",
        unset="-",
        common=True,
    )
    delta: float | None = option(
        None, "Level of all bounds of the summary.", unset="the run's, or 0.05", common=True
    )
    every_eval_ever: Path | None = option(
        None,
        "Write only this file: aggregates in the format of Every Eval Ever.",
        metavar="FILE",
        common=True,
    )
    organization: str = option("unknown", "Who made the evaluation, in that file.", common=True)
    measures: Path | None = option(
        None, "Table of one row per trajectory: FILE.parquet or .csv.", unset="-", common=True
    )
    steps: Path | None = option(
        None, "Table of one row per token: FILE.parquet or .csv.", unset="-", common=True
    )


def export(settings: ExportSettings, *, as_json: bool) -> int:
    """Writes a run as tables, or as the paper's trajectory files. Needs no models.

    --measures and --steps write tables for pandas, Polars, DuckDB or a spreadsheet, whose columns
    docs/format.md lists. --every-eval-ever writes verdicts and means in that format, version 0.3.0.
    Without them it writes the paper's files, and `nafaudit import` of those gives back every
    record. With --paper the baselines are left out, every output is scored against its reference
    (0 where there is none, as the paper has it), and h1_summary.json and .csv are beside it. Exit
    status: 0, or 3 if the run is unfinished: what it has is written.

    Example: nafaudit export --out exported

    Example: nafaudit export --measures measures.parquet --steps steps.csv
    """
    import json

    from nafaudit.core.text import visible
    from nafaudit.paper.files import write_paper_files
    from nafaudit.store.export import export_run
    from nafaudit.store.missing import missing_of
    from nafaudit.store.run import Run

    source = settings.run or latest_runs(1)[0]
    asked = {"--measures": settings.measures, "--steps": settings.steps}
    tables = {name: path for name, path in asked.items() if path is not None}
    if settings.every_eval_ever is not None:
        from nafaudit.measures.audit import AuditResult
        from nafaudit.store.files import write_whole
        from nafaudit.views.eee import every_eval_ever

        if settings.paper or tables:
            raise InputError(
                "every-eval-ever writes one file of its own; leave out --paper and the tables."
            )
        written = [settings.every_eval_ever]
        data = every_eval_ever(AuditResult.of(Run(source)), settings.organization)
        write_whole(written[0], json.dumps(data, indent=2, allow_nan=False).encode() + b"\n")
    elif tables:
        written = _export_tables(Run(source), tables, settings)
    elif settings.paper:
        written = write_paper_files(Run(source), settings.out, delta=settings.delta)
    else:
        if settings.delta is not None:
            raise InputError("delta belongs to the paper's summary; give --paper too.")
        written = export_run(Run(source), settings.out)
    files = [str(path) for path in written]
    missing = missing_of(Run(source))
    if as_json:
        data = {"run": str(source), "files": files, "missing": plain(missing)}
        echo(json.dumps(data, indent=2))
    else:
        echo("\n".join(files if tables else [*files, f"next: nafaudit checklist {source}"]))
    if missing is not None:
        note(f"incomplete: {visible(missing.text)}")
        return 3
    return 0


def _export_tables(run: Run, tables: dict[str, Path], settings: ExportSettings) -> list[Path]:
    """Writes the tables that were asked for; all that is wrong is said before anything is read."""
    from nafaudit.measures.context import RunContext
    from nafaudit.measures.table import Measures, steps_table
    from nafaudit.store.export import table_path, write_table

    if settings.paper or settings.delta is not None or settings.out != Path("export"):
        given = "--paper" if settings.paper else "--out" if settings.delta is None else "--delta"
        raise InputError(
            f"{' and '.join(tables)} and {given} do not go together: tables are files of their "
            "own, --paper, --delta and --out are of the paper's files. Give two commands."
        )
    for name, path in tables.items():
        table_path(path, name, run)
    if len({path.resolve() for path in tables.values()}) < len(tables):
        raise InputError("--measures and --steps name the same file; give two names.")
    context = RunContext.of(run)
    if "--measures" in tables:
        write_table(Measures.of_run(run, context).to_arrow(), tables["--measures"])
    if "--steps" in tables:
        write_table(steps_table(run, context), tables["--steps"])
    return list(tables.values())


def verify(settings: VerifySettings, *, quiet: bool, as_json: bool) -> int:
    """Are the logged numbers true? Recomputes each from the models, and the tokens from the draws.

    Nothing but the models' forward pass is shared with what wrote the run. The result is kept in
    RUN/verify.json, or only printed where RUN cannot be written. Exit status: 0 true, 1 refuted,
    or true and over the budget, 3 nothing could be replayed or records are missing.

    Example: nafaudit verify --sample 200

    Example: nafaudit verify runs/imported --safe models/a --risky models/b
    """
    from nafaudit.answers import answer_verify
    from nafaudit.views.junit import verification_suites

    progress = ProgressLine(quiet)
    found = answer_verify(settings, progress.update)
    progress.close()
    page = found.to_json().get("report")
    path = settings.run or latest_runs(1)[0]
    then = f"open {page} in a browser" if page else f"nafaudit report {path}"
    status = printed(found, then, as_json=as_json)
    for text in found.remarks:
        remark(text)
    return hand_over(
        "nafaudit verify",
        settings,
        lambda: verification_suites(found.result, str(path)),
        found.document,
        status,
    )
