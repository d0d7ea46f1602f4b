"""Processes that do not pay for their imports again: forks of this one.

A fork has memory, standard streams, limits, mounts and an end of its own, which is what most tests
ask of a process. That a fresh interpreter finds all it needs is left to the tests that start one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any
from unittest import mock


def fork(
    work: Callable[[], object],
    *,
    cwd: Path | None = None,
    streams: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
) -> int:
    """Works in a child, whose status is that of a program which does the same.

    Args:
        work: What to do.
        cwd: Where; here if None.
        streams: What its standard input, output and error are; this process's own if empty.
        environment: Variables of the child; those of this process if None.

    Returns:
        Its process id.
    """
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        if streams:
            modes = ("r", "w", "w")
            sys.stdin, sys.stdout, sys.stderr = (
                os.fdopen(number, mode, 1, encoding="utf-8", closefd=False)
                for number, mode in enumerate(modes)
            )
            warnings.showwarning = _show  # pytest keeps them to itself
        if environment is not None:
            os.environ.clear()
            os.environ.update(environment)
        if cwd is not None:
            os.chdir(cwd)
        try:
            work()
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if streams:
            sys.stdout.flush()
            sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)  # never back into the tests


def _show(message: Warning | str, *about: Any, **more: Any) -> None:
    sys.stderr.write(warnings.formatwarning(message, *about[:3]))


def run(work: Callable[[], object], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Works in a child to its end, and returns what it said."""
    with Path(os.devnull).open() as nothing, TemporaryFile() as out, TemporaryFile() as err:
        child = fork(work, cwd=cwd, streams=[one.fileno() for one in (nothing, out, err)])
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said = []
        for stream in (out, err):
            stream.seek(0)
            said.append(stream.read().decode())
    return subprocess.CompletedProcess((), status, *said)


def nafaudit(*arguments: object) -> Callable[[], None]:
    """What the command does with these arguments, for a child."""

    def work() -> None:
        from nafaudit.cli.main import main

        sys.argv = ["nafaudit", *map(str, arguments)]
        main()

    return work


class _Decoder:
    """A decoder's process, as much of it as a session uses."""

    def __init__(self, errors: IO[bytes], environment: Mapping[str, str]) -> None:
        (asked, ask), (answer, answered) = os.pipe(), os.pipe()
        self.returncode: int | None = None

        def work() -> None:
            from nafaudit.runner import worker

            os.setsid()
            for ours in (ask, answer):
                os.close(ours)
            worker.main()

        streams = (asked, answered, errors.fileno())
        self.pid = fork(work, streams=streams, environment=environment)
        for theirs in (asked, answered):
            os.close(theirs)
        self.stdin, self.stdout = os.fdopen(ask, "wb"), os.fdopen(answer, "rb")

    def wait(self) -> int:
        """Waits for its end."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


@contextmanager
def decoders() -> Iterator[None]:
    """For a while, a black box of the interpreter that runs the tests is a fork of this process."""
    program = (sys.executable, "-m", "nafaudit.runner.worker")
    start: Any = subprocess.Popen

    def popen(command: Any, *given: Any, **how: Any) -> Any:
        if command != program:
            return start(command, *given, **how)
        return _Decoder(how["stderr"], how["env"])

    with mock.patch("nafaudit.runner.blackbox.subprocess.Popen", popen):
        yield
