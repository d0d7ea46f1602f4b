"""Files of public benchmarks are recognised by their fields; the samples are ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nafaudit.core.errors import InputError
from nafaudit.workload import read_prompts
from nafaudit.workload.sources import FOLLOWING, OPENING

WORDS = [f"w{n}" for n in range(400)]
SNIPPET = " ".join(WORDS)

LITERAL = {"id": "bookmia.00.11", "title": "Ours", "input": "It was a", "reference": "dark day."}
NONLITERAL = {"id": "stories.0000.0", "title": "Ours", "input": "A girl met", "reference_events":
              ["she left"], "reference_characters": [["Ann"]]}  # fmt: skip
QA = {"id": "bookmia_qa.0.94", "title": "Ours", "input": "Who left?", "reference": "Ann"}
BOOKMIA = {"book_id": 3, "book": "ours.txt", "snippet_id": 7, "snippet": SNIPPET, "label": 1}


def written(path: Path, data: Any) -> Path:
    path.write_text(json.dumps(data, indent=1), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("row", "label", "reference"),
    [
        (LITERAL, "copybench", "dark day."),
        (NONLITERAL, "copybench-nonliteral", ""),
        (QA, "factual", "Ann"),
    ],
)
def test_copybench(tmp_path: Path, row: dict[str, Any], label: str, reference: str) -> None:
    workload = read_prompts(written(tmp_path / "data.json", [row]))
    (prompt,) = workload.prompts
    assert (prompt.id, prompt.text) == (row["id"], row["input"])
    assert (prompt.label, prompt.reference) == (label, reference)
    source = workload.sources[prompt.id]
    assert source.novel_source == "Ours"
    assert source.where.endswith("data.json[0]")


@pytest.mark.parametrize("ending", [".parquet", ".jsonl", ".json"])
def test_bookmia(tmp_path: Path, ending: str) -> None:
    rows = [BOOKMIA, BOOKMIA | {"book_id": 4, "label": 0}]
    path = tmp_path / f"train{ending}"
    if ending == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif ending == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        written(path, rows)
    seen, unseen = read_prompts(path).prompts
    assert (seen.id, seen.label, unseen.label) == ("bookmia:3.7", "bookmia-seen", "bookmia-unseen")
    assert seen.text.split() == WORDS[:OPENING]
    assert seen.reference.split() == WORDS[OPENING : OPENING + FOLLOWING]
    # Nothing is lost between the two, so that what follows the prompt is the reference.
    assert SNIPPET.startswith(seen.text + seen.reference)


def test_a_short_snippet_has_no_reference(tmp_path: Path) -> None:
    rows = [BOOKMIA | {"snippet": "only three words"}]
    (prompt,) = read_prompts(written(tmp_path / "a.json", rows)).prompts
    assert (prompt.text, prompt.reference) == ("only three words", "")


def test_helm(tmp_path: Path) -> None:
    """Its texts repeat the prefix and go on to the end of the book."""
    data = {"data": {"w0 w1": SNIPPET, "x": "x y"}, "metadata": {"any": 1}}
    first, second = read_prompts(written(tmp_path / "pilot.json", data)).prompts
    assert (first.id, first.text, first.label) == ("helm:1", "w0 w1", "helm")
    assert first.reference.split() == WORDS[2 : 2 + FOLLOWING]
    assert second.reference == " y"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([LITERAL | {"input": 3}], "'input' must be a string, got 3"),
        ([LITERAL, {"id": "x"}], r"\[1\]: there is no 'title'; it has 'id'"),
        ([BOOKMIA | {"label": 2}], "'label' must be 0"),
        ([LITERAL, LITERAL], "occurs twice"),
        ([{"a": 1}], "no 'text'; keys are"),
        ([], "no prompts"),
        ([3], "a list of JSON objects is needed"),
    ],
)
def test_a_broken_file_gets_a_sentence(tmp_path: Path, data: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_prompts(written(tmp_path / "a.json", data))


def test_a_format_may_be_named(tmp_path: Path) -> None:
    path = written(tmp_path / "a.json", [LITERAL | {"text": "other"}])
    assert [p.text for p in read_prompts(path).prompts] == ["other"]
    assert [p.text for p in read_prompts(path, format="copybench").prompts] == ["It was a"]
    with pytest.raises(InputError, match="did you mean 'copybench'"):
        read_prompts(path, format="copybensh")
    (tmp_path / "a.parquet").write_bytes(b"no")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        read_prompts(tmp_path / "a.parquet")
