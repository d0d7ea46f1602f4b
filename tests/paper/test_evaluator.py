from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.core.draws import trajectory_seeds
from nafaudit.core.errors import InputError
from nafaudit.core.finding import CheckWord
from nafaudit.paper import defects
from nafaudit.paper.evaluator import (
    UNREADY,
    Fixes,
    Prediction,
    ProxyRule,
    choose_topups,
    hard_size,
    hardness,
    hardness_path,
    promotion,
    survivor_path,
)
from nafaudit.paper.proxy import (
    DELTA,
    Draw,
    PaperRequest,
    PromptSpends,
    ProxyRow,
    generalisation_gap,
)
from tests.conftest import golden

LOG = math.log(2 / DELTA)
SATURATED = Prediction(0.999, 5e-4, 0.36)


def table(name: str) -> list[dict[str, str]]:
    rows = golden(name)
    assert rows
    return rows


def four(mean: float, upper: float) -> tuple[float, ...]:
    """Four spends with this mean and this U_EBB: mean, mean and one on either side."""
    spread = (upper - mean) / (math.sqrt(LOG / 12) + 0.75 * LOG)
    return (mean - spread / 2, mean, mean, mean + spread / 2)


def lookup(spends: Mapping[str, Callable[[int], tuple[float, float]]]) -> Draw:
    """Draws that depend on the seed alone: equal seeds give equal trajectories."""

    def draw(requests: Sequence[PaperRequest]) -> list[PromptSpends]:
        found = []
        for request in requests:
            pairs = [spends[request.id](seed) for seed in request.seeds]
            spent, granted = zip(*pairs, strict=True)
            found.append(PromptSpends(request.id, spent, granted, request.seeds))
        return found

    return draw


def heldout(k: int) -> tuple[list[str], Draw]:
    """The paper's held-out pool: printed rows where N = 4, the rest as the table implies it.

    Rows at N = 20 do not print their floor; theirs passes the survivor test with a larger ratio
    than the rows that stayed at 4, which is what their being topped up says.
    """
    spends: dict[str, Callable[[int], tuple[float, float]]] = {}
    for row in table(f"h2_heldout_k{k}"):
        name, budget, n = row["id"], float(row["B_eff"]), int(row["N"])
        first = trajectory_seeds(name, 4)
        upper = float(row["U_EBB"]) if n == 4 else 0.5 * (budget or 990.0)
        values = four(float(row["mean_spend"]), upper)

        def one(
            seed: int,
            values: tuple[float, ...] = values,
            first: list[int] = first,
            budget: float = budget,
            n: int = n,
        ) -> tuple[float, float]:
            if seed in first:
                # The invalid row of k = 3 has an early end among its first four.
                early = n == 4 and budget == 0 and seed == first[0]
                return values[first.index(seed)], -1.0 if early else (budget or 992.0)
            return values[1] + (seed % 7), budget - 1.0 if budget == 0 and seed % 5 == 0 else 990.0

        spends[name] = one
    return list(spends), lookup(spends)


@pytest.mark.parametrize(("k", "fraction"), [(3, 0.5), (3, 0.75), (5, 0.75)])
def test_the_held_out_tables_are_allocated_as_printed(k: int, fraction: float) -> None:
    ids, draw = heldout(k)
    rule = ProxyRule(high=200.0 * k, fraction=fraction)
    rows = survivor_path(ids, 20, draw, rule, [SATURATED] * len(ids))
    for row, printed in zip(rows, table(f"h2_heldout_k{k}"), strict=True):
        assert row.n == int(printed["N"])
        assert row.valid == (printed["status"] == "valid")
        if row.n == 4:
            assert row.upper == pytest.approx(float(printed["U_EBB"]), abs=0.01)
            assert row.moments.mean == pytest.approx(float(printed["mean_spend"]), abs=0.01)
        if row.n == 4 and row.valid:
            assert row.rho == pytest.approx(float(printed["rho"]), abs=5e-4)
    if k == 3:
        found = defects.frozen_at_floor(rows, rule)
        assert (found.verdict, found.value) == (CheckWord.SUSPECT, 3)
        assert defects.invalid_as_zero(rows).value == 1


def test_the_k5_table_needs_a_fraction_of_three_quarters() -> None:
    ids, draw = heldout(5)
    rows = survivor_path(ids, 20, draw, ProxyRule(high=1000.0), [SATURATED] * len(ids))
    assert [row.n for row in rows].count(20) == 4
    assert sum(int(row["N"]) == 20 for row in table("h2_heldout_k5")) == 6


def test_every_topped_up_row_counts_one_trajectory_twice() -> None:
    found: dict[tuple[int, str], PromptSpends] = {}
    for k in (3, 5):
        ids, draw = heldout(k)
        rule = ProxyRule(high=200.0 * k, fraction=0.75)
        rows = survivor_path(ids, 20, draw, rule, [SATURATED] * len(ids))
        found |= {(k, row.id): row.draws for row in rows}
        finding = defects.duplicate_seeds(rows)
        assert finding.verdict == CheckWord.SUSPECT
        assert finding.value == sum(row.n == 20 for row in rows)
    for row in table("repo_seed_collisions"):
        draws = found[int(row["k"]), row["id"]]
        assert len(draws.seeds) == int(row["N"])
        assert len(set(draws.seeds)) == int(row["unique_spends"])
        assert draws.repeated_seeds == int(row["duplicated"])


@given(st.text(min_size=1, max_size=12), st.integers(2, 9), st.integers(1, 16))
def test_top_up_seeds_collide_exactly_when_the_floor_is_no_multiple_of_three(
    name: str, floor: int, more: int
) -> None:
    seeds = PaperRequest(name, floor).seeds + PaperRequest(name, more, floor).seeds
    repeated = len(seeds) - len(set(seeds))
    # i + i mod 3 jumps over 1 and comes back to it later only where floor is 1 or 2 modulo 3.
    assert (repeated > 0) == (floor % 3 != 0)


def test_hardness_of_the_logged_surrogates_collapses_to_the_floor() -> None:
    for row in table("repo_generation_log"):
        for safe in ("safe_mean_min", "safe_mean_max"):
            said = Prediction(
                float(row[safe]), float(row["safe_sigma_mean"]), float(row["margin_mean"])
            )
            assert hardness(said) < 0.004
            assert {hard_size(said, n) for n in (10, 16, 20, 30)} == {4}
    assert hard_size(UNREADY, 30) == 13
    assert [next(h for h in range(1000) if round((n - 4) * h / 1000) >= 1) / 1000
            for n in (10, 16, 20, 30)] == [0.084, 0.042, 0.032, 0.02]  # fmt: skip


def test_final_and_stress_pools_end_at_four_and_say_so() -> None:
    rows = table("h2_final_k3") + [r for r in table("h2_stress") if r["k"] == "3"][2:]
    spends = {row["id"]: four(float(row["mean_spend"]), float(row["U_EBB"])) for row in rows}
    budgets = {row["id"]: float(row["B_eff"]) for row in rows}

    def draw(requests: Sequence[PaperRequest]) -> list[PromptSpends]:
        assert all(request.n == 4 for request in requests)
        return [PromptSpends(r.id, spends[r.id], (budgets[r.id],) * 4, r.seeds) for r in requests]

    rule = ProxyRule(high=600.0)
    for nominal in (20, 30):
        found = hardness_path(list(spends), nominal, draw, rule, [SATURATED] * len(spends))
        for row, printed in zip(found, rows, strict=True):
            assert row.n == int(printed["N"]) == 4
            assert row.rho == pytest.approx(float(printed["rho"]), abs=6e-4)
            assert row.certified
        assert defects.allocation_collapsed(found, nominal, rule).verdict == CheckWord.SUSPECT
    assert defects.reused_draws(found, found).value == 4 * len(found)


def test_the_generalisation_gap_with_and_without_the_invalid_row() -> None:
    expected = {3: (0.0026, -0.107), 5: (0.4113, 0.370)}
    for k, (paper, valid) in expected.items():

        def ratios(name: str) -> list[float]:
            return [
                float(r["U_EBB"]) / float(r["B_eff"]) if r["rho"] else math.nan
                for r in table(name)
            ]  # fmt: skip

        gap = generalisation_gap(ratios(f"h2_final_k{k}"), ratios(f"h2_heldout_k{k}"))
        released = next(r for r in table("repo_final_report") if r["k"] == str(k))
        assert gap.paper == pytest.approx(float(released["heldout_generalization_gap"]), abs=5e-5)
        assert gap.paper == pytest.approx(paper, abs=1e-4)
        assert gap.valid == pytest.approx(valid, abs=6e-4)
        assert gap.invalid == 1
    assert math.isnan(generalisation_gap([], [0.5]).paper)


def test_the_projection_of_the_flagged_rows() -> None:
    spread = {row["id"]: float(row["range"]) for row in table("bernstein_blowup_eq")}
    printed = {row["id"]: row for row in table("h2_heldout_k3")}
    for row in table("minN_projection"):
        held = printed[row["id"]]
        mean, upper, r = float(held["mean_spend"]), float(held["U_EBB"]), spread[row["id"]]
        # Mean, U_EBB and range give the variance; two inner spends give it back.
        variance = (upper - mean - 0.75 * r * LOG) ** 2 * 2 / LOG
        inner = math.sqrt(max(0.0, (3 * variance - r * r / 2) / 2))
        spends = (mean - r / 2, mean - inner, mean + inner, mean + r / 2)
        made = ProxyRow(PromptSpends(row["id"], spends, (float(held["B_eff"]),) * 4), 600.0)
        assert made.upper == pytest.approx(upper, abs=0.05)
        assert made.projected(4) == pytest.approx(made.upper)
        # Ranges are printed to a tenth: 3 R l / N moves by half of one.
        assert made.projected(20) == pytest.approx(float(row["U_proj_N20"]), abs=0.6)
        assert made.projected(20) < made.budget < made.upper


def test_released_archive_rows_have_the_ratios_they_say() -> None:
    for row in table("repo_archive_top"):
        assert float(row["U_EBB"]) / float(row["B_eff"]) == pytest.approx(
            float(row["rho"]), abs=1e-12
        )


def row_of(*spends: float, budget: float = 594.0, high: float = 600.0) -> ProxyRow:
    return ProxyRow(PromptSpends("p", spends, (budget,) * len(spends)), high)


def test_an_invalid_row_has_no_ratio_and_the_paper_stores_zero() -> None:
    early = ProxyRow(PromptSpends("p", (0.0, 190.0), (-1.6, 594.0)), 600.0)
    assert math.isnan(early.rho)
    assert early.stored_rho == 0.0
    assert early.invalid_reason == "nonpositive_effective_budget_min"
    assert not early.certified
    assert early.overspent == 0
    assert promotion(early, SATURATED) == 0.0
    assert row_of(1.0, math.nan).invalid_reason == "nonfinite_u_ebb"
    assert row_of(1.0, budget=math.nan).invalid_reason == "nonfinite_effective_budget_min"
    assert row_of(700.0, 1.0).overspent == 1


def test_the_published_constants_of_promotion_and_hardness() -> None:
    row = row_of(100.0, 110.0, 120.0, 130.0)
    said = Prediction(0.8, 0.1, -0.5)
    assert promotion(row, said) == pytest.approx(0.45 * row.rho + 0.16 + 0.02 - 0.075)
    assert promotion(row_of(1e6, 0.0), said) == pytest.approx(0.9 + 0.16 + 0.02 - 0.075)
    assert hardness(said) == pytest.approx(0.05 + 0.35 * 0.4 + 0.075)
    assert hardness(Prediction(0.5, 9.0, -9.0)) == 1.0
    assert Prediction(math.nan, math.inf, -math.inf).finite == Prediction(0.5, 1.0, 0.0)


@given(
    st.lists(st.tuples(st.floats(0, 600), st.floats(1, 200)), min_size=1, max_size=12),
    st.sampled_from([0.5, 0.75]),
    st.sampled_from(["code", "text"]),
)
def test_choosing_agrees_with_a_slow_twin(
    pool: list[tuple[float, float]], fraction: float, rounding: str
) -> None:
    rule = ProxyRule(
        high=600.0, fraction=fraction, rounding="text" if rounding == "text" else "code"
    )
    rows = [row_of(m, m, m + r, m, budget=594.0) for m, r in pool]
    said = [SATURATED] * len(rows)
    left = [i for i, row in enumerate(rows) if row.upper <= 1.10 * row.budget] or [
        *range(len(rows))
    ]
    share = fraction * len(rows)
    count = max(1, math.ceil(share) if rounding == "text" else round(share))
    expected: list[int] = []
    while left and len(expected) < count:
        best = max(left, key=lambda i: (promotion(rows[i], SATURATED), -i))
        left.remove(best)
        expected.append(best)
    assert choose_topups(rows, said, rule) == expected


def test_ceil_and_round_differ_where_a_half_is_even() -> None:
    assert ProxyRule(high=600.0).topups(5) == 2
    assert ProxyRule(high=600.0, rounding="text").topups(5) == 3
    assert ProxyRule(high=600.0).topups(1) == 1


def test_without_a_surrogate_everybody_gets_the_nominal_number() -> None:
    ids, draw = heldout(3)
    assert [r.n for r in survivor_path(ids, 12, draw, ProxyRule(high=600.0))] == [12] * 8
    assert [r.n for r in hardness_path(ids, 12, draw, ProxyRule(high=600.0))] == [12] * 8
    assert [r.n for r in survivor_path(ids, 3, draw, ProxyRule(high=600.0), [UNREADY] * 8)] == [
        3
    ] * 8


def test_hard_prompts_get_more_and_keep_their_place() -> None:
    ids, draw = heldout(3)
    said = [UNREADY if i % 2 else SATURATED for i in range(8)]
    rows = hardness_path(ids, 20, draw, ProxyRule(high=600.0), said)
    assert [row.id for row in rows] == ids
    assert all(row.n == 4 for row in rows[::2])
    assert {row.n for row in rows[1::2]} <= {4, hard_size(UNREADY, 20)}
    assert any(row.n > 4 for row in rows)


def test_the_papers_own_fix_ends_the_small_n_failure() -> None:
    ids, draw = heldout(3)
    fixed = ProxyRule(high=600.0, fixes=Fixes.parse("min-n"))
    rows = survivor_path(ids, 20, draw, fixed, [SATURATED] * 8)
    assert all(row.n == 20 for row in rows if row.valid and row.rho > 0.9)
    assert defects.frozen_at_floor(rows, fixed).verdict == CheckWord.FINE
    flagged = [row for row in rows if row.id.endswith(("13.04", "13.08", "13.12"))]
    assert all(row.n == 20 and row.certified for row in flagged)
    # An invalid prompt cannot become valid, and stays where it was.
    assert next(row for row in rows if not row.valid).n == 4
    assert all(row.width > 0 for row in rows)
    with pytest.raises(InputError, match="did you mean 'min-n'"):
        Fixes.parse("min_n")
    every = Fixes.parse("min-n, width,reff,delta")
    assert every == Fixes(min_n=True, width=True, reff=True, delta=True)
    assert [text.split(":")[0] for text in every.words] == ["min-n", "width", "reff", "delta"]
    assert Fixes.parse("") == Fixes()


@pytest.mark.parametrize("path", [survivor_path, hardness_path])
def test_the_fix_never_draws_a_seed_twice_and_the_paper_does(
    path: Callable[..., list[ProxyRow]],
) -> None:
    ids, draw = heldout(3)
    said = [UNREADY if i % 2 else SATURATED for i in range(8)]
    for rule in (ProxyRule(high=600.0), ProxyRule(high=600.0, fixes=Fixes(min_n=True))):
        first = path(ids, 10, draw, rule, said)
        more = path(ids, 16, draw, rule, said, 10, [row.n for row in first])
        both = [one.draws + other.draws for one, other in zip(first, more, strict=True)]
        fresh = [one.repeated_seeds == 0 for one in both]
        assert all(fresh) == rule.fixes.min_n
        assert rule.fixes.min_n or path(ids, 16, draw, rule, said, 10) == more


def test_bad_rules_and_draws_are_refused() -> None:
    for bad in ({"fraction": 0.0}, {"floor": 0}, {"slack": 0.0}):
        with pytest.raises(InputError):
            ProxyRule(high=600.0, **bad)
    with pytest.raises(InputError, match="as many spends"):
        PromptSpends("p", (1.0,), ())
    with pytest.raises(InputError, match="cannot join"):
        PromptSpends("p", (1.0,), (1.0,)) + PromptSpends("q", (1.0,), (1.0,))
    with pytest.raises(InputError, match="seeds for"):
        PromptSpends("p", (1.0,), (1.0,), (1, 2))


def test_delta_is_shared_by_all_looks_at_a_prompt() -> None:
    """Every U_EBB has the level delta over the looks that the allocation may take at it."""
    assert [Fixes.parse(text).looks for text in ("delta", "delta,min-n")] == [8, 12]
    assert Fixes.parse("min-n").level(DELTA) == DELTA
    ids, draw = heldout(3)
    plain = ProxyRule(high=600.0)
    fixed = ProxyRule(high=600.0, delta=Fixes.parse("delta").level(DELTA))
    both = [survivor_path(ids, 20, draw, rule, [SATURATED] * 8) for rule in (plain, fixed)]
    for one, other in zip(*both, strict=True):
        assert other.delta == DELTA / 8
        again = ProxyRow(other.draws, 600.0, DELTA / 8)
        assert other.upper == again.upper > ProxyRow(other.draws, 600.0).upper
        assert one.n >= other.n
        # A stricter level: the same few trajectories give a larger ratio.
        assert other.n != one.n or not one.valid or other.rho > one.rho


def test_more_trajectories_are_projected_as_printed() -> None:
    """The paper's own counterfactual and its term, from rows with its numbers."""
    ids, draw = heldout(3)
    rows = {
        row.id: row for row in survivor_path(ids, 20, draw, ProxyRule(high=600.0), [SATURATED] * 8)
    }
    for printed in table("minN_projection"):
        row = next(row for name, row in rows.items() if printed[next(iter(printed))] in name)
        assert row.n == 4
        assert row.deterministic(4) == pytest.approx(3 * row.reach * LOG / 4)
        assert row.deterministic(20) == pytest.approx(row.deterministic(4) / 5)
        assert row.projected(4) == pytest.approx(row.upper)
        assert row.projected(20) < row.budget < row.upper
