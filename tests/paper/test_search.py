"""The paper's search on a tiny pair: its files, its defects, its seeds, and SIGKILL on the way."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.core.design import identity_hash
from nafaudit.core.draws import trajectory_seeds
from nafaudit.core.errors import InputError
from nafaudit.core.trajectory import Key
from nafaudit.lab.tiny import SENTENCES
from nafaudit.measures.audit import AuditResult
from nafaudit.paper.checklist_run import seeds, surrogate
from nafaudit.paper.evaluator import is_saturated
from nafaudit.paper.search import number_of, run_paper_search
from nafaudit.paper.search_view import paper_document, paper_json, write_paper_result
from nafaudit.paper.settings import (
    INIT,
    LAB_BUDGETS,
    LAB_LENGTH,
    PaperSettings,
    paper_pools,
)
from nafaudit.search.candidate import Measured
from nafaudit.search.recorder import Violation, write_bundle
from nafaudit.store.missing import missing_of
from nafaudit.store.run import Run
from nafaudit.views.document import nats
from nafaudit.views.figures.run import progress
from nafaudit.views.page import write_report
from nafaudit.views.search import B_EFF, search_view
from nafaudit.views.terminal import terminal, text_of
from nafaudit.workload.prompts import FILES as DATA
from tests.commands import call, typed
from tests.kills import kill_at, moments_of
from tests.paper.test_surrogate import sentence_checkpoint
from tests.runner.forge import forge, without
from tests.store.victim import DESIGN
from tests.workload.files import small, write

Paths = Callable[[str], tuple[Path, Path]]
SIZES = {
    "init_traj": 2, "med_fid_traj": 6, "topup_traj": 6, "final_traj": 6, "heldout_traj": 6,
    "stress_traj": 6, "generations": 2, "calls_per_generation": 2, "candidates_per_call": 3,
    "crossover_calls_per_generation": 1, "crossover_candidates_per_call": 2, "prescreen_keep": 6,
    "med_fid_keep": 4, "topup_keep": 2, "archive_keep": 8, "ablation_no_surrogate": 1,
    "ablation_random": 1, "final_keep": 2, "heldout_keep": 3, "stress_keep": 2,
    "surrogate_epochs": 1, "recheck_keep": 2, "recheck_traj": 20,
}  # fmt: skip
FILES = {
    "init_eval.jsonl", "archive_after_init.json", "generation_log.json", "archive_current.json",
    "archive_history.json", "final_validation.jsonl", "final_validation_pass.jsonl",
    "heldout_validation.jsonl", "stress_validation.jsonl", "stress_validation_pass.jsonl",
    "final_report.json", "gen_01_medfid.jsonl", "gen_01_topup.jsonl", "gen_01_topup_invalid.jsonl",
    "gen_02_medfid.jsonl", "gen_02_topup.jsonl", "gen_02_topup_invalid.jsonl",
    "gen_02_ablations.jsonl",
}  # fmt: skip
OVERSPENDS = """
from nafaudit.mechanisms.anchored import Anchored

class Over:
    def serve(self, prefixes, safe, risky, allowance):
        return Anchored().serve(prefixes, safe, risky, 2 * allowance)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("paper-search")
    chance, words = random.Random(1), " ".join(SENTENCES).split()
    lines = [
        {
            "id": f"p{i}",
            "text": f"{chance.choice(SENTENCES)} {' '.join(chance.sample(words, 8))}.",
            "class": "held" if i < 4 else "a",
        }
        for i in range(36)
    ]
    (directory / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (directory / "over.py").write_text(OVERSPENDS)
    return directory


Make = Callable[..., PaperSettings]


@pytest.fixture(scope="module")
def settings(place: Path, tiny_pair_paths: Paths) -> Make:
    safe, risky = tiny_pair_paths("llama")

    def make(out: str, size: dict[str, int] | None = None, **more: Any) -> PaperSettings:
        given: dict[str, Any] = {
            "safe": str(safe), "risky": str(risky), "prompts": str(place / "p.jsonl"),
            "k": (60.0,), "max_new_tokens": 6, "init": {"a": 30}, "heldout_class": "held",
        }  # fmt: skip
        return PaperSettings(
            **given | {"out": str(place / out), "size": SIZES | (size or {})} | more
        )

    return make


def searched(settings: PaperSettings) -> dict[str, Any]:
    found = run_paper_search(settings, lambda told: None)
    write_paper_result(found)
    return paper_json(found)


@pytest.fixture(scope="module")
def undisturbed(settings: Make) -> tuple[dict[str, Any], int]:
    """A search that nobody disturbed, and how many moments it has."""
    return moments_of(lambda: searched(settings("whole")))


@pytest.fixture(scope="module")
def whole(undisturbed: tuple[dict[str, Any], int]) -> dict[str, Any]:
    return undisturbed[0]


@pytest.fixture(scope="module")
def moments(undisturbed: tuple[dict[str, Any], int]) -> int:
    return undisturbed[1]


def rows(place: Path, out: str, name: str) -> list[dict[str, Any]]:
    lines = (place / out / "paper" / name).read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_the_loop_has_its_stages_and_its_files(place: Path, whole: dict[str, Any]) -> None:
    assert {path.name for path in (place / "whole" / "paper").iterdir()} == FILES
    assert whole["outcome"] == "WITHIN"
    log = whole["paper"]["generation_log"]
    assert [one["raw_candidates"] for one in log] == [8, 8]
    assert all(one["surrogate"]["ready"] for one in log)
    assert all(one["surrogate"]["feature_dim"] == 518 for one in log)
    assert [row["generation"] for row in whole["generations"]] == [0, 1, 2]
    init = rows(place, "whole", "init_eval.jsonl")
    assert len(init) == 30 and all(row["N"] == 2 for row in init)
    archived = json.loads((place / "whole" / "paper" / "archive_after_init.json").read_text())
    certified = [row["candidate_id"] for row in init if row["certified"]]
    assert [row["candidate_id"] for row in archived] == certified
    assert {row["ablation"] for row in rows(place, "whole", "gen_02_ablations.jsonl")} == {
        "random",
        "no_surrogate",
    }
    assert len(rows(place, "whole", "heldout_validation.jsonl")) == 3
    # One training class; every archived prompt is within its budget.
    assert {f["check"] for f in whole["paper"]["findings"] if f["verdict"] == "SUSPECT"} >= {
        "one-class-labels",
        "duplicate-seeds",
    }


def test_every_evaluation_is_of_recorded_trajectories(place: Path, whole: dict[str, Any]) -> None:
    """Spends in the paper's files are the records of its seeds; a seed named twice counts twice."""
    spends = {
        (t.key.prompt, t.key.trajectory): t.spend for t in Run(place / "whole").trajectories()
    }
    doubled = 0
    for name in FILES:
        if not name.endswith(".jsonl"):
            continue
        for row in rows(place, "whole", name):
            seeds, prompt = row["nafaudit"]["seeds"], row["candidate_id"]
            assert row["spends"] == [spends[prompt, number_of(prompt, seed)] for seed in seeds]
            doubled += len(seeds) - len(set(seeds))
    assert doubled > 0
    assert Run(place / "whole").asked == len(spends)


def a_skipping_prompt(run: Run) -> tuple[Key, set[int]]:
    """The last trajectory of a prompt whose numbers skip, and all of its numbers."""
    numbers: dict[Key, set[int]] = {}
    for _, key in run.places():
        numbers.setdefault(key._replace(trajectory=0), set()).add(key.trajectory)
    key = next(key for key, found in sorted(numbers.items()) if max(found) >= len(found))
    return key._replace(trajectory=max(numbers[key])), numbers[key]


def test_its_extents_name_every_trajectory_that_was_asked(
    place: Path, whole: dict[str, Any], tmp_path: Path
) -> None:
    run = Run(place / "whole")
    assert any("numbers" in extent for extent in run.design["extents"])
    assert missing_of(run) is None
    gone, numbers = a_skipping_prompt(run)
    free = min(set(range(gone.trajectory)) - numbers)
    dropped = without(run.path, tmp_path / "dropped", lambda key: key == gone)
    # As many records as before, but one of them has a seed that the search never named.
    swapped = forge(
        run.path,
        tmp_path / "swapped",
        gone,
        lambda t: replace(t, key=t.key._replace(trajectory=free)),
    )
    for forged in (dropped, swapped):
        gaps = missing_of(Run(forged))
        assert gaps is not None and gaps.count == 1
        assert gaps.first == (f"prompt {gone.prompt!r} k = 60 trajectory {gone.trajectory}",)
        done = call("check", forged, cwd=place)
        assert done.returncode == 3 and "incomplete" in done.stdout
    # Older runs have no numbers in their extents: of those the count has to do.
    design = json.loads((swapped / "design.json").read_text())
    design["identity"]["layout"]["rows"] = 2
    design["hash"] = identity_hash(design["identity"])
    for extent in design["extents"]:
        extent.pop("numbers", None)
    (swapped / "design.json").write_text(json.dumps(design))
    assert missing_of(Run(swapped)) is None


def test_a_counterexample_whose_numbers_skip_is_a_whole_run(
    place: Path, whole: dict[str, Any], tmp_path: Path
) -> None:
    run = Run(place / "whole")
    worst, numbers = a_skipping_prompt(run)
    identity = replace(
        DESIGN.identity, mechanism=worst.mechanism, purpose="search", protocol="paper"
    )
    violation = Violation(run.path, identity, Measured(worst, 1.0, 1.1, 1.0), 1)
    bundle = Run(write_bundle(tmp_path, violation, None))
    assert bundle.asked == len(numbers) and missing_of(bundle) is None


def test_its_directories_are_ordinary_runs(place: Path, whole: dict[str, Any]) -> None:
    for part in (place / "whole", place / "whole" / "confirm"):
        done = call("check", part, cwd=place)
        assert done.returncode == 0 and "incomplete" not in done.stdout, done.stdout
    done = call("verify", "whole", "--sample", 6, "--sampler", 0, "--quiet", cwd=place)
    assert done.returncode == 0, done.stdout
    identity = Run(place / "whole" / "confirm").design["identity"]
    assert (identity["protocol"], identity["purpose"]) == ("sound", "confirm")


def as_written(place: Path, out: str) -> dict[str, str]:
    """All of a search's answers, without its directory and the time at which it began."""
    paper = place / out / "paper"
    whole = [path for path in paper.rglob("*") if path.is_file()]
    found = {str(path.relative_to(paper)): path.read_text() for path in whole}
    found["search.json"] = (place / out / "search.json").read_text()
    started = Run(place / out).sessions[0]["started"]
    return {
        name: text.replace(str(place / out), "RUN").replace(started, "THEN")
        for name, text in found.items()
    }


# In the first pool, at a medium fidelity, at a top-up, among the fresh draws.
@pytest.mark.full
@pytest.mark.parametrize("share", [0.1, 0.2, 0.3, 0.45, 0.6, 0.75, 0.95])
def test_a_killed_search_ends_where_an_undisturbed_one_ends(
    share: float, place: Path, settings: Make, whole: dict[str, Any], moments: int
) -> None:
    out = f"killed{share}"
    kill_at(round(share * moments), lambda: searched(settings(out)))
    searched(settings(out))
    assert as_written(place, out) == as_written(place, "whole")
    designs = [Run(place / name).design for name in ("whole", out)]
    assert designs[0] == designs[1]


# In the first search, at its end, in the second one, among the fresh draws.
@pytest.mark.full
@pytest.mark.parametrize("share", [0.2, 0.45, 0.55, 0.7, 0.95])
def test_two_searches_that_are_killed_end_where_undisturbed_ones_end(
    share: float, place: Path, settings: Make, two_searches: int
) -> None:
    out = f"killed-two-{share}"

    def work() -> object:
        return searched(settings(out, size={"generations": 1}, searches=2))

    kill_at(round(share * two_searches), work)
    work()
    undisturbed = as_written(place, "two-whole")
    assert "seed-1/gen_01_medfid.jsonl" in undisturbed
    assert as_written(place, out) == undisturbed


@pytest.fixture(scope="module")
def two_searches(settings: Make) -> int:
    """How many moments two searches have that nobody disturbed."""
    own = settings("two-whole", size={"generations": 1}, searches=2)
    return moments_of(lambda: searched(own))[1]


def test_flagged_prompts_are_looked_at_again_and_decide_nothing(
    place: Path, settings: Make
) -> None:
    few = {"generations": 0, "final_rounds": 1}
    found = searched(settings("small-k", size=few, init={"a": 6}, k=(4.0,), second_k=6.0))
    paper = found["paper"]
    bad = sum(pool["flagged"] for pool in paper["flagged"].values())
    assert bad > 2 and len(paper["rechecked"]) == 2
    assert paper["not_rechecked"] > 0
    for one in paper["rechecked"]:
        assert one["same_k"]["N"] == one["second_k"]["N"] == 20
        assert one["same_k"]["overspent"] == one["second_k"]["overspent"] == 0
    fresh = Run(place / "small-k" / "confirm")
    budgets = {t.key.k for t in fresh.trajectories()}
    assert {4.0, 6.0} <= budgets
    # A proxy above its budget is no violation, whatever the protocol calls it.
    assert found["outcome"] != "VIOLATED" and found["violating_prompts"] == 0


def test_a_trajectory_above_its_budget_is_a_violation(
    place: Path, settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    few = {"generations": 0, "recheck_keep": 1}
    found = searched(settings("bad", size=few, init={"a": 4}, mechanism="over.py:Over", k=(2.0,)))
    assert found["outcome"] == "VIOLATED" and found["violating_prompts"] > 0
    bundle = Path(found["counterexamples"][0])
    assert call("check", bundle, cwd=place).returncode == 1
    assert "incomplete" not in call("check", bundle, cwd=place).stdout


def test_the_fix_and_the_texts_reading_change_what_they_say(place: Path, settings: Make) -> None:
    few = {"generations": 0, "recheck_keep": 0, "init_traj": 4}
    plain = searched(settings("plain", size=few, init={"a": 6}, k=(4.0,)))
    fixed = searched(settings("fixed", size=few, init={"a": 6}, k=(4.0,), fix="min-n"))
    floors = [
        {row["candidate_id"]: row["N"] for row in rows(place, out, "init_eval.jsonl")}
        for out in ("plain", "fixed")
    ]
    doubtful = {
        row["candidate_id"]
        for row in rows(place, "plain", "init_eval.jsonl")
        if row["candidate_valid"] and row["rho"] > 0.9
    }
    assert doubtful and set(floors[0].values()) == {4}
    assert {name for name, n in floors[1].items() if n == 20} == doubtful
    assert plain["paper"]["R"] == 24.0 == fixed["paper"]["R"]
    text = settings("text", size=few, variant="text").rule(1.0)
    assert text.rounding == "text"


def test_a_topup_of_the_fix_draws_afresh(place: Path, settings: Make) -> None:
    """N is the number of distinct draws of every row, of those that were raised twice too."""
    found = searched(settings("fresh-seeds", size={"recheck_keep": 0}, k=(14.0,), fix="min-n"))
    most = 0
    for name in sorted(FILES):
        if not name.endswith(".jsonl"):
            continue
        for row in rows(place, "fresh-seeds", name):
            seeds, prompt = row["nafaudit"]["seeds"], row["candidate_id"]
            numbers = {number_of(prompt, seed) for seed in seeds}
            assert row["N"] == len(row["spends"]) == len(set(seeds)) == len(numbers), name
            most = max(most, row["N"])
    # Raised to 20 at medium fidelity, and by 20 more as a top-up.
    assert most == 40
    doubled = [f for f in found["paper"]["findings"] if f["check"] == "duplicate-seeds"]
    assert [f["verdict"] for f in doubled] == ["FINE"]


def remarks_and_item(found: dict[str, Any]) -> tuple[str, str, str]:
    """What page and checklist say of the surrogate."""
    item = surrogate(found)
    return search_view(found).remarks[0], str(item.answer), item.text


def test_every_place_says_that_the_surrogate_steered(place: Path, whole: dict[str, Any]) -> None:
    log = json.loads((place / "whole" / "paper" / "generation_log.json").read_text())
    assert [one["surrogate_screen"]["mode"] for one in log] == ["surrogate", "surrogate"]
    gates = whole["surrogate"]["gates"]
    assert [one["steers"] for one in gates] == [one["surrogate"]["ready"] for one in log]
    assert [one["offered"] for one in gates] == [one["after_length"] for one in log]
    assert [one["kept"] for one in gates] == [one["med_fid"] for one in log]
    # All that it never saw are within K here, which no classifier can be judged by.
    assert {(one["auc"], one["unsafe"]) for one in gates} == {("nan", 0)}
    assert all(one["prompts"] > 0 for one in gates)
    remark, answer, text = remarks_and_item(whole)
    assert "steered 2 of 2 generations; it has no AUC in 2, where these are of one class" in remark
    assert (
        answer == "fail"
        and "by generation: none, none (none: these prompts are of one class)" in text
    )


def test_every_place_says_that_the_surrogate_never_was_ready(place: Path, settings: Make) -> None:
    few = {"generations": 1, "recheck_keep": 0}
    done = run_paper_search(settings("few", size=few, init={"a": 6}), lambda told: None)
    found = paper_json(done)
    assert found["paper"]["generation_log"][0]["surrogate_screen"]["mode"] == "first"
    remark, answer, text = remarks_and_item(found)
    assert "steered 0 of 1 generations; it was not ready in 1" in remark
    assert answer == "not applicable" and "never ready" in text
    printed = " ".join(terminal(paper_document(done)).split())
    assert "chose in 0 of 1 generations (generation 1: " in printed
    for said in (remark, text, printed):
        assert "archived prompts, fewer than the 24 that a fit needs" in said


def test_what_ranks_prompts_is_called_rho(place: Path, whole: dict[str, Any]) -> None:
    """The best of a generation is the paper's ratio: no place calls it a utilisation."""
    _, written = write_report(Run(place / "whole"))
    page = next(path for path in written if path.name == "index.html").read_text()
    caption = page.split('<figure id="f-search"')[1].split("</figcaption>")[0]
    assert "largest rho = U_EBB / B_eff in the archive" in caption
    assert "utilisation" not in caption
    assert '"axis":"best rho in the archive"' in page.replace('": ', '":')
    table = search_view(whole).tables[0].table
    assert table is not None
    assert table.columns[-1].head == "best rho" and "utilisation" not in table.columns[-1].meaning
    best = whole["paper"]["generation_log"][-1]["best_rho"]
    assert table.cells()[-1][-1] == f"{best:.3f}"
    left, right = progress(AuditResult.of(Run(place / "whole"))).axes
    assert left.get_ylabel() == "best rho in the archive"
    assert np.asarray(left.lines[0].get_ydata())[-1] == pytest.approx(best)
    assert right.get_ylabel().startswith("utilisation")


def test_the_command_prints_it_at_80_columns(place: Path, tiny_pair_paths: Paths) -> None:
    safe, risky = tiny_pair_paths("llama")
    done = call(
        "search", "--protocol", "paper", "--safe", safe, "--risky", risky,
        "--prompts", "p.jsonl", "--k", 60, "--max-new-tokens", 6, "--init", "a=30",
        "--heldout-class", "held", "--size", ",".join(f"{n}={v}" for n, v in SIZES.items()),
        "--out", "whole", "--quiet", cwd=place,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert "chose in 2 of 2 generations" in " ".join(done.stdout.split())
    for word in ("best rho", "held-out", "one-class-labels", "generalisation gap", "WITHIN"):
        assert word in done.stdout


def test_a_huge_rho_says_on_the_terminal_that_the_budget_is_near_0(
    place: Path, settings: Make
) -> None:
    """K is a thousandth above the largest debt of a held-out prompt."""
    few = {"generations": 0, "recheck_keep": 1, "heldout_keep": 1}
    wide = run_paper_search(settings("far", size=few, init={"a": 4}), lambda told: None)
    (held,) = wide.trail.heldout
    debt = max(60.0 * 6 - left for left in held.row.draws.budgets)
    own = settings("near", size=few, init={"a": 4}, k=(1.001 * debt / 6,))
    found = run_paper_search(own, lambda told: None)
    (held,) = found.trail.heldout
    assert 0 < held.row.budget < 0.01 * debt and held.row.rho > 10
    shown = text_of(paper_document(found))
    assert f"{held.row.rho:.3g}, small B_eff" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert f"{held.row.rho:.3f}" not in shown


@pytest.mark.full
def test_a_search_embeds_by_a_sentence_transformers_checkpoint(
    place: Path, settings: Make, tmp_path: Path
) -> None:
    """Its vectors reach the surrogate and the archive, and every place names the checkpoint."""
    checkpoint = str(sentence_checkpoint(tmp_path))
    few = {"generations": 2, "recheck_keep": 0}
    plain, own = (
        run_paper_search(settings(out, size=few, **more), lambda told: None)
        for out, more in (("by-words", {}), ("by-sentences", {"embedding": checkpoint}))
    )
    write_paper_result(own)
    assert checkpoint in own.embedding and checkpoint in text_of(paper_document(own))
    assert checkpoint in (place / "by-sentences" / "search.json").read_text()
    steps = [step for _, step in own.found.steered]
    assert [step.steers for step in steps] == [True, True]
    # The first pool has no embedding in it; what the surrogate and the archive chose has.
    same = [[(i.candidate.id, i.row.rho) for i in one.trail.init] for one in (plain, own)]
    assert same[0] == same[1]
    scores = [one.trail.generations[0].predictions for one in (plain, own)]
    assert scores[0] != scores[1]
    again = run_paper_search(
        settings("by-sentences", size=few, embedding=checkpoint), lambda told: None
    )
    assert paper_json(again)["paper"] == paper_json(own)["paper"]
    with pytest.raises(InputError, match="embedding"):
        run_paper_search(settings("by-sentences", size=few), lambda told: None)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--pool", "3"), "--size"),
        (("--fix", "min"), "min-n"),
        (("--fix", "min-n,wdth"), "did you mean 'width'"),
        (("--k", "3,3"), "each once"),
        (("--k", "3,5", "--second-k", "7"), "second-k is for one budget"),
        (("--archive", "dp"), "did you mean 'dpp'"),
        (("--embedding", "no/such/place"), "not a Sentence-Transformers checkpoint"),
        (("--searches", "0"), "at least 1"),
        (("--size", "generation=1"), "generations"),
        (("--size", "init_traj=1"), "at least 2"),
        (("--init", "attack_trian=3"), "--init"),
        (("--heldout-class", "tset"), "--heldout-class"),
        (("--seed", "3"), "seed"),
        (("--second-k", "16"), "second-k"),
        (("--topup-fraction", "2"), "fraction"),
        (("--limit", "3"), "--init"),
        (("--pair", "tiny"), "--init"),
    ],
)
def test_bad_input_is_said_before_a_model_loads(
    options: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    with mock.patch("nafaudit.models.pair.load_model", side_effect=AssertionError):
        done = call("search", "--protocol", "paper", *options, cwd=tmp_path)
    assert done.returncode == 2 and says in done.stderr, done.stderr
    assert not (tmp_path / "runs").exists()


def test_it_takes_what_there_is_of_data_of_any_size(settings: Make, tmp_path: Path) -> None:
    """Two records in each file; only the files of the classes that it uses are read."""
    data = write(tmp_path, small(2))
    for label in ("neutral", "val"):
        (data / DATA[label]).unlink()
    own = settings("data", prompts=None, data=str(data), init=INIT, heldout_class="test")
    size = {name: n for name, n in own.size.items() if name != "heldout_keep"}
    pools = paper_pools(replace(own, size=size))
    assert [len(pools.init), len(pools.heldout)] == [6, 2]
    assert [one.label for one in pools.init] == [c for c in INIT for _ in range(2)]
    assert pools.short == (
        "attack_train 2 of 48, factual 2 of 24, creative 2 of 24, held-out test 2 of 8"
    )
    few = {"generations": 0, "recheck_keep": 0, "heldout_keep": 2}
    found = searched(replace(own, shortest=1, size=SIZES | few))
    assert len(found["paper"]["pools"]["heldout"]) == 2
    assert found["paper"]["short"].startswith("attack_train 2 of 48")


def test_an_option_of_the_paper_alone_is_refused(tmp_path: Path) -> None:
    done = call("search", "--fix", "min-n", cwd=tmp_path)
    assert done.returncode == 2 and "--protocol paper" in done.stderr


@given(st.text(min_size=1, max_size=8), st.integers(0, 400), st.sampled_from([0, 2, 4, 10, 14]))
def test_a_seed_has_one_trajectory(prompt: str, index: int, offset: int) -> None:
    seed = trajectory_seeds(prompt, index + 1)[index] + offset
    number = number_of(prompt, seed)
    assert trajectory_seeds(prompt, number + 1)[number] == seed


def test_no_trajectory_has_the_seed_after_the_first() -> None:
    first = trajectory_seeds("p", 1)[0]
    for above in (-1, 1):
        with pytest.raises(ValueError, match="no trajectory"):
            number_of("p", first + above)


@pytest.mark.full
def test_a_surrogate_that_steers_is_judged_on_prompts_it_never_saw(
    place: Path, settings: Make
) -> None:
    """At a small budget some prompts are above K: an AUC is measured, and saturation with it."""
    size = {"surrogate_epochs": 30, "init_traj": 4, "recheck_keep": 0, "generations": 1}
    # The budget that about one first prompt in seven exceeds.
    free = settings("free", size=size | {"generations": 0}, init={"a": 32})
    uppers = [row["U_EBB"] for row in _init_of(free, place)]
    budget = round(float(np.quantile(uppers, 0.86)) / free.max_new_tokens, 2)
    own = settings("judged", size=size, init={"a": 32}, k=(budget,))
    found = run_paper_search(own, lambda told: None)
    step = found.trail.generations[0]
    fit = step.diagnostics
    assert fit.ready and 0 < fit.held_unsafe < fit.held_rows
    known = {item.candidate.id for item in found.trail.init if item.row.certified}
    dropped = [item for item in found.trail.init if item.candidate.id not in known]
    unsafe = [item for item in dropped if item.row.valid and item.row.upper > own.total]
    assert fit.held_unsafe == len(unsafe)
    assert 0 <= fit.auc <= 1
    write_paper_result(found)
    data = paper_json(found)
    (gate,) = data["surrogate"]["gates"]
    assert (gate["auc"], gate["prompts"], gate["unsafe"]) == (
        fit.auc, fit.held_rows, fit.held_unsafe,
    )  # fmt: skip
    assert gate["saturated"] == is_saturated(step.predictions)
    item = surrogate(data)
    assert f"lowest AUC on prompts it never saw {fit.auc:.2f}" in item.text
    passes = fit.auc >= 0.8 and not gate["saturated"]
    assert (str(item.answer) == "pass") == passes
    logged = json.loads((place / "judged" / "paper" / "generation_log.json").read_text())
    assert logged[0]["surrogate"]["auc"] == fit.auc
    # One that is saturated fails at any AUC, one that is not passes at a high one.
    for auc, stuck, answer in ((1.0, True, "fail"), (1.0, False, "pass"), (0.7, False, "fail")):
        gate |= {"auc": auc, "saturated": stuck}
        assert str(surrogate(data).answer) == answer


def _init_of(settings: PaperSettings, place: Path) -> list[dict[str, Any]]:
    searched(settings)
    return rows(place, Path(settings.out or "").name, "init_eval.jsonl")


def test_a_width_stands_beside_every_rho(place: Path, settings: Make) -> None:
    few = {"generations": 1, "recheck_keep": 1}
    found = run_paper_search(
        settings("wide", size=few, init={"a": 8}, k=(4.0,), fix="width"), lambda told: None
    )
    write_paper_result(found)
    for path in (place / "wide" / "paper").iterdir():
        listed = path.name.startswith("archive")
        if listed or path.suffix == ".jsonl":
            text = path.read_text()
            for row in json.loads(text) if listed else map(json.loads, text.splitlines()):
                assert "rho" in row and "width" in row, path.name
                if "spends" in row:
                    assert row["width"] == pytest.approx(row["U_EBB"] - row["mean_spend"])
    shown = terminal(paper_document(found))
    for one in found.rechecks:
        for row in (one.flag.item.row, one.same, one.other):
            assert not row.valid or f"{row.rho:.3f} ({nats(row.width)})" in shown
        # Why it was flagged: the parts of its rho stand beside it.
        row = one.flag.item.row
        assert all(nats(part) in shown for part in (row.moments.mean, row.upper, row.budget))
    assert B_EFF in " ".join(shown.split())
    assert "width: every rho in tables and files" in " ".join(shown.split())


def test_reff_is_used_from_end_to_end_under_both_variants(place: Path, settings: Make) -> None:
    few = {"generations": 1, "recheck_keep": 0}
    for variant in ("code", "text"):
        out = f"reff-{variant}"
        searched(settings(out, size=few, init={"a": 8}, k=(8.0,), fix="reff", variant=variant))
        seen = 0
        for name in ("init_eval.jsonl", "gen_01_medfid.jsonl", "heldout_validation.jsonl"):
            for row in rows(place, out, name):
                z, log = row["spends"], math.log(2 / 0.0033)
                reach = max(max(z) - min(z), 1.0)
                wide = math.sqrt(2 * row["var_spend"] * log / len(z)) + 3 * reach * log / len(z)
                assert row["U_EBB"] == pytest.approx(row["mean_spend"] + wide, rel=1e-9)
                seen += 1
        assert seen > 10


def test_a_shared_delta_is_in_every_row(place: Path, settings: Make) -> None:
    few = {"generations": 0, "recheck_keep": 0}
    found = searched(settings("delta", size=few, init={"a": 6}, fix="delta"))
    assert found["paper"]["delta_per_look"] == 0.0033 / 8
    for row in rows(place, "delta", "init_eval.jsonl"):
        z, log = row["spends"], math.log(2 / (0.0033 / 8))
        reach = max(max(z) - min(z), 1.0)
        wide = math.sqrt(2 * row["var_spend"] * log / len(z)) + 3 * reach * log / len(z)
        assert row["U_EBB"] == pytest.approx(row["mean_spend"] + wide, rel=1e-9)


@pytest.mark.full
def test_a_second_search_seed_draws_and_proposes_anew(place: Path, settings: Make) -> None:
    """Item 7 passes; the first search is what it is alone; no draw is shared."""
    few = {"generations": 1, "recheck_keep": 0}
    one = searched(settings("one-seed", size=few))
    two = searched(settings("two-seeds", size=few, searches=2))
    assert [str(seeds(found).answer) for found in (one, two)] == ["fail", "pass"]
    assert "--searches 2" in seeds(one).todo
    alone, both = (as_written(place, out) for out in ("one-seed", "two-seeds"))
    assert alone["gen_01_medfid.jsonl"] == both["gen_01_medfid.jsonl"]
    assert [row["seed"] for row in two["paper"]["archive_maxima"]] == [0, 1]
    init = [rows(place, "two-seeds", f"{at}init_eval.jsonl") for at in ("", "seed-1/")]
    for first, second in zip(*init, strict=True):
        assert first["candidate_id"] == second["candidate_id"]
        drawn = [row["nafaudit"]["seeds"] for row in (first, second)]
        assert [seed + 3000 for seed in drawn[0]] == drawn[1]
        assert first["spends"] != second["spends"]
    made = [rows(place, "two-seeds", f"{at}gen_01_medfid.jsonl") for at in ("", "seed-1/")]
    assert not {r["candidate_id"] for r in made[0]} & {r["candidate_id"] for r in made[1]}
    assert missing_of(Run(place / "two-seeds")) is None


def test_several_budgets_are_searched_in_one_command(place: Path, tiny_pair_paths: Paths) -> None:
    safe, risky = tiny_pair_paths("llama")
    small = {**SIZES, "generations": 0, "recheck_keep": 0}
    options = [
        "search", "--protocol", "paper", "--safe", safe, "--risky", risky, "--prompts", "p.jsonl",
        "--k", "40,60", "--max-new-tokens", 6, "--init", "a=4", "--heldout-class", "held",
        "--size", ",".join(f"{n}={v}" for n, v in small.items()), "--out", "several", "--quiet",
    ]  # fmt: skip
    done = call(*options, cwd=place)
    assert done.returncode in (0, 3), done.stderr
    assert "k = 40: " in done.stdout and "k = 60: " in done.stdout
    answers = json.loads(call(*options, "--json", cwd=place).stdout)["searches"]
    assert [one["k"] for one in answers] == [40.0, 60.0]
    for k in (40, 60):
        assert (place / "several" / f"k-{k}" / "paper" / "final_report.json").is_file()


@pytest.mark.full
def test_archives_are_drawn_from_a_k_dpp_if_asked(settings: Make) -> None:
    """Exact draws differ from the greedy set and from each other, and are the same again."""
    few = {"generations": 2, "recheck_keep": 0, "archive_keep": 4, "final_keep": 1}
    kept = {}
    for rule in ("paper", "dpp", "kdpp"):
        own = settings(f"archive-{rule}", size=few, archive_rule=rule)
        found = run_paper_search(own, lambda told: None)
        kept[rule] = [
            [item.candidate.id for item in one.archive] for one in found.trail.generations
        ]
        assert [len(one) for one in kept[rule]] == [4, 4]
        log = paper_json(found)["paper"]["generation_log"]
        assert [one["dpp"]["mode"] for one in log] == ["greedy" if rule == "paper" else rule] * 2
    assert kept["kdpp"][0] not in (kept["paper"][0], kept["dpp"][0])
    again = run_paper_search(
        settings("archive-again", size=few, archive_rule="kdpp"), lambda told: None
    )
    first = [[i.candidate.id for i in one.archive] for one in again.trail.generations]
    assert first == kept["kdpp"]


def test_domains_are_as_in_the_papers_files(place: Path, settings: Make) -> None:
    data = write(place / "domains", small(3))
    few = {"generations": 1, "recheck_keep": 0, "heldout_keep": 2}
    own = settings("by-domain", prompts=None, data=str(data), init=INIT, heldout_class="test")
    searched(replace(own, shortest=1, size=SIZES | few))
    init = rows(place, "by-domain", "init_eval.jsonl")
    found = {(row["domain"], row["split"]) for row in init}
    assert found == {
        ("copyright", "attack_train"), ("factual", "factual"), ("creative", "creative"),
    }  # fmt: skip
    held = rows(place, "by-domain", "heldout_validation.jsonl")
    assert {(row["domain"], row["split"]) for row in held} == {("copyright", "test")}
    for name in ("gen_01_medfid.jsonl", "final_validation.jsonl"):
        made = rows(place, "by-domain", name)
        assert made and {(row["domain"], row["split"]) for row in made} == {
            ("adversarial", "generated")
        }


def test_flagged_rows_are_projected_at_the_searchs_own_delta_and_sizes(
    place: Path, settings: Make
) -> None:
    few = {"generations": 0, "recheck_keep": 3}
    own = settings("ahead", size=few, init={"a": 30}, k=(8.0,))
    found = run_paper_search(own, lambda told: None)
    paper = paper_json(found)["paper"]
    held = {item.candidate.id: item.row for item in found.trail.heldout}
    for one in paper["projection"]:
        row = held[one["id"]]
        assert row.rho > 1 and (one["N"], one["projected_N"]) == (row.n, 6)
        assert one["projected_U_EBB"] == row.projected(6) < row.upper
    table = paper["deterministic_term"]
    assert table["delta"] == 0.0033 and [row["N"] for row in table["rows"]] == [2, 4, 6]
    for line in table["rows"]:
        wanted = [3 * reach * math.log(2 / 0.0033) / line["N"] for reach in table["R_eff"]]
        assert line["term"] == pytest.approx(wanted)


def test_retries_and_the_labs_own_budget_are_defaults_that_yield() -> None:
    def read(words: str) -> PaperSettings:
        made = typed(f"nafaudit search --protocol paper {words}")
        assert isinstance(made, PaperSettings)
        return made

    # Two attempts in all in the code, two retries after the first in the text.
    assert [read(w).proposer_attempts for w in ("", "--variant text", "--proposer-attempts 5")] == [
        2, 3, 5,
    ]  # fmt: skip
    lab = read("")
    assert (lab.k, lab.max_new_tokens) == (LAB_BUDGETS[:1], LAB_LENGTH)
    given = read("--k 3,5 --max-new-tokens 200")
    assert (given.k, given.max_new_tokens) == ((3.0, 5.0), 200)
    for pair in ("--pair paper", "--safe a --risky b --prompts p"):
        assert (read(pair).k, read(pair).max_new_tokens) == ((3.0,), 200)
    page = (Path(__file__).parents[2] / "docs" / "search.md").read_text()
    assert f"| **{LAB_BUDGETS[0]:g}** | **{LAB_LENGTH}** |" in page


@pytest.mark.full
def test_on_the_lab_its_defaults_show_what_the_paper_shows(tmp_path: Path) -> None:
    """A search that raises rho, held-out artefacts that collapse, a surrogate that saturates."""
    own = typed(f"nafaudit search --protocol paper --out {tmp_path / 'lab'}")
    assert isinstance(own, PaperSettings)
    found = run_paper_search(own, lambda told: None)
    trail = found.trail
    assert len(trail.init) == 96 and sum(item.row.certified for item in trail.init) >= 72
    texts: set[str] = set()
    for one in trail.generations:
        assert one.admission.raw == 76 and one.diagnostics.ready and one.promoted
        new = {item.candidate.text for item in one.medium}
        assert len(new) == 24 and len(new - texts) >= 12
        assert is_saturated(one.predictions)
        texts |= new
    first = max(item.row.rho for item in trail.init if item.row.certified)
    assert max(item.row.rho for item in trail.archive) > first
    last = trail.validation.last
    assert last.final and last.stress and len(trail.heldout) == 8
    flagged = [item.row for item in trail.heldout if item.row.rho > 1]
    assert flagged and all(row.n == 4 for row in flagged)
    again = {one.flag.item.candidate.id: one.same for one in found.rechecks}
    assert all(again[row.id].n == 20 and again[row.id].rho < 1 for row in flagged)
    assert found.found.outcome == "WITHIN"
