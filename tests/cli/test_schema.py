"""What `nafaudit schema` says of a command's JSON is true of it."""

from __future__ import annotations

import inspect
import json
import math
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import click
import jsonschema
import pytest

from nafaudit.cli.command import Verb, place
from nafaudit.cli.main import VERBS
from nafaudit.cli.schema import COMMANDS, schema_for
from nafaudit.core.schema import schema_of, with_members
from nafaudit.core.text import plain
from tests.commands import call
from tests.conftest import GOLDEN
from tests.runs import make
from tests.test_frozen import NEW, RUNS, stored

LOG = str(GOLDEN / "official-decoder" / "anchored.csv.gz")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with what the stored runs were made of."""
    for name in make.INPUTS:
        source, copy = make.HERE / name, tmp_path / Path(name).name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copy)
    return tmp_path


def validated(command: str, here: Path, *words: object) -> dict[str, Any]:
    """Prints JSON, which the schema allows, down to members that it does not name."""
    done = call(*words, "--json", cwd=here)
    assert done.stdout, done.stderr
    data: dict[str, Any] = json.loads(done.stdout, parse_constant=_refuse)
    # A search's file is read as far as it is known, so that its declaration is not of all of it.
    schema = schema_for(command, strict=command != "search")
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(data)
    return data


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def _with_json(verbs: dict[str, Any], before: str = "") -> set[str]:
    found = set()
    for name, verb in verbs.items():
        if isinstance(verb, Verb):
            if "as_json" in inspect.signature(place(verb.answer)).parameters:
                found.add(before + name)
        else:
            assert isinstance(verb, click.Group)
            found |= _with_json(dict(verb.verbs), f"{name} ")  # type: ignore[attr-defined]
    return found


def test_every_command_with_json_has_a_schema() -> None:
    assert set(COMMANDS) == _with_json(dict(VERBS))
    for command in COMMANDS:
        jsonschema.Draft202012Validator.check_schema(schema_for(command))


@pytest.mark.parametrize("name", RUNS)
def test_of_stored_runs(name: str, here: Path) -> None:
    run = stored(name, here)
    validated("check", here, "check", run)
    validated("report", here, "report", run)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("checklist", ("checklist", "own")),
        ("checklist", ("checklist", "--paper")),
        ("export", ("export", "own")),
        ("compare", ("compare", "own", "paper")),
        ("mechanisms", ("mechanisms",)),
        ("paper", ("paper",)),
        ("import", ("import", LOG, "--max-new-tokens", 100, "--out", "imported")),
        ("check", ("check", LOG, "--max-new-tokens", 100)),
        ("plan", ("plan", "--seconds", 0)),
        ("plan", ("plan", "--pair", "paper", "--protocol", "paper", "--gpu", "h100")),
    ],
)
def test_of_what_needs_no_models(command: str, words: tuple[object, ...], here: Path) -> None:
    if {"own", "paper"} & set(words[1:]):
        stored("own", here)
        stored("paper", here)
    validated(command, here, *words)


@pytest.mark.parametrize("name", ("own", "search", "paper-search", "attack"))
def test_of_a_finished_command_that_is_given_again(name: str, here: Path) -> None:
    stored(name, here, NEW)
    command = {"own": "run", "attack": "attack"}.get(name, "search")
    words = (*make.COMMANDS[name].split(), "--out", name, "--quiet", "--mixed")
    validated(command, here, *words)


@pytest.mark.parametrize("name", make.RESULTS)
def test_of_what_follows_text(name: str, here: Path) -> None:
    words = (*make.COMMANDS[name].split(), "--out", name, "--quiet")
    validated({"certificate": "certify"}.get(name, name), here, *words)


# Of digests: tests/lab/test_digests.py, which computes some.
def test_of_a_verification(here: Path) -> None:
    run = stored("imported", here)
    validated("verify", here, "verify", run, "--quiet", "--pair", "lab", "--sampler", 0)


def test_of_a_pair_that_is_made(here: Path, tiny_pair_paths: Any) -> None:
    words = " ".join(f"w{n}" for n in range(400))
    (here / "text.txt").write_text("\n\n".join(f"{words} {n}" for n in range(4)))
    safe = tiny_pair_paths("llama")[0]
    data = validated("lab memorise", here, "lab", "memorise", "text.txt", "--safe", safe,
                     "--pages", 2, "--steps", 1, "--out", "pair", "--quiet")  # fmt: skip
    assert data == {"directory": "pair", **json.loads((here / "pair" / "pair.json").read_text())}


@pytest.mark.full
def test_of_conformance_and_the_self_test(here: Path) -> None:
    validated("conform", here, "conform")
    validated("selftest", here, "selftest", "--quiet")


def test_the_command_prints_one_schema_or_all(tmp_path: Path) -> None:
    assert json.loads(call("schema", "lab", "digests", cwd=tmp_path).stdout) == schema_for(
        "lab digests"
    )
    assert set(json.loads(call("schema", cwd=tmp_path).stdout)) == set(COMMANDS)
    done = call("schema", "chekc", cwd=tmp_path)
    assert done.returncode == 2 and "did you mean 'check'" in done.stderr


class _Inner(TypedDict):
    x: int
    y: NotRequired[str]


@dataclass(frozen=True)
class _Point:
    a: float
    hidden: int = field(default=0, metadata={"json": None})
    inner: dict[str, int] = field(default_factory=dict, metadata={"json": ...})


@dataclass(frozen=True)
class _Outer:
    point: _Point = field(metadata={"json": "p"})
    rows: tuple[_Inner, ...] = ()
    note: str = field(default="", metadata={"optional": True})
    json_properties = ("double",)

    @property
    def double(self) -> float:
        return 2 * self.point.a


@pytest.mark.parametrize("a", (1.5, math.nan, math.inf, -math.inf))
def test_a_schema_allows_what_plain_writes_and_nothing_else(a: float) -> None:
    """Numbers that are not finite have one form: three strings."""
    kind = Annotated[_Outer, with_members(more=bool)]
    schema = schema_of(kind, "an example", strict=True)
    good = plain(_Outer(_Point(a, inner={"b": 1}), ({"x": 1},))) | {"more": True}
    check = jsonschema.Draft202012Validator(schema)
    check.validate(json.loads(json.dumps(good, allow_nan=False)))
    for bad in (
        good | {"more": None},
        good | {"other": 1},
        good | {"double": "NaN"},
        good | {"double": "1"},
        good | {"p": {"a": a if math.isfinite(a) else str(a), "b": "no number"}},
        good | {"rows": [{"y": "x is missing"}]},
        {key: value for key, value in good.items() if key != "p"},
    ):
        assert not check.is_valid(bad), bad
