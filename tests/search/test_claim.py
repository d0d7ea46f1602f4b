"""One directory holds one search: another is refused before a model loads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from nafaudit.core.errors import InputError
from nafaudit.search.paper_settings import PaperSettings
from nafaudit.search.settings import SearchSettings, StudySettings, check_claim, claim, directory_of
from tests.commands import call


def test_the_same_search_resumes_and_another_is_named(tmp_path: Path) -> None:
    mine = SearchSettings(out=str(tmp_path))
    check_claim(mine)  # nobody's yet
    claim(tmp_path, mine)
    check_claim(mine)
    # Neither speed nor the address of a server makes another search.
    check_claim(replace(mine, batch=4, threads=2, proposer_timeout=5.0))
    for other, says in (
        (replace(mine, generations=1), "generations: 2 in the run, 1 now"),
        (replace(mine, k=(1.0, 3.0)), "k: "),
        (replace(mine, delta=0.01), "delta: "),
        (StudySettings(out=str(tmp_path)), "kind: "),
        (PaperSettings(out=str(tmp_path)), "kind: "),
    ):
        with pytest.raises(InputError, match=says):
            check_claim(other)


def test_every_size_of_the_papers_search_counts(tmp_path: Path) -> None:
    mine = PaperSettings(out=str(tmp_path))
    claim(tmp_path, mine)
    for other in (
        replace(mine, fix="min-n"),
        replace(mine, variant="text"),
        replace(mine, size={"generations": 1}),
        replace(mine, second_k=7.0),
    ):
        with pytest.raises(InputError, match="holds another search"):
            check_claim(other)


def test_different_searches_have_different_directories() -> None:
    settings = [
        SearchSettings(),
        SearchSettings(generations=1),
        StudySettings(searches=2, finalists=2),
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
        check_claim(SearchSettings(out=str(tmp_path)))


def test_the_command_refuses_before_a_model_loads(tmp_path: Path) -> None:
    claim(tmp_path, SearchSettings(pool=10))
    with mock.patch("nafaudit.models.pair.load_model", side_effect=AssertionError):
        done = call("search", "--out", tmp_path, cwd=tmp_path)
    assert done.returncode == 2 and "pool: 10 in the run, 12 now" in done.stderr
