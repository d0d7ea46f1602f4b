"""Commands on records: check, report, compare, import, export, verify."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nafaudit.cli import options
from nafaudit.core.errors import InputError

if TYPE_CHECKING:
    from nafaudit.store.importers import ImportOptions
    from nafaudit.store.run import Run


def report(
    run: Annotated[
        Path | None, typer.Argument(help="Run directory; the latest under runs/ if left out.")
    ] = None,
    redact: Annotated[
        bool, typer.Option("--redact", help="Hide the text of prompts, outputs and references.")
    ] = False,
    figures: Annotated[
        bool, typer.Option("--figures", help="Draw RUN/report/figures too, as SVG and PDF.")
    ] = False,
    record: Annotated[
        str | None,
        typer.Option(
            metavar="PROMPT@K#TRAJECTORY",
            help="Print one record as JSON and write nothing; PART:ROW names one too.",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Writes RUN/report: a page, Markdown and JSON, from the records alone. Needs no models.

    The same run gives the same bytes. Exit status as for nafaudit check. Where RUN cannot be
    written, the Markdown is printed instead, with status 2; --json prints the JSON as ever.

    Example: nafaudit report
    """
    import json

    from nafaudit.checks.verdict import overall_of
    from nafaudit.cli.echo import echo
    from nafaudit.cli.show import latest_run
    from nafaudit.core.errors import StoreError
    from nafaudit.report.checklist.extra import PAPER_EXTRA
    from nafaudit.report.data import collect
    from nafaudit.report.plain import plain
    from nafaudit.store.run import Run
    from nafaudit.views.audit import report_markdown
    from nafaudit.views.page import save_report
    from nafaudit.views.records import record_json

    source = Run(run or latest_run())
    if record is not None:
        echo(json.dumps(record_json(source, record), indent=1))
        return
    made = collect(source)
    files, failed = [], None
    try:
        files = save_report(made, PAPER_EXTRA, redact=redact, figures=figures)
    except StoreError as error:
        failed = error
    names = [str(path) for path in files]
    if as_json or failed is not None:
        data = plain(made, PAPER_EXTRA.checklist(made), redact=redact)
    if as_json:
        data["made"] |= {"run": str(source.path), "files": names}
        echo(json.dumps(data, indent=1))
    else:
        echo("\n".join(names) if failed is None else report_markdown(made, data))
    if failed is not None:
        typer.echo(
            f"nafaudit: {failed} The report is printed above; for the page, copy {source.path} to "
            "a place that can be written and name the copy.",
            err=True,
        )
    if failed is not None and not as_json:
        # Whoever asked for files must not go on without them.
        raise typer.Exit(failed.exit_status)
    raise typer.Exit(overall_of(made.arms).exit_status)


def compare(
    a: Annotated[
        Path | None,
        typer.Argument(metavar="[A]", help="The run before; the second latest if left out."),
    ] = None,
    b: Annotated[
        Path | None, typer.Argument(metavar="[B]", help="The run after; the latest if left out.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Also write compare.md and compare.json there.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """What moved between two runs, two decoders or two versions? Needs no models.

    Arms are matched by mechanism and budget, else by budget alone; executions by prompt and
    number if both runs drew alike, else by prompt; intervals have prompts as units.

    Exit status: 0 nothing got worse, 1 B violates a budget that A does not, 2 bad input,
    3 B no longer shows that a budget is kept which A keeps, or a run is unfinished. What moved is
    no verdict.

    Example: nafaudit compare
    """
    import json

    from nafaudit.cli.echo import echo
    from nafaudit.cli.show import latest_runs
    from nafaudit.report import compare as comparing
    from nafaudit.store.files import make_directory, write_whole
    from nafaudit.store.run import Run
    from nafaudit.views.compare import compare_document, comparison_json
    from nafaudit.views.markdown import markdown
    from nafaudit.views.terminal import terminal

    if a is None:
        a, b = latest_runs(2)
    found = comparing.compare(Run(a), Run(b or latest_runs(1)[0]))
    data = json.dumps(comparison_json(found), indent=2)
    files = [] if out is None else [out / "compare.md", out / "compare.json"]
    document = compare_document(found, tuple(map(str, files)))
    if out is not None:
        make_directory(out)
        write_whole(files[0], markdown(document).encode())
        write_whole(files[1], data.encode() + b"\n")
    echo(data if as_json else terminal(document))
    raise typer.Exit(found.exit_status)


Schema = Annotated[
    str | None,
    typer.Option(
        help="trajectories, history, heldout, queries, items or table. Default: by content."
    ),
]
MechanismName = Annotated[
    str | None, typer.Option(help="What the log was decoded with. Default: as it says.")
]
GivenK = Annotated[float | None, typer.Option("--k", help="Budget of records that have none.")]
GivenT = Annotated[int, typer.Option(help="T of records that have none; 0: unknown.")]
Stops = Annotated[
    list[int] | None, typer.Option("--stop", help="Id of a token that ends a row; repeatable.")
]
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", metavar="OURS=THEIRS", help="A table's column, as spend=total_kl."),
]
VocabularySize = Annotated[
    int,
    typer.Option(help="Tokens of the vocabulary, for the paper's R = T ln|V|; 0: unknown."),
]
LedgerName = Annotated[
    str | None,
    typer.Option(
        help="Rule behind the budgets: banking (k T), or unknown to believe the log's own. "
        "Default: by schema."
    ),
]


def import_(
    logs: Annotated[list[Path], typer.Argument(help="Log files; .gz is read too.")],
    out: Annotated[Path, typer.Option(help="Run directory to write.")],
    schema: Schema = None,
    mechanism: MechanismName = None,
    k: GivenK = None,
    max_new_tokens: GivenT = 0,
    stop: Stops = None,
    column: Columns = None,
    ledger: LedgerName = None,
    vocabulary_size: VocabularySize = 0,
    as_json: options.Json = False,
) -> None:
    """Reads other people's logs into a run directory. Needs no models.

    Nothing is mended in silence: what was dropped or read in another way is printed, and kept in
    import.json. The schemas: docs/foreign-logs.md.

    Example: nafaudit import anchored.csv --max-new-tokens 100 --out runs/anchored
    """
    import json

    from nafaudit.store.importers import describe, import_logs, import_report

    options = options_of(
        schema, mechanism, k, max_new_tokens, stop, column, ledger, vocabulary_size
    )
    run = import_logs(logs, out, options)
    report = import_report(run) or {}
    if as_json:
        typer.echo(json.dumps({"run": str(out)} | report, indent=2))
        return
    schemas = ", ".join(sorted({source["schema"] for source in report["sources"]}))
    typer.echo(
        f"{report['trajectories']} trajectories, {report['steps']} steps, {report['prompts']} "
        f"prompts ({schemas})"
    )
    for line in describe(report):
        typer.echo(f"  {line}")
    typer.echo(f"run directory: {out}; judge it with: nafaudit check {out}")


def options_of(
    schema: str | None,
    mechanism: str | None,
    k: float | None,
    max_new_tokens: int,
    stop: list[int] | None,
    column: list[str] | None,
    ledger: str | None,
    vocabulary_size: int,
) -> ImportOptions:
    """Turns command-line options into what a reader needs; says what is wrong with them."""
    from nafaudit.core.ledger import LEDGERS, as_budget
    from nafaudit.store.importers import ImportOptions
    from nafaudit.store.importers.fields import identifier

    columns = dict(part.partition("=")[::2] for part in column or ())
    if not all(columns.keys()) or not all(columns.values()):
        raise InputError(f"--column needs OURS=THEIRS, for example spend=total_kl, got {column}.")
    if max_new_tokens < 0:
        raise InputError(f"max-new-tokens must be at least 0, got {max_new_tokens}.")
    if vocabulary_size < 0 or vocabulary_size == 1:
        raise InputError(
            f"vocabulary-size must be at least 2, or 0 if it is not known, got {vocabulary_size}."
        )
    if ledger is not None and ledger not in (*LEDGERS, "unknown"):
        raise InputError(f"ledger must be one of {', '.join(LEDGERS)}, unknown; got {ledger!r}.")
    return ImportOptions(
        schema=schema,
        mechanism=identifier(mechanism, "--mechanism", "command line") or None,
        k=None if k is None else as_budget(k),
        max_new_tokens=max_new_tokens,
        stops=frozenset(stop or ()),
        columns=columns,
        ledger=ledger,
        vocabulary_size=vocabulary_size,
    )


def check(
    run: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN|LOG...]", help="Run directory, or logs; the latest run if left out."
        ),
    ] = None,
    schema: Schema = None,
    mechanism: MechanismName = None,
    k: GivenK = None,
    max_new_tokens: GivenT = 0,
    stop: Stops = None,
    column: Columns = None,
    ledger: LedgerName = None,
    vocabulary_size: VocabularySize = 0,
    as_json: options.Json = False,
) -> None:
    """What do the records alone show? Needs no models.

    Reads a run, or another tool's logs (docs/foreign-logs.md). The options but --json are for logs.

    Example: nafaudit check
    """
    from nafaudit.cli.show import latest_run
    from nafaudit.core.errors import InputError
    from nafaudit.store.importers import ImportOptions, import_logs
    from nafaudit.store.run import Run

    paths = run or [latest_run()]
    options = options_of(
        schema, mechanism, k, max_new_tokens, stop, column, ledger, vocabulary_size
    )
    if len(paths) == 1 and not paths[0].is_file():
        found = Run(paths[0])
        if options != ImportOptions():
            raise InputError(
                f"{paths[0]} is a run, which says itself what it is; only --json goes with it, "
                "the other options are for logs."
            )
        raise typer.Exit(_judge(found, str(paths[0]), as_json=as_json))
    with tempfile.TemporaryDirectory(prefix="nafaudit-") as directory:
        imported = import_logs(paths, Path(directory) / "run", options)
        status = _judge(imported, " ".join(map(str, paths)), as_json=as_json)
    raise typer.Exit(status)


def _judge(run: Run, source: str, *, as_json: bool) -> int:
    """Prints what an import noticed, and files that are no records, to standard error first."""
    from nafaudit.checks import judge_run
    from nafaudit.cli.show import show
    from nafaudit.core.text import visible
    from nafaudit.store.importers import describe, import_report

    if (report := import_report(run)) is not None:
        for line in describe(report):
            typer.echo(f"hygiene: {line}", err=True)
    if run.mixed:
        typer.echo(f"hygiene: {visible(run.mixed)}", err=True)
    for name in run.strays():
        typer.echo(f"hygiene: parts/{visible(name)} is no part of this run; not read", err=True)
    return show(run, judge_run(run), as_json=as_json, source=source)


def export(
    run: Annotated[
        Path | None, typer.Argument(help="Run directory; the latest under runs/ if left out.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory to write.")] = Path("export"),
    paper: Annotated[
        bool,
        typer.Option(
            "--paper", help="The paper's own files: budgets only, scored, with its summary."
        ),
    ] = False,
    delta: Annotated[
        float | None,
        typer.Option(help="Level of all bounds of the summary. Default: the run's, or 0.05."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Writes a run as the paper's trajectory files. Needs no models.

    `nafaudit import` of what it writes gives back every record. With --paper the baselines are
    left out, every output is scored against its reference (0 where there is none, as the paper
    has it), and h1_summary.json and .csv are beside it. Exit status: 0, or 3 if the run is
    unfinished: what it has is written.

    Example: nafaudit export --out exported
    """
    import json

    from nafaudit.cli.show import latest_run
    from nafaudit.core.errors import InputError
    from nafaudit.core.text import visible
    from nafaudit.store.export import export_run
    from nafaudit.store.gaps import missing_of
    from nafaudit.store.paper_files import write_paper_files
    from nafaudit.store.run import Run

    source = run or latest_run()
    if delta is not None and not paper:
        raise InputError("delta belongs to the paper's summary; give --paper too.")
    written = (
        write_paper_files(Run(source), out, delta=delta) if paper else export_run(Run(source), out)
    )
    files = [str(path) for path in written]
    gaps = missing_of(Run(source))
    if as_json:
        missing = None if gaps is None else gaps.to_json()
        data = {"run": str(source), "files": files, "missing": missing}
        typer.echo(json.dumps(data, indent=2))
    else:
        for name in files:
            typer.echo(name)
    if gaps is not None:
        typer.echo(f"incomplete: {visible(gaps.text)}", err=True)
        raise typer.Exit(3)


def verify(
    run: Annotated[
        Path | None, typer.Argument(help="Run directory; the latest under runs/ if left out.")
    ] = None,
    sample: Annotated[int, typer.Option(help="Number of trajectories to replay; 0: all.")] = 0,
    sampler: Annotated[
        int | None,
        typer.Option(
            help="Trajectories per budget for the sampler tests; 0: none. Default: 20, or 60 where "
            "draws are not our own."
        ),
    ] = None,
    pair: Annotated[str | None, typer.Option(help="A registered pair.")] = None,
    safe: Annotated[str | None, typer.Option(help="Safe checkpoint, if it moved.")] = None,
    risky: Annotated[str | None, typer.Option(help="Risky checkpoint, if it moved.")] = None,
    plugin: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Source of the plug-in that the run was made by; it is compared, then run.",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Torch device.")] = "cpu",
    threads: Annotated[int, typer.Option(help="Torch threads.")] = 1,
    remote_code: options.RemoteCode = None,
    allow_pickle_weights: options.PickleWeights = None,
    debt: Annotated[
        str | None,
        typer.Option(help="Of an imported log: positives or official, each also with -raw."),
    ] = None,
    prefix_n: Annotated[
        int | None, typer.Option(help="Of an imported log: prompt tokens in the debt; 0: none.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Of an imported log.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Of an imported log.")] = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Are the logged numbers true? Recomputes each from the models, and the tokens from the draws.

    Nothing but the models' forward pass is shared with what wrote the run. The result is kept in
    RUN/verify.json, or only printed where RUN cannot be written. Exit status: 0 true, 1 refuted,
    3 nothing could be replayed or records are missing.

    Example: nafaudit verify --sample 200
    """
    import json

    from nafaudit.cli.show import latest_run
    from nafaudit.core.errors import InputError, StoreError
    from nafaudit.store.run import Run

    source = Run(run or latest_run())
    log_only = {
        "debt": debt,
        "prefix-n": prefix_n,
        "temperature": temperature,
        "repetition-penalty": repetition_penalty,
    }
    given = [name for name, value in log_only.items() if value is not None]
    if given and source.design["identity"]["protocol"] != "imported":
        raise InputError(f"--{given[0]} is for imported logs; this run's design says it already.")

    import torch

    from nafaudit.auditor.verify import VerifyOptions, decides
    from nafaudit.core.debt import DebtRule
    from nafaudit.core.design import Decoding
    from nafaudit.report.verification import verification_json, verification_text
    from nafaudit.runner.verify import verify_run
    from nafaudit.store.artifacts import write_truth, write_verification

    asked = VerifyOptions(
        sample=sample,
        scored=sampler,
        pair=pair,
        safe=safe,
        risky=risky,
        device=device,
        trust=options.trust(remote_code, allow_pickle_weights),
        debt=DebtRule(5 if prefix_n is None else prefix_n, debt or "positives"),  # type: ignore[arg-type]
        decoding=Decoding(
            temperature=1.0 if temperature is None else temperature,
            repetition_penalty=1.0 if repetition_penalty is None else repetition_penalty,
        ),
        plugin=plugin,
    )
    if threads < 1:
        raise InputError(f"threads must be at least 1, got {threads}.")
    torch.set_num_threads(threads)
    found = verify_run(source, asked, _progress(quiet))
    data = verification_json(found, str(source.path), source.design["hash"])
    path, kept, failed = None, "not kept, as verdicts on a black box rest on a whole one", None
    if decides(source, asked):
        try:
            if found.truth:
                data["replayed_sha256"] = write_truth(source, found.truth)
            kept = path = str(write_verification(source, data))
        except StoreError as error:
            kept, failed = "not kept, as it could not be written", error
    if as_json:
        typer.echo(json.dumps(data | {"file": path}, indent=2))
    else:
        typer.echo(f"{verification_text(found)}\nresult: {kept}")
    if failed is not None:
        typer.echo(
            f"nafaudit: {failed} The result is printed above, but check and report do not know of "
            f"it; for that, verify a copy of {source.path} in a place that can be written.",
            err=True,
        )
    raise typer.Exit(found.exit_status)


def _progress(quiet: bool) -> Callable[[int, int], None]:
    """One line per group of trajectories, rewritten on a terminal."""
    end = "\r" if sys.stderr.isatty() else "\n"

    def show(done: int, of: int) -> None:
        if not quiet:
            sys.stderr.write(f"replayed {done}/{of} trajectories" + ("\n" if done == of else end))
            sys.stderr.flush()

    return show
