"""`nafaudit paper run`: the whole paper on six small files, and again after a kill."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nafaudit.core.finding import Overall
from nafaudit.paper.view import map_rows
from nafaudit.paper.whole import PaperRunSettings, WholePaper, stage1_options, stage2_options
from nafaudit.store.artifacts import SearchFile
from tests.cli.test_schema import validated
from tests.commands import call
from tests.paper.test_search import SIZES

TEXT = "The baker of the old town had a son who never once asked what the river was for, and so "
QUESTIONS = ("prompt_text", "factscore_prompt", "hundredw_prompt", "around_100", "one_fact_prompt")


def six_files(place: Path) -> Path:
    """The paper's files with what its own have: missing fields, blank lines, other names."""
    place.mkdir()
    excerpts = [{"prefix": f"{TEXT} {i}", "reference": f"he went down to it {i}"} for i in range(4)]
    contents: dict[str, list[dict[str, Any]]] = {
        "copybench_attack_train": [{"debt_init_estimated": i, **r} for i, r in enumerate(excerpts)],
        "copybench_test": [{"prompt_id": f"t{i}", **r} for i, r in enumerate(excerpts)],
        "copybench_val": [{"raw_text": f"{TEXT} val {i}"} for i in range(3)],
        "neutral": [{"prompt": f"{TEXT} neutral {i}"} for i in range(3)],
        "creative": [
            {"metadata": {"title": f"{TEXT} title", "submission_id": "s1"}},
            {"input": f"{TEXT} input", "cleaning_passed": True},
            {"prompt_text": f"{TEXT} not clean", "cleaning_passed": False},
            {"prompt_text": f"{TEXT} story", "reference": "the river knew"},
        ],
        "factscore": [
            {name: f"{TEXT} tell me of person {i}", "entity": f"Person {i}"}
            for i, name in enumerate(QUESTIONS)
        ],
    }
    for name, rows in contents.items():
        lines = "\n\n".join(map(json.dumps, rows))
        (place / f"{name}.jsonl").write_text(f"\n{lines}\n\n")
    return place


def words(data: Path, pair: tuple[Path, Path], out: Path) -> list[object]:
    sizes = ",".join(f"{n}={v}" for n, v in (SIZES | {"generations": 1, "heldout_keep": 2}).items())
    models = ("--safe", pair[0], "--risky", pair[1], "--max-new-tokens", 6)
    return ["paper", "run", "--data", data, *models, "--trajectories", 2,
            "--size", sizes, "--out", out]  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_pair_paths: Any) -> tuple[Path, list[Any]]:
    place = tmp_path_factory.mktemp("whole")
    given = words(six_files(place / "data"), tiny_pair_paths("llama"), place / "out")
    done = call(*given, cwd=place)
    assert done.returncode in (0, 3), done.stderr
    assert "classes with fewer prompts than the paper's" in done.stderr
    answer = json.loads((place / "out" / "paper.json").read_text())
    assert list(answer)[:3] == ["verdict", "why", "exit_status"]
    assert answer["exit_status"] == done.returncode
    first = " ".join(done.stdout.split("\n\n")[0].split())
    assert first.startswith(f"{answer['verdict']}: {' '.join(answer['why'].split())}"[:60])
    return place, given


def sections(out: Path) -> Any:
    data = json.loads((out / "paper.json").read_text())
    return data["sections"], data["checklist"]


def test_the_whole_paper_runs_on_six_small_files_with_quirks(made: tuple[Path, list[Any]]) -> None:
    out = made[0] / "out"
    found = {one["title"]: one for one in sections(out)[0] if one["title"]}
    classes = {row[0] for row in found["Results, Stage 1: k = 3, K = 18 (Table h1-k3)"]["rows"]}
    assert classes == {"neutral", "val", "test", "attack_train", "factual", "creative"}
    # Five facts, one for each name of its field; three stories, as one is not clean.
    counts = {row[0]: row[1] for row in found["Prefix debt (Table prefix-debt)"]["rows"]}
    assert (counts["factual"], counts["creative"]) == ("10 / 1500", "6 / 1500")
    for title in ("Adversarial search: progress at k = 3", "Held-out validation at k = 5"):
        at = f", T = 6, K = {6 * int(title[-1])}"
        assert found[title + at]["rows"]
    assert "delta = 0.0" in found["Held-out validation at k = 5, T = 6, K = 30"]["note"]
    # Stage 1 has no search of its own; the page has one.
    items = sections(out)[1]["stage1"][5:]
    assert all("see the checklist of each search" in one["text"] for one in items)
    titles = [one["title"] for one in sections(out)[0]]
    order = ("Results, Stage 1", "Token overlap", "Prefix debt", "Supplementary, Stage 1: k = 1",
             "Adversarial search", "Final", "Held-out validation", "Stress", "Held-out ratios",
             "The like-for-like", "The deterministic", "The term against N", "Discussion",
             "Practitioner", "What our own checks")  # fmt: skip
    places = [next(i for i, t in enumerate(titles) if t.startswith(word)) for word in order]
    assert places == sorted(places)
    page = (out / "index.html").read_text()
    for file in ("stage1/paper/h1_summary.json", "stage2-k3/paper/final_report.json"):
        place, _, name = file.rpartition("/")
        assert (out / file).is_file() and f"{place}: " in page
        assert f'<a href="{file}">{name}</a>' in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")


def test_every_flagged_prompt_that_was_drawn_again_is_shown(made: tuple[Path, list[Any]]) -> None:
    """Those of the search too: one that stays above 1 must not be left out."""
    out = made[0] / "out"
    (shown,) = [one for one in sections(out)[0] if one["title"].startswith("The like-for-like")]
    again, left = [], 0
    for search in sorted(out.glob("stage2-k*/search.json")):
        paper = json.loads(search.read_text())["paper"]
        again += [(row["id"], row["same_k"]["certified"]) for row in paper["rechecked"]]
        left += paper["not_rechecked"]
    assert again
    assert [(row[0], row[-2] == "pass") for row in shown["rows"]] == again
    passed = sum(good for _, good in again)
    assert f"{passed} of {len(again)} pass, {left} more were not drawn again" in shown["note"]


def test_given_again_it_prints_what_its_schema_says(made: tuple[Path, list[Any]]) -> None:
    place, given = made
    data = validated("paper run", place, *given, "--quiet")
    assert data == json.loads((place / "out" / "paper.json").read_text())
    for path in (data["stage1"], *data["stage2"], *data["figures"], *data["files"]):
        assert (place / "out" / path).exists(), path


def test_every_figure_of_the_paper_is_on_the_page_and_named_as_there(
    made: tuple[Path, list[Any]],
) -> None:
    out = made[0] / "out"
    page = (out / "index.html").read_text()
    labels = [row["label"].removeprefix("fig:") for row in map_rows() if row["kind"] == "figure"]
    assert len(labels) == 4
    for label in labels:
        assert re.search(rf"<figcaption>[^<]*the paper&#x27;s Figure \d, {label}\)", page), label
    # The term is the search's own: its delta, not that of a class.
    for path in out.glob("stage2-k*/search.json"):
        term = json.loads(path.read_text())["paper"]["deterministic_term"]
        name = path.parent.name.removeprefix("stage2-")
        drawn = (out / "figures" / f"deterministic-term-{name}.svg").is_file()
        assert drawn == bool(term["R_eff"])
    assert "Words and symbols" in page and "U_EBB / B_eff of one prompt" in page


def test_every_table_of_the_paper_is_on_the_page(made: tuple[Path, list[Any]]) -> None:
    """In the paper's own form: its columns stand in ours, in its order."""
    out = made[0] / "out"
    page = (out / "index.html").read_text()
    for row in map_rows():
        if row["kind"] == "table" and row["label"] != "tab:notation":
            assert f"Table {row['label'].removeprefix('tab:')}" in page, row["label"]
    forms = {
        "Results, Stage 1": "Class|M|Mean spend|Var.|U_EBB (R)|U_EBB (R_eff)",
        "Supplementary": "Class|M|Mean spend|Var.|U_EBB (R)|U_EBB (R_eff)|Pass (R), (R_eff)",
        "Token overlap": "k|Class|ROUGE-L mean|ROUGE-L max|5-gram J. mean|5-gram J. max",
        "Prefix debt": "Class|M|Mean debt|Median debt|Max debt",
        "Adversarial": "Gen.|Raw|Dedup|Len. OK|Screen|Med.|<0.9K|Top-up|Best rho",
        "Final": "Prompt|N|Mean spend|U_EBB|B_eff|rho",
        "Held-out validation": "Prompt|N|Mean spend|U_EBB|B_eff|rho",
        "Stress": "Prompt|N|Mean spend|U_EBB|B_eff|rho",
        "Held-out ratios": "Held-out prompt|U_EBB|rho|status|U_EBB|rho|status",
    }
    for start, form in forms.items():
        one = next(one for one in sections(out)[0] if one["title"].startswith(start))
        heads = iter(one["columns"])
        assert all(head in heads for head in form.split("|")), (start, one["columns"])
        assert one["rows"] or one["note"]
    text = " ".join(next(iter(sections(out)[0]))["lines"])
    assert "0.05 / 18 = 0.002778" in text and "search at k = 5: " in text
    tight = next(one for one in sections(out)[0] if one["title"].startswith("Supplementary"))
    assert [row[-1].partition(" / ")[2] for row in tight["rows"]].count("fail, pass") == 1


def kill_in(part: str, given: list[Any], place: Path) -> None:
    """Starts the command, and ends it by SIGKILL as soon as a part has recorded something."""
    code = [sys.executable, "-m", "nafaudit", *map(str, given)]
    work = subprocess.Popen(code, cwd=place, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            start_new_session=True)  # fmt: skip
    journal = Path(given[-1]) / part / "journal.jsonl"
    while work.poll() is None and not (journal.is_file() and journal.stat().st_size):
        time.sleep(0.02)
    assert work.poll() is None, "it ended before it could be killed"
    os.killpg(work.pid, signal.SIGKILL)
    work.wait()
    assert not (Path(given[-1]) / "index.html").exists()


def files_of(out: Path) -> dict[str, Any]:
    """The paper's files of all parts; when a trajectory was drawn is no part of them."""
    found = {}
    for path in sorted(out.glob("stage*/paper/*.json*")):
        text = re.sub(r'"timestamp": "[^"]*"', "", path.read_text())
        found[str(path.relative_to(out))] = text.replace(str(out), "OUT")
    return found


@pytest.mark.full
def test_it_resumes_after_a_kill_and_gives_the_same_page(made: tuple[Path, list[Any]]) -> None:
    place, given = made
    again = [*given[:-1], place / "killed"]
    kill_in("stage2-k3", again, place)
    done = call(*again, cwd=place)
    assert done.returncode in (0, 3), done.stderr
    assert sections(place / "killed") == sections(place / "out")


@pytest.mark.full
def test_killed_in_every_part_it_leaves_the_same_files(made: tuple[Path, list[Any]]) -> None:
    """Once in Stage 1 and once in each search, the last one included; then undisturbed."""
    place, given = made
    again = [*given[:-1], place / "often"]
    for part in ("stage1", "stage2-k3", "stage2-k5"):
        kill_in(part, again, place)
    done = call(*again, cwd=place)
    assert done.returncode in (0, 3), done.stderr
    for name in ("index.html", "paper.md", "paper.json"):
        assert (place / "often" / name).read_text() == (place / "out" / name).read_text(), name
    assert len(files_of(place / "out")) > 20
    assert files_of(place / "often") == files_of(place / "out")


def test_bad_input_is_said_before_a_model_loads(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = call("paper", "run", "--data", "empty", cwd=tmp_path)
    assert done.returncode == 2 and "copybench_attack_train.jsonl" in done.stderr
    done = call("paper", "run", "--k", "0", cwd=tmp_path)
    assert done.returncode == 2 and "above 0" in done.stderr
    done = call("paper", "run", "--k", "abc", cwd=tmp_path)
    assert done.returncode == 2 and "k must be numbers above 0, as 3,5, got 'abc'" in done.stderr


def test_the_labs_search_keeps_budgets_above_its_debts() -> None:
    """At its T of 8 a k of 1 or 3 is below the debts, so that no row would be valid."""
    for k in (None, (1.0,), (3.0, 5.0)):
        found = stage2_options(PaperRunSettings(k=k))
        assert [one["k"] for one in found] == [(16.0,), (25.0,)]
    both = PaperRunSettings(k=(3.0,), max_new_tokens=200)
    assert [one["k"] for one in stage2_options(both)] == [(3.0,)]
    assert stage1_options(PaperRunSettings(k=(1.0,)))[0]["k"] == (1.0,)


def test_a_search_without_a_valid_row_says_why() -> None:
    invalid = [{"id": str(i), "invalid": "nonpositive_effective_budget_min"} for i in range(8)]
    found = SearchFile(outcome="INCONCLUSIVE", k=1.0, paper={"pools": {"heldout": invalid}})
    assert "8 of 8 held-out prompts are invalid" in found.overall.why
    assert "too little" not in found.overall.why


def test_the_headline_names_every_part() -> None:
    parts = (Overall("WITHIN", "none of 48", 0), Overall("INCONCLUSIVE", "no prompt", 3))
    first, second = (SimpleNamespace(overall=one, search={"k": 16}) for one in parts)
    said = WholePaper(cast(Any, first), (cast(Any, second),)).overall
    assert str(said) == "INCONCLUSIVE: search at k = 16: no prompt; besides, Stage 1 WITHIN"
    assert said.exit_status == 3
