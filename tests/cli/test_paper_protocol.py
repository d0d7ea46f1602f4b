"""The paper's protocol from the command line to its files, and back."""

from __future__ import annotations

import csv
import json
import math
import statistics
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nafaudit
from nafaudit.core.draws import fnv1a, trajectory_seeds
from nafaudit.core.trajectory import Trajectory
from nafaudit.paper.files import paper_scores
from nafaudit.store.run import Run
from nafaudit.workload.prompts import CAPS
from tests.commands import WITHOUT_TORCH, call
from tests.workload.files import lines, small, write

Paths = Callable[[str], tuple[Path, Path]]

METADATA = [
    "prompt_id", "domain", "split", "novel_source", "model_pair", "target_model", "anchor_model",
    "level", "k", "K", "T_max", "B_max", "n", "seed", "trajectory_id", "timestamp",
]  # fmt: skip
PREFIX = [
    "delta_init", "true_prefix_debt", "init_budget_tensor", "prefix_text", "prefix_length_tokens",
]  # fmt: skip
STEP = [
    "t", "k_t", "a_t", "a_t_recomputed", "lambda", "budget_remaining", "budget_so_far",
    "cum_kl_spent", "sampled_token", "sampled_token_id", "p_star_prob", "p_s_prob", "p_risky_prob",
    "bc", "bd",
]  # fmt: skip
AGGREGATE = [
    "total_spend", "generation", "full_text", "generation_length_tokens", "generation_length_bytes",
    "rouge_l", "minhash_5gram", "fluency_score", "final_budget", "budget_utilization",
]  # fmt: skip
SUMMARY = "class,k,K,M,mean_Z,var_Z,R,delta,U_EBB,certified"


@pytest.fixture(scope="module")
def options(tiny_pair_paths: Paths, tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """The paper's protocol in small: two prompts of each class, twice."""
    safe, risky = tiny_pair_paths("llama")
    data = write(tmp_path_factory.mktemp("data"), small(3))
    caps = ",".join(f"{label}=2" for label in CAPS)
    sizes = ["--cap", caps, "--trajectories", "2", "--max-new-tokens", "8"]
    pair = ["--safe", str(safe), "--risky", str(risky), "--data", str(data)]
    return ["run", "--protocol", "paper", *pair, *sizes, "--quiet"]


@pytest.fixture(scope="module")
def finished(options: list[object], tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("paper")
    done = call(*options, "--out", "r", cwd=directory)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "the paper's files: r/paper"
    return directory


@pytest.fixture(scope="module")
def as_text(options: list[object], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as the paper's text has it."""
    directory = tmp_path_factory.mktemp("text")
    done = call(*options, "--variant", "text", "--out", "r", cwd=directory)
    assert done.returncode == 0, done.stderr
    return directory


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def every_row(paper: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(paper.glob("*.jsonl")) for row in rows(path)]


def content(paper: Path) -> dict[str, str]:
    """All files of a directory, with the time of the run blotted out."""
    started = Run(paper.parent).sessions[0]["started"]
    files = (path for path in sorted(paper.rglob("*")) if path.is_file())
    return {p.name: p.read_text().replace(started, "then") for p in files}


def test_files_have_the_papers_names_and_fields(finished: Path) -> None:
    paper = finished / "r" / "paper"
    wanted = {f"trajectories_k{k}_{label}.jsonl" for k in (3, 5) for label in CAPS}
    assert {p.name for p in paper.iterdir()} == wanted | {
        "h1_summary.json",
        "h1_summary.csv",
        "schedule.json",
        "nafaudit",
    }
    for row in every_row(paper):
        assert set(METADATA) == set(row["metadata"])
        assert set(PREFIX) <= set(row["prefix_analysis"])
        assert set(AGGREGATE) == set(row["aggregate"])
        assert all(set(STEP) <= set(step) for step in row["per_step_log"])


def test_rows_say_what_the_record_says(finished: Path) -> None:
    run = Run(finished / "r")
    records = {(t.key.prompt, t.key.k, t.key.trajectory): t for t in run.trajectories()}
    found = every_row(run.path / "paper")
    assert len(found) == 6 * 2 * 2 * 2
    for row in found:
        meta, total, prefix = row["metadata"], row["aggregate"], row["prefix_analysis"]
        record = records[meta["prompt_id"], meta["k"], meta["trajectory_id"]]
        assert meta["seed"] == trajectory_seeds(meta["prompt_id"], 2)[meta["trajectory_id"]]
        assert (meta["T_max"], meta["n"], meta["K"]) == (8, 5, 8 * meta["k"])
        assert total["total_spend"] == record.spend
        # B_j: what was granted up to its own end, spend not subtracted.
        granted = len(record) * meta["k"] - record.debt
        assert total["final_budget"] == pytest.approx(granted, abs=1e-9)
        assert total["budget_utilization"] == pytest.approx(record.spend / granted, abs=1e-9)
        assert prefix["delta_init"] == record.debt
        assert [
            step["sampled_token_id"] for step in row["per_step_log"]
        ] == record.steps.token.tolist()
        assert total["full_text"] == prefix["prefix_text"] + total["generation"]
        source = row["source_record"]
        reference = source.get("reference_text") or source.get("reference")
        scores = paper_scores(total["generation"], reference or source.get("wikipedia_text"))
        assert (total["rouge_l"], total["minhash_5gram"]) == scores
        # A missing reference is 0 there; our own checks call it unscored.
        assert meta["split"] != "neutral" or scores == (0, 0)
    domains = {row["metadata"]["split"]: row["metadata"]["domain"] for row in found}
    assert domains == dict.fromkeys(CAPS, "copyright") | {
        "factual": "factual",
        "creative": "creative",
    }


def test_the_summary_is_the_papers_arithmetic(finished: Path) -> None:
    paper = finished / "r" / "paper"
    table = json.loads((paper / "h1_summary.json").read_text())
    assert [(row["k"], row["class"]) for row in table] == [(k, c) for k in (3, 5) for c in CAPS]
    high = 8 * math.log(len(Run(finished / "r").pieces))
    level = math.log(2 / (0.05 / 12))
    for row in table:
        found = rows(paper / f"trajectories_k{row['k']:g}_{row['class']}.jsonl")
        z = [one["aggregate"]["total_spend"] for one in found]
        mean, variance = statistics.fmean(z), statistics.variance(z)
        reach = min(high, max(max(z) - min(z), 1.0))
        by_range = [
            mean + math.sqrt(2 * variance * level / 4) + 3 * r * level / 4 for r in (high, reach)
        ]
        assert (row["M"], row["K"], row["delta"]) == (4, 8 * row["k"], 0.05 / 12)
        numbers = [
            row[name] for name in ("mean_Z", "var_Z", "R", "R_eff", "U_EBB_R", "U_EBB_R_eff")
        ]
        assert numbers == pytest.approx([mean, variance, high, reach, *by_range], rel=1e-12)
        # The code has R_eff; the summary that the paper saved had R.
        assert row["U_EBB"] == row["U_EBB_R_eff"]
        assert row["certified"] == (row["U_EBB"] <= row["K"])
    text = (paper / "h1_summary.csv").read_text()
    assert text.startswith(SUMMARY + ",")
    first = next(csv.DictReader(text.splitlines()))
    assert float(first["U_EBB"]) == table[0]["U_EBB"] and first["certified"] in ("True", "False")


def test_the_schedule_is_recorded(finished: Path) -> None:
    schedule = json.loads((finished / "r" / "paper" / "schedule.json").read_text())
    assert (schedule["batch_size"], schedule["length_bucket_width"]) == (8, 32)
    assert schedule["classes"]["val"] == {"executions": 4, "batches_by_size": {"1": 4}}


def test_baselines_are_recorded_and_not_in_the_files(finished: Path) -> None:
    run = Run(finished / "r")
    assert {t.key.k for t in run.trajectories()} == {0.0, 3.0, 5.0, math.inf}
    assert run.design["identity"]["protocol"] == "paper"
    assert run.stops == {1}


def test_batch_limit_and_resume_change_nothing(
    options: list[object], finished: Path, tmp_path: Path
) -> None:
    for sizes in (["--limit", "5", "--k", "5"], ["--batch", "3"]):
        done = call(*options, *sizes, "--out", "r", cwd=tmp_path)
        assert done.returncode in (0, 3), done.stderr
    ours, theirs = content(tmp_path / "r" / "paper"), content(finished / "r" / "paper")
    assert ours == theirs
    assert verdicts(tmp_path, "r") == verdicts(finished, "r")
    # Another level is another report on the same records.
    done = call(*options, "--delta", "0.12", "--json", "--out", "r", cwd=tmp_path)
    by_check = json.loads(done.stdout)["classes"]
    by_file = json.loads((tmp_path / "r" / "paper" / "h1_summary.json").read_text())
    levels = {row["U_EBB"]["delta"] for row in by_check if row["U_EBB"]}
    assert levels == {row["delta"] for row in by_file} == {0.12 / 12}
    assert {row["U_EBB"]["value"] for row in by_check if row["U_EBB"]} == {
        row["U_EBB_R"] for row in by_file
    }


def verdicts(directory: Path, run: str) -> list[dict[str, Any]]:
    data = json.loads(call("check", run, "--json", cwd=directory).stdout)
    return [v for v in data["verdicts"] if not v["baseline"]]


@pytest.mark.parametrize("variant", ["finished", "as_text"])
def test_our_importer_reads_them_back_to_the_same_verdict(
    variant: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source = request.getfixturevalue(variant) / "r"
    files = sorted((source / "paper").glob("*.jsonl"))
    done = call("import", *files, "--out", "back", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ours, back = verdicts(source.parent, "r"), verdicts(tmp_path, "back")
    assert [v["kept"] for v in ours] == ["WITHIN", "WITHIN"]
    assert [v["worth"] for v in ours] == ["INFORMATIVE", "INFORMATIVE"]
    same = ("k", "kept", "tested", "worth", "trajectories", "violations", "spend", "utilisation",
            "regime", "recall")  # fmt: skip
    assert [[v[name] for name in same] for v in back] == [[v[name] for name in same] for v in ours]
    assert bits(Run(tmp_path / "back")) == bits(Run(source))
    told = {p.prompt.id: p for p in Run(tmp_path / "back").prompts()}
    assert all(told[p.prompt.id] == p for p in Run(source).prompts())


def bits(run: Run) -> dict[Any, list[bytes]]:
    return {
        t.key: [getattr(t.steps, name).tobytes() for name in t.steps.columns]
        for t in run.trajectories()
        if t.key.k in (3.0, 5.0)
    }


def test_the_text_differs_where_it_does(finished: Path, as_text: Path) -> None:
    code, text = (every_row(where / "r" / "paper") for where in (finished, as_text))
    before = [
        {r["metadata"]["split"]: r["prefix_analysis"]["prefix_text"] for r in found}
        for found in (code, text)
    ]
    changed = {label for label in CAPS if before[0][label] != before[1][label]}
    assert changed == {"neutral", "creative"}
    for row in text:
        left = row["per_step_log"][-1]["budget_remaining"]
        assert row["aggregate"]["final_budget"] == pytest.approx(left, abs=1e-9)
    table = json.loads((as_text / "r" / "paper" / "h1_summary.json").read_text())
    assert all(row["U_EBB"] == row["U_EBB_R"] for row in table)


def test_export_writes_the_same_files_and_takes_another_level(
    finished: Path, tmp_path: Path
) -> None:
    done = call("export", finished / "r", "--paper", "--out", "e", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ours, theirs = (
        {path.name: path.read_text() for path in place.rglob("*") if path.is_file()}
        for place in (tmp_path / "e", finished / "r" / "paper")
    )
    assert ours == theirs
    call("export", finished / "r", "--paper", "--delta", "0.12", "--out", "f", cwd=tmp_path)
    table = json.loads((tmp_path / "f" / "h1_summary.json").read_text())
    assert {row["delta"] for row in table} == {0.12 / 12}
    again = call("export", finished / "r", "--paper", "--out", "f", cwd=tmp_path)
    assert again.returncode == 2 and "exists" in again.stderr
    lone = call("export", finished / "r", "--delta", "0.1", "--out", "g", cwd=tmp_path)
    assert lone.returncode == 2 and "give --paper too" in lone.stderr


def same_steps(one: Trajectory, other: Trajectory) -> bool:
    return all(
        np.array_equal(getattr(one.steps, name), getattr(other.steps, name))
        for name in one.steps.columns
    )


def test_equal_seeds_repeat_a_trajectory(options: list[object], tmp_path: Path) -> None:
    # Two ids whose offsets agree, and a third whose first seed is another.
    by_offset: dict[int, str] = {}
    for i in range(10_000):
        name = f"p{i}"
        if (twin := by_offset.setdefault(fnv1a(name) % 100_000, name)) != name:
            break
    prompts = lines(
        tmp_path / "p.jsonl", [{"id": n, "text": "The baker"} for n in (twin, name, "other")]
    )
    own = [str(word) for word in options]
    pair = own[own.index("--safe") : own.index("--data")]
    sizes = ["--prompts", str(prompts), "--k", "3", "--trajectories", "2", "--max-new-tokens", "12"]
    for protocol in ("paper", "sound"):
        words = ["run", "--protocol", protocol, *pair, *sizes, "--quiet", "--out", protocol]
        assert call(*words, cwd=tmp_path).returncode == 3
    found = {
        protocol: {tuple(t.key): t for t in Run(tmp_path / protocol).trajectories()}
        for protocol in ("paper", "sound")
    }
    for protocol, repeats in (("paper", True), ("sound", False)):
        some = found[protocol]
        mechanism = next(iter(some))[1]
        pairs = [
            (some[twin, mechanism, k, i], some[name, mechanism, k, i])
            for k in (3.0, math.inf)
            for i in (0, 1)
        ]
        assert all(same_steps(one, other) for one, other in pairs) == repeats
        others = [some["other", mechanism, math.inf, i] for i in (0, 1)]
        assert not any(same_steps(one, other) for one, other in pairwise([*others, pairs[2][0]]))


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("run", "--protocol", "paper"), "--cap neutral=2,val=2,test=2,attack_train=2,factual=2,"),
        (("plan", "--protocol", "paper"), "--cap neutral=2,val=2,test=2,attack_train=2,factual=2,"),
        (
            ("search", "--protocol", "paper", "--init", "attack_train=3,factual=9,creative=2",
             "--size", "heldout_keep=5"),
            "--init attack_train=2,factual=2,creative=2; and the held-out pool has 2 of 5",
        ),
    ],
)  # fmt: skip
def test_what_data_lack_is_said_at_once_without_torch(
    command: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    write(tmp_path / "data", small(2))
    code = [sys.executable, "-c", WITHOUT_TORCH]
    done = call(*command, "--data", "data", cwd=tmp_path, code=code)
    assert done.returncode == 2 and says in " ".join(done.stderr.split()), done.stderr
    assert not (tmp_path / "runs").exists()


def test_coupled_micro_batches_share_their_draws(options: list[object], tmp_path: Path) -> None:
    """Rows of a batch have the draws of its first: at k = inf equal texts write equal tokens.

    Ten prompts of one class and length are two batches; all of it is verified and exported.
    """
    prompts = lines(
        tmp_path / "p.jsonl",
        [{"id": f"p{i}", "text": "The baker", "class": "a"} for i in range(10)],
    )
    own = [str(word) for word in options]
    pair = own[own.index("--safe") : own.index("--data")]
    sizes = ["--prompts", str(prompts), "--k", "3", "--trajectories", "3", "--max-new-tokens", "12"]
    words = ["run", "--protocol", "paper", *pair, *sizes, "--quiet"]
    assert call(*words, "--out", "alone", cwd=tmp_path).returncode in (0, 3)
    # In two steps: a limit changes no batch.
    call(*words, "--coupled", "--limit", "3", "--out", "shared", cwd=tmp_path)
    assert call(*words, "--coupled", "--out", "shared", cwd=tmp_path).returncode in (0, 3)
    tokens = {
        out: {
            (t.key.prompt, t.key.k, t.key.trajectory): tuple(t.steps.token.tolist())
            for t in Run(tmp_path / out).trajectories()
        }
        for out in ("alone", "shared")
    }
    for k in (3.0, math.inf):
        for i in range(3):
            shared = [tokens["shared"][f"p{n}", k, i] for n in range(10)]
            assert len(set(shared[:8])) == 1 and len(set(shared[8:])) == 1
            assert len({tokens["alone"][f"p{n}", k, i] for n in range(10)}) > 2
            # The first of a batch has its own draws.
            assert shared[0] == tokens["alone"]["p0", k, i]
            assert shared[8] == tokens["alone"]["p8", k, i]
    assert "coupled" not in Run(tmp_path / "alone").design["identity"]
    schedule = json.loads((tmp_path / "shared" / "paper" / "schedule.json").read_text())
    assert schedule["coupled"]
    assert schedule["classes"]["a"] == {"executions": 30, "batches_by_size": {"8": 3, "2": 3}}
    seeds = {row["metadata"]["seed"] for row in every_row(tmp_path / "shared" / "paper")}
    assert len(seeds) == 6
    done = call("verify", "shared", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    refused = call(*words, "--coupled", "--out", "alone", cwd=tmp_path)
    assert refused.returncode == 2 and "coupled" in refused.stderr
    bad = call("run", "--coupled", cwd=tmp_path)
    assert bad.returncode == 2 and "--protocol paper" in bad.stderr


def test_classes_stand_in_the_papers_order(finished: Path) -> None:
    table = json.loads(call("check", "r", "--json", cwd=finished).stdout)["classes"]
    for k in (3, 5):
        assert [row["class"] for row in table if row["k"] == k] == list(CAPS)
    for axes in nafaudit.open_run(finished / "r").plot.effective_range().axes:
        assert [label.get_text() for label in axes.get_xticklabels()] == list(CAPS)
