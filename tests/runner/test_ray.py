"""Runs on a Ray cluster of this machine's own: refusals, and a worker that is killed at work."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nafaudit import __version__
from nafaudit.core.draws import sound_stream
from nafaudit.core.errors import InputError, WorkerError
from nafaudit.core.numerics import ConstantRows
from nafaudit.core.settings import RunSettings
from nafaudit.core.trajectory import Key
from nafaudit.engine.prompts import PromptRequest, RowRequest
from nafaudit.runner.cluster import WorkerAnswer, WorkerInfo, gpus_of
from nafaudit.runner.fleet import RayExecutor
from nafaudit.runner.workbench import WorkbenchSpec
from nafaudit.search.settings import SearchSettings
from nafaudit.store.run import Run
from tests.commands import NAFAUDIT, call

Paths = Callable[[str], tuple[Path, Path]]
DEADLY = Path(__file__).with_name("deadly.py")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ray": "local", "workers": 0}, "at least 1"),
        ({"ray": "10.0.0.4"}, "HOST:PORT"),
        ({"ray": "ray://head:10001"}, "HOST:PORT"),
        ({"ray": "auto", "decoder": "a:B"}, "black box 'a:B'"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(given: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        RunSettings(**given)  # type: ignore[arg-type]


def test_a_search_stays_in_its_process(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="for nafaudit run"):
        SearchSettings(ray="local")
    assert "for nafaudit run" in call("search", "--ray", cwd=tmp_path).stderr


def test_gpus_of_a_worker_are_counted_from_0() -> None:
    assert [gpus_of(d) for d in ("cpu", "cuda", "cuda:0", "cuda:0,cuda:1")] == [0, 1, 1, 2]
    with pytest.raises(InputError, match="give cuda:0"):
        gpus_of("cuda:3")
    with pytest.raises(InputError, match="leave out --ray"):
        gpus_of("auto")


def test_a_bare_option_is_this_machine_and_a_file_after_it_is_the_design(tmp_path: Path) -> None:
    (tmp_path / "d.toml").write_text("k = -2")
    for words in (["--ray", "d.toml"], ["d.toml", "--ray"], ["--ray", "--workers", "2", "d.toml"]):
        done = call("run", *words, cwd=tmp_path)
        assert done.returncode == 2
        assert "-2" in done.stderr, done.stderr  # the design was read, and nothing else
    assert "got 'here'" in call("run", "--ray", "here", cwd=tmp_path).stderr


@pytest.fixture
def options(tiny_pair_paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    safe, risky = tiny_pair_paths("llama")
    rows = [{"id": f"p{i}", "text": f"The bread {i}", "reference": "Salt."} for i in range(6)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.setenv("MARK", str(tmp_path / "mark"))
    words = ["--safe", safe, "--risky", risky, "--prompts", tmp_path / "prompts.jsonl"]
    sizes = ["--k", "1,3", "--trajectories", "4", "--max-new-tokens", "45", "--batch", "4"]
    return ["run", *map(str, words), *sizes, "--out", "r", "--quiet"]


def test_without_ray_the_extra_is_named(
    options: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = call(*options, "--ray", cwd=tmp_path)
    assert done.returncode == 2
    assert "pip install 'nafaudit[ray]'" in done.stderr


def test_a_session_on_another_machine_is_noticed_when_a_run_goes_on(
    options: list[str], tmp_path: Path
) -> None:
    small = [*options, "--max-new-tokens", "3"]
    assert "arithmetic" not in call(*small, "--limit", 1, cwd=tmp_path).stderr
    sessions = tmp_path / "r" / "sessions.jsonl"
    facts = json.loads(sessions.read_text())
    facts["probe"]["digest"] = "of another CPU"
    sessions.write_text(json.dumps(facts) + "\n")
    design = (tmp_path / "r" / "design.json").read_bytes()
    refused = call(*small, "--limit", 2, cwd=tmp_path)
    assert refused.returncode == 2
    assert "was begun with another arithmetic (of another CPU on" in refused.stderr
    assert "--mixed" in refused.stderr
    assert (tmp_path / "r" / "design.json").read_bytes() == design  # nothing was begun
    done = call(*small, "--limit", 2, "--mixed", cwd=tmp_path)
    assert "computed by 2 different arithmetics" in done.stderr
    report = json.loads((tmp_path / "r" / "report" / "report.json").read_text())
    assert "2 different arithmetics" in report["made"]["mixed"]
    for page in ("index.html", "report.md"):
        text = (tmp_path / "r" / "report" / page).read_text()
        assert "computed by 2 different arithmetics" in text
    assert "2 different arithmetics" in call("check", "r", cwd=tmp_path).stderr


def test_a_cluster_that_is_not_there_is_said_at_once(options: list[str], tmp_path: Path) -> None:
    done = call(*options, "--ray", "127.0.0.1:9", cwd=tmp_path)
    assert done.returncode == 2
    assert "no Ray cluster answers at '127.0.0.1:9'" in done.stderr
    assert not (tmp_path / "r").exists()


@pytest.mark.full
def test_a_worker_killed_while_it_holds_a_unit_changes_nothing(
    options: list[str], tmp_path: Path
) -> None:
    rule = ["--mechanism", f"{DEADLY}:KillsOnce"]
    (tmp_path / "spread").mkdir()
    # In a process of its own: Ray reads its settings once in a process.
    spread = [*options, *rule, "--ray", "--workers", 2]
    done = call(*spread, cwd=tmp_path / "spread", code=NAFAUDIT)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mark").exists()  # a worker was killed by SIGKILL in the middle of a row
    assert "1 worker died on the way; what they held was decoded again" in done.stderr
    (tmp_path / "alone").mkdir()
    assert call(*options, *rule, cwd=tmp_path / "alone").returncode == 0
    same_records(tmp_path / "spread", tmp_path / "alone")
    facts = Run(tmp_path / "spread" / "r").sessions[0]
    assert [worker["probe"]["digest"] for worker in facts["workers"]] == 2 * [
        Run(tmp_path / "alone" / "r").sessions[0]["probe"]["digest"]
    ]
    assert all(worker["node"].startswith("127.0.0.1 ") for worker in facts["workers"])


def same_records(one: Path, other: Path) -> None:
    """Every bit of every record, the passages, and the findings byte for byte."""
    records = [list(Run(place / "r").trajectories()) for place in (one, other)]
    mine, theirs = ({t.key: t for t in found} for found in records)
    assert len(records[0]) == len(mine) == len(theirs) == len(records[1])
    assert mine.keys() == theirs.keys()
    assert all(mine[key].same_as(theirs[key]) for key in mine)
    passages = [(place / "r" / "passages.jsonl").read_bytes() for place in (one, other)]
    assert passages[0] == passages[1]
    findings = [call("check", "r", "--json", cwd=place).stdout for place in (one, other)]
    assert findings[0] == findings[1]
    assert json.loads(findings[0])


def test_servers_that_do_not_start_are_tried_twice_and_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from nafaudit.runner import cluster as ray_cluster

    class Failing:
        """Ray on a machine that is too busy for it."""

        def __init__(self, failures: int) -> None:
            self.tries, self.failures = 0, failures

        def init(self, **how: object) -> None:
            self.tries += 1
            if self.tries <= self.failures:
                raise RuntimeError("Failed to start GCS.\nmore")

        def shutdown(self) -> None:
            pass

    once = Failing(1)
    with ray_cluster._local(once, RunSettings(ray="local", workers=1), 0):
        assert once.tries == 2
    never = Failing(9)
    with (
        pytest.raises(WorkerError, match=r"twice \(Failed to start GCS\.\)"),
        ray_cluster._local(never, RunSettings(ray="local", workers=1), 0),
    ):
        pass
    assert never.tries == 2


class _Due:
    """What an actor will have answered."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer


class _Actor:
    """A worker on a machine that computes its own bits, and may die when it is asked to decode."""

    def __init__(self, machine: str) -> None:
        self.machine = machine
        self.start, self.decode = (
            SimpleNamespace(remote=lambda given, do=do: _Due(do(given)))
            for do in (self._hello, self._decoded)
        )

    def _hello(self, depends: str) -> Any:
        constant = ConstantRows() if depends or "needy" in self.machine else None
        digest = f"{self.machine.split()[0]} {constant is not None}"
        facts = {"nafaudit": __version__, "processor": self.machine}
        why = depends or "its rows depend" if constant else ""
        hello = WorkerInfo(self.machine, facts, "m", {}, True, digest, constant, why)
        return WorkerAnswer([hello])

    def _decoded(self, requests: Any) -> Any:
        if "mortal" in self.machine:
            return _Died("gone")
        keys = [Key(one.prompt, "m", row.k, row.trajectory) for one in requests for row in one.rows]
        return WorkerAnswer([SimpleNamespace(key=key) for key in keys])


class _Died(Exception):  # noqa: N818 - a name for what Ray would raise
    pass


class _Cluster:
    """As much of Ray as a fleet uses, with machines that are taken in turn."""

    exceptions = SimpleNamespace(RayTaskError=KeyError, RayError=_Died)

    def __init__(self, *machines: str) -> None:
        self._machines = iter(machines)
        self.killed: list[str] = []

    def remote(self, _: object) -> Any:
        build = SimpleNamespace(remote=lambda *_: _Actor(next(self._machines)))
        return SimpleNamespace(options=lambda **_: build)

    def wait(self, due: list[_Due], **_: object) -> tuple[list[_Due], list[_Due]]:
        return due[-1:], due[:-1]

    def get(self, due: _Due) -> Any:
        if isinstance(due.answer, Exception):
            raise due.answer
        return due.answer

    def kill(self, actor: _Actor) -> None:
        self.killed.append(actor.machine)


def _fleet(cluster: _Cluster, workers: int) -> RayExecutor:
    spec = WorkbenchSpec(RunSettings(), ("safe", "risky"), 64)
    mechanism: Any = SimpleNamespace(name="m")
    return RayExecutor(cluster, spec, mechanism, workers)


def _decoded(fleet: RayExecutor) -> list[Any]:
    rows = (RowRequest(1.0, 0, sound_stream(0, "audit", "p", 0)),)
    requests = [PromptRequest(f"p{i}", (1, 2), rows) for i in range(3)]
    return list(fleet.decode(requests, lambda fault: None, lambda rows: None))


def test_where_one_machine_needs_constant_rows_every_worker_has_them() -> None:
    fleet = _fleet(_Cluster("one", "two needy", "one"), 3)
    assert fleet.constant == ConstantRows()
    assert {worker.info.digest for worker in fleet._workers if worker.info} == {
        "one True",
        "two True",
    }
    assert len(_decoded(fleet)) == 3


@pytest.mark.parametrize("newcomer", ["one needy", "two"])
def test_who_comes_late_and_computes_otherwise_is_left_out(newcomer: str) -> None:
    """Its records would be of an arithmetic that the session's line does not name."""
    cluster = _Cluster("one mortal", "one", newcomer)
    fleet = _fleet(cluster, 2)
    assert len(_decoded(fleet)) == 3
    assert newcomer in cluster.killed
    assert any(f"node {newcomer} was left out" in text for text in fleet.remarks)
    with pytest.raises(WorkerError, match=r"no worker is left.*is recorded"):
        _decoded(_fleet(_Cluster("one mortal", newcomer), 1))


def test_who_comes_late_and_computes_the_same_is_taken_in() -> None:
    fleet = _fleet(_Cluster("one mortal", "one"), 1)
    assert len(_decoded(fleet)) == 3
    assert fleet.remarks == ("1 worker died on the way; what they held was decoded again.",)
