"""Each of the paper's defects fires where it is, and only there."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.core.finding import CheckWord
from nafaudit.paper import defects
from nafaudit.paper.evaluator import Prediction, ProxyRule, exploit, prescreen, quotas
from nafaudit.paper.proxy import (
    PromptSpends,
    ProxyItem,
    ProxyRow,
    final_pool,
    nearest_distances,
    paper_lineage,
    paper_parents,
    pareto_front,
    stress_pool,
    validate,
)
from nafaudit.search.candidate import Candidate
from tests.conftest import golden

RULE = ProxyRule(high=600.0)


def row(name: str, *spends: float, budget: float = 594.0, seeds: tuple[int, ...] = ()) -> ProxyRow:
    return ProxyRow(PromptSpends(name, spends, (budget,) * len(spends), seeds), 600.0)


def logged() -> list[Prediction]:
    return [
        Prediction(float(r["safe_mean_min"]), float(r["safe_sigma_mean"]), float(r["margin_mean"]))
        for r in golden("repo_generation_log")
    ]


def test_the_logged_surrogate_is_saturated_and_its_labels_are_one_class() -> None:
    assert defects.surrogate_saturated(logged()).verdict == CheckWord.SUSPECT
    useful = [Prediction(0.2, 0.1, 0.0), Prediction(0.9, 0.1, 0.0)]
    assert defects.surrogate_saturated(useful).verdict == CheckWord.FINE
    unsure = [Prediction(0.99, 0.3, 0.0)] * 3
    assert defects.surrogate_saturated(unsure).verdict == CheckWord.FINE
    for r in golden("repo_generation_log"):
        safe = round(float(r["safe_rate"]) * int(r["surr_rows"]))
        labels = [True] * safe + [False] * (int(r["surr_rows"]) - safe)
        assert defects.one_class_labels(labels).verdict == CheckWord.SUSPECT
    assert defects.one_class_labels([True, False]).verdict == CheckWord.FINE
    assert defects.one_class_labels([]).verdict == CheckWord.UNKNOWN


def test_dropping_and_reuse_are_counted() -> None:
    wide, narrow = row("w", 10.0, 300.0, 200.0, 150.0), row("n", 190.0, 191.0, 190.0, 190.0)
    found = defects.uncertified_dropped([wide, row("i", 0.0, 0.0, budget=-1.0)], 96)
    assert (found.verdict, found.value) == (CheckWord.SUSPECT, 2)
    assert found.numbers["worst"] == wide.rho > 1
    assert found.numbers["invalid"] == 1
    assert defects.uncertified_dropped([], 96).verdict == CheckWord.FINE
    assert defects.allocation_collapsed([narrow], 20, RULE).verdict == CheckWord.SUSPECT
    assert defects.allocation_collapsed([narrow], 4, RULE).verdict == CheckWord.FINE
    spent = row("s", 10.0, 700.0, 200.0, 150.0)
    assert defects.frozen_at_floor([wide], RULE).verdict == CheckWord.SUSPECT
    assert defects.frozen_at_floor([spent, narrow], RULE).verdict == CheckWord.FINE
    first, again = row("a", 1.0, 2.0, seeds=(1, 2)), row("a", 2.0, 3.0, seeds=(2, 3))
    assert defects.reused_draws([first], [again]).value == 1
    assert defects.reused_draws([first], [row("b", 2.0, seeds=(2,))]).verdict == CheckWord.FINE
    assert defects.shared_ids([("a", "x"), ("a", "y"), ("b", "x")]).value == 1
    assert defects.shared_ids([("a", "x"), ("a", "x")]).verdict == CheckWord.FINE
    assert found.check == "uncertified-dropped"


def test_quotas_of_the_pre_screen_never_reach_the_decoder() -> None:
    assert quotas(48) == (29, 10, 9)
    chance = np.random.default_rng(3)
    safe, spread, margin = chance.random(60), chance.random(60), chance.normal(0.36, 0.08, 60)
    said = [
        Prediction(0.995 + 0.004 * a, 1e-3 * b, c)
        for a, b, c in zip(safe.tolist(), spread.tolist(), margin.tolist(), strict=True)
    ]
    screened = prescreen(said, 60)
    assert len(screened.kept) == 48
    assert sorted((*screened.kept, *screened.rest)) == list(range(60))
    top = sorted(range(60), key=lambda i: -exploit(said[i]))[:24]
    assert list(screened.kept[:24]) == top
    assert defects.quotas_unused(screened, 24).verdict == CheckWord.SUSPECT
    assert defects.quotas_unused(screened, 48).verdict == CheckWord.FINE
    # It keeps prompts with a large predicted margin, that is a small predicted ratio.
    kept = np.mean([said[i].margin for i in screened.kept[:24]])
    assert kept > np.mean([one.margin for one in said]) + 0.03


def test_a_pre_screen_without_a_surrogate_keeps_the_first() -> None:
    screened = prescreen(None, 5, 3)
    assert (screened.kept, screened.rest) == ((0, 1, 2), (3, 4))
    assert prescreen([], 0).kept == ()


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=12))
def test_the_front_agrees_with_its_definition(points: list[tuple[int, int]]) -> None:
    beaten = [any(a >= x and b >= y and (a, b) != (x, y) for a, b in points) for x, y in points]
    front = pareto_front([float(a) for a, _ in points], [float(b) for _, b in points])
    assert sorted(front) == [i for i, lost in enumerate(beaten) if not lost]


def item(
    name: str, rho: float, lineage: str = "", generation: int = 0, text: str = ""
) -> ProxyItem:
    # Two equal spends have R_eff = 1, so the ratio is set by the budget.
    made = row(name, 100.0, 100.0)
    budget = made.upper / rho
    candidate = Candidate(name, text or name, lineage=lineage, generation=generation)
    return ProxyItem(candidate, row(name, 100.0, 100.0, budget=budget))


def test_distances_and_the_final_pool() -> None:
    points = np.array([[0.0, 0.0], [3.0, 4.0], [3.0, 5.0]])
    assert nearest_distances(points) == pytest.approx([5.0, 1.0, 1.0])
    assert nearest_distances(points[:1]).tolist() == [math.inf]
    items = [item("far", 0.5), item("best", 0.9), item("beaten", 0.8), item("over", 1.2)]
    spots = np.array([[9.0], [1.0], [0.0], [5.0]])
    assert [i.candidate.id for i in final_pool(items, spots)] == ["best", "far"]
    assert [i.candidate.id for i in stress_pool(items, 2)] == ["best", "beaten"]
    assert final_pool([item("over", 1.2)], spots[:1]) == []


def test_a_family_is_thrown_out_until_nobody_fails_and_all_of_it_is_kept_on_record() -> None:
    items = [item("a", 0.9, "f"), item("b", 0.5, "f"), item("c", 0.7, "g"), item("d", 0.6, "h")]

    def evaluate(pool: str, members: list[ProxyItem]) -> list[ProxyRow]:
        bad = {"final": "a", "stress": "c"}[pool]
        return [row(m.candidate.id, 1.0, 900.0 if m.candidate.id == bad else 1.0) for m in members]

    def embed(members: list[ProxyItem]) -> np.ndarray:
        return np.arange(len(members), dtype=float)[:, None]

    found = validate(items, items, embed, evaluate)  # type: ignore[arg-type]
    assert [r.failed for r in found.rounds] == [("a", "c"), ()]
    assert sorted(i.candidate.id for i in found.disqualified) == ["a", "b", "c"]
    assert [r.id for r in found.rounds[-1].final] == ["d"]
    assert len(validate(items, items, embed, evaluate, rounds=1).rounds) == 1  # type: ignore[arg-type]


def test_families_and_parents_are_the_papers() -> None:
    archive = [item("a", 0.9, "f", 1, "one two three four five"), item("b", 0.2, "g", 1, "other")]
    assert paper_lineage(["f"], "", archive) == "f"
    assert paper_lineage(["g", "f", "g"], "", archive) == "x_f_g"
    assert paper_lineage([], "zero one two three four", archive) == "f"
    assert paper_lineage([], "nothing alike", archive) == "f"
    assert paper_lineage([], "x", []) == ""
    history = [*archive, item("old", 0.95, "g", 0)]
    # g's old best is beyond its last three generations once it has four.
    assert [i.candidate.id for i in paper_parents(archive, history)] == ["a", "b"]
    later = [item(f"g{n}", 0.1, "g", n) for n in (2, 3, 4)]
    later += [item(f"h{n}", 0.8, "h", n) for n in (2, 3, 4)]
    assert [i.candidate.id for i in paper_parents(archive, [*history, *later])] == ["a"]
    assert paper_parents([], history) == []


def test_every_defect_has_its_name_and_its_row_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "search.md").read_text()
    looks = [name for name, one in vars(defects).items() if _is_look(name, one)]
    assert len(looks) == 10
    assert all(f"| `{name.replace('_', '-')}` |" in page for name in looks)


def _is_look(name: str, one: object) -> bool:
    said = getattr(one, "__annotations__", {}).get("return")
    return said == "Finding" and not name.startswith("_")
