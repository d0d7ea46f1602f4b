"""The paper's search on a tiny pair: its files, its defects, its seeds, and SIGKILL on the way."""

from __future__ import annotations

import json
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

from nafaudit.core.draws import trajectory_seeds
from nafaudit.core.trajectory import Key
from nafaudit.lab.tiny import SENTENCES
from nafaudit.measures.audit import AuditResult
from nafaudit.paper.checklist_run import surrogate
from nafaudit.paper.search import number_of, run_paper_search
from nafaudit.paper.search_view import paper_document, paper_json, write_paper_result
from nafaudit.paper.settings import PaperSettings
from nafaudit.search.candidate import Measured
from nafaudit.search.recorder import Violation, write_bundle
from nafaudit.store.missing import missing_of
from nafaudit.store.run import Run
from nafaudit.views.figures.run import progress
from nafaudit.views.page import write_report
from nafaudit.views.search import search_view
from nafaudit.views.terminal import terminal
from tests.commands import call
from tests.kills import kill_at, moments_of
from tests.runner.forge import forge, without
from tests.store.victim import DESIGN

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
    found = {path.name: path.read_text() for path in (place / out / "paper").iterdir()}
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
    assert {one["auc"] for one in gates} == {"nan"}
    remark, answer, text = remarks_and_item(whole)
    assert "steered 2 of 2 generations; its AUC on held-out rows was not measured" in remark
    assert answer == "fail" and "it steered 2 of 2 generations, and no AUC" in text


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


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--pool", "3"), "--size"),
        (("--fix", "min"), "min-n"),
        (("--fix", "width"), "has its width already"),
        (("--fix", "min-n,reff"), "with R_eff already"),
        (("--size", "generation=1"), "generations"),
        (("--size", "init_traj=1"), "at least 2"),
        (("--init", "attack_trian=3"), "--init"),
        (("--heldout-class", "tset"), "--heldout-class"),
        (("--seed", "3"), "seed"),
        (("--second-k", "3"), "second-k"),
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
