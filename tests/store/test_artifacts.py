"""Files beside the records: what is written is what is declared, and what is read is held to it."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from nafaudit.core.design import identity_hash
from nafaudit.core.errors import StoreError
from nafaudit.store.artifacts import (
    ARTIFACTS,
    OTHER_RULES,
    PASSAGES,
    RULES,
    SEARCH,
    TEXTS,
    VERIFICATION,
    read_search,
    read_verification,
    rules_remedy,
    schema,
    write_verification,
)
from nafaudit.store.run import Run
from nafaudit.store.shown import SHOWN
from tests.commands import call

RUNS = Path(__file__).parents[1] / "runs"
SEARCHES = sorted(path.parent for path in RUNS.glob("*/*search/search.json"))
LATER = (TEXTS, SHOWN)
BOXES = sorted(path.parent for path in RUNS.glob("*/*/verify.json"))


def edited(tmp_path: Path, source: Path, name: str, **change: Any) -> Run:
    shutil.copytree(source, tmp_path / "r")
    path = tmp_path / "r" / name
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    return Run(tmp_path / "r")


def test_there_are_stored_runs_of_two_versions() -> None:
    assert len(SEARCHES) == 4 and len(BOXES) == 2


@pytest.mark.parametrize("path", SEARCHES, ids=lambda path: "-".join(path.parts[-2:]))
def test_a_stored_search_is_what_is_declared(path: Path) -> None:
    found = read_search(Run(path))
    assert found == json.loads((path / SEARCH).read_text())
    # Every field is declared, but for what only an older or the paper's search has.
    assert set(found or ()) <= set(ARTIFACTS[SEARCH].__annotations__)


@pytest.mark.parametrize("path", BOXES, ids=lambda path: "-".join(path.parts[-2:]))
def test_a_stored_verification_is_what_is_declared(path: Path) -> None:
    found = read_verification(Run(path))
    # Both were made by rules that changed since.
    assert found is not None and not found["current"] and found["outdated"] == OTHER_RULES
    assert set(found) - {"current", "outdated"} <= set(ARTIFACTS[VERIFICATION].__annotations__)


def test_a_verification_counts_while_records_and_rules_are_its_own(tmp_path: Path) -> None:
    shutil.copytree(BOXES[0], tmp_path / "r")
    run = Run(tmp_path / "r")

    def read(**change: Any) -> tuple[bool, str, str]:
        found = {"rules": RULES, **content, **change}
        path = write_verification(run, {k: v for k, v in found.items() if v is not None})
        assert path.is_file()
        again = read_verification(run)
        assert again is not None
        return again["current"], again["outdated"], rules_remedy(run)

    content = json.loads((run.path / VERIFICATION).read_text())
    del content["sha256"], content["journal"]
    assert read() == (True, "", "")
    said = f"it was verified by older rules: nafaudit verify {run.path} makes that anew"
    assert read(rules=1) == read(rules=None) == (False, OTHER_RULES, said)
    assert read(rules=RULES + 1)[:2] == (False, OTHER_RULES)
    with (run.path / "journal.jsonl").open("a") as journal:
        journal.write("\n")
    assert rules_remedy(run) == said.replace("older", "other")
    data = json.loads((run.path / VERIFICATION).read_text())
    assert data["journal"] != run.journal_hash


def test_the_rules_of_a_black_box_do_not_date_what_our_own_engine_made(tmp_path: Path) -> None:
    shutil.copytree(RUNS / "c049abe" / "own", tmp_path / "r")
    run = Run(tmp_path / "r")
    content = json.loads((BOXES[0] / VERIFICATION).read_text())
    del content["sha256"], content["journal"]
    write_verification(run, content)
    found = read_verification(run)
    assert found is not None and found["current"] and rules_remedy(run) == ""


def test_a_log_that_older_rules_verified_is_not_acquitted_by_its_own_numbers(
    tmp_path: Path,
) -> None:
    shutil.copytree(RUNS / "c049abe" / "imported", tmp_path / "r")
    before = call("check", "r", cwd=tmp_path)
    content = json.loads((BOXES[0] / VERIFICATION).read_text())
    del content["sha256"], content["journal"], content["replayed_sha256"]
    write_verification(Run(tmp_path / "r"), content)
    after = call("check", "r", cwd=tmp_path)
    assert before.returncode in (0, 3) and "older rules" not in before.stdout
    assert after.returncode == 3
    assert "older rules: nafaudit verify r with the models" in " ".join(after.stdout.split())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"looked": "many"}, r"looked"),
        ({"k": "large"}, r"Invalid enum value 'large' - at `\$.k`"),
        ({"finalists": [{"use": {"mean": [1]}}]}, r"finalists\[0\].use.mean"),
        ({"outcome": 3}, "no outcome"),
    ],
)
def test_a_part_of_another_type_is_named(tmp_path: Path, change: Any, says: str) -> None:
    run = edited(tmp_path, SEARCHES[0], SEARCH, **change)
    with pytest.raises(StoreError, match=says):
        read_search(run)


def test_numbers_that_are_not_finite_and_fields_of_a_later_version_are_read(
    tmp_path: Path,
) -> None:
    run = edited(tmp_path, SEARCHES[0], SEARCH, k="inf", later={"a": [1]})
    found = read_search(run)
    assert found is not None and found["k"] == "inf" and found["later"] == {"a": [1]}


@pytest.mark.parametrize("command", ["check", "report", "compare", "export", "checklist"])
def test_a_larger_limit_in_the_design_does_not_acquit(command: str, tmp_path: Path) -> None:
    """With T ten times as large, a violated budget would be larger than what was spent."""
    shutil.copytree(RUNS / "c049abe" / "violated", tmp_path / "r")
    path = tmp_path / "r" / "design.json"
    data = json.loads(path.read_text())
    data["identity"]["decoding"]["max_new_tokens"] *= 10
    path.write_text(json.dumps(data))
    done = call(command, "r", *(("r",) if command == "compare" else ()), cwd=tmp_path)
    assert done.returncode == 2 and "the hash in it is of another identity" in done.stderr


def test_other_stop_ids_than_the_design_has_are_refused(tmp_path: Path) -> None:
    run = edited(tmp_path, RUNS / "c049abe" / "own", "vocabulary.json", stops=[])
    with pytest.raises(StoreError, match=r"its stop ids are not those of design\.json"):
        _ = run.stops


def test_an_edited_verification_is_refused_whatever_was_edited(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [{"tokens": 1}, {"tokens": "1"}, {"more": 1}]
    for number, change in enumerate(changes):
        run = edited(tmp_path / str(number), BOXES[0], VERIFICATION, **change)
        with pytest.raises(StoreError, match="damaged or edited"):
            read_verification(run)


@pytest.mark.parametrize("name", list(ARTIFACTS))
def test_stored_files_are_what_their_schema_says(name: str) -> None:
    """By another reader of schemas; a file of lines by its lines."""
    check = jsonschema.Draft202012Validator(schema(name))
    files = sorted(RUNS.glob(f"*/*/{name}"))
    assert files or name in LATER  # which these versions did not write
    for path in files:
        content = path.read_text()
        lines = content.splitlines() if path.suffix == ".jsonl" else [content]
        for line in lines[1:6] if name == PASSAGES else lines[:5]:
            check.validate(json.loads(line))


def test_the_page_on_files_names_every_file_that_is_declared() -> None:
    page = (RUNS.parents[1] / "docs" / "format.md").read_text()
    table = page.split("## The run directory")[1].split("\n\n")[1]
    assert [name for name in ARTIFACTS if f"`{name}`" not in table] == []


def test_a_file_has_its_schema_on_the_command_line(tmp_path: Path) -> None:
    assert json.loads(call("schema", "design.json", cwd=tmp_path).stdout) == schema("design.json")
    refused = call("schema", "desing.json", cwd=tmp_path)
    assert refused.returncode == 2 and "did you mean 'design.json'?" in refused.stderr


HOSTILE: tuple[Any, ...] = (
    *(None, True, -1, 0, 0.5, 1e308, 2**70, "nan", "-inf", "", "x", "\0", "\ud800", "<b>&"),
    *([], {}, [None], ["nan"], {"a": 1}),
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to the parts of a JSON value; of a list, to the first three."""
    yield path
    inner: Any = value.items() if isinstance(value, dict) else ()
    inner = enumerate(value[:3]) if isinstance(value, list) else inner
    for key, one in inner:
        yield from _places(one, (*path, key))


def _hostile(chance: random.Random, text: str) -> str:
    """The JSON with one part in the place of which stands another value, or none."""
    data = json.loads(text)
    *path, last = chance.choice([one for one in _places(data) if one])
    inside = data
    for key in path:
        inside = inside[key]
    if chance.random() < 0.1:
        del inside[last]
    else:
        inside[last] = chance.choice(HOSTILE)
    if isinstance(data.get("identity"), dict) and chance.random() < 0.8:
        data["hash"] = identity_hash(data["identity"])  # so that the edit is not known by it
    return json.dumps(data)


@pytest.mark.parametrize(
    "rounds", [2, pytest.param(40, marks=pytest.mark.full)], ids=["few", "many"]
)
@pytest.mark.parametrize("name", [one for one in ARTIFACTS if one not in LATER])
def test_a_hostile_file_is_read_or_refused_and_no_fault_of_ours(
    name: str, rounds: int, tmp_path: Path
) -> None:
    """Any part of any file may be anything: an answer, or a sentence that names the file."""
    sources = sorted(path.parent for path in RUNS.glob(f"*/*/{name}"))
    sources = [source for source in sources if (source / "design.json").is_file()]
    for number in range(rounds):
        chance = random.Random(f"{name} {number}")
        run = tmp_path / str(number)
        shutil.copytree(chance.choice(sources), run)
        lines = (run / name).read_text().split("\n") if name.endswith(".jsonl") else []
        if lines:
            at = chance.randrange(len(lines) - 1)
            (run / name).write_text(
                "\n".join([*lines[:at], _hostile(chance, lines[at]), *lines[at + 1 :]])
            )
        else:
            (run / name).write_text(_hostile(chance, (run / name).read_text()))
        for command in ("check", "report", "checklist"):
            done = call(command, str(number), cwd=tmp_path)
            assert done.returncode in (0, 1, 2, 3), (done.stderr, number)
        compared = call("compare", str(number), str(number), cwd=tmp_path)
        assert compared.returncode in (0, 1, 2, 3), (compared.stderr, number)
