"""What the commands say, and with which exit status, when the run directory fails them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nafaudit.core.trajectory import Key
from nafaudit.store.run import Run
from tests.commands import call
from tests.disks import can_mount, on_a_full_disk, on_a_read_only_disk
from tests.forks import nafaudit

Paths = Callable[[str], tuple[Path, Path]]
RUN = Path("r")


@pytest.fixture(scope="module")
def finished(
    tiny_pair_paths: Paths, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[str]]:
    """A small finished run, and what stands after `nafaudit` in the command that made it."""
    safe, risky = tiny_pair_paths("llama")
    cwd = tmp_path_factory.mktemp("finished")
    lines = [{"id": f"p{i}", "text": "The baker said"} for i in range(5)]
    (cwd / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    models = ["--safe", str(safe), "--risky", str(risky), "--prompts", "prompts.jsonl"]
    sizes = ["--k", "3", "--trajectories", "4", "--max-new-tokens", "8", "--out", "r", "--quiet"]
    done = call("run", *models, *sizes, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return cwd, ["run", *models, *sizes]


@pytest.fixture
def begun(finished: tuple[Path, list[str]], tmp_path: Path) -> list[str]:
    """That run, copied to tmp_path; returns its command."""
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    return finished[1]


def findings(cwd: Path) -> str:
    done = call("check", "r", "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def records(cwd: Path) -> dict[Key, bytes]:
    """Tokens and charges of every record, by its key."""
    found = Run(cwd / RUN).trajectories()
    return {one.key: one.steps.token.tobytes() + one.steps.charge.tobytes() for one in found}


def fill_up(begun: list[str], cwd: Path) -> list[str]:
    """Asks for more than fits; returns the command."""
    before, held = (cwd / RUN / "journal.jsonl").read_bytes(), records(cwd)
    more = [*begun, "--trajectories", "40"]
    done = on_a_full_disk(nafaudit(*more), RUN, room=4 * 4096, cwd=cwd)
    assert done.returncode == 2, done.stderr
    assert ("No space left" if can_mount() else "File too large") in done.stderr
    assert "Traceback" not in done.stderr
    # A slow machine may have closed a small part before the disk was full.
    assert (cwd / RUN / "journal.jsonl").read_bytes().startswith(before)
    assert len(held) == 3 * 4 * 5
    assert held.items() <= records(cwd).items()
    return more


def test_a_full_disk_loses_nothing(begun: list[str], tmp_path: Path) -> None:
    fill_up(begun, tmp_path)


@pytest.mark.full
def test_a_full_disk_then_room_again(begun: list[str], tmp_path: Path) -> None:
    more = fill_up(begun, tmp_path)
    assert call(*more, cwd=tmp_path).returncode == 0
    resumed = findings(tmp_path)
    (tmp_path / RUN).rename(tmp_path / "resumed")
    assert call(*more, cwd=tmp_path).returncode == 0
    assert findings(tmp_path) == resumed


def test_a_read_only_run(begun: list[str], tmp_path: Path) -> None:
    expected = findings(tmp_path)
    done = on_a_read_only_disk(nafaudit(*begun, "--trajectories", "5"), RUN, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "cannot write" in done.stderr
    assert "Traceback" not in done.stderr
    assert findings(tmp_path) == expected
    if can_mount():
        checked = on_a_read_only_disk(nafaudit("check", "r", "--json"), RUN, cwd=tmp_path)
        assert checked.stdout == expected


@pytest.mark.skipif(not can_mount(), reason="needs a mount of its own")
@pytest.mark.full
def test_a_result_from_a_read_only_run_is_printed(begun: list[str], tmp_path: Path) -> None:
    written = call("report", "r", "--json", cwd=tmp_path)
    page = (tmp_path / RUN / "report" / "report.md").read_text()
    shutil.rmtree(tmp_path / RUN / "report")
    printed = on_a_read_only_disk(nafaudit("report", "r"), RUN, cwd=tmp_path)
    assert printed.returncode == 2
    assert printed.stdout == page + "\n"
    told = "cannot write r/report: Read-only file system."
    assert told in printed.stderr and "Traceback" not in printed.stderr
    assert "copy r to a place that can be written" in printed.stderr
    as_json = on_a_read_only_disk(nafaudit("report", "r", "--json"), RUN, cwd=tmp_path)
    assert as_json.returncode == written.returncode == 0
    expected = json.loads(written.stdout)
    expected["made"]["files"] = []
    assert json.loads(as_json.stdout) == expected
    assert told in as_json.stderr

    verify = nafaudit("verify", "r", "--quiet", "--json")
    verified = on_a_read_only_disk(verify, RUN, cwd=tmp_path)
    assert verified.returncode == 0, verified.stderr
    found = json.loads(verified.stdout)
    assert found["file"] is None and found["replayed"] == 3 * 4 * 5
    assert "cannot write r/verify.json: Read-only file system." in verified.stderr
    assert "check and report do not know of it" in verified.stderr


def test_a_result_that_has_no_place_is_printed(begun: list[str], tmp_path: Path) -> None:
    """The same where the place of a result is taken, which needs no mount."""
    (tmp_path / RUN / "verify.json").mkdir()
    verified = call("verify", "r", "--quiet", "--sample", "5", cwd=tmp_path)
    assert verified.returncode == 0, verified.stderr
    assert "result: not kept, as it could not be written" in verified.stdout
    assert "cannot write r/verify.json" in verified.stderr
    shutil.rmtree(tmp_path / RUN / "report")
    (tmp_path / RUN / "report").touch()
    printed = call("report", "r", cwd=tmp_path)
    assert printed.returncode == 2
    assert printed.stdout.startswith("# nafaudit report")
    (tmp_path / RUN / "report").unlink()
    (tmp_path / RUN / "report").mkdir()
    (tmp_path / RUN / "report" / "figures").touch()
    drawn = call("report", "r", "--figures", cwd=tmp_path)
    assert drawn.returncode == 2
    assert drawn.stdout.startswith("# nafaudit report")
    assert not list((tmp_path / RUN).rglob(".*"))


@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_a_damaged_part(begun: list[str], tmp_path: Path, damage: str) -> None:
    part = next((tmp_path / RUN / "parts").iterdir())
    content = part.read_bytes()
    part.write_bytes(content[:-1]) if damage == "cut" else part.unlink()
    done = call("check", "r", cwd=tmp_path)
    assert done.returncode == 2
    assert part.name in done.stderr
    assert "Restore it" in done.stderr
    part.write_bytes(content)
    findings(tmp_path)
