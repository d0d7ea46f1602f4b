"""A search in the report: its tables, its figure, its checklist, and parts that are missing."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nafaudit.core.errors import StoreError
from nafaudit.measures.audit import AuditResult
from nafaudit.paper.checklist import checklist_document, ratios
from nafaudit.paper.checklist_run import of_run, seeds, surrogate
from nafaudit.store.artifacts import read_search, search_file
from nafaudit.store.run import Run
from nafaudit.views.document import Table
from nafaudit.views.page import write_report
from nafaudit.views.search import progress_of, reported_search, search_view, verdict_lines
from nafaudit.workload import Prompt
from tests.commands import call
from tests.handmade import executions, make_run, plain_run
from tests.views.test_browser import INJECTIONS, opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser

USE = {"mean": 0.4, "low": 0.3, "high": 0.5}


def generation(who: str, seed: int, number: int, best: float | str) -> dict[str, Any]:
    counts = {"raw": 24, "dedup": 20, "length_ok": 18, "screened": 12, "medium": 6, "survivors": 2}
    return {"strategy": who, "seed": seed, "generation": number, **counts, "topped_up": 0,
            "best": best, "trajectories": 72 - number}  # fmt: skip


def finalist(who: str, seed: int, text: str = "Once upon a hidden time") -> dict[str, Any]:
    return {"strategy": who, "seed": seed, "rank": 1, "id": f"{who}{seed}", "text": text,
            "label": "story", "generation": 1, "operator": "splice", "lineage": "a",
            "parents": ["p1", "p2"], "promised": 0.45, "draws": 9, "fresh": 24, "unspent": 0,
            "use": USE, "worst": 0.61, "violations": 0, "rate_upper": 0.21, "spend": 31.0,
            "risky_alone": 88.0}  # fmt: skip


def found(**more: Any) -> dict[str, Any]:
    """What a search of two seeds writes."""
    whos = ("search", "random", "seeds")
    cells = [(who, seed) for seed in (0, 1) for who in whos]
    return {
        "run": "/tmp/somewhere/s1", "outcome": "WITHIN", "k": 1.0, "delta": 0.05, "looked": 90,
        "trajectories": 900, "violating_prompts": 0,
        "generations": [generation(w, s, g, 0.2 + 0.1 * g) for w, s in cells for g in (0, 1)],
        "finalists": [finalist("search", s) for s in (0, 1)],
        "controls": [finalist(w, s) for w in whos[1:] for s in (0, 1)],
        "comparisons": [{"control": w, "answer": a, "difference": 0.1, "low": -0.2, "high": "inf",
                         "search": USE, "other": USE}
                        for w, a in (("random", "not told apart"), ("seeds", "beats"))],
        "spread": {w: {"maxima": [0.41, 0.44], "range": 0.03} for w in whos},
        "heldout": {"prompts": 10, "trajectories": 40, "use": USE, "highest": 0.5, "gap": 0.12},
        "counterexamples": [], **more,
    }  # fmt: skip


GATES = {
    "mode": "auto", "embedding": "tfidf", "gates": [
        {"seed": 0, "generation": 1, "steers": False, "prompts": 40, "auc": 0.61,
         "disattenuated": 0.4, "coverage": 0.9, "reasons": ["AUC 0.61 is below 0.8"]},
        {"seed": 0, "generation": 2, "steers": True, "prompts": 120, "auc": 0.84,
         "disattenuated": 0.8, "coverage": 0.9, "reasons": []},
    ],
}  # fmt: skip
SAID = {
    "name": "openai:m", "asked": 48, "by_model": 40, "filled": 8, "calls": 6, "attempts": 9,
    "unfit": 2, "outcomes": {"complete": 5, "refused": 3, "busy": 1},
}  # fmt: skip


COPIED = {"trajectories": 187, "repeating": 3, "words": 11, "passage": "work 4", "where": None,
          "near_verbatim_recall": 0.27}  # fmt: skip
MORE = {
    "overlap": {"passages": 60, "everything": COPIED, "confirmed": {"a.1": COPIED}},
    "named": {"above": 0.5, "asked": 6, "looked": 90, "shared": ["x"], "discovered": ["x", "y"]},
    "others": [{"kind": "qa", "prompts": 6, "trajectories": 6, "use": USE, "highest": 0.4}],
}


def with_search(path: Path, data: Any) -> Run:
    run = plain_run(path)
    (path / "search.json").write_text(json.dumps(data))
    file = search_file(data)
    unseen = {"unseen": file.claimed_unseen} if file.claimed_unseen else {}
    fresh = [
        replace(one, key=one.key._replace(k=file.k))
        for name, number in (file.claimed | unseen).items()
        for n in range(number)
        for one in executions(name, n, 2, 10)[2:3]
    ]
    prompts = [Prompt(name, name) for name in (*file.claimed, *unseen)]
    if fresh:
        make_run(path / "confirm", prompts, fresh)
    return run


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    run = with_search(
        tmp_path_factory.mktemp("s") / "r", found(proposer=SAID, surrogate=GATES, **MORE)
    )
    return {path.name: path.read_text() for path in write_report(run)[1]}


def test_the_same_numbers_are_on_the_page_in_markdown_and_in_json(files: dict[str, str]) -> None:
    data = json.loads(files["report.json"])["search"]
    assert "run" not in data and "/tmp/somewhere" not in "".join(files.values())
    for shown in (files["index.html"], files["report.md"]):
        for text in ("None of 900 trajectories exceeds its budget (k = 1), over 90 prompts",
                     "Finalists on fresh draws", "30% to 50%", "not shown that the search beats it",
                     "+12.0 points", "switched off in 1: AUC 0.61 is below 0.8",
                     "8 of 48 prompts were made by the local operators", "Once upon a hidden time",
                     "no limit", "Compared with 60 protected passages", "work 4", "27%", "qa",
                     "Of 6 confirmed prompts 1 are shown to use more than 50%"):  # fmt: skip
            assert text in shown, text


def test_every_number_is_where_it_says(files: dict[str, str]) -> None:
    data = json.loads(files["report.json"])
    paths = re.findall(r'data-path="(search\.[^"]+)">([^<]*)<', files["index.html"])
    assert len(paths) > 100
    for path, shown in paths:
        value: Any = data
        for key, quoted in re.findall(r"\[&#34;(.*?)&#34;\]|([^.\[\]]+)", path):
            step = key or quoted
            value = value[int(step)] if isinstance(value, list) else value[step]
        if isinstance(value, int) and not isinstance(value, bool):
            assert shown == str(value), path
        elif isinstance(value, float) and shown.endswith("%"):
            assert float(shown[:-1]) == pytest.approx(100 * value, abs=0.51), path


def test_redaction_hides_the_finalists(tmp_path: Path) -> None:
    _, written = write_report(with_search(tmp_path / "r", found()), redact=True)
    for path in written:
        assert "Once upon a hidden time" not in path.read_text()
    assert "The text is hidden." in written[0].read_text()


def test_a_run_without_a_search_does_not_speak_of_one(tmp_path: Path) -> None:
    _, written = write_report(plain_run(tmp_path / "r"))
    page = written[0].read_text()
    for word in ('id="search"', "#search", "searchProgress", '"search":', "svg.stroke"):
        assert word not in page
    assert "search" not in json.loads(written[2].read_text())
    assert "## Search" not in written[1].read_text()


def test_a_violation_names_its_bundles_without_their_place(tmp_path: Path) -> None:
    bad = found(outcome="VIOLATED", violating_prompts=3,
                counterexamples=["/tmp/somewhere/s1/counterexamples/search-ab12"])  # fmt: skip
    _, written = write_report(with_search(tmp_path / "r", bad))
    for path in written[:2]:
        assert "3 of the 90 prompts looked at" in path.read_text()
        assert "nafaudit verify counterexamples/search-ab12" in path.read_text()


def test_progress_adds_up_what_each_search_spent() -> None:
    series = progress_of(found(generations=[
        generation("search", 0, 0, "nan"), generation("search", 0, 1, 0.3),
        generation("random", 1, 0, 0.1),
    ]))  # fmt: skip
    first, second = series
    assert [(p.generation, p.spent, p.best) for p in first.points] == [(1, 143, 0.3)]
    assert (first.confirmed, first.low, first.high) == (0.4, 0.3, 0.5)
    assert (second.strategy, second.seed) == ("random", 1)


@pytest.mark.parametrize(
    ("gates", "answer", "says"),
    [
        (None, "not applicable", "no prompt search was run"),
        ([], "not applicable", "ranked by what they spent"),
        (GATES["gates"][:1], "not applicable", "switched off (its best AUC: 0.61): AUC 0.61"),
        (GATES["gates"], "pass", "lowest AUC on prompts it never saw 0.84"),
        ([{"steers": True, "auc": 0.7, "seed": 0, "generation": 1}], "fail", "0.70"),
        ([{"steers": True}], "fail", "no AUC is recorded"),
    ],
)
def test_item_6_is_about_a_surrogate_that_steers(gates: Any, answer: str, says: str) -> None:
    item = surrogate(None if gates is None else found(surrogate={"gates": gates}))
    assert item.answer == answer and says in item.text
    assert bool(item.todo) == (answer != "pass")


@pytest.mark.parametrize(
    ("gates", "answer", "says"),
    [
        ([], "not applicable", "it has no generation"),
        ([{"steers": False, "reasons": ["6 archived"]}], "not applicable", "never ready, so that"),
        ([{"steers": True, "auc": "nan", "seed": 0, "generation": 1}], "fail", "(protocol paper)"),
    ],
)
def test_item_6_knows_that_the_papers_search_has_no_gate(
    gates: Any, answer: str, says: str
) -> None:
    item = surrogate(found(surrogate={"mode": "paper", "gates": gates}, paper={"fix": ""}))
    assert item.answer == answer and says in item.text and " gate" not in item.text
    assert ("--protocol sound" in item.todo) == (answer == "fail")


def test_item_7_counts_search_seeds_and_gives_their_spread() -> None:
    both = seeds(found())
    assert both.answer == "pass" and both.value == 2
    assert "41%, 44% (a range of 3.0 points)" in both.text
    one = seeds(
        found(generations=[generation("search", 3, 0, 0.2), generation("seeds", 4, 0, 0.2)])
    )
    assert one.answer == "fail" and "--searches 2" in one.todo
    assert seeds(None).answer == seeds({"outcome": "WITHIN"}).answer == "not applicable"


def test_the_checklist_command_answers_from_the_search(tmp_path: Path) -> None:
    with_search(tmp_path / "r", found())
    done = call("checklist", "r", cwd=tmp_path)
    assert "2 search seeds" in done.stdout and "no surrogate steers this search" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert done.stdout.startswith(
        str(checklist_document(of_run(AuditResult.of(Run(tmp_path / "r")))).answer)
    )


ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-2, 2) | st.text(max_size=6)
    | st.sampled_from(["nan", "inf", "<b>", "$x$"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from([*found(), "seed", "use", "best", "gates", "text", "<i>"]),
                      inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def thinned(value: Any, leave_out: Callable[[], bool]) -> Any:
    """Leaves out parts of objects at any depth, and puts something unknown beside the others."""
    if isinstance(value, dict):
        kept = {key: thinned(one, leave_out) for key, one in value.items() if not leave_out()}
        return kept | {"later": 1}
    return [thinned(one, leave_out) for one in value] if isinstance(value, list) else value


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_whatever_is_missing_or_unknown_is_shown_or_left_out(data: st.DataObject) -> None:
    parts = found(proposer=SAID, surrogate=GATES, **MORE)
    # Keys of these objects are names, not fields.
    maps: dict[str, Any] = {key: parts.pop(key) for key in ("spread", "overlap", "proposer")}
    chance = data.draw(st.randoms(use_true_random=False))
    whole = thinned(parts, lambda: chance.random() < 0.2)
    whole |= {key: one for key, one in maps.items() if chance.random() < 0.8}
    whole |= {"outcome": "WITHIN", "sweep": data.draw(ODD)}
    view = search_view(reported_search(whole, redact=data.draw(st.booleans())))
    assert view.word == "WITHIN" and any(t.title == "Also recorded" for t in view.tables)
    for section in view.tables:
        assert section.table is not None
        assert all(len(row) == len(section.table.columns) for row in section.table.cells())
    for one in progress_of(whole):
        assert all(math.isfinite(p.best) for p in one.points)
    assert surrogate(whole).number == 6 and seeds(whole).number == 7


@pytest.mark.parametrize(
    "content", ["[]", "{", '{"outcome": 1}', '{"outcome": "WITHIN", "k": NaN}', "[" * 9000]
)
def test_a_damaged_file_is_named(content: str, tmp_path: Path) -> None:
    run = plain_run(tmp_path / "r")
    (tmp_path / "r" / "search.json").write_text(content)
    with pytest.raises(StoreError, match=r"search\.json is not what nafaudit search wrote"):
        AuditResult.for_report(run)


def test_a_search_without_its_fresh_draws_is_inconclusive(tmp_path: Path) -> None:
    run = with_search(tmp_path / "r", found())
    assert AuditResult.of(run).overall.verdict == "WITHIN"
    (tmp_path / "r" / "confirm").rename(tmp_path / "away")
    answer = AuditResult.of(run).overall
    assert (answer.verdict, answer.exit_status) == ("INCONCLUSIVE", 3)
    assert "none of the 184 fresh trajectories that it counts are in confirm/" in answer.why
    claims = found(finalists=[finalist("search", s) | {"fresh": 30} for s in (0, 1)])
    (tmp_path / "r" / "search.json").write_text(json.dumps(claims))
    (tmp_path / "away").rename(tmp_path / "r" / "confirm")
    answer = AuditResult.of(run).overall
    assert "184 of the 196 fresh trajectories" in answer.why
    view = search_view(read_search(run) or {})
    assert view.word == "INCONCLUSIVE" and "184 of the 196" in view.text


def test_the_spread_over_one_seed_is_not_known() -> None:
    def pay(**more: Any) -> str:
        sections = search_view(found(**more)).tables
        return next(one.note for one in sections if one.title == "Did searching pay?")

    assert "search +3.0 points" in pay()
    alone = {"search": {"maxima": [0.4], "range": 0.0}}
    assert "largest less smallest: not known of one seed." in pay(spread=alone)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"finalists": []}, "WITHIN, and it has no finalist"),
        ({"finalists": [finalist("search", 0) | {"fresh": 19}]}, "has 19 fresh trajectories"),
        ({"violating_prompts": 2}, "counts violations"),
        ({"controls": [finalist("random", 0) | {"violations": 1}]}, "counts violations"),
    ],
)
def test_an_outcome_that_its_numbers_contradict_is_refused(
    change: dict[str, Any], says: str, tmp_path: Path
) -> None:
    run = with_search(tmp_path / "r", found(**change))
    with pytest.raises(StoreError, match=says):
        AuditResult.for_report(run)


@pytest.mark.full
def test_the_figure_is_drawn_and_never_changes(tmp_path: Path) -> None:
    from nafaudit.views.figures import run as drawing
    from nafaudit.views.figures.style import as_bytes, style

    report = AuditResult.of(with_search(tmp_path / "r", found()))
    with style():
        first, second = (as_bytes(drawing.progress(report), "svg") for _ in range(2))
    assert first == second and not drawing.lacks_search(report)
    bare = AuditResult.of(with_search(tmp_path / "b", {"outcome": "INCONCLUSIVE"}))
    assert drawing.lacks_search(bare) == "no generation of a search is recorded"


@pytest.mark.full
def test_the_figure_is_among_the_files(tmp_path: Path) -> None:
    _, written = write_report(with_search(tmp_path / "r", found()), figures=True)
    assert "search-progress.svg" in {path.name for path in written}
    assert "figures/search-progress.svg" in written[0].read_text()


def test_hostile_searches_stay_text(browser: Browser, tmp_path: Path) -> None:
    bad = [finalist(text, 0, text) | {"operator": text, "parents": [text]} for text in INJECTIONS]
    rows = [generation(text, 0, g, 0.2) for text in INJECTIONS for g in (0, 1)]
    data = found(
        finalists=bad, generations=rows, odd={text: [text] for text in INJECTIONS},
        comparisons=[{"control": text, "answer": text} for text in INJECTIONS],
        counterexamples=[f"x/{text}" for text in INJECTIONS],
        proposer=SAID | {"name": INJECTIONS[1]},
        surrogate={"gates": [{"steers": False, "reasons": INJECTIONS}], "mode": INJECTIONS[0]},
        outcome=INJECTIONS[0],
    )  # fmt: skip
    page_path = write_report(with_search(tmp_path / "r", data))[1][0]
    with opened(browser, page_path) as page:
        for summary in page.locator("#search details summary").all():
            summary.click()
        assert page.evaluate("window.pwned") is None
        for foreign in ("img", "iframe", "form", "base", "link", "#search script", "#search style"):
            assert page.locator(foreign).count() == 0
        assert "<script>window.pwned=1</script>" in page.locator("#search").inner_text()
        assert page.locator("#f-search svg").first.is_visible()


def test_the_progress_is_drawn_on_a_desk_and_on_a_phone(browser: Browser, tmp_path: Path) -> None:
    page_path = write_report(with_search(tmp_path / "r", found(proposer=SAID)))[1][0]
    for width in (1280, 360):
        with opened(browser, page_path, viewport={"width": width, "height": 800}) as page:
            assert page.locator("#f-search svg path.line").count() == 18
            assert page.locator("#f-search .plot-legend span").count() == 6
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width


def paper_part(**row: Any) -> dict[str, Any]:
    """What the paper's search adds: one prompt in each pool, one seed of it used twice."""
    numbers = {"N": 20, "mean_spend": 180.25, "variance": 900.5, "R_eff": 87.4, "width": 120.0,
               "U_EBB": 300.25, "B_eff": 594.0, "rho": 0.505, "certified": True,
               "invalid": ""}  # fmt: skip
    one = {"id": "heldout_p1", "generation": 0} | numbers | row
    return {"pools": {"final": [one], "stress": [one], "heldout": [one]}, "variant": "code"}


def tables_of(part: dict[str, Any]) -> dict[str, Table]:
    """The tables that a report shows of a search with this part, by title."""
    sections = search_view(found(paper=part)).tables
    return {one.title: one.table for one in sections if one.table is not None}


def test_a_paper_search_is_shown_in_the_papers_tables() -> None:
    shown = tables_of(paper_part())
    for pool in ("Final pool", "Held-out pool", "Stress pool"):
        heads = [column.head for column in shown[pool].columns]
        assert heads[1:] == ["N", "mean", "variance", "R_eff", "width", "U_EBB", "B_eff", "rho",
                             "valid", "certified"]  # fmt: skip
        cells = "20 180.25 900.50 87.40 120.00 300.25 594.00 0.505 yes yes"
        assert shown[pool].cells()[0][1:] == cells.split()
    rest = shown.get("Also recorded")
    assert rest is None or not any("paper." in str(row[0]) for row in rest.cells())


def test_a_huge_rho_says_that_the_budget_is_near_0() -> None:
    huge = paper_part(B_eff=0.0133, rho=22581.25, certified=False)
    shown = tables_of(huge)
    assert "2.26e+04, small B_eff (0.0133)" in shown["Held-out pool"].cells()[0]
    none = paper_part(B_eff=0.0, rho="nan", invalid="nonpositive_effective_budget_min")
    shown = tables_of(none)
    assert shown["Final pool"].cells()[0][-3:] == ["invalid", "no", "yes"]


def test_figure_and_checklist_have_the_n_and_rho_of_the_search(tmp_path: Path) -> None:
    """Of 20 trajectories the records hold 19: a seed was used twice."""
    run = plain_run(tmp_path / "run")
    first = next(iter(AuditResult.of(run).rows)).key.prompt
    pools = paper_part(id=first, rho=4.579)
    (run.path / "search.json").write_text(json.dumps(found(paper=pools)))
    rows = [row for row in ratios(AuditResult.for_report(run)) if row.prompt == first]
    assert {(row.n, row.rho) for row in rows} == {(20, 4.579)}


def test_what_was_drawn_at_another_budget_is_counted_apart() -> None:
    found = SimpleNamespace(
        settings=SimpleNamespace(budget=16.0), outcome="WITHIN", trajectories=2040,
        finalists=[SimpleNamespace(rate=0.48)],
    )  # fmt: skip
    (line,) = verdict_lines(cast(Any, found), second=(80 / 3, 400))
    assert "k = 16: WITHIN: 0 of 1640 trajectories exceed their budget" in line
    assert "(and 0 of 400 at k = 26.67)" in line
    (line,) = verdict_lines(cast(Any, found))
    assert "0 of 2040 trajectories" in line and "and 0 of" not in line
