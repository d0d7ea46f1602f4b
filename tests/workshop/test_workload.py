"""The workload: the paper's files, fields and caps, and no passage on both sides of a split."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nafaudit.workload.prompts import CAPS, FILES
from nafaudit.workshop.workload import REFERENCE_WORDS, Row, workload, write_workload
from nafaudit.workshop.works import passages
from tests.workshop.test_works import word_runs

COPYRIGHT = ("attack_train", "val", "test")
EXCERPT_FIELDS = [
    "prompt_id",
    "source_novel",
    "source_excerpt_id",
    "split",
    "raw_text",
    "reference_text",
]


@pytest.fixture(scope="module")
def classes() -> dict[str, list[Row]]:
    return workload()


def test_every_class_fills_its_cap(classes: dict[str, list[Row]]) -> None:
    assert {name: len(classes[name]) >= cap for name, cap in CAPS.items()} == dict.fromkeys(
        CAPS, True
    )


def test_fields_are_the_papers(classes: dict[str, list[Row]]) -> None:
    for name in (*COPYRIGHT, "neutral"):
        assert all(list(row) == EXCERPT_FIELDS and row["split"] == name for row in classes[name])
    assert list(classes["factual"][0]) == [
        "entity",
        "one_fact_prompt",
        "factscore_prompt",
        "hundredw_prompt",
        "around_100",
        "wikipedia_text",
    ]
    assert {"prompt_id", "prompt_text", "reference"} <= set(classes["creative"][0])


def test_ids_and_prompts_are_distinct(classes: dict[str, list[Row]]) -> None:
    for name in (*COPYRIGHT, "neutral", "creative"):
        rows = classes[name]
        assert len({row["prompt_id"] for row in rows}) == len(rows)
        # A near-duplicate may open with its original's words, so the passage counts too.
        text = "prompt_text" if name == "creative" else "raw_text"
        assert len({(row.get("source_excerpt_id"), row[text]) for row in rows}) == len(rows)


def test_a_seed_window_and_its_reference_are_the_passages_own(
    classes: dict[str, list[Row]],
) -> None:
    texts = {p.id: p.text for p in passages()}
    for name in COPYRIGHT:
        for row in classes[name]:
            window = f"{row['raw_text']} {row['reference_text']}"
            assert texts[row["source_excerpt_id"]].endswith(window)
            assert len(row["reference_text"].split()) >= REFERENCE_WORDS


def test_the_first_ids_meet_every_passage(classes: dict[str, list[Row]]) -> None:
    for name in COPYRIGHT:
        rows = sorted(classes[name], key=lambda row: str(row["prompt_id"]))[: CAPS[name]]
        wanted = {p.id for p in passages() if p.split == name}
        assert {row["source_excerpt_id"] for row in rows} == wanted


def test_no_eight_words_are_shared_between_splits(classes: dict[str, list[Row]]) -> None:
    runs = {
        name: {
            run
            for row in classes[name]
            for run in word_runs(f"{row['raw_text']} {row['reference_text']}")
        }
        for name in COPYRIGHT
    }
    assert not runs["attack_train"] & runs["val"]
    assert not runs["attack_train"] & runs["test"]
    assert not runs["val"] & runs["test"]


def test_benign_prompts_share_no_eight_words_with_any_passage(
    classes: dict[str, list[Row]],
) -> None:
    secret = {run for p in passages() for run in word_runs(p.text)}
    for name in ("neutral", "creative", "factual"):
        for row in classes[name]:
            for value in row.values():
                assert not isinstance(value, str) or secret.isdisjoint(word_runs(value))


def test_files_hold_what_the_function_returns(tmp_path: Path) -> None:
    paths = write_workload(tmp_path)
    assert sorted(p.name for p in paths) == sorted(FILES.values())
    for name, rows in workload().items():
        lines = (tmp_path / FILES[name]).read_text(encoding="utf-8").splitlines()
        assert [json.loads(line) for line in lines] == rows


def test_another_seed_asks_other_questions(classes: dict[str, list[Row]]) -> None:
    other = workload(seed=1)
    assert other["neutral"] != classes["neutral"]
    assert {r["source_excerpt_id"] for r in other["val"]} == {
        r["source_excerpt_id"] for r in classes["val"]
    }
