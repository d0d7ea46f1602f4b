"""A whole search on a tiny pair: its directories, its answers, and SIGKILL on the way."""

from __future__ import annotations

import json
import random
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from nafaudit.auditor.verify import check_integrity
from nafaudit.core.errors import InputError, StoreError
from nafaudit.core.trajectory import Trajectory
from nafaudit.lab.tiny import SENTENCES
from nafaudit.search.search import run_search
from nafaudit.search.settings import SearchSettings
from nafaudit.store.run import Run
from nafaudit.views.search import search_json, write_result
from tests.commands import call
from tests.kills import kill_at, moments_of

Paths = Callable[[str], tuple[Path, Path]]
SIZES: dict[str, Any] = {
    "k": (2.0,), "max_new_tokens": 6, "pool": 4, "generations": 1, "proposals": 6, "screened": 4,
    "draws": 8, "fresh": 20, "finalists": 1, "heldout": 2, "heldout_draws": 1, "searches": 1,
}  # fmt: skip
OVERSPENDS = """
from nafaudit.mechanisms.anchored import Anchored

class Over:
    def serve(self, prefixes, safe, risky, allowance):
        return Anchored().serve(prefixes, safe, risky, 2 * allowance)
"""


@pytest.fixture(scope="module")
def place(tiny_pair_paths: Paths, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("search")
    chance, words = random.Random(1), " ".join(SENTENCES).split()
    lines = [
        {
            "id": f"p{i}",
            "text": f"{chance.choice(SENTENCES)} {' '.join(chance.sample(words, 8))}.",
            "class": "ab"[i % 2],
        }
        for i in range(12)
    ]
    (directory / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (directory / "over.py").write_text(OVERSPENDS)
    return directory


@pytest.fixture(scope="module")
def settings(place: Path, tiny_pair_paths: Paths) -> Callable[..., SearchSettings]:
    safe, risky = tiny_pair_paths("llama")

    def make(out: str, **more: Any) -> SearchSettings:
        given = {"safe": str(safe), "risky": str(risky), "prompts": str(place / "p.jsonl")}
        return SearchSettings(**SIZES | given | {"out": str(place / out)} | more)

    return make


def searched(settings: SearchSettings) -> dict[str, Any]:
    found = run_search(settings, lambda told: None)
    write_result(found)
    return search_json(found)


@pytest.fixture(scope="module")
def undisturbed(settings: Callable[..., SearchSettings]) -> tuple[dict[str, Any], int]:
    """A search that nobody disturbed, and how many moments it has."""
    return moments_of(lambda: searched(settings("whole")))


@pytest.fixture(scope="module")
def whole(undisturbed: tuple[dict[str, Any], int]) -> dict[str, Any]:
    return undisturbed[0]


@pytest.fixture(scope="module")
def moments(undisturbed: tuple[dict[str, Any], int]) -> int:
    return undisturbed[1]


def records(path: Path) -> dict[tuple[object, ...], Trajectory]:
    return {tuple(t.key): t for t in Run(path).trajectories()}


def same_records(one: Path, other: Path) -> bool:
    for part in (".", "confirm"):
        first, second = records(one / part), records(other / part)
        if first.keys() != second.keys():
            return False
        if not all(first[key].same_as(second[key]) for key in first):
            return False
    return True


def test_every_number_has_a_record(place: Path, whole: dict[str, Any]) -> None:
    explored = sum(
        row["trajectories"]
        for row in whole["generations"]
        if row["strategy"] == "search" or row["generation"]
    )
    assert len(records(place / "whole")) == explored
    assert whole["outcome"] == "WITHIN"
    (best,) = whole["finalists"]
    fresh = [t for t in Run(place / "whole" / "confirm").trajectories() if t.key.k == 2.0]
    mine = [t for t in fresh if t.key.prompt == best["id"]]
    assert len(mine) == best["fresh"] == 20
    assert sum(t.spend for t in mine) / 20 == pytest.approx(best["spend"])
    designs = [Run(place / "whole" / part).design["identity"] for part in (".", "confirm")]
    assert [one["purpose"] for one in designs] == ["search", "confirm"]
    assert Run(place / "whole").asked == explored


def test_its_directories_are_ordinary_runs(place: Path, whole: dict[str, Any]) -> None:
    for part in (place / "whole", place / "whole" / "confirm"):
        assert call("check", part, "--json", cwd=place).returncode == 0
    done = call("verify", "whole/confirm", "--sample", 6, "--sampler", 0, "--quiet", cwd=place)
    assert done.returncode == 0, done.stdout


def test_an_edited_candidate_is_refused(place: Path, whole: dict[str, Any]) -> None:
    shutil.copytree(place / "whole" / "confirm", place / "edited")
    path = place / "edited" / "prompts.jsonl"
    path.write_text(path.read_text().replace('"label": "', '"label": "x', 1))
    with pytest.raises(StoreError, match=r"prompts\.jsonl is not what was written"):
        check_integrity(Run(place / "edited"))
    check_integrity(Run(place / "whole"))


# Before and after single writes: the first part, between generations, while confirming.
@pytest.mark.parametrize(
    "share",
    [0.6, *(pytest.param(s, marks=pytest.mark.full) for s in (0.1, 0.2, 0.3, 0.45, 0.8, 0.95))],
)
def test_a_killed_search_ends_where_an_undisturbed_one_ends(
    share: float,
    place: Path,
    settings: Callable[..., SearchSettings],
    whole: dict[str, Any],
    moments: int,
) -> None:
    out = f"killed{share}"
    kill_at(round(share * moments), lambda: searched(settings(out)))
    result = searched(settings(out))
    assert result | {"run": whole["run"]} == whole
    assert same_records(place / out, place / "whole")


def test_a_violating_prompt_is_the_result_and_its_bundle_replays(
    place: Path, settings: Callable[..., SearchSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    found = searched(settings("bad", mechanism="over.py:Over", generations=0, fresh=2))
    assert found["outcome"] == "VIOLATED"
    assert found["violating_prompts"] > 0 and found["counterexamples"]
    bundle = Path(found["counterexamples"][0])
    about = json.loads((bundle / "counterexample.json").read_text())
    assert about["excess"] > 0
    assert Run(bundle).asked == about["trajectory"] + 1
    assert call("check", bundle, cwd=place).returncode == 1
    command = shlex.split(about["command"])
    assert command == ["nafaudit", "verify", str(bundle), "--plugin", "over.py"]
    done = call(*command[1:], "--json", "--quiet", "--sampler", 0, cwd=place)
    assert done.returncode == 1
    verdicts = {f["check"]: f["verdict"] for f in json.loads(done.stdout)["findings"]}
    # The log is true, and what it says is a violation.
    assert "VIOLATED" in verdicts.values() and "FAILED" not in verdicts.values()


def test_the_command_resumes_a_finished_search_and_prints_it(
    place: Path, tiny_pair_paths: Paths, whole: dict[str, Any]
) -> None:
    safe, risky = tiny_pair_paths("llama")
    lines = [f"{name} = {value[0] if name == 'k' else value}" for name, value in SIZES.items()]
    (place / "d.toml").write_text("\n".join(line.replace("_", "-", 0) for line in lines))
    models = ("--safe", safe, "--risky", risky, "--prompts", place / "p.jsonl")
    before = sorted((place / "whole" / "parts").iterdir())
    done = call(
        "search", "d.toml", *models, "--out", place / "whole", "--json", "--quiet", cwd=place
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert {name: said[name] for name in whole} == whole
    assert sorted((place / "whole" / "parts").iterdir()) == before
    shown = call("search", "d.toml", *models, "--out", place / "whole", "--quiet", cwd=place)
    assert all(len(line) <= 80 for line in shown.stdout.splitlines())
    assert "WITHIN" in shown.stdout and "topped up" in shown.stdout


def test_a_search_that_two_kinds_of_machine_recorded_says_so(
    place: Path, settings: Callable[..., SearchSettings], whole: dict[str, Any]
) -> None:
    shutil.copytree(place / "whole", place / "elsewhere")
    sessions = place / "elsewhere" / "sessions.jsonl"
    first = json.loads(sessions.read_text().splitlines()[0])
    first["probe"]["digest"] = "of another CPU"
    sessions.write_text(json.dumps(first) + "\n")
    with pytest.raises(InputError, match="another arithmetic"):
        searched(settings("elsewhere"))
    found = run_search(settings("elsewhere", mixed=True), lambda told: None)
    assert "2 different arithmetics" in found.remark


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--k", "1,1"), "each once"),
        (("--others", "none.jsonl"), "none.jsonl"),
        (("--passages", "none.txt"), "none.txt"),
        (("--draws", "5"), "trajectories"),
        (("--mechanism", "anchord"), "anchored"),
        (("--operators", "splise"), "splice"),
        (("--longest", "100000"), "--longest"),
        (("--prompts", "none.jsonl"), "none.jsonl"),
    ],
)
def test_bad_input_is_said_before_a_model_loads(
    options: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    with mock.patch("nafaudit.models.pair.load_model", side_effect=AssertionError):
        done = call("search", *options, cwd=tmp_path)
    assert done.returncode == 2 and says in done.stderr
    assert not (tmp_path / "runs").exists()
