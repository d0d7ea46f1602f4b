"""One directory holds one search: another is refused before a model loads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from nafaudit.core.errors import InputError
from nafaudit.paper.settings import PaperSettings
from nafaudit.search.settings import (
    SearchBasics,
    SearchSettings,
    check_directory,
    decisive,
    directory_of,
    reserve_directory,
)
from tests.commands import call
from tests.runs.make import HERE


def test_the_same_search_resumes_and_another_is_named(tmp_path: Path) -> None:
    mine = SearchSettings(out=str(tmp_path))
    check_directory(mine)  # nobody's yet
    reserve_directory(tmp_path, mine)
    check_directory(mine)
    # Neither speed nor the address of a server makes another search.
    check_directory(replace(mine, batch=4, threads=2, proposer_timeout=5.0))
    for other, says in (
        (replace(mine, generations=1), "generations: 2 in the run, 1 now"),
        (replace(mine, k=(1.0, 3.0)), "k: "),
        (replace(mine, delta=0.01), "delta: "),
        (PaperSettings(out=str(tmp_path)), "kind: "),
    ):
        with pytest.raises(InputError, match=says):
            check_directory(other)


@pytest.mark.parametrize(
    ("former", "resumes"),
    [
        ({"surrogate": "off", "embedding": "tfidf"}, True),
        ({"archive": "elites"}, False),
        ({"training": 3, "surrogate": "off"}, False),
    ],
)
def test_a_search_from_before_the_surrogate_went_resumes_if_it_would_go_the_same_way(
    tmp_path: Path, former: dict[str, object], resumes: bool
) -> None:
    mine = SearchSettings(out=str(tmp_path))
    reserve_directory(tmp_path, mine)
    file = tmp_path / "settings.json"
    written = json.loads(file.read_text())
    assert {"archive": "dpp", "surrogate": "auto", "training": 0}.items() <= written.items()
    file.write_text(json.dumps(written | former))
    if resumes:
        check_directory(mine)
        return
    with pytest.raises(InputError, match=next(iter(former))):
        check_directory(mine)


@pytest.mark.parametrize("name", ["archive", "surrogate", "training", "embedding", "study"])
def test_an_option_that_was_taken_away_is_refused_with_the_reason(
    name: str, tmp_path: Path
) -> None:
    value = () if name == "study" else ("1",)
    done = call("search", f"--{name}", *value, cwd=tmp_path)
    assert done.returncode == 2
    given = "1" if value else "True"
    reason = f"{name} = {given} is refused: {SearchSettings.refused[name]}"
    assert reason in " ".join(done.stderr.split())
    (tmp_path / "d.toml").write_text(f"{name} = 1\n")
    done = call("search", "d.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert f"d.toml: {name} = 1 is refused" in " ".join(done.stderr.split())


def test_every_size_of_the_papers_search_counts(tmp_path: Path) -> None:
    mine = PaperSettings(out=str(tmp_path))
    reserve_directory(tmp_path, mine)
    for other in (
        replace(mine, fix="min-n"),
        replace(mine, variant="text"),
        replace(mine, size={"generations": 1}),
        replace(mine, second_k=7.0),
    ):
        with pytest.raises(InputError, match="holds another search"):
            check_directory(other)


def test_different_searches_have_different_directories() -> None:
    settings = [
        SearchSettings(),
        SearchSettings(generations=1),
        PaperSettings(),
        PaperSettings(fix="min-n"),
    ]
    paths = {directory_of(one, "identity") for one in settings}
    assert len(paths) == len(settings)
    assert directory_of(SearchSettings(batch=4), "identity") in paths
    assert directory_of(SearchSettings(), "another") not in paths


@pytest.mark.parametrize("content", ["{", "[]", "3"])
def test_a_damaged_claim_is_no_fault_of_ours(content: str, tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text(content)
    with pytest.raises(InputError, match="damaged or edited"):
        check_directory(SearchSettings(out=str(tmp_path)))


def test_the_command_refuses_before_a_model_loads(tmp_path: Path) -> None:
    reserve_directory(tmp_path, SearchSettings(pool=10))
    with mock.patch("nafaudit.models.pair.load_model", side_effect=AssertionError):
        done = call("search", "--out", tmp_path, cwd=tmp_path)
    assert done.returncode == 2 and "pool: 10 in the run, 12 now" in done.stderr


@pytest.mark.parametrize(
    ("name", "settings"), [("search", SearchSettings()), ("paper-search", PaperSettings())]
)
def test_settings_are_written_in_the_order_that_they_always_had(
    name: str, settings: SearchBasics
) -> None:
    written = json.loads((HERE / "89722fc" / name / "settings.json").read_text())
    assert list(decisive(settings)) == list(written)
