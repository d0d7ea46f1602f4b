"""A run that was killed, anywhere and however often, ends like one that was not."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from nafaudit.answers import Audit
from nafaudit.cli.output import show
from nafaudit.core.errors import InputError
from nafaudit.core.trajectory import Trajectory
from nafaudit.store.run import Run
from nafaudit.store.shown import shown_families, shown_laws
from tests.forks import fork, run
from tests.kills import was_killed
from tests.store import victim
from tests.store.test_run import spends, spent
from tests.store.victim import PROMPTS, VOCABULARY, record, work

RUN = Path("r")

# Which occurrence of a moment; the first part is journalled before its second.
CREATING = [
    ("directory made", 0),
    ("prompts.jsonl half written", 0),
    ("prompts.jsonl renamed", 0),
    ("vocabulary.json half written", 0),
    ("vocabulary.json renamed", 0),
    ("design.json half written", 0),
    ("design.json synced", 0),
    ("design.json renamed", 0),
    ("sessions.jsonl half written", 0),
]
RECORDING = [
    ("part opened", 1),
    ("part half written", 1),
    ("part written", 1),
    ("part synced", 1),
    ("journal.jsonl opened", 1),
    ("journal.jsonl half written", 1),
    ("journal.jsonl written", 1),
    ("journal.jsonl synced", 1),
    ("part renamed", 1),
]


def kill_at(path: Path, moment: int) -> bool:
    """Starts the command, kills it at a moment; False if it ended before."""
    child = fork(lambda: victim.main(path.absolute(), moment))
    _, status = os.waitpid(child, os.WUNTRACED)
    stopped = os.WIFSTOPPED(status)
    if stopped:
        os.kill(child, signal.SIGKILL)
        assert was_killed(child)
    else:
        assert os.WEXITSTATUS(status) == 0
    return stopped


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Every moment of an uninterrupted run, in order."""
    done = run(lambda: victim.main(RUN), tmp_path_factory.mktemp("whole"))
    names: list[str] = json.loads(done.stdout)
    return names


def find(moments: list[str], name: str, occurrence: int) -> int:
    return [i for i, moment in enumerate(moments) if moment == name][occurrence]


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory, so that runs in it have the same name."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def records(path: Path = RUN) -> list[Trajectory]:
    return sorted(Run(path).trajectories(), key=lambda one: one.key)


def same(left: list[Trajectory], right: list[Trajectory]) -> bool:
    return len(left) == len(right) and all(a.same_as(b) for a, b in zip(left, right, strict=True))


def findings(capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    show(Audit(Run(RUN)), as_json=True)
    return capsys.readouterr().out


def assert_shown() -> None:
    """Whatever is recorded has what was shown of it."""
    run = Run(RUN)
    laws, families, recorded = shown_laws(run), shown_families(run), run.keys()
    for one in work():
        if one.shown is not None and one.key in recorded:
            assert one.shown.laws is not None
            assert laws[one.key].tobytes() == one.shown.laws.tobytes()
            assert families[one.key] == "arithmetic"
    assert set(laws) <= {one.key for one in work()[-victim.SHOWING :]}


def assert_resumes(capsys: pytest.CaptureFixture[str]) -> None:
    """The same command, once more, makes this run equal to one that was never killed.

    Before and after, a query of parts/*.parquet gives the spends of what is read.
    """
    if (RUN / "design.json").exists():
        assert spends(RUN) == spent(RUN)
        assert_shown()
    record(RUN)
    assert_shown()
    assert len(shown_laws(Run(RUN))) == victim.SHOWING
    assert spends(RUN) == spent(RUN)
    assert len(spends(RUN)) == len(work())
    assert same(records(), sorted(work(), key=lambda one: one.key))
    assert Run(RUN).prompts() == PROMPTS
    resumed = findings(capsys)
    RUN.rename("killed")
    record(RUN)
    assert findings(capsys) == resumed


@pytest.mark.parametrize("moment", ["npy opened", "npy renamed", "shown half", "shown synced"])
def test_killed_while_writing_what_is_shown(
    moment: str, moments: list[str], at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, what = moment.split()
    found = [i for i, name in enumerate(moments) if kind in name and what in name]
    assert len(found) == victim.SHOWING
    assert kill_at(RUN, found[1])
    assert len(records()) == len(work()) - victim.PART
    assert_resumes(capsys)


def test_the_moments_cover_every_step_of_a_part(moments: list[str]) -> None:
    start = find(moments, "part opened", 1)
    steps = moments[start : find(moments, "part opened", 2)]
    assert [step for step in steps if step != "directory synced"] == [n for n, _ in RECORDING]
    assert steps.count("directory synced") == 2


@pytest.mark.parametrize("name, occurrence", RECORDING)
def test_killed_while_writing_a_part(
    name: str, occurrence: int, moments: list[str], at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kill_at(RUN, find(moments, name, occurrence))
    there = 2 if name == "part renamed" else 1
    assert same(records(), sorted(work()[: 3 * there], key=lambda one: one.key))
    assert_resumes(capsys)


@pytest.mark.parametrize("name, occurrence", CREATING)
def test_killed_while_making_the_directory(
    name: str, occurrence: int, moments: list[str], at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kill_at(RUN, find(moments, name, occurrence))
    if (RUN / "design.json").exists():
        assert Run(RUN).prompts() == PROMPTS
        assert json.loads((RUN / "vocabulary.json").read_text()) == VOCABULARY
        assert records() == []
    else:
        with pytest.raises(InputError, match=r"no design\.json"):
            Run(RUN)
    assert_resumes(capsys)


def test_the_design_comes_after_all_it_promises(moments: list[str]) -> None:
    design = find(moments, "design.json opened", 0)
    for name in ("prompts.jsonl", "vocabulary.json"):
        renamed = find(moments, f"{name} renamed", 0)
        assert moments[renamed + 1] == "directory synced"
        assert renamed + 1 < design
    assert "directory synced" in moments[: find(moments, "prompts.jsonl opened", 0)]


def test_a_file_cut_at_any_byte_before_the_design_is_written_again(at: Path) -> None:
    record(RUN)
    whole = {name: (RUN / name).read_bytes() for name in ("prompts.jsonl", "vocabulary.json")}
    (RUN / "journal.jsonl").unlink()
    for name, content in whole.items():
        for cut in range(len(content)):
            (RUN / name).write_bytes(content[:cut])
            (RUN / "design.json").unlink(missing_ok=True)
            with pytest.raises(InputError):
                Run(RUN)
        record(RUN)
        assert (RUN / name).read_bytes() == content
        assert same(records(), sorted(work(), key=lambda one: one.key))
        (RUN / "journal.jsonl").unlink()


def test_killed_again_while_it_resumes(
    moments: list[str], at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kill_at(RUN, find(moments, "journal.jsonl half written", 1))
    assert kill_at(RUN, 3)  # while the torn line is cut off, or just after
    assert kill_at(RUN, 25)
    assert_resumes(capsys)


@pytest.mark.full
def test_killed_at_every_single_moment(
    moments: list[str], at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for moment in range(len(moments)):
        directory = at / str(moment)
        directory.mkdir()
        os.chdir(directory)
        assert kill_at(RUN, moment)
        assert_resumes(capsys)


@pytest.mark.full
def test_killed_again_and_again(
    moments: list[str], at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(0)  # fixed, so the flakiness budget is 0
    for attempt in range(40):
        directory = at / str(attempt)
        directory.mkdir()
        os.chdir(directory)
        for _ in range(rng.randrange(1, 6)):
            kill_at(RUN, rng.randrange(len(moments)))
            if (RUN / "design.json").exists():
                rows = sum(entry["rows"] for entry in Run(RUN).journal())
                assert len(records()) == rows
        assert_resumes(capsys)


@pytest.mark.full
def test_killed_at_random_times(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(1)
    for attempt in range(60):
        directory = at / str(attempt)
        directory.mkdir()
        os.chdir(directory)
        child = fork(lambda: victim.main(RUN))
        deadline = time.monotonic() + 60
        while not RUN.exists():
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(rng.random() * 0.04)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert_resumes(capsys)
