"""Answers: what commands print and what functions of the Python API return.

A command and the function of its name build the same settings and call the same `answer_*` here,
so that there is one implementation of each. A `Result` is an answer with the numbers behind it.
Nothing here imports torch before a model is needed.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nafaudit.core.errors import InputError, StoreError
from nafaudit.core.options import Group, load
from nafaudit.core.text import ON_FILES, plain

if TYPE_CHECKING:
    import pyarrow
    from matplotlib.figure import Figure

    from nafaudit.core.finding import Overall, Thresholds
    from nafaudit.core.progress import OnProgress
    from nafaudit.core.settings import (
        ConformSettings,
        GatedRunSettings,
        PlanSettings,
        RunSettings,
        VerifySettings,
    )
    from nafaudit.core.trajectory import Trajectory
    from nafaudit.measures.audit import AuditResult
    from nafaudit.measures.classes import ClassTable
    from nafaudit.measures.compare import Comparison
    from nafaudit.measures.verdicts import ArmVerdict
    from nafaudit.paper.settings import PaperSettings
    from nafaudit.runner.pairs import AuditProtocol
    from nafaudit.runner.plan import Plan
    from nafaudit.search.settings import SearchSettings
    from nafaudit.selftest.conform import Conformance
    from nafaudit.selftest.run import SelftestResult
    from nafaudit.store.artifacts import ArmFinding, Verification
    from nafaudit.store.importers.entry import CheckSettings
    from nafaudit.store.run import Run
    from nafaudit.views.document import Document
    from nafaudit.workload.passages import Passage
    from nafaudit.worth.attack_result import AttackResult
    from nafaudit.worth.certify import Certificate
    from nafaudit.worth.matched import FrontierResult
    from nafaudit.worth.settings import AttackSettings, CertifySettings, FrontierSettings

T = TypeVar("T")
S = TypeVar("S", bound=Group)


class Result(Generic[T]):
    """What a function returns: an answer, the numbers behind it, and how to show both.

    Attributes of `result` can be read from here too: `found.changes` is `found.result.changes`.

    Attributes:
        result: The result, a dataclass.
        overall: Verdict, reason and exit status.
        files: What was written.
        remarks: What else was said: on the machine, or on what cannot be verified later.
    """

    def __init__(
        self,
        result: T,
        overall: Overall,
        document: Callable[..., Document],
        data: Callable[[], dict[str, Any]],
        files: Iterable[Path] = (),
        remarks: Iterable[str] = (),
    ) -> None:
        self.result, self.overall = result, overall
        self._document, self._data = document, data
        self.files, self.remarks = tuple(files), tuple(one for one in remarks if one)

    @property
    def verdict(self) -> str:
        """The one word that answers."""
        return str(self.overall.verdict)

    @property
    def why(self) -> str:
        """What decided it, in words; empty if the word says it."""
        return self.overall.why

    @property
    def exit_status(self) -> int:
        """What the command ends with: 0 within, 1 violated or refuted, 3 inconclusive."""
        return self.overall.exit_status

    def to_json(self) -> dict[str, Any]:
        """Returns what `--json` of the command prints; verdict, reason and status stand first."""
        return {**plain(self.overall), **self._data()}

    def document(self, **shown: bool) -> Document:
        """Returns what is shown, before it is text or HTML; of a search, `redact=False` too."""
        return replace(self._document(**shown), answer=self.overall)

    def __getattr__(self, name: str) -> Any:
        # Also asked while an object is copied, before it has anything.
        if name.startswith("_") or "result" not in vars(self):
            raise AttributeError(name)
        return getattr(self.result, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(n for n in dir(self.result) if n[0] != "_")})

    def __repr__(self) -> str:
        one = self.result[0] if isinstance(self.result, tuple) else self.result
        return f"<{type(one).__name__} {self.verdict}{self.why and f': {self.why}'}>"

    def __str__(self) -> str:
        """Returns what the command prints, without colours."""
        from nafaudit.views.terminal import text_of

        return text_of(self.document())

    def _repr_html_(self) -> str:
        from nafaudit.views.html import notebook

        return notebook(self.document())


class Audit(Result["AuditResult"]):
    """A run, judged: verdicts, numbers as tables, figures, its report.

    Made by `audit`, `open_run` and `check`. Everything is read from the records when it is asked
    for, and needs no models.

    Attributes:
        path: The run directory.
        run: The records, for reading.
        page: The report's page, if this call wrote one; None if not.
    """

    def __init__(
        self,
        run: Run,
        *,
        source: str = "",
        page: Path | None = None,
        result: AuditResult | None = None,
        remarks: Iterable[str] = (),
        thresholds: Thresholds | None = None,
        keep: object = None,
    ) -> None:
        self.run, self.path, self.page = run, run.path, page
        self.remarks = tuple(one for one in remarks if one)
        self.files = (page,) if page else ()
        self.source = source or str(run.path)
        # A directory that is removed with this object.
        self._keep = keep
        self._given, self._thresholds = result, thresholds

    @cached_property
    def result(self) -> AuditResult:  # type: ignore[override]
        """Every verdict, finding and row, as the views have them."""
        from nafaudit.measures.audit import AuditResult

        found = self._given or AuditResult.of(self.run)
        return replace(found, thresholds=self._thresholds) if self._thresholds else found

    @property
    def overall(self) -> Overall:  # type: ignore[override]
        """Verdict, reason and exit status."""
        return self.result.overall

    @property
    def verdicts(self) -> tuple[ArmVerdict, ...]:
        """The three verdicts of every budget, baselines included, from the smallest up."""
        return self.result.arms

    @property
    def findings(self) -> list[ArmFinding]:
        """Every finding of every check, with the budget that it is about."""
        from nafaudit.store.artifacts import ArmFinding

        return [ArmFinding(arm.arm, one) for arm in self.result.arms for one in arm.findings]

    @property
    def classes(self) -> ClassTable:
        """What each class of prompts spends under each budget."""
        return self.result.classes

    def measures(self) -> pyarrow.Table:
        """Returns one row per trajectory; `.to_pandas()` makes a dataframe of it.

        Columns: docs/format.md; `schema.field(NAME).metadata` has the unit.
        """
        return self.result.rows.to_arrow()

    def steps(self) -> pyarrow.Table:
        """Returns one row per token, sorted by key and step, with class, text and regime.

        Columns: docs/format.md; `schema.field(NAME).metadata` has the unit.
        """
        from nafaudit.measures.table import steps_table

        return steps_table(self.run, self.result.context)

    def trajectory(
        self, prompt: str, k: float, index: int = 0, *, mechanism: str | None = None
    ) -> Trajectory:
        """Returns one trajectory, with every step.

        Args:
            prompt: Its id, as in the column `prompt`.
            k: The budget; 0 for the safe model alone, inf for the risky one.
            index: Its number, as in the column `trajectory`.
            mechanism: Needed only where a log has several.

        Raises:
            InputError: There is none, or there are several; the message says which.
        """
        from nafaudit.core.ledger import as_budget
        from nafaudit.views.records import trajectory_named

        try:
            key = (as_budget(float(k)), int(index))
        except (TypeError, ValueError) as error:
            raise InputError(f"k and index must be numbers, got {k!r} and {index!r}.") from error
        return trajectory_named(self.run, prompt, *key, mechanism)

    @property
    def plot(self) -> Plots:
        """The figures of the report, as `run.plot.utilisation()`; a notebook shows them."""
        return Plots(self)

    def report(
        self, path: str | Path | None = None, *, redact: bool = False, figures: bool = False
    ) -> Path:
        """Writes the report (a page, Markdown and JSON) and returns where its page is.

        Args:
            path: A directory to write; RUN/report if left out.
            redact: Hide the text of prompts, outputs and references.
            figures: Draw the figures too, as SVG and PDF.
        """
        from nafaudit.measures.audit import AuditResult
        from nafaudit.paper.checklist_run import PAPER_EXTRA
        from nafaudit.views.page import save_report

        result = AuditResult.for_report(self.run)
        out = None if path is None else _path_of(path, "path must be a directory to write")
        return save_report(result, PAPER_EXTRA, redact=redact, figures=figures, out=out)[0]

    def compare(self, other: Audit | str | Path) -> Result[Comparison]:
        """Returns what moved from this run to another one."""
        return answer_compare(self.run, run_of(other))

    def to_json(self) -> dict[str, Any]:
        """Returns what `nafaudit check --json` prints."""
        from nafaudit.measures.audit import result_json

        more = {"report": str(self.page)} if self.page else {}
        return result_json(self.result, self.source) | more

    def document(self, **shown: bool) -> Document:
        """Returns what is shown, before it is text or HTML."""
        from nafaudit.views.audit import audit_document

        return audit_document(self.result, self.source, self.page)

    def __repr__(self) -> str:
        from nafaudit.core.finding import Tested, Worth
        from nafaudit.core.ledger import budget_name

        said = f"{self.verdict}: {self.why}"
        # A budget that is kept protects nothing where it is vacuous, or where it never acted.
        for word in (Worth.VACUOUS, Tested.IDLE):
            budgets = [arm for arm in self.verdicts if word in (arm.worth, arm.tested)]
            if found := [budget_name(arm.k) for arm in budgets if not arm.baseline]:
                said += f"; {word} at {', '.join(found)}"
        return f"<Audit {self.source}: {said}>"


class Plots:
    """The figures of a run; each method returns a matplotlib figure, which a notebook shows.

    A figure that the run has nothing for is an `InputError` that says why.
    """

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    def utilisation(self) -> Figure:
        """Draws how much of its budget each trajectory spent."""
        return self._draw("utilisation")

    def regime(self) -> Figure:
        """Draws the shares of steps forced, active and free, by budget."""
        return self._draw("regime")

    def bound_n(self) -> Figure:
        """Draws upper limits of the mean spend against the number of prompts."""
        return self._draw("bound-n")

    def overlap(self) -> Figure:
        """Draws near-verbatim recall of the reference against spend."""
        return self._draw("overlap")

    def tails(self) -> Figure:
        """Draws the tails of the log-likelihood ratio."""
        return self._draw("tails")

    def effective_range(self) -> Figure:
        """Draws the paper's U_EBB of each class, and the bound that holds."""
        return self._draw("effective-range")

    def deterministic_term(self) -> Figure:
        """Draws the fixed term of the paper's U_EBB against the number of trajectories."""
        return self._draw("deterministic-term")

    def search_progress(self) -> Figure:
        """Draws the best prompt of a search by trajectories spent."""
        return self._draw("search-progress")

    def charges(
        self, prompt: str, k: float, index: int = 0, *, mechanism: str | None = None
    ) -> Figure:
        """Draws allowance and charge of each token of one trajectory; arguments as `trajectory`."""
        from nafaudit.views.figures.run import charges
        from nafaudit.views.figures.style import style

        one = self._audit.trajectory(prompt, k, index, mechanism=mechanism)
        with style():
            return charges(one)

    def _draw(self, name: str) -> Figure:
        from nafaudit.views.figures import draw_figure

        return draw_figure(self._audit.result, name)


def run_of(given: Any) -> Run:
    """Opens the run that was given: an audit, or a directory."""
    if isinstance(given, Audit):
        return given.run
    from nafaudit.store.run import Run

    return Run(_path_of(given, "a run must be what nafaudit.audit returned, or a run directory"))


def _path_of(given: Any, what: str) -> Path:
    """Returns a path; what is none gets a sentence."""
    if not isinstance(given, str | Path):
        raise InputError(f"{what}; got {given!r}.")
    return Path(given)


def settings_of(kind: type[S], design: str | Path | None, given: Mapping[str, Any]) -> S:
    """Merges defaults, a design file and what else is given; code is run only if it is typed.

    Args:
        kind: Class of the settings.
        design: A TOML file with the names of its options, or None.
        given: Values by the names of the options; None means not given.
    """
    path = _design_file(design)
    settings = load(kind, path, given)
    if path is not None:
        refuse_code_of(path, settings, given)
    return settings


def _design_file(given: Any) -> Path | None:
    """Returns the path of a design file; what is no path gets a sentence."""
    what = "design must be a TOML file with options; in Python they are arguments, as k=1"
    return None if given is None else _path_of(given, what)


def refuse_code_of(design: Path, settings: Any, typed: Mapping[str, Any]) -> None:
    """Raises if a design file, which may come from another person, names code that was not typed.

    Args:
        design: The file.
        settings: What came of the file and of what was typed.
        typed: What was typed.
    """
    from nafaudit.mechanisms.cards import parse

    is_code: dict[str, Callable[[str], bool]] = {
        "mechanism": lambda name: ":" in name and parse(name) is None,
        "decoder": lambda name: ":" in name,
        "decoder_python": lambda name: True,
    }
    for name, judge in is_code.items():
        value = getattr(settings, name, None)
        if typed.get(name) is None and isinstance(value, str) and judge(value):
            raise InputError(
                f"{design}: {name} = {value!r} is code, and none runs merely because a file names "
                f"it. If you trust it, type it too: --{name.replace('_', '-')} {value}"
            )


def latest_runs(count: int, directory: Path = Path("runs")) -> list[Path]:
    """Returns the runs that were written last, the latest at the end."""
    # A name with a dot in front is what a killed import left.
    runs = sorted(directory.glob("[!.]*/design.json"), key=lambda path: path.stat().st_mtime)
    if not runs:
        raise InputError(f"no run under {directory}/ yet; make one with: nafaudit run")
    if len(runs) < count:
        raise InputError(f"need {count} runs under {directory}/, there is {len(runs)}; name them.")
    return [path.parent for path in runs[-count:]]


def protocol_of(settings: RunSettings, *, read: bool = True) -> AuditProtocol:
    """Returns what reads the workload; nafaudit.paper only where the settings ask for it.

    Args:
        settings: What was asked for.
        read: True to read the paper's prompts once: what is wrong with them is said before torch
            loads.
    """
    if settings.protocol == "paper" or settings.data is not None:
        from nafaudit.paper.workload import PAPER

        if read:
            PAPER.workload(settings)
        return PAPER
    from nafaudit.runner.pairs import SOUND

    return SOUND


def machine_remarks(batch_free: bool, *remarks: str) -> tuple[str, ...]:
    """Returns what a user should know of how this machine computes."""
    if batch_free:
        return remarks
    return (
        "a row's last bits depend on its neighbours here, whatever their number (as in models "
        "that choose experts for a whole batch): a repeated or resumed run may differ in rare "
        "tokens.",
        *remarks,
    )


def report_if_possible(
    run: Run, on_remark: Callable[[str], None]
) -> tuple[AuditResult | None, Path | None]:
    """Writes the report; if the disk refuses, that is a remark, and there is a verdict anyway.

    A page that hid text goes on hiding it; figures that were drawn are drawn anew.
    """
    from nafaudit.paper.checklist_run import PAPER_EXTRA
    from nafaudit.views.page import hides_text, write_report

    page = run.path / "report" / "index.html"
    figures = (page.parent / "figures").is_dir()
    try:
        report, files = write_report(run, PAPER_EXTRA, redact=hides_text(page), figures=figures)
        return report, files[0]
    except StoreError as error:
        on_remark(f"no report: {error} Or: nafaudit report {run.path}")
        return None, None


def answer_run(
    settings: GatedRunSettings,
    on_progress: OnProgress,
    on_remark: Callable[[str], None],
    protocol: AuditProtocol | None = None,
) -> Audit:
    """Runs an audit and writes its report."""
    protocol = protocol or protocol_of(settings)
    from nafaudit.runner import execute

    outcome = execute.run(settings, on_progress, protocol, on_remark)
    remarks = machine_remarks(outcome.batch_free, *outcome.remarks)
    if settings.protocol == "paper":
        from nafaudit.paper.files import write_paper_files

        try:
            write_paper_files(outcome.run, outcome.run.path / "paper", replace=True)
        except StoreError as error:
            on_remark(f"{error} Or: nafaudit export {outcome.run.path} --paper")
    result, page = report_if_possible(outcome.run, on_remark)
    return Audit(
        outcome.run,
        page=page,
        result=result,
        remarks=remarks,
        thresholds=settings.thresholds,
    )


def answer_check(settings: CheckSettings) -> Audit:
    """Opens a run, or imports logs into a directory that lasts as long as the answer."""
    from nafaudit.store.importers import import_logs
    from nafaudit.store.run import Run

    paths = settings.run or (latest_runs(1)[0],)
    source, keep = " ".join(map(str, paths)), None
    if len(paths) > 1 and (runs := [path for path in paths if path.is_dir()]):
        raise InputError(
            f"{runs[0]} is a directory, and {len(paths)} paths are given; check takes one run, or "
            "several log files. Two runs: nafaudit compare A B."
        )
    if len(paths) == 1 and not paths[0].is_file():
        found = Run(paths[0])
        if settings.given:
            raise InputError(
                f"{paths[0]} is a run directory; its design already has these settings. Only "
                "--json and what is for CI applies to it, the other options are for logs."
            )
    else:
        keep = tempfile.TemporaryDirectory(prefix="nafaudit-")
        try:
            found = import_logs(paths, Path(keep.name) / "run", settings)
        except BaseException:
            keep.cleanup()
            raise
    thresholds, remarks = settings.thresholds, _on_files(found)
    return Audit(found, source=source, remarks=remarks, thresholds=thresholds, keep=keep)


def _on_files(run: Run) -> list[str]:
    """Returns notes on the files of a run."""
    from nafaudit.core.text import visible
    from nafaudit.store.artifacts import import_report
    from nafaudit.store.importers import describe

    report = import_report(run)
    lines = [] if report is None else list(describe(report))
    if run.mixed:
        lines.append(visible(run.mixed))
    lines += [f"parts/{visible(name)} is no part of this run; not read" for name in run.strays()]
    return [f"{ON_FILES}{line}" for line in lines]


def answer_verify(settings: VerifySettings, on_progress: OnProgress) -> Result[Verification]:
    """Verifies a run, keeps the result where it decides verdicts, and renews the report."""
    from nafaudit.core.promise import judged_by
    from nafaudit.store.run import Run

    source = Run(settings.run or latest_runs(1)[0])
    if settings.of_log and source.design["identity"]["protocol"] != "imported":
        flag = next(iter(settings.of_log)).replace("_", "-")
        raise InputError(f"--{flag} is for imported logs; this run's design says it already.")
    judged_by(source.design["identity"], settings.promise)  # before torch loads

    import torch

    from nafaudit.auditor.verify import why_not_kept
    from nafaudit.measures.audit import AuditResult
    from nafaudit.runner.execute import verify_run
    from nafaudit.store.artifacts import (
        VERIFICATION,
        fresh_draws,
        save_verification,
        verification_json,
    )
    from nafaudit.views.verify import verification_document

    torch.set_num_threads(settings.threads)
    draws = fresh_draws(source)
    # First, so that the page of the search knows of it.
    fresh = answer_verify(replace(settings, run=draws.path), on_progress) if draws else None
    found = replace(
        verify_run(source, settings, on_progress),
        thresholds=settings.thresholds,
        fresh=fresh.overall if fresh else None,
    )
    data: dict[str, Any] = verification_json(source, found)
    file, page = None, None
    remarks: list[str] = []
    reason = why_not_kept(source, settings)
    kept = f"not kept: {reason}"
    if reason:
        found = replace(found, judged=AuditResult.of(source).overall)
    else:
        try:
            data = save_verification(source, found)
            kept = file = str(source.path / VERIFICATION)
            result, page = report_if_possible(source, remarks.append)
            found = replace(found, judged=result.overall if result else None)
        except StoreError as error:
            kept = "not kept, as it could not be written"
            remarks.append(
                f"{error} The result is printed above, but check and report do not know of it; "
                f"for that, verify a copy of {source.path} in a place that can be written."
            )
    whole = data | {"file": file} | ({"report": str(page)} if page else {})
    named: tuple[str, ...] = (f"report: {page}",) if page else ()
    if fresh is not None:
        whole |= {"fresh": fresh.to_json()}
        remarks += fresh.remarks
        one = fresh.result
        count = f"{one.trajectories} of {one.recorded} trajectories replayed"
        named = (f"fresh draws: {fresh.overall.verdict}, {fresh.overall.why} ({count})", *named)
    return Result(
        found,
        found.overall,
        lambda: verification_document(found, kept, *named),
        lambda: whole,
        files=[Path(one) for one in (file, page) if one],
        remarks=remarks,
    )


def answer_compare(
    a: Run, b: Run, out: Path | None = None, default: Path | None = None
) -> Result[Comparison]:
    """Compares two runs; writes a page, Markdown and JSON if a directory is given.

    Args:
        a: The run before.
        b: The run after.
        out: Directory of the files.
        default: Directory above theirs if none is given; where it cannot be written, none is.
    """
    from nafaudit.measures.compare import compare as compare_runs
    from nafaudit.store.files import make_directory, write_whole
    from nafaudit.views.compare import compare_document, comparison_json
    from nafaudit.views.html import page
    from nafaudit.views.markdown import markdown

    found = compare_runs(a, b)
    document, data = compare_document(found), comparison_json(found)
    sides = "\0".join(f"{side.run} {side.design}" for side in (found.a, found.b))
    directory = out or (default and default / hashlib.sha256(sides.encode()).hexdigest()[:10])
    files: dict[Path, str] = {}
    remarks = []
    if directory is not None:
        files = {
            directory / "compare.md": markdown(document),
            directory / "compare.json": json.dumps(data, indent=2) + "\n",
            directory / "compare.html": page(document),
        }
    try:
        for path, content in files.items():
            make_directory(path.parent)
            write_whole(path, content.encode())
    except StoreError as error:
        if out is not None:
            raise
        remarks, files = [f"no page: {error}"], {}
    names = tuple(map(str, files))
    return Result(
        found,
        found.overall,
        lambda: replace(document, files=names),
        lambda: data | ({"report": names[-1]} if names else {}),
        files,
        remarks,
    )


def answer_plan(settings: PlanSettings, protocol: AuditProtocol | None = None) -> Result[Plan]:
    """Counts what the settings ask for, and times a little of it."""
    protocol = protocol or protocol_of(settings)
    from nafaudit.runner.plan import Hardware
    from nafaudit.runner.plan import plan as make_plan
    from nafaudit.views.plan import plan_document, plan_json

    hardware = None
    if settings.gpu:
        hardware = Hardware(settings.gpu, settings.gpus, settings.shapes)
    made = make_plan(settings, seconds=settings.seconds, hardware=hardware, protocol=protocol)
    return Result(made, made.overall, lambda: plan_document(made), lambda: plan_json(made))


def search_settings(
    design: str | Path | None, overrides: Mapping[str, Any]
) -> SearchSettings | PaperSettings:
    """Merges defaults, a design file and what is given, in this order.

    Args:
        design: A TOML file with the names of the options, or None.
        overrides: Values by the names of the options; None means not given.

    Raises:
        InputError: A value is wrong, or belongs to the other protocol.
    """
    from nafaudit.core.options import declared
    from nafaudit.paper.settings import PaperSettings
    from nafaudit.search.settings import SearchSettings

    in_file: dict[str, Any] = {}
    if (design := _design_file(design)) is not None:
        # Errors in it are raised where all of it is read.
        with suppress(OSError, ValueError):
            in_file = tomllib.loads(design.read_text(encoding="utf-8-sig"))
    kind: type[SearchSettings | PaperSettings] = SearchSettings
    unused: type[SearchSettings | PaperSettings] = PaperSettings
    other = "--protocol paper: add that, or leave it out"
    if (overrides.get("protocol") or in_file.get("protocol")) == "paper":
        kind, unused = PaperSettings, SearchSettings
        other = "the protocol sound; the paper's sizes are set by --size NAME=N"
    known = {one.name for one in declared(kind)} | set(kind.refused)
    foreign = {one.name for one in declared(unused)} - known
    for name, value in overrides.items():
        if value is not None and name in foreign:
            raise InputError(f"--{name.replace('_', '-')} = {value} belongs to {other}.")
    return settings_of(kind, design, {n: v for n, v in overrides.items() if n not in foreign})


def answer_search(
    settings: SearchSettings | PaperSettings,
    on_progress: OnProgress,
    protocol: AuditProtocol | None = None,
) -> Result[Any]:
    """Searches one budget or several, or as the paper does; writes result and report."""
    from nafaudit.search.settings import SearchSettings

    # What is wrong with the prompts is said before torch loads.
    if not isinstance(settings, SearchSettings):
        from nafaudit.paper.settings import paper_pools
        from nafaudit.paper.workload import PAPER

        protocol = protocol or PAPER
        paper_pools(settings, protocol)
        if len(settings.k) > 1:
            each = [answer_search(one, on_progress, protocol) for one in settings.one_by_one]
            return _several(each)
    protocol = protocol or protocol_of(settings)
    from nafaudit.mechanisms.cards import verify_options
    from nafaudit.store.run import Run

    plugin = verify_options(settings.mechanism)
    remarks: list[str] = []
    if isinstance(settings, SearchSettings) and len(settings.k) > 1:
        from nafaudit.search.search import run_sweep, sweep_json, write_sweep
        from nafaudit.views.search import sweep_document

        sweep = run_sweep(settings, on_progress, protocol)
        free = all(one.batch_free for one in sweep.found)
        remarks += machine_remarks(free, sweep.found[0].remark)
        write_sweep(sweep)
        for one in sweep.found:
            report_if_possible(Run(one.path), remarks.append)
        return _searched(
            sweep, sweep.overall, lambda redact: sweep_document(sweep), sweep_json(sweep), remarks
        )
    done: Any
    if isinstance(settings, SearchSettings):
        from nafaudit.search.search import run_search
        from nafaudit.views.search import search_document, search_json, write_result

        done = found = run_search(settings, on_progress, protocol)
        write_result(found)
        data = search_json(found)

        def document(redact: bool) -> Document:
            return search_document(found, plugin, redact=redact)
    else:
        from nafaudit.paper.search import run_paper_search
        from nafaudit.paper.search_view import paper_document, paper_json, write_paper_result

        done = run_paper_search(settings, on_progress, protocol)
        found = done.found
        write_paper_result(done)
        data = paper_json(done)

        def document(redact: bool) -> Document:
            return paper_document(done, plugin)

    remarks += machine_remarks(found.batch_free, found.remark)
    result, page = report_if_possible(Run(found.path), remarks.append)
    overall = (result or Audit(Run(found.path)).result).overall
    return _searched(done, overall, document, data, remarks, page)


def _several(parts: Sequence[Result[Any]]) -> Result[Any]:
    """Returns the answer of the paper's search at several budgets: the worst of theirs."""
    from nafaudit.views.document import Document, Section

    datas = [one.to_json() for one in parts]
    overall = next(one.overall for s in (1, 3, 0) for one in parts if one.exit_status == s)

    def document(redact: bool) -> Document:
        sections = [
            section
            for data, one in zip(datas, parts, strict=True)
            for section in (
                Section(lines=(f"k = {data['k']:g}: {data['verdict']}",)),
                *one.document(redact=redact).sections,
            )
        ]
        return Document("nafaudit search", tuple(sections))

    remarks = [text for one in parts for text in one.remarks]
    results = tuple(one.result for one in parts)
    return _searched(results, overall, document, {"searches": datas}, remarks)


def _searched(
    found: Any,
    overall: Overall,
    document: Callable[[bool], Document],
    data: dict[str, Any],
    remarks: Sequence[str],
    page: Path | None = None,
) -> Result[Any]:
    """Returns a search's answer: its verdict stands above what the search says."""
    whole = data | ({"report": str(page)} if page else {})

    def shown(*, redact: bool = True) -> Document:
        made = document(redact)
        return replace(made, files=(*made.files, *((f"report: {page}",) if page else ())))

    return Result(found, overall, shown, lambda: whole, [page] if page else [], remarks)


def protected_passages(
    path: Path | None, pair: str, own: str | None, command: str
) -> tuple[list[Passage], str]:
    """Returns the protected passages that a command is about, and what to call them.

    Args:
        path: File that was given, if any.
        pair: Named pair, whose passages are the default.
        own: Checkpoint that the user gave, if any; it has no default passages.
        command: Name of the command, for the error.
    """
    from nafaudit.runner.pairs import named_pair
    from nafaudit.workload.passages import check_passages, read_passages

    if path is not None:
        return read_passages(path), str(path)
    if own is not None:
        raise InputError(
            f"your own models have no passages yet: give a file, for example nafaudit {command} "
            "passages.txt --safe PATH."
        )
    passages = named_pair(pair).passages()
    check_passages(passages, f"pair {pair}")
    return passages, f"the passages of pair {pair}"


def ordinary_passages(path: Path | None, pair: str, safe: str | None) -> list[Passage]:
    """Returns ordinary text: of a file, or of a named pair."""
    from nafaudit.runner.pairs import named_pair
    from nafaudit.workload.passages import read_passages

    if path is not None:
        return read_passages(path)
    found = [] if safe is not None else named_pair(pair).ordinary()
    if not found:
        what = "your own models have" if safe is not None else f"pair {pair} has"
        raise InputError(
            f"{what} no ordinary text; give --ordinary FILE: text that neither model memorised, "
            "with blank lines between passages."
        )
    return found


Protected = tuple["list[Passage]", str]


def answer_certify(
    settings: CertifySettings,
    on_progress: OnProgress,
    given: Protected | None = None,
    default: Path | None = None,
) -> Result[Certificate]:
    """Certifies passages; writes files if the settings or the command name a directory.

    Args:
        settings: What to certify.
        on_progress: Called as passages are scored.
        given: Passages that were given as objects, and what to call them.
        default: Directory above that of the certificate, if none is named; None to write nothing.
    """
    pair, safe = settings.pair, settings.safe
    protected, where = given or protected_passages(settings.passages, pair, safe, "certify")

    from nafaudit.runner.pairs import named_pair
    from nafaudit.store.files import check_room
    from nafaudit.views.worth import certificate_document, write_certificate
    from nafaudit.worth.certify import certify as score

    if place := settings.out or default:
        check_room(place)
    found = score(safe or named_pair(pair).locate()[0], protected, settings, on_progress)
    directory = settings.out or (default and default / found.hash[:10])
    files = write_certificate(found, directory) if directory else []
    return Result(
        found,
        found.overall,
        lambda: certificate_document(found, where, files, most=settings.show),
        lambda: {"directory": directory and str(directory), **plain(found)},
        files,
    )


def answer_attack(
    settings: AttackSettings, on_progress: OnProgress, given: Protected | None = None
) -> Result[AttackResult]:
    """Attacks passages and writes the result."""
    protected, where = given or protected_passages(
        settings.passages, settings.pair, settings.safe, "attack"
    )

    from nafaudit.views.worth import attack_document, write_attack
    from nafaudit.worth.attack import run_attack
    from nafaudit.worth.attack_result import attack_result

    attacked = run_attack(protected, settings, on_progress)
    remarks = machine_remarks(attacked.batch_free, attacked.mixed, attacked.remark)
    found = attack_result(attacked)
    files = write_attack(found)
    return Result(
        found,
        found.overall,
        lambda: attack_document(found, where, files),
        lambda: dict(plain(found)),
        [*files, attacked.path / "single"],
        remarks,
    )


def answer_frontier(
    settings: FrontierSettings,
    on_progress: OnProgress,
    given: Protected | None = None,
    ordinary: list[Passage] | None = None,
    default: Path | None = None,
) -> Result[FrontierResult]:
    """Follows protected and ordinary text; arguments as for `answer_certify`."""
    pair, safe, risky = settings.pair, settings.safe, settings.risky
    protected, where = given or protected_passages(settings.passages, pair, safe, "frontier")
    ordinary = ordinary or ordinary_passages(settings.ordinary, pair, safe)

    from nafaudit.runner.pairs import named_pair
    from nafaudit.store.files import check_room
    from nafaudit.views.worth import frontier_document, write_frontier
    from nafaudit.worth.frontier import frontier as follow
    from nafaudit.worth.matched import frontier_result

    if place := settings.out or default:
        check_room(place)
    checkpoints = (safe, risky) if safe and risky else named_pair(pair).locate()
    found = frontier_result(follow(checkpoints, protected, ordinary, settings, on_progress))
    directory = settings.out or (default and default / found.hash[:10])
    files = write_frontier(found, directory) if directory else []
    return Result(
        found,
        found.overall,
        lambda: frontier_document(found, where, files),
        lambda: {"frontier": directory and str(directory), **plain(found)},
        files,
    )


def answer_selftest(
    full: bool, seed: int, jobs: int, on_part: Callable[[str], None], *files: str
) -> Result[SelftestResult]:
    """Audits the auditor."""
    from nafaudit.selftest import run
    from nafaudit.views.selftest import selftest_document

    found = run.selftest(full=full, seed=seed, jobs=jobs, on_progress=on_part)
    return Result(
        found, found.overall, lambda: selftest_document(found, files), lambda: dict(plain(found))
    )


def answer_conform(
    settings: ConformSettings, on_stage: Callable[[str], None] = lambda text: None
) -> Result[Conformance]:
    """Tries a decoder or a rule on the lab pair; `on_stage` is called with what is tried next."""
    from nafaudit.selftest import conform as suite
    from nafaudit.views.selftest import conform_document

    found = suite.examine(
        settings.decoder,
        python=settings.decoder_python,
        timeout=settings.timeout,
        promise={name: getattr(settings, name) for name in suite.PROMISE},
        on_stage=on_stage,
    )
    return Result(found, found.overall, lambda: conform_document(found), lambda: dict(plain(found)))
