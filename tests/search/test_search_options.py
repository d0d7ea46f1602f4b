"""What a sound search can be told besides its sizes, on a tiny pair; SIGKILL under each of it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from benchmarks.search_study import run_study, study_json, study_text, write_study

from nafaudit.lab.prompts import others as other_prompts
from nafaudit.lab.tiny import SENTENCES
from nafaudit.measures.common_text import ngrams, words_of
from nafaudit.search.confirm import Protected
from nafaudit.search.search import Sweep, run_sweep, sweep_json, write_sweep
from nafaudit.search.settings import SearchSettings
from nafaudit.store.run import Run
from nafaudit.views.search import sweep_document
from nafaudit.views.terminal import terminal
from nafaudit.workload.passages import Passage
from nafaudit.workshop.works import protected
from tests.kills import kill_at, moments_of

Paths = Callable[[str], tuple[Path, Path]]
SIZES: dict[str, Any] = {
    "k": (2.0, 4.0), "max_new_tokens": 6, "pool": 4, "generations": 1, "proposals": 6,
    "screened": 4, "draws": 8, "fresh": 20, "finalists": 1, "heldout": 2, "heldout_draws": 1,
    "searches": 1, "shortest": 5,
}  # fmt: skip


@pytest.fixture(scope="module")
def settings(
    tiny_pair_paths: Paths, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., SearchSettings]:
    place = tmp_path_factory.mktemp("options")
    chance, words = random.Random(1), " ".join(SENTENCES).split()
    texts = [f"{chance.choice(SENTENCES)} {' '.join(chance.sample(words, 8))}." for _ in range(20)]
    rows = [{"id": f"p{i}", "text": text, "class": "ab"[i % 2]} for i, text in enumerate(texts)]
    others = [
        {"id": f"o{i}", "text": f"Question {i}: {SENTENCES[i]}", "class": ("qa", "facts")[i % 2]}
        for i in range(4)
    ]
    (place / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (place / "o.jsonl").write_text("\n".join(map(json.dumps, others)))
    (place / "text.txt").write_text("\n\n".join(SENTENCES))
    safe, risky = tiny_pair_paths("llama")

    def make(out: str, **more: Any) -> SearchSettings:
        given = {"safe": str(safe), "risky": str(risky), "prompts": str(place / "p.jsonl")}
        given |= {"others": str(place / "o.jsonl"), "passages": str(place / "text.txt")}
        return SearchSettings(**SIZES | given | {"out": str(place / out)} | more)

    return make


def quiet(told: object) -> None:
    del told


def swept(settings: SearchSettings) -> Sweep:
    sweep = run_sweep(settings, quiet)
    write_sweep(sweep)
    return sweep


@pytest.fixture(scope="module")
def undisturbed(settings: Callable[..., SearchSettings]) -> tuple[Sweep, int]:
    """A sweep with every option that nobody disturbed, and how many moments it has."""
    return moments_of(lambda: swept(settings("whole")))


@pytest.fixture(scope="module")
def whole(undisturbed: tuple[Sweep, int]) -> Sweep:
    return undisturbed[0]


@pytest.fixture(scope="module")
def moments(undisturbed: tuple[Sweep, int]) -> int:
    return undisturbed[1]


def content(sweep: Sweep) -> list[str]:
    """What is written, with the directory's name taken out."""
    paths = [sweep.path / "sweep.json", *(one.path / "search.json" for one in sweep.found)]
    return [path.read_text().replace(str(sweep.path), "RUN") for path in paths]


def test_each_budget_is_a_search_of_its_own_and_delta_is_shared(whole: Sweep) -> None:
    assert [one.settings.budget for one in whole.found] == [2.0, 4.0]
    assert [one.path.name for one in whole.found] == ["k-2", "k-4"]
    assert all(one.settings.delta == pytest.approx(0.025) for one in whole.found)
    # The same prompts to start from, under the same draws.
    first, second = ({t.key.prompt for t in Run(one.path).trajectories()} for one in whole.found)
    assert {name for name in first & second if name.startswith("s0_")}
    assert sweep_json(whole)["outcome"] == "WITHIN"
    assert all(
        len(line) <= 80 or "/" in line for line in terminal(sweep_document(whole)).splitlines()
    )


def test_other_kinds_are_held_out_pools_of_their_own(whole: Sweep) -> None:
    data = json.loads((whole.found[0].path / "search.json").read_text())
    assert [(one["kind"], one["prompts"]) for one in data["others"]] == [("qa", 2), ("facts", 2)]
    assert data["heldout"]["kind"] == "workload"
    seen = {p.prompt.id for p in Run(whole.found[0].path).prompts()}
    assert not any(name.startswith(("other_", "heldout_")) for name in seen)


def test_overlap_is_what_the_records_say(whole: Sweep) -> None:
    one = whole.found[1]
    assert one.overlaps is not None
    runs = [Run(one.path), Run(one.path / "confirm")]
    everything = [t for run in runs for t in run.trajectories() if t.key.k == 4.0]
    assert one.overlaps.everything.trajectories == len(everything)


# While exploring under the first budget, and under the second.
@pytest.mark.full
@pytest.mark.parametrize("share", [0.1, 0.25, 0.45, 0.7, 0.95])
def test_a_killed_sweep_ends_where_an_undisturbed_one_ends(
    share: float, settings: Callable[..., SearchSettings], whole: Sweep, moments: int
) -> None:
    out = f"killed{share}"
    kill_at(round(share * moments), lambda: run_sweep(settings(out), quiet))
    assert content(swept(settings(out))) == content(whole)


@pytest.mark.full
def test_a_study_survives_a_kill_and_says_the_same(
    settings: Callable[..., SearchSettings],
) -> None:
    more: dict[str, Any] = {"k": (2.0,), "searches": 2}
    study, last = moments_of(lambda: run_study(settings("study", **more), quiet))
    assert study.hidden.bank == 24 and len(study.paired[0].differences) == 2
    assert study.paired[0].answer == "not told apart"
    assert all(len(line) <= 80 or "/" in line for line in study_text(study, 1.0).splitlines())
    # On the way, and in the bank of the planted prompt, whose parts are written last.
    for moment in (last // 2, last - 1):
        again = settings(f"study{moment}", **more)
        kill_at(moment, partial(run_study, again, quiet))
        found = run_study(again, quiet)
        assert study_json(found) | {"run": ""} == study_json(study) | {"run": ""}
        assert json.loads(write_study(found).read_text()) == study_json(found)


def test_the_longest_run_of_protected_words_is_found() -> None:
    text = "one two three four five six seven"
    passages = [Passage("a", text), Passage("b", "five six seven eight nine ten one")]
    pieces = [f" {word}".encode() for word in f"{text} eight".split()]
    found = Protected(passages, pieces)

    class Output:
        """An output of these words; only what is looked at."""

        def __init__(self, *tokens: int) -> None:
            self.key, self.steps = None, type("S", (), {"token": tokens})()

    whole = found.copied(Output(0, 1, 2, 3, 4, 5))  # type: ignore[arg-type]
    assert (whole.words, whole.passage, whole.repeating) == (6, "a", 1)
    short = found.copied(Output(0, 1, 2, 3))  # type: ignore[arg-type]
    assert (short.words, short.repeating, short.trajectories) == (0, 0, 1)
    assert (whole + short).trajectories == 2 and (short + whole).words == 6


def test_the_labs_other_prompts_quote_no_eight_words() -> None:
    prompts = other_prompts()
    assert {p.label for p in prompts} == {"qa", "factual", "multi-turn"}
    assert len({p.id for p in prompts}) == len(prompts)
    known = frozenset().union(*(ngrams(words_of(p.text), 8) for p in protected()))
    assert not any(ngrams(words_of(p.text), 8) & known for p in prompts)
