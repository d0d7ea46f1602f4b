"""A workload that is no good stops a run before a model loads, and nothing is written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from nafaudit.cli.main import app
from nafaudit.core.errors import InputError
from tests.workload.files import lines, small, write

Paths = Callable[[str], tuple[Path, Path]]


def refused(*arguments: object) -> str:
    """Runs `nafaudit run` in this process; returns what it says when it refuses."""
    result = CliRunner().invoke(app, ["run", *map(str, arguments)])
    assert isinstance(result.exception, InputError), result.output
    return str(result.exception)


@pytest.fixture
def hollow(tiny_pair_paths: Paths, tmp_path: Path) -> list[str]:
    """A pair with tokenizers and configurations but without weights: it cannot be loaded."""
    options = []
    for role, path in zip(("--safe", "--risky"), tiny_pair_paths("llama"), strict=True):
        copy = tmp_path / role.strip("-")
        shutil.copytree(path, copy, ignore=shutil.ignore_patterns("*.safetensors"))
        options += [role, str(copy)]
    return options


def test_the_hollow_pair_stops_a_sound_workload(hollow: list[str], tmp_path: Path) -> None:
    data = write(tmp_path / "data", small())
    sizes = ("--cap", ",".join(f"{label}=1" for label in small()), "--out", tmp_path / "run")
    assert "safetensors" in refused(*hollow, "--data", data, *sizes)


def test_a_prompt_beyond_the_context_is_named(hollow: list[str], tmp_path: Path) -> None:
    rows = small()
    rows["test"][1]["raw_text"] = "A heron stood in the shallow water. " * 80
    data = write(tmp_path / "data", rows)
    said = refused(
        *hollow, "--data", data, "--classes", "test", "--cap", "test=3", "--out", tmp_path / "run"
    )
    assert f"{data / 'copybench_test.jsonl'}:3: prompt 'test.01' has " in said
    assert "context of 512" in said and "Lower --max-new-tokens" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--data", "nowhere"], "copybench_attack_train.jsonl: No such file or directory"),
        (["--prompts", "broken.jsonl"], "broken.jsonl:2: not JSON"),
        (["--prompts", "broken.jsonl", "--data", "nowhere"], "prompts and data both name"),
        (["--protocol", "paper", "--classes", "vall"], "no class 'vall'"),
        (["--protocol", "paper", "--cap", "val=999"], "val 160 of 999"),
        (["--cap", "val"], "cap must be CLASS=N"),
        (["--cap", "val=-1"], "cap must be CLASS=N"),
        (["--cap", "val=1,val=2"], "cap of 'val' is given twice"),
        (["--cap", "val=0"], "cap of class 'val' must be at least 1"),
        (["--classes", "val,val"], "class 'val' is named twice"),
        (["--protocol", "papers"], "did you mean 'paper'?"),
        (["--protocol", "paper", "--seed", "1"], "seed = 1 has no effect"),
        (["--delta", "1.5"], "delta must be above 0 and below 1, got 1.5"),
        (["--safe", "a", "--risky", "b"], "give --prompts FILE"),
    ],
)
def test_bad_choices_write_nothing(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines(tmp_path / "broken.jsonl", [{"text": "t"}]).open("a").write("\n{")
    assert said in refused(*arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["broken.jsonl"]
