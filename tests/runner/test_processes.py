"""Runs in several processes of this machine: the same records, whatever happens to a worker."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from nafaudit.core import processes
from nafaudit.core.errors import InputError, LawError, WorkerError
from nafaudit.core.processes import Crew, check_workers, free_memory, usable_cores
from nafaudit.core.settings import RunSettings
from nafaudit.runner import workbench
from nafaudit.runner.workbench import paying_workers
from nafaudit.store.run import Run
from tests.commands import call
from tests.forks import fork
from tests.kills import was_killed
from tests.runner.test_ray import DEADLY, options, same_records

__all__ = ["options"]  # a fixture

_SECONDS = 120.0
# Six prompts with four rows each: every worker has several, and a death leaves some to the other.
FEW = ("--trajectories", "1")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"workers": 0}, "at least 1"),
        ({"workers": 2, "threads": 2}, "a worker has one thread"),
        ({"workers": 2, "device": "cuda"}, "add --ray"),
        ({"workers": 2, "decoder": "a:B"}, "black box 'a:B'"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        RunSettings(**given)


def test_a_killed_worker_changes_no_record(options: list[str], tmp_path: Path) -> None:
    rule = ["--mechanism", f"{DEADLY}:KillsOnce", *FEW]
    (tmp_path / "spread").mkdir()
    done = call(*options, *rule, "--workers", 2, cwd=tmp_path / "spread")
    assert done.returncode == 3, done.stderr  # six trajectories are no evidence
    assert (tmp_path / "mark").exists()  # a worker was killed by SIGKILL in the middle of a row
    assert "1 worker died on the way; what they held was decoded again" in done.stderr
    (tmp_path / "alone").mkdir()
    assert call(*options, *rule, cwd=tmp_path / "alone").returncode == 3
    same_records(tmp_path / "spread", tmp_path / "alone")


def test_who_kills_every_worker_is_named(options: list[str], tmp_path: Path) -> None:
    done = call(*options, "--mechanism", f"{DEADLY}:KillsAlways", "--workers", 2, cwd=tmp_path)
    assert done.returncode == 2
    assert "ended their worker 3 times (the last time by SIGKILL" in done.stderr
    assert "prompts 'p" in done.stderr and "--workers 1" in done.stderr


def test_an_error_is_that_of_one_process(options: list[str], tmp_path: Path) -> None:
    rule = ["--mechanism", f"{DEADLY}:ServesNoLaw", "--limit", 1]
    said = []
    for workers in (2, 1):
        (tmp_path / str(workers)).mkdir()
        done = call(*options, *rule, "--workers", workers, cwd=tmp_path / str(workers))
        assert done.returncode == 2, done.stderr
        line = next(x for x in done.stderr.splitlines() if "law" in x)
        said.append(line.partition(" has mass ")[0])
    assert said[0] == said[1]


@pytest.mark.parametrize(
    "end", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.full)]
)
def test_no_worker_outlives_its_parent(
    end: signal.Signals, options: list[str], tmp_path: Path
) -> None:
    """Ctrl-C reaches every process of a terminal, SIGKILL one."""
    rule = ["--mechanism", f"{DEADLY}:Sleeps", *FEW, "--workers", 2]

    def work() -> None:
        # A shell starts what runs in its background deaf to interrupts.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        call(*options, *rule, cwd=tmp_path)

    parent = fork(work)
    _await(lambda: (tmp_path / "mark").exists())
    children = [int(c) for c in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    assert len(children) == 2
    for process in (parent, *(children if end == signal.SIGINT else ())):
        os.kill(process, end)
    assert was_killed(parent) == (end == signal.SIGKILL)
    _await(lambda: not any(_alive(child) for child in children))
    # Nothing holds the run: the same command goes on, and the rule sleeps only once.
    done = call(*options, *rule, cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert len(list(Run(tmp_path / "r").trajectories())) == 24


def _await(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + _SECONDS
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.05)


def _alive(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def _crew(workers: int, marks: Path, deadly: Sequence[int] = ()) -> Crew[tuple[int, ...]]:
    """Workers whose units are numbers to be doubled; some numbers kill the first that has them."""

    def work(
        drawn: Iterator[tuple[int, tuple[int, ...]]], say: Callable[[Any], None]
    ) -> Iterator[tuple[int, int]]:
        for number, unit in drawn:
            say("drawn")
            for value in unit:
                if value in deadly and not (marks / str(value)).exists():
                    (marks / str(value)).touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                if value < 0:
                    raise LawError(f"{value} is below 0.")
                yield number, 2 * value

    def left(unit: tuple[int, ...], result: int) -> tuple[int, ...] | None:
        return tuple(value for value in unit if 2 * value != result) or None

    return Crew(workers, work, left, lambda units: f"numbers {units}")


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_result_arrives_once_whichever_workers_die(workers: int, tmp_path: Path) -> None:
    units = [tuple(range(3 * i, 3 * i + 3)) for i in range(12)]
    deadly = (0, 4, 8, 17, 35)
    crew = _crew(workers, tmp_path, deadly)
    found = [(number, value) for number, value in crew.results(units) if number is not None]
    assert sorted(found) == [(i, 2 * value) for i, unit in enumerate(units) for value in unit]
    assert crew.deaths == len(deadly)
    assert list(_crew(workers, tmp_path).results([])) == []


def test_errors_of_a_worker_are_raised_here(tmp_path: Path) -> None:
    with pytest.raises(LawError, match="-3 is below 0"):
        list(_crew(2, tmp_path).results([(1, 2), (-3,)]))

    class Deadly:
        def __contains__(self, value: object) -> bool:
            os.kill(os.getpid(), signal.SIGKILL)
            return False

    with pytest.raises(WorkerError, match=r"numbers \[\(7,\)\] ended their worker 3 times"):
        list(_crew(2, tmp_path, Deadly()).results([(7,)]))  # type: ignore[arg-type]


def test_workers_are_as_many_as_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workbench, "usable_cores", lambda: 8)
    lab = RunSettings()
    assert [paying_workers(lab, rows) for rows in (1, 10, 63, 64, 480)] == [1, 1, 1, 2, 8]
    short = RunSettings(max_new_tokens=8)
    assert paying_workers(short, 480) == 1
    for alone in (
        RunSettings(threads=2),
        RunSettings(together=True),
        RunSettings(device="cuda"),
        RunSettings(mechanism="mine.py:Rule"),  # it may have threads, which no fork has
    ):
        assert paying_workers(alone, 480) == 1
    assert paying_workers(RunSettings(mechanism="mine.py:Rule", workers=3), 480) == 3
    assert paying_workers(RunSettings(workers=3), 2) == 2
    assert paying_workers(RunSettings(ray="local", workers=3), 480) == 1


def test_control_groups_limit_cores_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_control_groups", lambda _: [tmp_path])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    assert usable_cores() == 16
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable_cores() == 16
    (tmp_path / "cpu.max").write_text("250000 100000\n")
    assert usable_cores() == 2
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu.cfs_quota_us").write_text("400000\n")
    (tmp_path / "cpu.cfs_period_us").write_text("100000\n")
    assert usable_cores() == 4
    assert free_memory() > 1 << 20
    (tmp_path / "memory.max").write_text(f"{1 << 20}\n")
    (tmp_path / "memory.current").write_text(f"{1 << 19}\n")
    assert free_memory() == 1 << 19
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {1 << 18}\n")
    assert free_memory() == (1 << 19) + (1 << 18)
    with pytest.raises(InputError, match=r"2 workers take about 1 MiB each, and 1 MiB are free"):
        check_workers(2, 1 << 20)
