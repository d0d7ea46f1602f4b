"""Commands on records: check, report, compare, import, export, verify."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nafaudit.cli.output import (
    ProgressLine,
    answer,
    broken,
    echo,
    latest_run,
    latest_runs,
    note,
    show,
)
from nafaudit.cli.run import refresh_report
from nafaudit.core.errors import InputError
from nafaudit.core.options import Group, option
from nafaudit.core.text import plain

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
    from nafaudit.views.page import report_json, report_markdown, save_report
    from nafaudit.views.records import record_json

    source, redact = Run(settings.run or latest_run()), settings.redact
    if settings.record is not None:
        echo(json.dumps(record_json(source, settings.record), indent=1))
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
    else:
        then = f"next: open {names[0]} in a browser" if names else ""
        echo("\n".join([*names, then]) if failed is None else report_markdown(result, data))
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
    out: Path | None = option(None, "Also write compare.md and compare.json there.", common=True)


def compare(settings: CompareSettings, *, as_json: bool) -> int:
    """What moved between two runs, two decoders or two versions? Needs no models.

    Arms are matched by mechanism and budget, else by budget alone; executions by prompt and
    number if both runs used the same random numbers, else by prompt; intervals have prompts as
    units.

    Exit status: 0 nothing got worse, 1 B violates a budget that A does not, 2 bad input,
    3 B no longer shows that a budget is kept which A keeps, or a run is unfinished. What moved is
    no verdict.

    Example: nafaudit compare
    """
    import json

    from nafaudit.measures.compare import compare as compare_runs
    from nafaudit.store.files import make_directory, write_whole
    from nafaudit.store.run import Run
    from nafaudit.views.compare import compare_document, comparison_json
    from nafaudit.views.markdown import markdown
    from nafaudit.views.terminal import terminal

    before, after, out = settings.a, settings.b, settings.out
    if before is None:
        before, after = latest_runs(2)
    after = after or latest_runs(1)[0]
    found = compare_runs(Run(before), Run(after))
    data = json.dumps(comparison_json(found), indent=2)
    files = [] if out is None else [out / "compare.md", out / "compare.json"]
    document = compare_document(found, tuple(map(str, files)))
    if out is not None:
        make_directory(out)
        write_whole(files[0], markdown(document).encode())
        write_whole(files[1], data.encode() + b"\n")
    echo(data if as_json else terminal(document, f"nafaudit report {after}"))
    return found.overall.exit_status


def import_(settings: ImportSettings, *, as_json: bool) -> None:
    """Reads other people's logs into a run directory. Needs no models.

    Nothing is mended in silence: what was dropped or read in another way is printed, and kept in
    import.json. The schemas: docs/foreign-logs.md.

    Example: nafaudit import anchored.csv --max-new-tokens 100 --out runs/anchored
    """
    import json

    from nafaudit.store.importers import describe, import_logs, import_report

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

    Reads a run, or another tool's logs (docs/foreign-logs.md). The options but --json are for logs.

    Example: nafaudit check
    """
    from nafaudit.store.importers import import_logs
    from nafaudit.store.run import Run

    paths = settings.run or (latest_run(),)
    if len(paths) == 1 and not paths[0].is_file():
        found = Run(paths[0])
        if settings.given:
            raise InputError(
                f"{paths[0]} is a run directory; its design already has these settings. Only "
                "--json applies to it, the other options are for logs."
            )
        return _judge(found, str(paths[0]), as_json=as_json)
    with tempfile.TemporaryDirectory(prefix="nafaudit-") as directory:
        imported = import_logs(paths, Path(directory) / "run", settings)
        return _judge(imported, " ".join(map(str, paths)), as_json=as_json)


def _judge(run: Run, source: str, *, as_json: bool) -> int:
    """Judges a run and shows the result; notes on its files go to standard error first."""
    from nafaudit.core.text import visible
    from nafaudit.measures.audit import AuditResult
    from nafaudit.store.importers import describe, import_report

    if (report := import_report(run)) is not None:
        for line in describe(report):
            note(f"hygiene: {line}")
    if run.mixed:
        note(f"hygiene: {visible(run.mixed)}")
    for name in run.strays():
        note(f"hygiene: parts/{visible(name)} is no part of this run; not read")
    return show(AuditResult.of(run), as_json=as_json, source=source)


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


def export(settings: ExportSettings, *, as_json: bool) -> int:
    """Writes a run as the paper's trajectory files. Needs no models.

    `nafaudit import` of what it writes gives back every record. With --paper the baselines are
    left out, every output is scored against its reference (0 where there is none, as the paper
    has it), and h1_summary.json and .csv are beside it. Exit status: 0, or 3 if the run is
    unfinished: what it has is written.

    Example: nafaudit export --out exported
    """
    import json

    from nafaudit.core.text import visible
    from nafaudit.paper.files import write_paper_files
    from nafaudit.store.export import export_run
    from nafaudit.store.missing import missing_of
    from nafaudit.store.run import Run

    source = settings.run or latest_run()
    if settings.paper:
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
        echo("\n".join([*files, f"next: nafaudit checklist {source}"]))
    if missing is not None:
        note(f"incomplete: {visible(missing.text)}")
        return 3
    return 0


def verify(settings: VerifySettings, *, quiet: bool, as_json: bool) -> int:
    """Are the logged numbers true? Recomputes each from the models, and the tokens from the draws.

    Nothing but the models' forward pass is shared with what wrote the run. The result is kept in
    RUN/verify.json, or only printed where RUN cannot be written. Exit status: 0 true, 1 refuted,
    3 nothing could be replayed or records are missing.

    Example: nafaudit verify --sample 200

    Example: nafaudit verify runs/imported --safe models/a --risky models/b
    """
    import json

    from nafaudit.core.errors import StoreError
    from nafaudit.store.run import Run

    source = Run(settings.run or latest_run())
    if settings.of_log and source.design["identity"]["protocol"] != "imported":
        flag = next(iter(settings.of_log)).replace("_", "-")
        raise InputError(f"--{flag} is for imported logs; this run's design says it already.")

    import torch

    from nafaudit.auditor.verify import decides
    from nafaudit.runner.execute import verify_run
    from nafaudit.store.artifacts import VERIFICATION, save_verification, verification_json
    from nafaudit.views.terminal import terminal
    from nafaudit.views.verify import verification_document

    torch.set_num_threads(settings.threads)
    progress = ProgressLine(quiet)
    found = verify_run(source, settings, progress.update)
    progress.close()
    data = verification_json(source, found)
    page = None
    path, failed = None, None
    kept = (
        "not kept: verdicts on a black box need a verification without --sample or a small --scored"
    )
    if decides(source, settings):
        try:
            data = save_verification(source, found)
            kept = path = str(source.path / VERIFICATION)
            page = refresh_report(source)
        except StoreError as error:
            kept, failed = "not kept, as it could not be written", error
    if as_json:
        more = {"report": str(page[1])} if page else {}
        echo(json.dumps(answer(found.overall) | data | {"file": path} | more, indent=2))
    else:
        files = (f"report: {page[1]}",) if page else ()
        then = f"open {page[1]} in a browser" if page else f"nafaudit report {source.path}"
        echo(terminal(verification_document(found, kept, *files), then))
    if failed is not None:
        note(
            f"nafaudit: {failed} The result is printed above, but check and report do not know of "
            f"it; for that, verify a copy of {source.path} in a place that can be written."
        )
    return found.overall.exit_status
