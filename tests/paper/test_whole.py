"""`nafaudit paper run`: the whole paper on six small files, and again after a kill."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nafaudit.answers import search_settings
from nafaudit.core.finding import Overall
from nafaudit.paper.view import map_rows
from nafaudit.paper.whole import (
    PaperRunSettings,
    WholePaper,
    stage1_options,
    stage2_options,
    summary_document,
    write_whole_paper,
)
from nafaudit.paper.whole_view import about_pool, verdict_section, whole_sections
from nafaudit.store.artifacts import SearchFile
from nafaudit.views.audit import audit_document
from nafaudit.views.document import Section
from nafaudit.views.terminal import terminal
from tests.cli.test_schema import validated
from tests.commands import call
from tests.paper.test_search import SIZES
from tests.runs import make

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
    # Before anything is decoded, of both stages; with what the cleaning took.
    early = done.stderr.partition("trajectories,")[0]
    assert "classes with fewer prompts than the paper's" in early
    assert "pools of the search with fewer prompts than the paper's: attack_train 4 of 48" in early
    assert "1 creative record left out (not clean" in early
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
    # Items about the other stage say where they are answered; the study has one list.
    lists = sections(out)[1]
    for number in (4, 6, 7):
        assert "see the checklist of each search" in lists["stage1"][number - 1]["text"]
    for items in (lists["stage1"], *lists["stage2"]):
        other = (4, 6, 7) if items is lists["stage1"] else (2,)
        assert {items[n - 1]["answer"] for n in other} == {"not applicable"}
    assert lists["study"][:3] == lists["stage1"][:3]
    assert "search at k = 3: " in lists["study"][6]["text"] or (
        lists["study"][6]["text"] == lists["stage2"][0][6]["text"]
    )
    titles = [one["title"] for one in sections(out)[0]]
    order = ("What our own checks", "How to read it", "Results, Stage 1", "Token overlap",
             "Prefix debt", "Supplementary, Stage 1: k = 1", "Adversarial search", "Final",
             "Held-out validation", "Stress", "Held-out ratios", "The like-for-like",
             "The deterministic", "The term against N", "Named defects", "Discussion",
             "Practitioner", "Words and symbols")  # fmt: skip
    places = [next(i for i, t in enumerate(titles) if t.startswith(word)) for word in order]
    assert places == sorted(places)
    page = (out / "index.html").read_text()
    for file in ("stage1/paper/h1_summary.json", "stage2-k3/paper/final_report.json"):
        place, _, name = file.rpartition("/")
        assert (out / file).is_file() and f"{place}: " in page
        assert f'<a href="{file}">{name}</a>' in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")


def test_every_flagged_prompt_that_was_drawn_again_is_shown(made: tuple[Path, list[Any]]) -> None:
    """Those of the search too, apart: one that stays above 1 must not be left out."""
    out = made[0] / "out"
    found = {one["title"]: one for one in sections(out)[0]}
    held = found["The like-for-like run, which the paper defers"]
    rest = found.get("The same of flagged prompts of the search", {"rows": [], "note": ""})
    again, left = [], 0
    for search in sorted(out.glob("stage2-k*/search.json")):
        paper = json.loads(search.read_text())["paper"]
        again += [(r["id"], r["pool"], r["same_k"]["certified"]) for r in paper["rechecked"]]
        left += paper["not_rechecked"]
    assert again
    shown = [(row[0], row[1], row[-3] == "pass") for row in (*held["rows"], *rest["rows"])]
    assert sorted(shown) == sorted(again)
    assert {row[1] for row in held["rows"]} <= {"heldout"}
    for pool in {pool for _, pool, _ in again}:
        good = [passed for _, name, passed in again if name == pool]
        named = "held-out" if pool == "heldout" else pool
        assert f"{named} {sum(good)} of {len(good)}" in held["note"]
    assert f"{left} more were not drawn again" in held["note"] and "debts are " in held["note"]
    if not all(passed for *_, passed in again):
        assert "the budget of their shortest answer" in held["note"] + rest["note"]


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
    for symbol in ("p, p_s, p_r", "x", "k_t, a_t, Z_j", "delta_init(x)", "bound on prompts"):
        assert f"<dt>{symbol}</dt>" in page


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
        "Adversarial": "Gen.|Raw|Dedup|Len. OK|Screen|Med.|<0.9 B_eff|Top-up|Best rho",
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
    (text,) = [
        " ".join(one["lines"]) for one in sections(out)[0] if one["title"] == "How to read it"
    ]
    assert "0.05 / 18 = 0.002778" in text and "at a second one, k = 5, 8.333." in text
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


def test_k_and_T_of_the_search_follow_the_pair_and_not_the_prompts(tmp_path: Path) -> None:
    """As `search --protocol paper --data DIR` has them: T = 8 with k = 3 says nothing."""
    data = str(six_files(tmp_path / "data"))
    found = stage2_options(PaperRunSettings(data=data))
    assert [one["k"] for one in found] == [(16.0,), (25.0,)]
    given = {name: value for name, value in found[0].items() if value is not None}
    alone = search_settings(None, {"protocol": "paper", "data": data})
    assert (search_settings(None, given).k, search_settings(None, given).max_new_tokens) == (
        alone.k, alone.max_new_tokens,
    )  # fmt: skip
    other = PaperRunSettings(data=data, safe="a", risky="b")
    assert [one["k"] for one in stage2_options(other)] == [(3.0,), (5.0,)]
    # All of its prompts, as they are not the lab's.
    assert "limit" in (first := stage1_options(PaperRunSettings(data=data))[0])
    assert first["limit"] is None and first["cap"]["creative"] == 3


PAPER_SEARCH = make.HERE / "c049abe" / "paper-search"


@pytest.fixture
def stored(tmp_path: Path) -> Callable[..., WholePaper]:
    """A study of stored runs, whose search.json a test may change."""

    def study(change: Callable[[dict[str, Any]], None] = lambda data: None) -> WholePaper:
        out = tmp_path / "out"
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(make.HERE / "c049abe" / "paper", out / "stage1")
        shutil.copytree(PAPER_SEARCH, out / "stage2-k40")
        path = out / "stage2-k40" / "search.json"
        data = json.loads(path.read_text())
        # What later searches say too.
        rows = [{"N": 4, "term": [4.8, 4.8, 45.6]}]
        term = {"delta": 0.0033, "R_eff": [1.0, 1.0, 9.5], "rows": rows}
        data["paper"] |= {"delta_per_look": 0.0033, "deterministic_term": term}
        change(data)
        path.write_text(json.dumps(data))
        return WholePaper.read(out, [40.0])

    return study


def of_title(found: WholePaper, start: str) -> Section:
    return next(one for one in whole_sections(found) if one.title.startswith(start))


def test_each_budget_counts_its_own_trajectories(
    stored: Callable[..., WholePaper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flagged prompts are drawn at a second k too, which the first must not count."""
    # A small search is taken for one that could decide.
    monkeypatch.setattr("nafaudit.store.artifacts.MIN_TRAJECTORIES", 4)

    def within(data: dict[str, Any]) -> None:
        data["outcome"] = "WITHIN"

    found = stored(within)
    (result,) = found.stage2
    assert result.search is not None
    total, paper = result.search["trajectories"], result.search["paper"]
    aside = sum(row["second_k"]["N"] for row in paper["rechecked"])
    assert aside
    why = result.overall.why
    assert f"(k = 40) in {total - aside} trajectories" in why
    assert f"nor in {aside} more of flagged prompts at k = 66.67" in why
    table = of_title(found, "What our own checks").table
    assert table is not None
    cells = [[str(cell) for cell in row] for row in table.cells()]
    counts = {(row[0], row[1]): int(row[-1].split()[2]) for row in cells if "40" in str(row[:2])
              or row[0] == "its fresh draws"}  # fmt: skip
    assert counts["its fresh draws", "66.67"] == aside
    own = counts["search at k = 40", "40"] + counts["its fresh draws", "40"]
    assert own == total - aside
    assert "a second one, k = 66.67" in " ".join(of_title(found, "How to read it").lines)


def test_the_table_of_verdicts_says_what_the_headline_says(
    stored: Callable[..., WholePaper],
) -> None:
    """The records of a search are within budget while the search itself is inconclusive."""
    found = stored(lambda data: data.update(finalists=[]))
    assert str(found.stage2[0].overall.verdict) == "INCONCLUSIVE"
    for narrow in (False, True):
        section = verdict_section(found, narrow=narrow)
        assert section.table is not None
        (row,) = [row for row in section.table.cells() if row[0] == "search at k = 40"]
        assert str(row[2]) == "INCONCLUSIVE"
        assert "no prompt reached its end" in str(row[-1]) + " ".join(section.lines)
    assert "no protected passages were scored" in section.note


def test_a_column_is_headed_by_what_the_variant_tests(stored: Callable[..., WholePaper]) -> None:
    for variant, head in (("code", "<0.9 B_eff"), ("text", "<0.9K")):
        found = stored(lambda data, v=variant: data["paper"].update(variant=v))
        table = of_title(found, "Adversarial search").table
        assert table is not None and table.columns[6].head == head


def test_named_defects_are_on_the_page_on_the_terminal_and_in_check(
    stored: Callable[..., WholePaper],
) -> None:
    found = stored()
    table = of_title(found, "Named defects").table
    assert table is not None
    names = [str(row[1]) for row in table.cells()]
    assert "duplicate-seeds" in names and "reused-draws" in names
    shown = terminal(summary_document(found, []))
    checked = terminal(audit_document(found.stage2[0], "RUN"))
    for text in (shown, checked):
        assert all(name in text for name in names)


def test_an_empty_pool_is_not_told_of_as_the_held_out_pool() -> None:
    held = [{"invalid": "nonpositive_effective_budget_min" if i < 2 else ""} for i in range(8)]
    paper = {"pools": {"final": [], "stress": [], "heldout": held}, "sizes": {}}
    said = " ".join(about_pool({"paper": paper}, "final"))
    assert said.startswith("No prompt is in this pool")
    assert "2 of 8 held-out prompts have no valid ratio" in said


def pool_row(name: str, n: int = 4, variance: float = 1.0, **more: Any) -> dict[str, Any]:
    row = {"id": name, "N": n, "mean_spend": 1.0, "variance": variance, "R_eff": 1.0}
    return row | {"U_EBB": 2.0, "B_eff": 9.0, "rho": 0.2, "certified": True, "invalid": ""} | more


def test_a_pool_says_what_it_repeats_what_it_lost_and_why_it_is_small() -> None:
    lost = {"id": "c", "pool": "stress", "flagged": pool_row("c", rho=1.609)}
    paper = {
        "pools": {
            "final": [pool_row("a", variance=0.0)],
            "stress": [pool_row("a", variance=0.0), pool_row("b")],
            "heldout": [pool_row("h", 20)],
        },
        "sizes": {"final_keep": 6, "stress_keep": 4, "heldout_keep": 8, "heldout_traj": 20},
        "delta_per_look": 0.0033, "disqualified": ["c"], "rounds": 2, "rechecked": [lost],
    }  # fmt: skip
    data = {"outcome": "WITHIN", "paper": paper}
    stress = " ".join(about_pool(data, "stress"))
    assert "1 of 2 rows (a) repeat the final pool spend for spend" in stress
    assert "Not in the table: c (rho 1.609 at N = 4)" in stress and "2 rounds here" in stress
    final = " ".join(about_pool(data, "final"))
    assert "at most 6 prompts" in final and "1 prompt is such" in final
    assert "Var. 0.00 (1 row)" in final and "Not in the table" not in final
    # No surrogate was ready, so that Algorithm 1 leaves no prompt at its floor.
    assert "Every prompt has the full N = 20" in " ".join(about_pool(data, "heldout"))
    paper["pools"]["heldout"][0]["N"] = 4  # type: ignore[index]
    assert "full N" not in " ".join(about_pool(data, "heldout"))


def test_the_page_has_styles_for_paper_for_the_dark_and_for_a_phone(
    stored: Callable[..., WholePaper],
) -> None:
    found = stored()
    out = found.stage1.run.path.parent
    page = write_whole_paper(found, out)[0].read_text()
    for rule in ("@media print", "@page", "prefers-color-scheme: dark", "max-width: 45rem"):
        assert rule in page
    # The answer is coloured, and the verdicts stand before everything else.
    assert '<p class="lead' in page and page.index("What our own checks") < page.index("<nav>")
    # A grey bar is the paper's; what is ours has none.
    bars = re.findall(r'<section class="inner theirs"[^>]*>\s*<h2>([^<]*)', page)
    assert bars and all(title.startswith("The paper&#x27;s") for title in bars)
    assert "<details><summary>Checklist of Stage 1" in page


def test_files_that_the_map_names_are_written(made: tuple[Path, list[Any]]) -> None:
    """The map's OUT is the directory of `paper run`; RUN is one of the runs in it."""
    out = made[0] / "out"
    named = set()
    for row in map_rows():
        if row["command"].startswith("nafaudit paper run"):
            named |= set(re.findall(r"(?:OUT|RUN)/[\w*./-]*[\w*/]", row["where"]))
    assert any("deterministic-term" in one for one in named)
    for one in sorted(named):
        place, _, rest = one.partition("/")
        found = [*out.glob(rest), *(out.glob(f"stage*/{rest}") if place == "RUN" else ())]
        assert found or not rest, one


def test_a_directory_of_runs_names_them(made: tuple[Path, list[Any]]) -> None:
    place, _ = made
    for verb in ("check", "report", "checklist", "verify"):
        done = call(verb, "out", cwd=place)
        assert done.returncode == 2
        said = " ".join(done.stderr.split())
        assert "out/stage1, out/stage2-k3, out/stage2-k5" in said


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
