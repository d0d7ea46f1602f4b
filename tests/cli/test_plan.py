from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nafaudit.core.settings import RunSettings
from nafaudit.measures.audit import AuditResult
from nafaudit.runner.execute import run
from nafaudit.runner.plan import plan
from tests.commands import WITHOUT_TORCH, call, typed

Paths = Callable[[str], tuple[Path, Path]]


@pytest.fixture
def settings(tiny_pair_paths: Paths, tmp_path: Path) -> RunSettings:
    safe, risky = tiny_pair_paths("llama")
    rows = [{"id": f"p{i}", "text": "The bread", "class": "c", "reference": "x"} for i in range(3)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return RunSettings(
        safe=str(safe),
        risky=str(risky),
        prompts=str(tmp_path / "prompts.jsonl"),
        k=(1.0, 3.0),
        trajectories=5,
        max_new_tokens=9,
        out=str(tmp_path / "run"),
    )


def test_a_plan_counts_what_the_run_then_records(settings: RunSettings) -> None:
    made = plan(settings, seconds=0.05)
    assert (made.prompts, made.per_budget, made.trajectories) == (3, 15, 60)
    assert made.tokens == 60 * 9
    assert made.protected == 3
    assert made.audited == (1.0, 3.0)
    # (1 - u)^n = 0.05, on trajectories and on prompts.
    assert (1 - made.trajectory_rate) ** 15 == pytest.approx(0.05)
    assert (1 - made.prompt_rate) ** 3 == pytest.approx(0.05)
    assert made.needed == {0.01: 299, 0.001: 2995}
    assert not made.conclusive  # 15 of the 20 that a verdict needs
    outcome = run(settings)
    records = list(outcome.run.trajectories())
    assert len(records) == made.trajectories
    assert sum(map(len, records)) <= made.tokens
    assert {arm.k for arm in AuditResult.of(outcome.run).arms} == set(made.budgets)


def test_the_timing_is_of_decoding(settings: RunSettings) -> None:
    made = plan(settings, seconds=0.05)
    assert made.timing is not None
    assert made.timing.tokens > 0
    assert made.timing.tokens_per_second == made.timing.tokens / made.timing.seconds
    assert made.seconds is not None
    assert made.seconds > made.timing.loading
    assert not Path(settings.out or "").exists()  # nothing is recorded


def test_without_models_it_still_counts_and_says_why_it_cannot_time(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"id": "a", "text": "x"}')
    options = ["--safe", "nowhere", "--risky", "nowhere", "--prompts", "p.jsonl", "--k", 1]
    done = call("plan", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 prompt x (1 budget and 2 baselines) x 2 = 6 trajectories" in done.stdout
    assert "\nbudgets: k = 1\nbaselines: safe only, risky only\n" in done.stdout
    text = " ".join(done.stdout.split())
    assert "decoding: not timed: no tokenizer could be loaded from 'nowhere'" in text
    assert done.stdout.startswith("TOO FEW: ")
    assert "next: the same with --trajectories " in done.stdout
    assert "UNKNOWN, as no prompt has a reference" in done.stdout


def test_drafts_are_not_timed_as_steps(settings: RunSettings) -> None:
    made = plan(replace(settings, mechanism="best-of-n"), seconds=0.05)
    assert made.seconds is None and "whole outputs" in made.untimed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--mechanism", "anchord"], "did you mean 'anchored'?"),
        (["--max-new-tokens", "9999"], "p.jsonl:1: prompt 'a' has"),
        (["--dtype", "float8"], "unknown dtype 'float8'"),
        (["--seconds", "nan"], "seconds must be at least 0"),
        (["--seconds", "-1"], "seconds must be at least 0"),
    ],
)
def test_what_a_run_would_refuse_is_no_plan(
    options: list[str], said: str, tiny_pair_paths: Paths, tmp_path: Path
) -> None:
    safe, risky = tiny_pair_paths("llama")
    (tmp_path / "p.jsonl").write_text('{"id": "a", "text": "x"}')
    pair = ["--safe", safe, "--risky", risky, "--prompts", "p.jsonl"]
    done = call("plan", *pair, *options, cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr


def test_without_torch_it_plans_the_default_run(tmp_path: Path) -> None:
    done = call("plan", "--json", cwd=tmp_path, code=[sys.executable, "-c", WITHOUT_TORCH])
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["trajectories"] == 480
    assert data["protected_prompts"] == 24
    assert data["classes"]["val"] == 8
    assert data["budgets"] == [0.0, 0.25, 1.0, 10.0, "inf"]
    assert data["seconds"] is None
    assert "is not installed (pip install" in data["untimed"]


def test_text_fits_and_bad_input_is_refused(tmp_path: Path) -> None:
    done = call("plan", "--seconds", 0, "--limit", 0, "--trajectories", 10, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "decoding: not timed: not asked for" in done.stdout
    (tmp_path / "d.toml").write_text("trajectries = 3\n")
    for arguments, message in (
        (["d.toml"], "did you mean 'trajectories'?"),
        (["--k", "x"], "k must be numbers"),
        (["--prompts", "none.jsonl"], "none.jsonl: No such file"),
    ):
        done = call("plan", *arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert message in done.stderr


def test_what_to_do_next_is_the_run_with_the_plans_options(tmp_path: Path) -> None:
    (tmp_path / "a design.toml").write_text("trajectories = 5\n")
    words = ("--pair", "tiny", "--k", "1,3", "--limit", 8, "--cap", "sentence=9", "--seconds", 0,
             "--gpu", "h100", "--shapes", "tinycomma-1.8b,llama-3.1-8b")  # fmt: skip
    done = call("plan", "a design.toml", *words, cwd=tmp_path)
    (line,) = re.findall(r"next: (nafaudit run .*)", done.stdout.replace(" \\\n     ", ""), re.S)
    with contextlib.chdir(tmp_path):
        made = typed(line.strip())
    assert isinstance(made, RunSettings)
    assert (made.k, made.limit, made.trajectories, made.cap) == ((1.0, 3.0), 8, 5, {"sentence": 9})


def test_a_huge_number_is_planned_with_little_memory(tmp_path: Path) -> None:
    """What is timed fills a batch, whatever the number of trajectories that is asked about."""
    words = ("--pair", "tiny", "--limit", "2", "--max-new-tokens", "4", "--json")
    done = call("plan", *words, "--trajectories", str(10**9), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trajectories"] >= 2 * 10**9
