"""What commands print: results, the one line that long work shows, and remarks on a machine."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from nafaudit.core.errors import InputError
from nafaudit.core.text import cut, duration

if TYPE_CHECKING:
    from nafaudit.core.finding import Overall
    from nafaudit.core.progress import Progress
    from nafaudit.measures.audit import AuditResult


def columns(stream: TextIO) -> int:
    """Returns how wide the terminal behind a stream is: COLUMNS if set, 80 if not known."""
    try:
        found = int(os.environ.get("COLUMNS", 0)) or os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        found = shutil.get_terminal_size().columns
    return found if found > 0 else 80


def broken(text: str, stream: TextIO) -> str:
    """Returns prose whose lines end where the terminal behind a stream does.

    Elsewhere each line stays whole, for programs that look for one.
    """
    if not stream.isatty():
        return text
    return "\n".join(
        part
        for line in text.split("\n")
        for part in textwrap.wrap(
            line,
            min(79, columns(stream) - 1),
            subsequent_indent=" " * (len(line) - len(line.lstrip()) + 2),
            # A path is copied whole, however long it is.
            break_long_words=False,
            break_on_hyphens=False,
        )
        or [""]
    )


def note(text: str) -> None:
    """Prints a remark or an error to standard error."""
    click.echo(broken(text, sys.stderr), err=True)


def echo(text: str) -> None:
    """Prints to standard output; if the reader went away (a pager, head), prints nothing more."""
    try:
        click.echo(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def answer(overall: Overall) -> dict[str, Any]:
    """Returns what stands at the top of a command's JSON: verdict, reason and exit status."""
    return {"verdict": overall.verdict, "why": overall.why, "exit_status": overall.exit_status}


def latest_run(directory: Path = Path("runs")) -> Path:
    """Returns the run that was written last."""
    return latest_runs(1, directory)[0]


def latest_runs(count: int, directory: Path = Path("runs")) -> list[Path]:
    """Returns the runs that were written last, the latest at the end."""
    # A name with a dot in front is what a killed import left.
    runs = sorted(directory.glob("[!.]*/design.json"), key=lambda path: path.stat().st_mtime)
    if not runs:
        raise InputError(f"no run under {directory}/ yet; make one with: nafaudit run")
    if len(runs) < count:
        raise InputError(f"need {count} runs under {directory}/, there is {len(runs)}; name them.")
    return [path.parent for path in runs[-count:]]


def show(
    result: AuditResult, *, as_json: bool, source: str | None = None, page: Path | None = None
) -> int:
    """Prints the result of a run; returns the exit status.

    Args:
        result: What came out.
        as_json: Print for machines.
        source: What the user named, if that is not the run directory.
        page: The report, if one was written.
    """
    from nafaudit.measures.audit import result_json
    from nafaudit.views.audit import audit_document
    from nafaudit.views.terminal import terminal

    name = source or str(result.run.path)
    if as_json:
        more = {"report": str(page)} if page else {}
        echo(json.dumps(result_json(result, name) | more, indent=2))
    else:
        echo(terminal(audit_document(result, name, page), after_audit(result, source, page)))
    return result.overall.exit_status


def after_audit(result: AuditResult, source: str | None = None, page: Path | None = None) -> str:
    """Returns what to do after an audit was shown.

    Args:
        result: What came out.
        source: What the user named, if that is not the run directory.
        page: The report, if one was written.
    """
    # Imported late: it needs numpy, which help must not load.
    from nafaudit.core.finding import MIN_TRAJECTORIES

    path, identity = result.run.path, result.run.design["identity"]
    if source is not None and not Path(source).is_dir():
        return f"nafaudit import {source} --out runs/imported"
    if result.missing is not None:
        return "the command that made the run, again: it decodes what is missing"
    audited = identity.get("purpose", "audit") == "audit" and identity["protocol"] != "imported"
    few = [arm.trajectories for arm in result.arms if not arm.baseline]
    if audited and result.overall.exit_status == 3 and 0 < min(few, default=0) < MIN_TRAJECTORIES:
        needed = math.ceil(MIN_TRAJECTORIES / len(result.prompts))
        return f"the same run with --trajectories {needed}: a verdict needs {MIN_TRAJECTORIES}"
    rule, box = identity["mechanism"], bool(identity.get("promise"))
    # A rule that chooses among whole outputs has no law at a step that could be replayed.
    if result.verification is not None or (":debt=" not in rule and not box):
        return f"nafaudit report {path}" if page is None else f"open {page} in a browser"
    if identity["protocol"] == "imported":
        return f"nafaudit verify {path} --safe SAFE --risky RISKY"
    return f"nafaudit verify {path}{' --plugin FILE' if '@' in rule and not box else ''}"


class ProgressLine:
    """One line that is rewritten on a terminal, and repeated every few seconds elsewhere.

    Args:
        quiet: Show nothing.
        stream: Where to; standard error if left out.
    """

    def __init__(self, quiet: bool, stream: TextIO | None = None) -> None:
        self._quiet = quiet
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._every = 0.2 if self._terminal else 5.0
        self._last = -math.inf
        self._shown = False

    def update(self, progress: Progress) -> None:
        """Shows how far work is, unless it was shown a moment ago."""
        finished = not progress.stage and progress.done == progress.total
        self.line(describe(progress), progress.seconds, finished=finished)

    def line(self, text: str, seconds: float, *, finished: bool = False) -> None:
        """Shows a line of whatever work; `seconds` is its age."""
        if self._quiet or (seconds - self._last < self._every and not finished):
            return
        self._last = seconds
        self._shown = True
        if self._terminal:
            # A line that reaches the edge would be left behind at each rewriting.
            room = columns(self._stream) - 1
            # What comes last matters least; the count stays.
            while len(text) > room and "/" in (shorter := text.rpartition(", ")[0]):
                text = shorter
            self._stream.write(f"\r{cut(text, room):<{room}}")
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Leaves the line behind."""
        if self._shown and self._terminal:
            self._stream.write("\n")
            self._stream.flush()
        self._shown = False


@contextmanager
def resumable(progress: ProgressLine) -> Iterator[None]:
    """Says on Ctrl-C that the same command continues the work, and exits with status 130."""
    try:
        yield
    except KeyboardInterrupt:
        progress.close()
        note("nafaudit: stopped; what was finished is recorded. The same command resumes.")
        raise click.exceptions.Exit(130) from None
    progress.close()


def describe(progress: Progress) -> str:
    """Writes what is done and all there is, tokens a second, time left, the worst utilisation."""
    stage = f"{progress.stage}: " if progress.stage else ""
    parts = [f"{stage}{progress.done}/{progress.total} {progress.unit}"]
    if progress.tokens and progress.seconds > 0:
        parts.append(f"{progress.tokens / progress.seconds:.0f} tokens/s")
    work = progress.done - progress.resumed + progress.under_way
    if work > 0 and not stage:  # the end of a stage is not the end
        left = (progress.total - progress.done - progress.under_way) * progress.seconds / work
        parts.append(f"{duration(left)} left")
    if progress.worst >= 0:
        parts.append(f"worst utilisation {progress.worst:.1%}")
    return ", ".join(parts)


def remark_on_machine(batch_free: bool, *remarks: str) -> None:
    """Says what a user should know of how this machine computes, on standard error."""
    if not batch_free:
        remarks = (
            "a row's last bits depend on its neighbours here, whatever their number (as in models "
            "that choose experts for a whole batch): a repeated or resumed run may differ in rare "
            "tokens.",
            *remarks,
        )
    for remark in remarks:
        if remark:
            note(f"nafaudit: {remark}")
