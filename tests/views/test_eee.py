"""The export to Every Eval Ever is valid by its published schema, and says what the run says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from nafaudit.views.eee import SCHEMA_VERSION
from tests.commands import call
from tests.conftest import GOLDEN
from tests.test_frozen import RUNS, stored

SCHEMA = json.loads((GOLDEN / "every-eval-ever" / "eval.schema.json").read_text(encoding="utf-8"))


def _exported(run: object, place: Path, *more: object) -> dict[str, Any]:
    done = call("export", run, "--every-eval-ever", "eee.json", *more, cwd=place)
    assert done.returncode in (0, 3), done.stderr
    assert done.stdout.startswith("eee.json\n")
    data: dict[str, Any] = json.loads((place / "eee.json").read_text())
    jsonschema.Draft7Validator(SCHEMA).validate(data)
    return data


@pytest.mark.parametrize("name", RUNS)
def test_an_export_is_valid_and_says_what_check_says(name: str, tmp_path: Path) -> None:
    assert SCHEMA["version"] == SCHEMA_VERSION
    run = stored(name, tmp_path)
    data = _exported(run, tmp_path)
    said = json.loads(call("check", run, "--json", cwd=tmp_path).stdout)
    arms = [one for one in said["verdicts"] if not one["baseline"]]
    found = {
        metric: [
            one["score_details"]
            for one in data["evaluation_results"]
            if one["metric_config"]["metric_id"] == f"nafaudit.{metric}"
        ]
        for metric in ("kept", "violation_rate", "spend", "utilisation")
    }
    assert [one["details"]["kept"] for one in found["kept"]] == [one["kept"] for one in arms]
    judged = [one for one in arms if one["kept"] != "REFUTED"]
    assert [one["score"] for one in found["violation_rate"]] == [
        one["violations"] / one["trajectories"] for one in judged
    ]
    for metric in ("spend", "utilisation"):
        known = [one[metric]["mean"] for one in arms if one[metric]["mean"] != "nan"]
        assert [one["score"] for one in found[metric]] == known
    # A level is the word that it stands for.
    for one in data["evaluation_results"]:
        config, score = one["metric_config"], one["score_details"]
        if config["metric_id"] == "nafaudit.kept":
            assert config["level_names"][score["score"]] == score["details"]["kept"]


def test_an_export_holds_no_text_and_no_path(tmp_path: Path) -> None:
    run = stored("own", tmp_path)
    data = _exported(run, tmp_path, "--organization", "An <Org>")
    assert data["source_metadata"]["source_organization_name"] == "An <Org>"
    text = json.dumps(data)
    prompts = [json.loads(line) for line in (tmp_path / run / "prompts.jsonl").open()]
    assert prompts and not any(one.get("text", "\0") in text for one in prompts)
    assert str(tmp_path) not in text and "weights/risky" not in text


def test_what_cannot_be_exported_is_said(tmp_path: Path) -> None:
    run = stored("own", tmp_path)
    done = call("export", run, "--every-eval-ever", "e.json", "--paper", cwd=tmp_path)
    assert done.returncode == 2 and "leave out --paper" in done.stderr
    done = call("export", run, "--every-eval-ever", "no/e.json", cwd=tmp_path)
    assert done.returncode == 2 and "no/e.json" in done.stderr
