"""A Ray cluster of two nodes on one machine: kills, stops, resumes, and what workers say."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nafaudit.store.run import Run
from tests.commands import NAFAUDIT, call
from tests.runner.test_ray import DEADLY, options, same_records

__all__ = ["options"]  # a fixture
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Both listen on the loopback interface only, with a secret, and end with the module."""
    marks = tmp_path_factory.mktemp("marks")
    os.environ |= {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": os.environ.get("RAY_AUTH_TOKEN", secrets.token_hex(16)),
        "MARK": str(marks / "mark"),
    }
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 2, "object_store_memory": 100 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=size)
    cluster.add_node(**size)
    cluster.wait_for_nodes()
    cluster.mark = marks / "mark"
    yield cluster
    cluster.shutdown()


@pytest.fixture
def mark(two_nodes: Any) -> Path:
    """Where the workers, which have the cluster's environment, leave their mark."""
    two_nodes.mark.unlink(missing_ok=True)
    return Path(two_nodes.mark)


def _wait(what: Callable[[], bool], seconds: float = 300) -> None:
    limit = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < limit
        time.sleep(0.05)


def _start(words: list[str], where: Path) -> subprocess.Popen[str]:
    where.mkdir(exist_ok=True)
    return subprocess.Popen(
        [*NAFAUDIT, *words],
        cwd=where,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def _recorded(where: Path) -> int:
    path = where / "r" / "journal.jsonl"
    return sum(json.loads(x)["rows"] for x in path.read_text().splitlines()) if path.exists() else 0


def test_killed_workers_and_drivers_leave_the_findings_alone(
    options: list[str], two_nodes: Any, mark: Path, tmp_path: Path
) -> None:
    """A worker by SIGKILL from outside, Ctrl-C, the driver by SIGKILL; 2, 3, 1 workers, local."""
    long = [*options, "--trajectories", "16", "--batch", "32"]
    # Small batches make small units, so that much is left when the run is stopped.
    spread = [*long, "--batch", "2", "--ray", two_nodes.address]
    here = tmp_path / "spread"
    driver = _start([*spread, "--workers", "2"], here)
    sessions = here / "r" / "sessions.jsonl"
    _wait(lambda: _recorded(here) > 0)
    workers = json.loads(sessions.read_text().splitlines()[0])["workers"]
    assert len({worker["node"] for worker in workers}) == 2
    os.kill(workers[0]["pid"], signal.SIGKILL)  # a worker always holds a unit but for a moment
    before = _recorded(here)
    _wait(lambda: _recorded(here) > before)
    os.killpg(driver.pid, signal.SIGINT)  # as a terminal does
    assert "The same command resumes" in driver.communicate(timeout=60)[1]
    assert driver.returncode == 130
    stopped = _recorded(here)
    assert 0 < stopped < 384
    driver = _start([*spread, "--workers", "3"], here)
    _wait(lambda: _recorded(here) > stopped)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    killed = _recorded(here)
    assert killed < 384
    driver = _start([*spread, "--workers", "1"], here)
    _wait(lambda: _recorded(here) > killed)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    assert _recorded(here) < 384
    assert call(*long, cwd=here).returncode == 0  # the rest without Ray
    assert _recorded(here) == 384
    (tmp_path / "alone").mkdir()
    assert call(*long, cwd=tmp_path / "alone").returncode == 0
    same_records(here, tmp_path / "alone")


def test_a_rule_that_serves_no_law_is_named_as_in_a_local_run(
    options: list[str], two_nodes: Any, tmp_path: Path
) -> None:
    words = [*options, "--mechanism", f"{DEADLY}:ServesNoLaw"]
    spread = call(*words, "--ray", two_nodes.address, cwd=tmp_path)
    local = call(*words, "--out", "other", cwd=tmp_path)
    assert spread.returncode == local.returncode == 2
    assert "the served law has mass" in spread.stderr
    assert spread.stderr.splitlines()[-1][:90] == local.stderr.splitlines()[-1][:90]
    assert "Traceback" not in spread.stderr


def test_a_unit_that_always_ends_its_worker_is_given_up(
    options: list[str], two_nodes: Any, tmp_path: Path
) -> None:
    words = [*options, "--mechanism", f"{DEADLY}:KillsAlways", "--workers", "1"]
    done = call(*words, "--ray", two_nodes.address, cwd=tmp_path)
    assert done.returncode == 2
    assert "prompts 'p0' ended their worker 3 times" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_worker_that_computes_other_bits_is_noticed(
    two_nodes: Any, mark: Path, options: list[str], tmp_path: Path
) -> None:
    words = [*options, "--mechanism", f"{DEADLY}:OneMachineRoundsOtherwise", "--limit", "2"]
    done = call(*words, "--ray", two_nodes.address, "--workers", 2, cwd=tmp_path)
    assert mark.exists()
    assert "workers compute different last bits" in done.stderr
    first = {w["probe"]["digest"] for w in Run(tmp_path / "r").sessions[0]["workers"]}
    assert len(first) == 2


def test_what_a_node_lacks_is_said(options: list[str], two_nodes: Any, tmp_path: Path) -> None:
    done = call(*options, "--ray", two_nodes.address, "--workers", 99, cwd=tmp_path)
    assert done.returncode == 2
    assert "99 workers do not fit the cluster" in done.stderr
    done = call(*options, "--ray", two_nodes.address, "--device", "cuda", cwd=tmp_path)
    assert done.returncode == 2
    assert "GPUs" in done.stderr


@pytest.mark.parametrize("mechanism", ["best-of-n", "anchored:refill=character"])
def test_mechanisms_of_whole_outputs_and_of_the_vocabulary_are_spread_like_any_other(
    mechanism: str, options: list[str], two_nodes: Any, tmp_path: Path
) -> None:
    words = [*options, "--mechanism", mechanism, "--trajectories", "1", "--limit", "3"]
    for where, more in (("spread", ["--ray", two_nodes.address]), ("alone", [])):
        (tmp_path / where).mkdir()
        assert call(*words, *more, cwd=tmp_path / where).returncode == 3
    same_records(tmp_path / "spread", tmp_path / "alone")
