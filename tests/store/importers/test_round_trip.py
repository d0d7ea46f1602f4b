from __future__ import annotations

import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nafaudit.core.design import Decoding, Design, Extent, Identity
from nafaudit.core.trajectory import STEP_TYPES, Key, Logged, Steps, Trajectory
from nafaudit.store.artifacts import import_report
from nafaudit.store.export import export_run, file_word
from nafaudit.store.importers import import_logs
from nafaudit.store.run import Run, open_for_writing
from nafaudit.workload import Prompt, TokenizedPrompt
from tests.records import judge_run, many, trajectory
from tests.store.importers.logs import every_schema

PROMPTS = [
    TokenizedPrompt(Prompt("p0", "some\u2028text", "fiction", "a reference"), (0, 5)),
    TokenizedPrompt(Prompt("né/1", "", "a/b class"), ()),
]


def write(path: Path, records: list[Trajectory], ledger: str = "banking") -> Run:
    prompts = {p.prompt.id: p for p in PROMPTS}
    prompts |= {
        t.key.prompt: TokenizedPrompt(Prompt(t.key.prompt, "x"), (1,))
        for t in records
        if t.key.prompt not in prompts
    }
    identity = Identity({"safe": "a"}, "anchored", ledger, Decoding(12), "hash", 256, 0)
    design = Design(identity, Extent((1.0,), 1, tuple(prompts)))
    vocabulary = {"pieces": ["a", None, "c"], "stops": [1]}
    with open_for_writing(path, design, list(prompts.values()), vocabulary) as writer:
        writer.append(records)
    return Run(path)


def there_and_back(run: Run, directory: Path) -> Run:
    return import_logs(export_run(run, directory / "export"), directory / "back")


def same(one: Run, other: Run) -> bool:
    ours, theirs = (sorted(run.trajectories(), key=lambda t: t.key) for run in (one, other))
    return len(ours) == len(theirs) and all(a.same_as(b) for a, b in zip(ours, theirs, strict=True))


def test_our_records_come_back_bit_for_bit(tmp_path: Path) -> None:
    inf, nan = math.inf, math.nan
    records = [
        *many(5),
        trajectory(Key("p0", "anchored", 0.1, 3), [0.1, 1 / 3, 1e-300], debt=1 / 3, stopped=True),
        trajectory(Key("p0", "anchored", inf, 0), [5.0, inf], theta=[1, 1], allowance=[inf, inf]),
        trajectory(Key("né/1", "m:C", 1 / 3, 0), [0.0], theta=[nan], debt=nan),
        trajectory(Key("né/1", "m:C", 0.0, 0), [0.0] * 3, theta=[0, 0, 0], allowance=[0.0] * 3),
    ]
    run = write(tmp_path / "run", records)
    back = there_and_back(run, tmp_path)
    assert same(run, back)
    assert sorted(p.name for p in (tmp_path / "export").iterdir()) == [
        "trajectories_k-1_fiction.jsonl",
        "trajectories_k0.1_fiction.jsonl",
        f"trajectories_k{1 / 3}_{file_word('a/b class')}.jsonl",
        f"trajectories_k0_{file_word('a/b class')}.jsonl",
        "trajectories_k1_fiction.jsonl",
        "trajectories_k1_prompt.jsonl",
    ]


def test_prompts_and_judgement_come_back(tmp_path: Path) -> None:
    records = [*many(25), trajectory(Key("p0", "anchored", 1.0, 9), [0.4, 9.0])]
    run = write(tmp_path / "run", records)
    back = there_and_back(run, tmp_path)
    told = {p.prompt.id: p for p in back.prompts()}
    assert told["p0"] == PROMPTS[0]
    assert back.stops == {1}
    assert back.design["identity"]["decoding"]["max_new_tokens"] == 12
    assert back.design["identity"]["ledger"] == "banking"
    assert [a.violations for a in judge_run(back)] == [1]


def test_an_export_that_was_edited_keeps_its_claims(tmp_path: Path) -> None:
    run = write(tmp_path / "run", many(1))
    (path,) = export_run(run, tmp_path / "export")
    row = json.loads(path.read_text())
    row["aggregate"]["total_spend"] = 0.25
    path.write_text(json.dumps(row))
    back = import_logs([path], tmp_path / "back")
    (one,) = back.trajectories()
    assert one.logged is not None
    assert one.logged.spend == 0.25
    report = import_report(back)
    assert report is not None
    assert "claims-differ" in {note["kind"] for note in report["notes"]}


def test_the_papers_fields_are_all_there(tmp_path: Path) -> None:
    run = write(tmp_path / "run", many(1))
    (path,) = export_run(run, tmp_path / "export")
    row = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
    from tests.store.importers.logs import record

    foreign = record()
    for part in ("metadata", "prefix_analysis", "aggregate"):
        assert set(foreign[part]) <= set(row[part])
    assert set(foreign["per_step_log"][0]) <= set(row["per_step_log"][0])
    step = row["per_step_log"][1]
    assert step["budget_so_far"] == 2.0
    assert step["cum_kl_spent"] == step["budget_remaining"] == 1.0
    assert row["aggregate"]["budget_utilization"] == 0.5


@pytest.mark.parametrize(
    "name", ["trajectories", "history", "heldout", "queries", "items", "table"]
)
def test_what_was_imported_comes_back_too(tmp_path: Path, name: str) -> None:
    run = import_logs([every_schema(tmp_path / "logs")[name]], tmp_path / "run")
    back = there_and_back(run, tmp_path)
    assert same(run, back)
    assert back.design["identity"]["ledger"] == run.design["identity"]["ledger"]


def test_a_name_for_a_file_never_leaves_its_directory() -> None:
    for label in ("../../x", "/etc/passwd", "", ".", "a b", "x" * 300, "né", "a\x00b", "C:\\x"):
        word = file_word(label)
        assert Path("d", f"t_{word}.jsonl").resolve().parent == Path("d").resolve()
        assert word.isascii()
        assert len(word) < 80
    assert file_word("attack_train") == "attack_train"
    assert file_word("a b") != file_word("a_b")


numbers = st.floats(allow_nan=False, width=64)
singles = st.floats(allow_nan=False, width=32) | st.just(math.nan)


@st.composite
def records(draw: st.DrawFn) -> list[Trajectory]:
    found = []
    for at in range(draw(st.integers(1, 3))):
        n = draw(st.integers(0, 4))
        columns = {
            name: draw(
                st.lists(
                    st.integers(0, 2**31 - 1)
                    if dtype is np.int32
                    else singles
                    if dtype is np.float32
                    else numbers | st.just(math.nan),
                    min_size=n,
                    max_size=n,
                )
            )
            for name, dtype in STEP_TYPES.items()
        }
        steps = Steps(**{name: np.array(columns[name], STEP_TYPES[name]) for name in columns})
        k = draw(st.just(math.inf) | st.floats(0, 1e6))
        key = Key("p0", draw(st.sampled_from(["anchored", "clip"])), k, at)
        logged = None
        if draw(st.booleans()):
            claims = [draw(numbers | st.just(math.nan)) for _ in range(4)]
            spend, budget, length, contested = claims
            lists = [np.array(draw(st.lists(numbers, min_size=n, max_size=n))) for _ in range(2)]
            logged = Logged(spend, budget, length, lists[0], lists[1], contested)
        debt = draw(st.floats(-1e3, 1e3) | st.just(math.nan))
        found.append(Trajectory(key, debt, draw(st.booleans()), steps, logged))
    return found


@settings(max_examples=60)
@given(records(), st.sampled_from(["banking", "other:Rule"]))
def test_any_record_comes_back(found: list[Trajectory], ledger: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        run = write(Path(directory) / "run", found, ledger)
        assert same(run, there_and_back(run, Path(directory)))


def test_a_length_of_minus_zero_comes_back(tmp_path: Path) -> None:
    run = write(tmp_path / "run", [replace(many(1, length=0)[0], logged=Logged(1.0, 2.0, -0.0))])
    assert same(run, there_and_back(run, tmp_path))


def test_the_comparison_can_fail(tmp_path: Path) -> None:
    one, two = many(2)
    run = write(tmp_path / "a", [one, two])
    changed = replace(two, steps=replace(two.steps, charge=two.steps.charge * (1 + 1e-15)))
    assert not same(run, write(tmp_path / "b", [one, changed]))
    assert not same(run, write(tmp_path / "c", [one]))
