"""The line that long work shows: how far it is, how fast, how long it will take."""

from __future__ import annotations

import math
import os
import shutil
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, TextIO

from nafaudit.core.text import cut, duration

if TYPE_CHECKING:
    from nafaudit.core.progress import Progress


def columns(stream: TextIO) -> int:
    """Returns how wide the terminal behind a stream is: COLUMNS if set, 80 if not known."""
    try:
        found = int(os.environ.get("COLUMNS", 0)) or os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        found = shutil.get_terminal_size().columns
    return found if found > 0 else 80


def in_notebook() -> bool:
    """Returns True if this process answers the cells of a notebook."""
    # Not imported for the question: where it is not loaded, there is no notebook.
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell is not None else None
    return found is not None and hasattr(found, "kernel")


class ProgressLine:
    """A line that is rewritten in a terminal or a notebook, and repeated after seconds elsewhere.

    Args:
        quiet: Show nothing.
        stream: Where to; standard error if left out, or the notebook's cell if there is one.
    """

    def __init__(self, quiet: bool, stream: TextIO | None = None) -> None:
        self._quiet = quiet
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._notebook = stream is None and in_notebook()
        self._cell: Any = None
        self._every = 0.2 if self._terminal or self._notebook else 5.0
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
        if self._notebook:
            display: Any = import_module("IPython.display").display
            if self._cell is None:
                self._cell = display({"text/plain": text}, raw=True, display_id=True)
            else:
                self._cell.update({"text/plain": text}, raw=True)
        elif self._terminal:
            # A line that reaches the edge would be left behind at each rewriting.
            room = columns(self._stream) - 1
            # What comes last matters least; the count stays.
            while len(text) > room and "/" in (shorter := text.rpartition(", ")[0]):
                text = shorter
            self._stream.write(f"\r{cut(text, room):<{room}}")
            self._stream.flush()
        else:
            self._stream.write(text + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Leaves the line behind."""
        if self._shown and self._terminal and not self._notebook:
            self._stream.write("\n")
            self._stream.flush()
        self._shown = False


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
