"""Ends work by SIGKILL in a forked child, at any moment before or after one of its writes.

How many moments there are is counted first, on work that nobody disturbs: a moment that is never
reached would test nothing.
"""

from __future__ import annotations

import itertools
import math
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar
from unittest import mock

from nafaudit.runner import recording
from nafaudit.store import files
from nafaudit.store import run as store_run
from tests.forks import fork

Result = TypeVar("Result")


def moments_of(work: Callable[[], Result]) -> tuple[Result, int]:
    """What the work returns, and how many moments it has."""
    passed: list[None] = []
    with _at_every_moment(lambda: passed.append(None)):
        result = work()
    return result, len(passed)


def kill_at(moment: int, work: Callable[[], object]) -> None:
    """Works in a child that is killed at a moment, counted from 1."""
    with _at_every_moment(fuse(moment)):
        child = fork(work)
    assert was_killed(child), f"there is no moment {moment}"


def fuse(length: int) -> Callable[..., None]:
    """A function that kills its process when it is called for the `length`-th time."""
    calls = itertools.count(1)

    def burn(*_: object) -> None:
        if next(calls) == length:
            os.kill(os.getpid(), signal.SIGKILL)

    return burn


def was_killed(child: int) -> bool:
    """Waits for a child; True if SIGKILL ended it."""
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@contextmanager
def _at_every_moment(reach: Callable[[], None]) -> Iterator[None]:
    """Calls `reach` before and after each write to a run."""

    def watched(write: Callable[..., Any]) -> Callable[..., Any]:
        def hooked(*args: Any, **kwargs: Any) -> Any:
            reach()
            result = write(*args, **kwargs)
            reach()
            return result

        return hooked

    with ExitStack() as patches:
        # No part is written because time passed: the writes of every machine are the same ones.
        patches.enter_context(mock.patch.object(recording, "_PART_SECONDS", (math.inf, math.inf)))
        for name in ("append_line", "write_whole", "write_pending", "move"):
            hook = watched(getattr(files, name))
            patches.enter_context(mock.patch.object(store_run, name, hook))
        yield
