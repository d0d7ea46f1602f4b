"""What commands print: results, the one line that long work shows, and remarks on a machine."""

from __future__ import annotations

import json
import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from nafaudit.core.text import ON_FILES
from nafaudit.views.progress import ProgressLine, columns

if TYPE_CHECKING:
    from nafaudit.answers import Audit, Result
    from nafaudit.core.settings import GateSettings, JunitSettings
    from nafaudit.views.document import Document
    from nafaudit.views.junit import Suite


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
    """Prints to standard output; if the reader went away (a pager, head), prints nothing more.

    Raises:
        StoreError: It cannot be written, as on a full disk.
    """
    try:
        click.echo(text)
        sys.stdout.flush()
    except OSError as error:
        # What is left in the buffer is not tried again when the program ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            from nafaudit.core.errors import StoreError

            raise StoreError(f"the answer cannot be printed: {error.strerror}.") from error


def remark(text: str) -> None:
    """Prints a remark of ours to standard error; notes on files name themselves."""
    if text:
        note(text if text.startswith(ON_FILES) else f"nafaudit: {text}")


def printed(found: Result[Any], then: str, *, as_json: bool, **shown: bool) -> int:
    """Prints a result, as JSON or with what to do next; returns the exit status.

    Args:
        found: The result.
        then: What to do next.
        as_json: Print for machines.
        **shown: Options of its document.
    """
    if as_json:
        echo(json.dumps(found.to_json(), indent=2))
    else:
        from nafaudit.views.terminal import terminal

        echo(terminal(found.document(**shown), then))
    return found.exit_status


def hand_over(
    command: str,
    settings: JunitSettings,
    suites: Callable[[], list[Suite]],
    document: Callable[[], Document],
    status: int,
) -> int:
    """Writes what CI reads of an answer: the JUnit file, and the summary of a GitHub job.

    Args:
        command: As it is named in the file.
        settings: Which file, if any.
        suites: Makes the suites.
        document: Makes what the summary shows.
        status: The exit status of the answer.

    Returns:
        The exit status; 2 instead of 0 if the file could not be written.
    """
    from nafaudit.core.errors import StoreError
    from nafaudit.store.files import write_whole
    from nafaudit.views.junit import junit
    from nafaudit.views.markdown import markdown

    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with Path(summary).open("a", encoding="utf-8") as stream:
                stream.write(markdown(document()) + "\n")
        except OSError as error:
            note(f"nafaudit: no job summary: {summary} cannot be written: {error.strerror}.")
    if settings.junit is not None:
        try:
            write_whole(settings.junit, junit(command, suites()))
        except StoreError as error:
            # A job that reads the file must not go on without it.
            note(f"nafaudit: no JUnit file: {error}")
            return status or error.exit_status
    return status


def show(
    found: Audit, settings: GateSettings | None = None, command: str = "", *, as_json: bool
) -> int:
    """Prints an audit, and writes what CI reads of it; returns the exit status.

    Args:
        found: What came out.
        settings: Files for CI; None for none.
        command: As CI names it.
        as_json: Print for machines.
    """
    from nafaudit.views.junit import audit_suites

    then = "" if as_json else after_audit(found)
    if then.startswith("nafaudit import ") and getattr(settings, "given", False):
        then += ", with the same options"
    status = printed(found, then, as_json=as_json)
    if settings is None:
        return status
    suites = partial(audit_suites, found.result, found.source)
    return hand_over(command, settings, suites, found.document, status)


def after_audit(found: Audit) -> str:
    """Returns what to do after an audit was shown."""
    # Imported late: it needs numpy, which help must not load.
    from nafaudit.core.finding import MIN_TRAJECTORIES
    from nafaudit.views.words import verify_command

    result, path = found.result, found.path
    identity = found.run.design["identity"]
    if not Path(found.source).is_dir():
        return f"nafaudit import {found.source} --out runs/imported"
    if result.missing is not None:
        return "the command that made the run, again: it decodes what is missing"
    verify = verify_command(result, str(path))
    if result.context.outdated and verify:
        return verify
    audited = identity.get("purpose", "audit") == "audit" and identity["protocol"] != "imported"
    few = [arm.trajectories for arm in result.arms if not arm.baseline]
    if audited and result.overall.exit_status == 3 and 0 < min(few, default=0) < MIN_TRAJECTORIES:
        # A run may have prompts that a limit left out.
        needed = math.ceil(MIN_TRAJECTORIES / len({row.key.prompt for row in result.rows}))
        return f"the same run with --trajectories {needed}: a verdict needs {MIN_TRAJECTORIES}"
    if result.verification is None and verify:
        return verify
    return f"nafaudit report {path}" if found.page is None else f"open {found.page} in a browser"


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
