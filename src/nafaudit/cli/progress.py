"""The one line that long work shows, so that a user knows whether to wait."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

import click

from nafaudit.core.text import duration

if TYPE_CHECKING:
    from nafaudit.core.progress import Progress

_WIDTH = 79


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
        self._stream.write(f"\r{text:<{_WIDTH}}" if self._terminal else text + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Leaves the line behind."""
        if self._shown and self._terminal:
            self._stream.write("\n")
            self._stream.flush()


@contextmanager
def resumable(progress: ProgressLine) -> Iterator[None]:
    """Work that the same command goes on with: Ctrl-C says so and exits with status 130."""
    try:
        yield
    except KeyboardInterrupt:
        progress.close()
        click.echo(
            "nafaudit: stopped; what was finished is recorded. The same command resumes.", err=True
        )
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
            click.echo(f"nafaudit: {remark}", err=True)
