"""Spreads work over processes of this machine that share what this process has loaded.

A worker is a fork of this process: models, mechanism and arithmetic are there at once, in the same
memory, which is copied only where it is written to. It asks for a unit of work when it has room,
and sends every result as soon as it is made. What a worker held that was killed goes to another
one, less the results that had arrived; so each result arrives once.

A fork has one thread, so it must start none of the thread pools that this process may have used.
Therefore only one torch thread a worker, only Linux, and no devices but CPUs; a caller sees to the
first and the last of these.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import multiprocessing
import os
import signal
import sys
import threading
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Generic, TypeVar

from nafaudit.core import errors
from nafaudit.core.errors import InputError, WorkerError

# Times that a unit may end its worker.
TRIES = 3
_PR_SET_PDEATHSIG = 1
_GROUPS = Path("/sys/fs/cgroup")

Unit = TypeVar("Unit")


@dataclass(frozen=True)
class RemoteError:
    """An exception as data: the name of one of our errors, or no name and a traceback."""

    kind: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> RemoteError:
        """Returns an exception as data."""
        if isinstance(error, errors.NafauditError):
            return cls(type(error).__name__, str(error))
        return cls("", "".join(traceback.format_exception(error)))

    def exception(self) -> Exception:
        """Returns the exception that this process would have raised."""
        if not self.kind:
            return RuntimeError(f"a worker failed:\n{self.text}")
        made: Exception = getattr(errors, self.kind)(self.text)
        return made


def usable_cores() -> int:
    """Returns how many cores this process may use: by affinity, and by its control groups."""
    allowed = getattr(os, "sched_getaffinity", None)
    cores = len(allowed(0)) if allowed else os.cpu_count() or 1
    for group in _control_groups("cpu"):
        limits = [*_numbers(group / "cpu.max")]
        if not limits:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            limits = [number for name in names for number in _numbers(group / name)]
        if len(limits) == 2 and min(limits) > 0 and limits[0] < math.inf:
            cores = min(cores, max(1, round(limits[0] / limits[1])))
    return cores


def free_memory() -> float:
    """Returns the bytes that may still be taken, by the system and by control groups."""
    free = math.inf
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(x.split()[1]) * 1024.0 for x in lines if x.startswith("MemAvailable:"))
    for group in _control_groups("memory"):
        for most, used in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            numbers = [*_numbers(group / most), *_numbers(group / used)]
            if len(numbers) == 2 and numbers[0] < 1 << 60:
                cache = _statistic(group / "memory.stat", ("inactive_file", "total_inactive_file"))
                free = min(free, numbers[0] - numbers[1] + cache)
    return max(free, 0.0)


def _control_groups(controller: str) -> Iterator[Path]:
    """Yields the directories of this process's groups, with all that contain them."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, names, inside = line.split(":", 2)
            if names and controller not in names.split(","):
                continue
            root = _GROUPS / controller if names else _GROUPS
            place = root / inside.lstrip("/")
            yield from (p for p in (place, *place.parents) if p == root or root in p.parents)


def _numbers(path: Path) -> Iterator[float]:
    with contextlib.suppress(OSError, ValueError):
        yield from [math.inf if x == "max" else float(x) for x in path.read_text().split()]


def _statistic(path: Path, names: Sequence[str]) -> float:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in names:
                return float(value)
    return 0.0


def can_fork() -> bool:
    """Returns True where a fork of this process can work: on Linux, from the main thread."""
    main = threading.current_thread() is threading.main_thread()
    return sys.platform == "linux" and main and not multiprocessing.current_process().daemon


def check_workers(workers: int, each: float) -> None:
    """Raises an `InputError` if that many processes cannot be had.

    Args:
        workers: How many are asked for.
        each: Bytes that each takes for itself.
    """
    if not can_fork():
        raise InputError(
            f"workers = {workers}: processes are forked from the main thread of a Linux process, "
            "which this is not; leave out --workers, or add --ray."
        )
    if workers * each > (free := free_memory()):
        raise InputError(
            f"{workers} workers take about {each / 2**20:,.0f} MiB each, and {free / 2**20:,.0f} "
            "MiB are free. Lower --workers or --batch."
        )


def workers_of(asked: int | None, useful: int, each: float) -> int:
    """Returns how many processes to start: as many as were asked for, or as there is room for.

    Args:
        asked: What the user asked for; None for as many as pay.
        useful: How many pay, however many cores there are.
        each: Bytes that each takes for itself.

    Raises:
        InputError: What was asked for cannot be had.
    """
    if asked is not None:
        if asked > 1:
            check_workers(asked, each)
        return asked
    if useful < 2 or not can_fork():
        return 1
    return max(1, min(usable_cores(), useful, int(free_memory() // each)))


def end_with_parent(parent: int | None = None) -> None:
    """Has the system end this process when its parent ends, where the system can.

    Args:
        parent: Its process id, if known: it may have ended before this call.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


@dataclass
class _Worker(Generic[Unit]):
    """A process, and the units that it has not answered in full."""

    process: BaseProcess
    held: dict[int, Unit] = field(default_factory=dict)


@dataclass
class Crew(Generic[Unit]):
    """Processes that share some work; they last as long as it does.

    Attributes:
        workers: How many.
        work: Takes the units that it draws, each with its number, and a function that sends a
            message at once; yields results, each with the number of its unit. Runs in a worker.
        left: Returns what is left of a unit after one of its results; None for nothing.
        about: Names units, for an error message.
        deaths: How many workers died so far.
    """

    workers: int
    work: Callable[[Iterator[tuple[int, Unit]], Callable[[Any], None]], Iterator[tuple[int, Any]]]
    left: Callable[[Unit, Any], Unit | None]
    about: Callable[[Sequence[Unit]], str]
    deaths: int = 0

    def results(self, units: Sequence[Unit]) -> Iterator[tuple[int | None, Any]]:
        """Yields every result as it arrives, with the number of its unit, and ends all workers.

        Messages come in between, with None for a number.

        Raises:
            WorkerError: A unit ended its worker three times.
        """
        waiting = deque(enumerate(units))
        tries: Counter[int] = Counter()
        crew: dict[Connection, _Worker[Unit]] = {}
        try:
            while waiting or crew:
                while len(crew) < min(self.workers, len(crew) + len(waiting)):
                    self._start(crew)
                for pipe in wait(list(crew)):
                    assert isinstance(pipe, Connection)
                    worker = crew[pipe]
                    try:
                        kind, content = pipe.recv()
                    except (EOFError, OSError):
                        pipe.close()
                        waiting.extendleft(self._dead(crew.pop(pipe), tries))
                        continue
                    if kind == "more":
                        given = waiting.popleft() if waiting else None
                        if given is not None:
                            worker.held[given[0]] = given[1]
                        with contextlib.suppress(OSError):  # if it died, reading will tell
                            pipe.send(given)
                    elif kind == "end":
                        pipe.close()
                        crew.pop(pipe).process.join()
                        if content is not None:
                            raise content.exception()
                        if worker.held:
                            raise RuntimeError(f"{self.about([*worker.held.values()])}: no answer")
                    else:
                        if kind is not None:
                            rest = self.left(worker.held.pop(kind), content)
                            if rest is not None:
                                worker.held[kind] = rest
                        yield kind, content
        finally:
            for pipe, worker in crew.items():
                worker.process.kill()
                worker.process.join()
                pipe.close()

    def _start(self, crew: dict[Connection, _Worker[Unit]]) -> None:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=self._serve, args=(theirs, os.getpid()), daemon=True)
        # An interrupt that comes between the fork and the child's first line waits.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with warnings.catch_warnings():
                # Python warns of threads; none of those here holds a lock that a worker takes.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        crew[ours] = _Worker(process)

    def _serve(self, pipe: Connection, parent: int) -> None:
        """Answers until there is no work left; runs in a worker."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        end_with_parent(parent)
        # Files and locks of the parent must not outlive it here.
        for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            if number not in (0, 1, 2, pipe.fileno()):
                with contextlib.suppress(OSError):
                    os.close(number)

        def drawn() -> Iterator[tuple[int, Unit]]:
            while True:
                pipe.send(("more", None))
                given = pipe.recv()
                if given is None:
                    return
                yield given

        error = None
        try:
            for result in self.work(drawn(), lambda message: pipe.send((None, message))):
                pipe.send(result)
        except (Exception, SystemExit) as raised:
            error = RemoteError.of(raised)
        pipe.send(("end", error))

    def _dead(self, worker: _Worker[Unit], tries: Counter[int]) -> list[tuple[int, Unit]]:
        """Returns what a dead worker held, unless one of its units ended workers too often."""
        worker.process.join()
        self.deaths += 1
        tries.update(worker.held.keys())
        if worst := [unit for number, unit in worker.held.items() if tries[number] >= TRIES]:
            raise WorkerError(
                f"{self.about(worst)} ended their worker {TRIES} times (the last time by "
                f"{_reason(worker.process.exitcode)}). What a run recorded is kept. Lower "
                "--workers if memory is short; with --workers 1 one process does it all."
            )
        return [*reversed(worker.held.items())]


def prompt_names(prompts: Iterable[str]) -> str:
    """Names some prompts in a few words."""
    names = [repr(name) for name in dict.fromkeys(prompts)]
    shown = ", ".join(names[:3])
    return f"prompts {shown} and {len(names) - 3} more" if len(names) > 3 else f"prompts {shown}"


def _reason(status: int | None) -> str:
    if status is None or status >= 0:
        return f"exit status {status}"
    name = signal.Signals(-status).name
    return (
        f"{name}, which is also how the system ends what takes too much memory"
        * (name == "SIGKILL")
        or name
    )
