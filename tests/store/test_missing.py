"""A run from which records were taken is unfinished, whatever its design says was asked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nafaudit.core.finding import Kept
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.store.missing import RequestedRecords, missing_of
from nafaudit.store.run import Run
from tests.commands import call
from tests.records import judge_run
from tests.runner.forge import without

Paths = Callable[[str], tuple[Path, Path]]
Extents = list[dict[str, Any]]
PROMPTS = [f"p{i}" for i in range(10)]
NUMBERS = 4
INF = float("inf")


@pytest.fixture(scope="module")
def options(tiny_pair_paths: Paths, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The README's mechanism, which ignores its allowance, on a tiny pair."""
    place = tmp_path_factory.mktemp("mechanism")
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    assert code is not None
    (place / "mymodule.py").write_text(code[1])
    rows = [{"id": name, "text": "The baker said " * (i + 1)} for i, name in enumerate(PROMPTS)]
    (place / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    safe, risky = tiny_pair_paths("llama")
    models = ["--safe", str(safe), "--risky", str(risky), "--prompts", str(place / "p.jsonl")]
    sizes = ["--max-new-tokens", "8", "--no-prefix-debt", "--quiet"]
    return ["run", *models, *sizes, "--mechanism", f"{place / 'mymodule.py'}:HalfAndHalf"]


@pytest.fixture(scope="module")
def violated(options: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which a few executions overspend and most do not."""
    place = tmp_path_factory.mktemp("runs")
    size = ("--trajectories", NUMBERS)
    call(*options, *size, "--k", "0.1", "--out", "first", cwd=place)
    # The mechanism writes the same under every budget; this one is enough for most of it.
    needs = sorted(needed(t) for t in Run(place / "first").trajectories() if t.key.k == 0.1)
    k = (needs[-7] + needs[-6]) / 2
    done = call(*options, *size, "--k", k, "--out", "run", cwd=place)
    assert done.returncode == 1, done.stdout + done.stderr
    return place / "run"


def needed(trajectory: Trajectory) -> float:
    """The least k that grants every prefix what it cost."""
    spent = np.cumsum(trajectory.steps.charge)
    return float((spent / np.arange(1, spent.size + 1)).max())


def budget(path: Path) -> float:
    budgets = Run(path).design["extents"][0]["budgets"]
    return next(float(k) for k in budgets if k not in (0.0, "inf"))


def culprits(path: Path) -> set[Key]:
    """What overspent."""
    k = budget(path)
    found = {t.key for t in Run(path).trajectories() if t.key.k == k and needed(t) > k}
    assert 3 <= len(found) <= 10
    return found


def asked(path: Path, prompts: Iterable[str], numbers: int, *ks: float) -> dict[str, Any]:
    """An extent; of the run's own budget and both baselines unless told."""
    budgets = [str(k) if k == INF else k for k in ks] or [0.0, budget(path), "inf"]
    return {"budgets": budgets, "trajectories": numbers, "prompts": list(prompts)}


def smallest(path: Path, dropped: set[Key]) -> Extents:
    """One extent that has nothing missing: as many of each as the poorest prompt has."""
    every = Run(path).keys()
    cells = {(key.prompt, key.k): 0 for key in every}
    for key in every - dropped:
        cells[key.prompt, key.k] += 1
    return [asked(path, PROMPTS, max(1, min(cells.values())))]


def cell_by_cell(path: Path, dropped: set[Key]) -> Extents:
    """An extent for every prompt and budget, as large as what is left there."""
    most: dict[tuple[str, float], int] = {}
    for key in Run(path).keys() - dropped:
        most[key.prompt, key.k] = max(most.get((key.prompt, key.k), 0), key.trajectory + 1)
    return [asked(path, [name], count, k) for (name, k), count in sorted(most.items())]


@pytest.mark.parametrize("rewritten", [None, smallest, cell_by_cell])
def test_dropped_violations_leave_an_unfinished_run(
    violated: Path, tmp_path: Path, rewritten: Callable[[Path, set[Key]], Extents] | None
) -> None:
    gone = culprits(violated)
    # Where the last of the last prompts are gone too, a smaller run would look the same.
    assert any(key.prompt != PROMPTS[-1] for key in gone)
    extents = rewritten(violated, gone) if rewritten else None
    forged = without(violated, tmp_path / "forged", lambda key: key in gone, extents)
    gaps = missing_of(Run(forged))
    assert gaps is not None and gaps.count >= len([k for k in gone if k.prompt != PROMPTS[-1]])
    arms = [arm for arm in judge_run(Run(forged)) if not arm.baseline]
    assert [arm.kept for arm in arms] == [Kept.INCONCLUSIVE]
    assert arms[0].violations == 0 and arms[0].trajectories >= 20


def test_every_reader_calls_it_unfinished(
    violated: Path, options: list[str], tmp_path: Path
) -> None:
    plugin = options[-1].rpartition(":")[0]
    gone = culprits(violated)
    without(violated, tmp_path / "forged", lambda key: key in gone, smallest(violated, gone))
    commands = {
        "check": ("check", "forged"),
        "report": ("report", "forged", "--json"),
        "checklist": ("checklist", "forged"),
        "compare": ("compare", violated, "forged"),
        "export": ("export", "forged", "--out", "exported"),
        "paper": ("export", "forged", "--paper", "--out", "paper"),
        "verify": ("verify", "forged", "--quiet", "--sampler", 0, "--plugin", plugin),
    }
    for name, words in commands.items():
        done = call(*words, cwd=tmp_path)
        said = " ".join((done.stdout + done.stderr).split())
        assert done.returncode == 3, f"{name}: {said}"
        assert "WITHIN" not in said.replace("WITHIN ->", ""), name
        assert re.search(r"\d+ of the \d+ trajectories that were asked for are not", said), name
        assert "trajectory" in said and "run the same command again to finish" in said, name
    page = (tmp_path / "forged" / "report" / "index.html").read_text()
    assert "incomplete:" in page and "run the same command again" in page
    summary = json.loads((tmp_path / "paper" / "h1_summary.json").read_text())
    assert not any(row["certified"] or row["certified_R_eff"] for row in summary)
    passed = json.loads(call("checklist", "forged", "--json", cwd=tmp_path).stdout)
    assert "pass" not in [item["answer"] for item in passed["items"]]
    # Nothing of this is said of the run as it was.
    whole = call("check", violated, "--json", cwd=tmp_path)
    assert whole.returncode == 1 and json.loads(whole.stdout)["missing"] is None


@pytest.mark.parametrize("place", ["records", "extents", "prompts"])
def test_a_dropped_prompt_is_missed(violated: Path, tmp_path: Path, place: str) -> None:
    """From the records alone, from the extents too, or from the list of prompts as well."""
    others = [name for name in PROMPTS if name != "p4"]
    extents = None if place == "records" else [asked(violated, others, NUMBERS)]
    forged = without(violated, tmp_path / "forged", lambda key: key.prompt == "p4", extents)
    if place == "prompts":
        lines = (forged / "prompts.jsonl").read_text().splitlines(keepends=True)
        kept = [line for line in lines if json.loads(line)["prompt"]["id"] != "p4"]
        (forged / "prompts.jsonl").write_text("".join(kept))
    gaps = missing_of(Run(forged))
    assert gaps is not None
    assert gaps.altered == (place == "prompts")
    assert gaps.altered or (gaps.count == 3 * NUMBERS and "prompt 'p4'" in gaps.text)
    assert Kept.WITHIN not in {arm.kept for arm in judge_run(Run(forged))}


def test_a_dropped_budget_is_missed(violated: Path, tmp_path: Path) -> None:
    k = budget(violated)
    without(violated, tmp_path / "forged", lambda key: key.k == k)
    done = call("check", "forged", cwd=tmp_path)
    assert done.returncode == 3
    assert f"{len(PROMPTS) * NUMBERS} of the" in done.stdout


def test_what_a_smaller_run_would_have_is_a_smaller_run(violated: Path, tmp_path: Path) -> None:
    """What docs/sharp-edges.md says cannot be seen: nothing that is left points to more."""
    less = without(
        violated,
        tmp_path / "numbers",
        lambda key: key.trajectory == NUMBERS - 1,
        [asked(violated, PROMPTS, NUMBERS - 1)],
    )
    shorter = without(
        violated,
        tmp_path / "prompts",
        lambda key: key.prompt == PROMPTS[-1],
        [asked(violated, PROMPTS[:-1], NUMBERS)],
    )
    assert missing_of(Run(less)) is None and missing_of(Run(shorter)) is None
    # A file in another order, of which a limit takes the first, leaves any prompt out.
    others = [name for name in PROMPTS if name != "p4"]
    for forged, extents in (("extents", others[::-1]), ("file", others)):
        path = without(
            violated,
            tmp_path / forged,
            lambda key: key.prompt == "p4",
            [asked(violated, extents, NUMBERS)],
        )
        assert (missing_of(Run(path)) is None) == (forged == "extents")
        lines = (path / "prompts.jsonl").read_text().splitlines(keepends=True)
        lines.append(lines.pop(PROMPTS.index("p4")))
        (path / "prompts.jsonl").write_text("".join(lines))
        assert missing_of(Run(path)) is None


def test_an_honest_run_that_grew_is_finished(options: list[str], tmp_path: Path) -> None:
    """Uneven budgets, prompts and numbers, as each session asked for them."""
    for asks in (
        ["--k", "5", "--trajectories", "2", "--limit", "4"],
        ["--k", "9", "--trajectories", "3", "--limit", "2"],
        ["--k", "5", "--trajectories", "1"],
        ["--k", "0", "--trajectories", "2", "--limit", "6"],
    ):
        call(*options, *asks, "--out", "r", cwd=tmp_path)
        assert missing_of(Run(tmp_path / "r")) is None


def test_a_file_in_another_order_is_the_same_finished_run(
    options: list[str], tmp_path: Path
) -> None:
    path = Path(options[options.index("--prompts") + 1])
    asks = ["--k", "5", "--trajectories", "1", "--limit", "3", "--out", "r"]
    call(*options, *asks, cwd=tmp_path)
    (tmp_path / "p.jsonl").write_text("\n".join(reversed(path.read_text().splitlines())))
    turned = [str(tmp_path / "p.jsonl") if word == str(path) else word for word in options]
    call(*turned, *asks, cwd=tmp_path)
    run = Run(tmp_path / "r")
    assert len(run.design["extents"]) == 2 and run.asked == 18
    assert missing_of(run) is None


def test_the_first_of_a_file_in_another_order_owes_nothing_for_those_before_it(
    options: list[str], tmp_path: Path
) -> None:
    path = Path(options[options.index("--prompts") + 1])
    asks = ["--k", "5", "--trajectories", "1", "--out", "r"]
    call(*options, *asks, "--limit", "2", cwd=tmp_path)
    *lines, last = path.read_text().splitlines()
    (tmp_path / "p.jsonl").write_text("\n".join([last, *lines]))
    turned = [str(tmp_path / "p.jsonl") if word == str(path) else word for word in options]
    for _ in range(2):
        call(*turned, *asks, "--limit", "1", cwd=tmp_path)
        run = Run(tmp_path / "r")
        assert [len(extent["prompts"]) for extent in run.design["extents"]] == [2, 1]
        assert run.asked == 9 and missing_of(run) is None


def keys(*numbers: int, prompt: str = "a", k: float = 1.0) -> set[Key]:
    return {Key(prompt, "m", k, number) for number in numbers}


@pytest.mark.parametrize("numbers", [[], [0, 3, 6]])
def test_numbers_may_skip_only_where_seeds_choose_them(numbers: list[int]) -> None:
    """Of older runs by seed, whose extents have no numbers, only the count is known."""
    extents = [asked_of_nobody(3) | {"numbers": numbers}]
    by_seed = 0 if numbers else 2
    for kind, lacking in (("workload", 4), ("grows", 4), ("seeds", by_seed), ("counts", 0)):
        plan = RequestedRecords(kind, "m", ("a",), extents)  # type: ignore[arg-type]
        gaps = plan.missing(keys(0, 3, 6))
        assert (0 if gaps is None else gaps.count) == lacking, kind
    few = RequestedRecords("counts", "m", ("a",), extents).missing(keys(7))
    assert few is not None and few.count == 2 and "2 trajectories" in few.text


def test_every_number_that_was_asked_by_seed_is_owed() -> None:
    extents = [asked_of_nobody(2), asked_of_nobody(5) | {"numbers": [1, 4, 7, 9]}]
    plan = RequestedRecords("seeds", "m", ("a",), extents)
    whole = keys(0, 1, 4, 7, 9)
    assert plan.missing(whole) is None
    assert plan.missing(whole - keys(7), keys(7)) is None
    for number in (0, 1, 4, 7, 9):
        gaps = plan.missing(whole - keys(number))
        assert gaps is not None and (gaps.count, gaps.asked) == (1, 5)
        assert gaps.first == (f"prompt 'a' k = 1 trajectory {number}",)
    # As many, but another one in its place, which nobody asked for.
    other = plan.missing(whole - keys(4) | keys(3))
    assert other is not None and (other.count, other.unasked) == (1, 1)
    assert "trajectory 4" in other.text and "restore the directory" in other.text
    # Extents that say less than the records show are not believed.
    fewer = RequestedRecords("seeds", "m", ("a",), extents[:1]).missing(whole | keys(0, prompt="b"))
    assert fewer is not None and (fewer.count, fewer.unasked) == (0, 4)
    assert "unasked trajectories: 4" in fewer.brief


def test_prompts_of_a_run_that_grows_have_counts_of_their_own() -> None:
    extents = [
        {"budgets": [1.0], "trajectories": 3, "prompts": ["b"]},
        {"budgets": [1.0, "inf"], "trajectories": 1, "prompts": ["a", "b"]},
    ]
    plan = RequestedRecords("grows", "m", ("a", "b"), extents)
    whole = keys(0) | keys(0, 1, 2, prompt="b") | keys(0, k=INF) | keys(0, prompt="b", k=INF)
    assert plan.missing(whole) is None
    gaps = plan.missing(whole - keys(1, prompt="b"))
    assert gaps is not None and gaps.first == ("prompt 'b' k = 1 trajectory 1",)


def test_a_noted_fault_is_an_answer() -> None:
    plan = RequestedRecords("workload", "m", ("a",), [asked_of_nobody(2)])
    assert plan.missing(keys(0)) is not None
    assert plan.missing(keys(0), keys(1)) is None


def asked_of_nobody(numbers: int) -> dict[str, Any]:
    return {"budgets": [1.0], "trajectories": numbers, "prompts": ["a"]}


def test_a_billion_missing_trajectories_are_counted_at_once() -> None:
    gaps = RequestedRecords("workload", "m", ("a",), [asked_of_nobody(10**9)]).missing(keys(0))
    assert gaps is not None and gaps.count == 10**9 - 1 and len(gaps.first) == 3
