from __future__ import annotations

import json
import math
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nafaudit.auditor import verify
from nafaudit.auditor.replay import replay_texts
from nafaudit.core.design import identity_hash
from nafaudit.core.errors import InputError, StoreError
from nafaudit.core.settings import VerifySettings
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.runner.execute import verify_run
from nafaudit.store.artifacts import read_verification
from nafaudit.store.run import Run
from tests.commands import call
from tests.runner.forge import forge, with_debt, with_step

Paths = Callable[[str], tuple[Path, Path]]


@pytest.fixture(scope="module")
def run(tiny_pair_paths: Paths, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run of a tiny pair, warped, so that every part of a law has to be replayed."""
    directory = tmp_path_factory.mktemp("verify")
    safe, risky = tiny_pair_paths("llama")
    lines = [{"id": f"p{i}", "text": "The baker said " * (i + 1), "class": "c"} for i in range(5)]
    (directory / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    sizes = ("--k", "0.5,3", "--trajectories", "2", "--max-new-tokens", "12", "--batch", "8")
    models = ("--safe", safe, "--risky", risky, "--prompts", "p.jsonl")
    warps = ("--temperature", "0.9", "--repetition-penalty", "1.1", "--quiet")
    done = call("run", *models, *sizes, *warps, "--out", "r", cwd=directory)
    assert done.returncode in (0, 3), done.stderr
    return directory / "r"


def verified(path: Path, *options: object) -> tuple[int, dict[str, Any]]:
    done = call("verify", path, "--json", "--quiet", *options, cwd=path.parent)
    return done.returncode, json.loads(done.stdout)


def failures(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {f["check"]: f for f in data["findings"] if f["verdict"] in ("FAILED", "VIOLATED")}


def some_place(path: Path) -> tuple[Key, int]:
    """A step that served a mixture, with others before and after it."""
    found = [
        (t.key, step)
        for t in Run(path).trajectories()
        for step in range(2, len(t) - 2)
        if 0.05 < t.steps.theta[step] < 0.9
    ]
    return sorted(found)[len(found) // 2]


def some_key(path: Path) -> Key:
    return some_place(path)[0]


def test_a_true_run_is_true(run: Path) -> None:
    status, data = verified(run)
    assert status == 0
    assert failures(data) == {}
    assert data["replayed"] == data["recorded"] == 40
    for name, numbers in data["deviation"].items():
        assert numbers["max"] <= numbers["warn"] <= numbers["fail"], name
    # Float32 level, not float64: the replay is no copy of the decoder.
    assert 0 < data["deviation"]["charge"]["max"] < 1e-3
    checks = {f["check"] for f in data["findings"]}
    assert {"replay: charge", "replay: budget", "sampler: likelihood"} <= checks


def test_processes_change_no_number_and_may_be_killed(
    run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(verify, "_UNIT", 8)

    def found(workers: int) -> dict[str, Any]:
        data = verified(run, "--workers", workers)[1]
        return {name: value for name, value in data.items() if name != "seconds"}

    alone = found(1)
    assert found(2) == alone
    replay, mark = replay_texts, tmp_path / "killed"

    def deadly(*given: Any) -> Any:
        if os.getpid() != parent and len(given[2]) == 8 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return replay(*given)

    parent = os.getpid()
    monkeypatch.setattr(verify, "replay_texts", deadly)
    assert found(2) == alone
    assert mark.exists()  # a worker was killed while it held a unit
    refused = call("verify", run, "--workers", 2, "--threads", 2, cwd=run.parent)
    assert refused.returncode == 2 and "one thread each" in refused.stderr


@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("charge", lambda c: 0.98 * c),
        ("token", lambda t: (t + 1) % 300 + 2),
        ("theta", lambda t: 0.9 * t),
        pytest.param("charge", lambda c: c + 0.01, marks=pytest.mark.full),
        pytest.param("charge", lambda c: math.nan, marks=pytest.mark.full),
        pytest.param("allowance", lambda a: a + 0.01, marks=pytest.mark.full),
        pytest.param("served", lambda p: p - 0.05, marks=pytest.mark.full),
        pytest.param("safe", lambda p: p - 0.05, marks=pytest.mark.full),
        pytest.param("risky", lambda p: p - 0.05, marks=pytest.mark.full),
    ],
)
def test_one_altered_number_is_found_where_it_is(
    run: Path, tmp_path: Path, column: str, change: Callable[[float], float]
) -> None:
    key, step = some_place(run)
    forged = forge(run, tmp_path / "forged", key, with_step(step, **{column: change}))
    status, data = verified(forged, "--sampler", 0)
    assert status == 1
    found = failures(data)
    first = key._asdict() | {"step": step}
    assert found[f"replay: {column}"]["witness"] == first
    # Nothing before that step, and no other trajectory, is accused.
    for finding in found.values():
        assert finding["witness"] | {"step": step} == first
        assert finding["witness"]["step"] >= step


@pytest.mark.parametrize("change", [-0.01, pytest.param(2.0, marks=pytest.mark.full)])
def test_an_altered_debt_is_found(run: Path, tmp_path: Path, change: float) -> None:
    key = some_key(run)
    forged = forge(run, tmp_path / "forged", key, with_debt(change))
    status, data = verified(forged, "--sampler", 0)
    assert status == 1
    witness = failures(data)["replay: debt"]["witness"]
    assert witness == key._asdict() | {"step": 0}


def test_serving_too_much_is_a_violation(run: Path, tmp_path: Path) -> None:
    """Claimed weights of 1 from the first step on: the true charges exceed the grant."""
    key = some_key(run)

    def greedy(trajectory: Trajectory) -> Trajectory:
        theta = np.ones_like(trajectory.steps.theta)
        return replace(trajectory, steps=replace(trajectory.steps, theta=theta))

    data = verified(forge(run, tmp_path / "forged", key, greedy), "--sampler", 0)[1]
    found = failures(data)["replay: budget"]
    assert found["verdict"] == "VIOLATED"
    assert found["witness"]["prompt"] == key.prompt


def test_a_removed_trajectory_is_missed(run: Path, tmp_path: Path) -> None:
    less = forge(run, tmp_path / "less", some_key(run), lambda _: None)
    found = verify_run(Run(less), VerifySettings(scored=0, sample=1))
    missed = [note for note in found.notes if "1 of the 40 trajectories that were asked" in note]
    assert len(missed) == 1
    assert f"prompt {some_key(run).prompt!r}" in missed[0]
    assert found.overall.exit_status == 3


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("prompts.jsonl", "The baker", "The maker"), ("design.json", '"seed": 0', '"seed": 1')],
)
def test_an_edited_design_or_prompt_is_refused(
    run: Path, tmp_path: Path, name: str, old: str, new: str
) -> None:
    shutil.copytree(run, tmp_path / "edited")
    path = tmp_path / "edited" / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(StoreError, match=f"{name} is not what was written"):
        verify_run(Run(tmp_path / "edited"), VerifySettings())


def test_a_cut_output_is_found(run: Path, tmp_path: Path) -> None:
    key = some_key(run)

    def cut(trajectory: Trajectory) -> Trajectory:
        steps = trajectory.steps
        short = {name: getattr(steps, name)[:-2] for name in steps.columns}
        return replace(trajectory, stopped=False, steps=replace(steps, **short))

    status, data = verified(forge(run, tmp_path / "forged", key, cut), "--sampler", 0)
    assert status == 1
    assert list(failures(data)) == ["replay: end"]


def test_a_sample_is_replayed_the_same_every_time(run: Path) -> None:
    one, other = (verified(run, "--sample", 7, "--sampler", 0)[1] for _ in range(2))
    assert one["replayed"] == 7
    assert one["deviation"] == other["deviation"]


def test_the_result_is_kept_and_guarded(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "verify.json").unlink(missing_ok=True)
    assert read_verification(Run(copy)) is None
    text = call("verify", "copy", "--sampler", 0, cwd=tmp_path)
    assert text.returncode == 0
    assert max(map(len, text.stdout.splitlines())) <= 80
    assert "the claims are true" in text.stdout
    kept = read_verification(Run(copy))
    assert kept is not None
    assert kept["current"]
    assert kept["replayed"] == 40
    with (copy / "journal.jsonl").open("a") as journal:
        journal.write("\n")
    assert not (read_verification(Run(copy)) or {})["current"]
    path = copy / "verify.json"
    path.write_text(path.read_text().replace('"replayed": 40', '"replayed": 41'))
    with pytest.raises(StoreError, match="damaged or edited"):
        read_verification(Run(copy))


def test_other_weights_are_refused(run: Path, tmp_path: Path, tiny_pair_paths: Paths) -> None:
    safe, _ = tiny_pair_paths("llama")
    with pytest.raises(InputError, match="are not those of"):
        verify_run(Run(run), VerifySettings(safe=str(safe), risky=str(safe)))
    # Where the session says, and nobody has the recorded hashes any more.
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    design = json.loads((copy / "design.json").read_text())
    design["identity"]["pair"]["risky"] = "0" * 64
    design["hash"] = identity_hash(design["identity"])
    (copy / "design.json").write_text(json.dumps(design))
    with pytest.raises(InputError, match="weights changed"):
        verify_run(Run(copy), VerifySettings())


def test_bad_options_are_named(run: Path) -> None:
    assert "is for imported logs" in call("verify", run, "--debt", "official", cwd=run).stderr
    assert call("verify", run, "--sample", "-1", cwd=run).returncode == 2
    assert call("verify", run, "--safe", "x", cwd=run).returncode == 2
    assert call("verify", "nowhere", cwd=run).returncode == 2


def test_an_imported_log_needs_models_and_is_replayed_with_them(
    run: Path, tmp_path: Path, tiny_pair_paths: Paths
) -> None:
    safe, risky = tiny_pair_paths("llama")
    assert call("export", run, "--out", tmp_path / "log", cwd=tmp_path).returncode == 0
    logs = sorted(map(str, (tmp_path / "log").rglob("*.jsonl")))
    assert call("import", *logs, "--out", "i", cwd=tmp_path).returncode == 0
    refused = call("verify", "i", cwd=tmp_path)
    assert refused.returncode == 2
    assert "does not say where its models are" in refused.stderr
    models = ("--safe", safe, "--risky", risky, "--sampler", 0)
    warps = ("--temperature", 0.9, "--repetition-penalty", 1.1)
    status, data = verified(tmp_path / "i", *models, *warps)
    assert (status, failures(data)) == (0, {})
    assert data["replayed"] == 40
    assert data["deviation"]["token"]["max"] == "nan"  # whose draws they were is not known
    status, data = verified(tmp_path / "i", *models)  # another anchor than promised
    assert status == 1
    assert "bookkeeping: safe" in failures(data)


@pytest.mark.full
def test_a_lab_run_is_true_and_a_forged_one_is_not(tmp_path: Path) -> None:
    sizes = ("--limit", 4, "--trajectories", 1, "--max-new-tokens", 40, "--k", 0.25)
    assert call("run", *sizes, "--out", "lab", "--quiet", cwd=tmp_path).returncode in (0, 3)
    lab = tmp_path / "lab"
    status, data = verified(lab)
    assert (status, failures(data)) == (0, {})
    assert data["deviation"]["charge"]["max"] < 1e-4
    key, step = some_place(lab)
    for name, edit in (
        ("charge", with_step(step, charge=lambda c: c - 0.002)),
        ("token", with_step(step, token=lambda t: t % 2000 + 3)),
        ("debt", with_debt(-0.002)),
    ):
        status, data = verified(forge(lab, tmp_path / name, key, edit), "--sampler", 0)
        witness = failures(data)[f"replay: {name}"]["witness"]
        assert status == 1
        assert (witness["prompt"], witness["trajectory"]) == (key.prompt, key.trajectory)
        assert witness["step"] == (0 if name == "debt" else step)


@pytest.mark.full
def test_a_black_box_is_held_to_its_promise(tmp_path: Path, tiny_pair_paths: Paths) -> None:
    safe, risky = tiny_pair_paths("llama")
    lines = [{"id": f"p{i}", "text": "The baker said " * (i + 1), "class": "c"} for i in range(5)]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    decoder = Path(__file__).parents[1] / "runner" / "boxes.py"
    sizes = ("--k", 3, "--trajectories", 20, "--max-new-tokens", 24, "--out", "r", "--quiet")
    models = ("--safe", safe, "--risky", risky, "--prompts", "p.jsonl")
    done = call("run", *models, *sizes, "--decoder", f"{decoder}:Cold", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    status, data = verified(tmp_path / "r")
    assert data["replayed"] == 300
    # A look at less says what it sees, and does not take the place of the whole.
    assert verified(tmp_path / "r", "--sampler", 0)[1]["file"] is None
    assert call("check", "r", cwd=tmp_path).returncode == 1
    fired = {f["check"] for f in data["findings"] if f["verdict"] == "FAILED"}
    # Every number that it claims is true; only its tokens give it away.
    assert status == 1
    assert {check.split(":")[0] for check in fired} <= {"sampling", "budget"}
