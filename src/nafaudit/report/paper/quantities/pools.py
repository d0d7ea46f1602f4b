"""What the text quotes of the evaluated pools: held-out, final and stress."""

from __future__ import annotations

from nafaudit.report.paper.formulas import (
    debt,
    deterministic,
    largest_spend,
    possible_reach,
    projected,
    rho,
)
from nafaudit.report.paper.interval import Interval, average, interval, largest, magnitude, smallest
from nafaudit.report.paper.quantities.registry import quantity, released
from nafaudit.report.paper.source import Paper, Row


def valid(paper: Paper, pool: str, k: int) -> list[tuple[Row, Interval]]:
    """Rows of a pool that have a ratio, each with it."""
    pairs = [(row, rho(row)) for row in paper.rows("stage2", pool=pool, k=k)]
    return [(row, ratio) for row, ratio in pairs if ratio is not None]


def flagged(paper: Paper, k: int = 3) -> list[Row]:
    """The held-out rows with a ratio above 1 at k = 3, at either budget."""
    ids = [row["id"] for row, ratio in valid(paper, "heldout", 3) if ratio.low > 1]
    return [paper.row("stage2", pool="heldout", k=k, id=name) for name in ids]


def reach_of(paper: Paper, row: Row) -> Interval:
    """The range that the text quotes for one of the flagged prompts."""
    return paper.row("blowup", id=row["id"]).number("range")


def _ratios(paper: Paper, pool: str, k: int, n: int | None = None) -> list[Interval]:
    return [ratio for row, ratio in valid(paper, pool, k) if n in (None, row.count("N"))]


def _flagged_ratios_k5(paper: Paper) -> list[Interval]:
    return [row.number("U") / row.number("B") for row in flagged(paper, 5)]


@quantity
def heldout_prompts(paper: Paper) -> float:
    """The number of held-out rows."""
    return len(paper.rows("stage2", pool="heldout", k=3))


@quantity
def heldout_above_one(paper: Paper) -> float:
    """The number of held-out rows with U_EBB / B_eff above 1 at k = 3."""
    return len(flagged(paper))


@quantity
def heldout_above_one_beyond_floor(paper: Paper) -> float:
    """The number of held-out rows above 1 whose N is not 4."""
    return sum(row.count("N") != paper.setting("floor") for row in flagged(paper))


@quantity
def heldout_at_twenty_k5(paper: Paper) -> float:
    """The number of held-out rows with N = 20 at k = 5."""
    return sum(row.count("N") == 20 for row in paper.rows("stage2", pool="heldout", k=5))


@quantity
def heldout_at_twenty_k3(paper: Paper) -> float:
    """The number of held-out rows with N = 20 at k = 3."""
    return sum(row.count("N") == 20 for row in paper.rows("stage2", pool="heldout", k=3))


@quantity
def heldout_share_at_twenty_k5(paper: Paper) -> float:
    """The share of held-out rows with N = 20 at k = 5."""
    return heldout_at_twenty_k5(paper) / heldout_prompts(paper)


@quantity
def heldout_with_ratio_k5(paper: Paper) -> float:
    """The number of held-out rows that have a ratio at k = 5."""
    return len(valid(paper, "heldout", 5))


@quantity
def least_flagged_k5(paper: Paper) -> Interval:
    """The smallest ratio of the three flagged prompts at k = 5."""
    return smallest(_flagged_ratios_k5(paper))


@quantity
def largest_flagged_k5(paper: Paper) -> Interval:
    """The largest ratio of the three flagged prompts at k = 5."""
    return largest(_flagged_ratios_k5(paper))


@quantity
def least_heldout_k5(paper: Paper) -> Interval:
    """The smallest held-out ratio at k = 5."""
    return smallest(_ratios(paper, "heldout", 5))


@quantity
def largest_heldout_k5(paper: Paper) -> Interval:
    """The largest held-out ratio at k = 5."""
    return largest(_ratios(paper, "heldout", 5))


@quantity
def largest_heldout_k5_at_twenty(paper: Paper) -> Interval:
    """The largest held-out ratio at k = 5 with N = 20."""
    return largest(_ratios(paper, "heldout", 5, 20))


@quantity
def least_heldout_k5_at_twenty(paper: Paper) -> Interval:
    """The smallest held-out ratio at k = 5 with N = 20."""
    return smallest(_ratios(paper, "heldout", 5, 20))


def _regime_gap(paper: Paper, k: int) -> Interval:
    """Smallest ratio of the other pools minus the largest held-out one at N = 20."""
    others = _ratios(paper, "final", k) + _ratios(paper, "stress", k)
    return smallest(others) - largest(_ratios(paper, "heldout", k, 20))


@quantity
def regime_gap_k3(paper: Paper) -> Interval:
    """The smallest ratio of the other pools minus the largest held-out one at N = 20, k = 3."""
    return _regime_gap(paper, 3)


@quantity
def regime_gap_k5(paper: Paper) -> Interval:
    """The smallest ratio of the other pools minus the largest held-out one at N = 20, k = 5."""
    return _regime_gap(paper, 5)


def _changes(paper: Paper, rows: list[Row]) -> list[Interval]:
    """Relative changes of mean spend from k = 3 to 5."""
    other = [paper.row("stage2", pool="heldout", k=5, id=row["id"]) for row in rows]
    return [b.number("mean") / a.number("mean") - 1 for a, b in zip(rows, other, strict=True)]


@quantity
def largest_change_flagged(paper: Paper) -> Interval:
    """The largest relative change of mean spend of a flagged prompt from k = 3 to 5."""
    return largest(magnitude(change) for change in _changes(paper, flagged(paper)))


@quantity
def least_change_heldout(paper: Paper) -> Interval:
    """The most negative relative change of mean spend of a held-out prompt from k = 3 to 5."""
    return smallest(_changes(paper, paper.rows("stage2", pool="heldout", k=3)))


@quantity
def largest_change_heldout(paper: Paper) -> Interval:
    """The most positive relative change of mean spend of a held-out prompt from k = 3 to 5."""
    return largest(_changes(paper, paper.rows("stage2", pool="heldout", k=3)))


@quantity
def factor_of_K(paper: Paper) -> float:  # noqa: N802 - the paper's letter
    """K at k = 5 over K at k = 3."""
    return (5 * paper.setting("T_max")) / (3 * paper.setting("T_max"))


@quantity
def factor_of_budget_heldout(paper: Paper) -> Interval:
    """B_eff at k = 5 over B_eff at k = 3, the largest of the held-out rows."""
    rows = valid(paper, "heldout", 5)
    pairs = [(paper.row("stage2", pool="heldout", k=3, id=row["id"]), row) for row, _ in rows]
    return largest(new.number("B") / old.number("B") for old, new in pairs)


@quantity
def factor_of_budget_final(paper: Paper) -> Interval:
    """The average B_eff of the final pool at k = 5 over that at k = 3."""
    means = [
        average(r.number("B") for r in paper.rows("stage2", pool="final", k=k)) for k in (3, 5)
    ]
    return means[1] / means[0]


@quantity
def least_flagged_mean(paper: Paper) -> Interval:
    """The smallest mean spend of a flagged row."""
    return smallest(row.number("mean") for row in flagged(paper))


@quantity
def largest_flagged_mean(paper: Paper) -> Interval:
    """The largest mean spend of a flagged row."""
    return largest(row.number("mean") for row in flagged(paper))


@quantity
def average_flagged_mean(paper: Paper) -> Interval:
    """The average mean spend of the flagged rows."""
    return average(row.number("mean") for row in flagged(paper))


@quantity
def largest_heldout_mean(paper: Paper) -> Interval:
    """The largest mean spend of a held-out row at k = 3."""
    return largest(row.number("mean") for row in paper.rows("stage2", pool="heldout", k=3))


@quantity
def unflagged_mean(paper: Paper) -> Interval:
    """The largest average mean spend of three unflagged prompts with N = 20."""
    rows = [row for row, ratio in valid(paper, "heldout", 3) if ratio.high < 1]
    means = [row.number("mean") for row in rows if row.count("N") == 20]
    return average(sorted(means, key=lambda mean: mean.middle)[-3:])


@quantity
def average_flagged_budget(paper: Paper) -> Interval:
    """The average B_eff of the flagged rows."""
    return average(row.number("B") for row in flagged(paper))


@quantity
def average_flagged_budget_k5(paper: Paper) -> Interval:
    """The average B_eff of the flagged prompts at k = 5."""
    return average(row.number("B") for row in flagged(paper, 5))


@quantity
def least_flagged_use(paper: Paper) -> Interval:
    """The smallest mean spend over B_eff of a flagged row."""
    return smallest(row.number("mean") / row.number("B") for row in flagged(paper))


@quantity
def largest_flagged_use(paper: Paper) -> Interval:
    """The largest mean spend over B_eff of a flagged row."""
    return largest(row.number("mean") / row.number("B") for row in flagged(paper))


@quantity
def largest_heldout_spend_share(paper: Paper) -> Interval:
    """The largest spend over K that the held-out rows at k = 3 allow."""
    delta = paper.setting("delta_stage2")
    rows = [row for row, _ in valid(paper, "heldout", 3)]
    spends = [largest_spend(row, possible_reach(row, delta)).high for row in rows]
    return interval(max(spends) / (3 * paper.setting("T_max")))


@quantity
def largest_flagged_spend_share(paper: Paper) -> Interval:
    """The largest spend over K that mean and range of the flagged rows allow."""
    spends = [largest_spend(row, reach_of(paper, row)).high for row in flagged(paper)]
    return interval(max(spends) / (3 * paper.setting("T_max")))


def terms(paper: Paper, n: int) -> list[Interval]:
    """The deterministic term of each flagged prompt at some N."""
    delta = paper.setting("delta_stage2")
    return [deterministic(reach_of(paper, row), n, delta) for row in flagged(paper)]


@quantity
def least_term(paper: Paper) -> Interval:
    """The smallest deterministic term of a flagged prompt at N = 4."""
    return smallest(terms(paper, 4))


@quantity
def largest_term(paper: Paper) -> Interval:
    """The largest deterministic term of a flagged prompt at N = 4."""
    return largest(terms(paper, 4))


@quantity
def average_term(paper: Paper) -> Interval:
    """The average deterministic term of the flagged prompts at N = 4."""
    return average(terms(paper, 4))


@quantity
def average_term_at_twenty(paper: Paper) -> Interval:
    """The average deterministic term of the flagged prompts at N = 20."""
    return average(terms(paper, 20))


def _term_shares(paper: Paper) -> list[Interval]:
    budgets = [row.number("B") for row in flagged(paper)]
    return [term / b * 100 for term, b in zip(terms(paper, 4), budgets, strict=True)]


@quantity
def least_term_share(paper: Paper) -> Interval:
    """The smallest deterministic term at N = 4 in percent of B_eff."""
    return smallest(_term_shares(paper))


@quantity
def largest_term_share(paper: Paper) -> Interval:
    """The largest deterministic term at N = 4 in percent of B_eff."""
    return largest(_term_shares(paper))


@quantity
def term_for_sixty(paper: Paper) -> Interval:
    """The deterministic term at N = 4 for R_eff = 60."""
    return deterministic(interval(60), 4, paper.setting("delta_stage2"))


@quantity
def term_for_two_hundred(paper: Paper) -> Interval:
    """The deterministic term at N = 4 for R_eff = 200."""
    return deterministic(interval(200), 4, paper.setting("delta_stage2"))


@quantity
def term_at_twenty_for_two_hundred(paper: Paper) -> Interval:
    """The deterministic term at N = 20 for R_eff = 200."""
    return deterministic(interval(200), 20, paper.setting("delta_stage2"))


@quantity
def least_flagged_range(paper: Paper) -> Interval:
    """The smallest quoted range of a flagged prompt."""
    return smallest(reach_of(paper, row) for row in flagged(paper))


@quantity
def largest_flagged_range(paper: Paper) -> Interval:
    """The largest quoted range of a flagged prompt."""
    return largest(reach_of(paper, row) for row in flagged(paper))


@quantity
def largest_projected_ratio(paper: Paper) -> Interval:
    """The largest projected ratio of the flagged prompts at N = 20."""
    delta = paper.setting("delta_stage2")
    rows = flagged(paper)
    return largest(projected(r, reach_of(paper, r), 20, delta) / r.number("B") for r in rows)


@quantity
def projection_distance(paper: Paper) -> Interval:
    """The largest relative distance of a projected ratio from the one attained at k = 5."""
    attained = {row["id"]: row.number("U") / row.number("B") for row in flagged(paper, 5)}
    rows = paper.rows("projection")
    return largest(magnitude(r.number("rho_20") / attained[r["id"]] - 1) for r in rows)


@quantity
def projection_distance_of_bound(paper: Paper) -> Interval:
    """The largest relative distance of a projected U_EBB from the one attained at k = 5."""
    attained = {row["id"]: row.number("U") for row in flagged(paper, 5)}
    rows = paper.rows("projection")
    return largest(magnitude(r.number("U_20") / attained[r["id"]] - 1) for r in rows)


def _debts(paper: Paper) -> list[Interval]:
    return [debt(paper, row) for row, _ in valid(paper, "heldout", 3)]


@quantity
def least_heldout_debt(paper: Paper) -> Interval:
    """The smallest K - B_eff of a held-out row."""
    return smallest(_debts(paper))


@quantity
def least_flagged_debt(paper: Paper) -> Interval:
    """The smallest K - B_eff of a flagged row."""
    return smallest(debt(paper, row) for row in flagged(paper))


@quantity
def middle_flagged_debt(paper: Paper) -> Interval:
    """The middle K - B_eff of the flagged rows."""
    found = sorted((debt(paper, row) for row in flagged(paper)), key=lambda d: d.middle)
    return found[1]


@quantity
def largest_flagged_debt(paper: Paper) -> Interval:
    """The largest K - B_eff of a flagged row."""
    return largest(debt(paper, row) for row in flagged(paper))


def _position(paper: Paper, value: Interval) -> Interval:
    """Where a debt lies in the quoted held-out range: 0 at its start, 1 at its end."""
    low, high = (
        paper.row("settings", name=f"debt_{end}").number("printed") for end in ("low", "high")
    )
    return (value - low) / (high - low)


@quantity
def position_least_debt(paper: Paper) -> Interval:
    """The place of the smallest flagged debt in the quoted range, 0 its start and 1 its end."""
    return _position(paper, least_flagged_debt(paper))


@quantity
def position_middle_debt(paper: Paper) -> Interval:
    """The place of the middle flagged debt in the quoted range, 0 its start and 1 its end."""
    return _position(paper, middle_flagged_debt(paper))


@quantity
def position_largest_debt(paper: Paper) -> Interval:
    """The place of the largest flagged debt in the quoted range, 0 its start and 1 its end."""
    return _position(paper, largest_flagged_debt(paper))


def _gap(paper: Paper, k: int, *, invalid_as_zero: bool) -> Interval:
    held = _ratios(paper, "heldout", k)
    if invalid_as_zero:
        held += [interval(0)] * (len(paper.rows("stage2", pool="heldout", k=k)) - len(held))
    return average(_ratios(paper, "final", k)) - average(held)


@quantity
def gap_k3(paper: Paper) -> Interval:
    """Mean final minus mean held-out ratio at k = 3, the invalid row counted as 0."""
    return _gap(paper, 3, invalid_as_zero=True)


@quantity
def gap_k5(paper: Paper) -> Interval:
    """Mean final minus mean held-out ratio at k = 5, the invalid row counted as 0."""
    return _gap(paper, 5, invalid_as_zero=True)


@quantity
def gap_k3_valid(paper: Paper) -> Interval:
    """Mean final minus mean held-out ratio at k = 3 over rows that have one."""
    return _gap(paper, 3, invalid_as_zero=False)


@quantity
def gap_k5_valid(paper: Paper) -> Interval:
    """Mean final minus mean held-out ratio at k = 5 over rows that have one."""
    return _gap(paper, 5, invalid_as_zero=False)


@quantity
def relative_gap_k3(paper: Paper) -> Interval:
    """Mean held-out over mean final ratio at k = 3, minus 1, over rows that have one."""
    return average(_ratios(paper, "heldout", 3)) / average(_ratios(paper, "final", 3)) - 1


@quantity
def largest_final_k3(paper: Paper) -> Interval:
    """The largest final ratio at k = 3."""
    return largest(_ratios(paper, "final", 3))


@quantity
def largest_final_k5(paper: Paper) -> Interval:
    """The largest final ratio at k = 5."""
    return largest(_ratios(paper, "final", 5))


@quantity
def largest_final_mean_k3(paper: Paper) -> Interval:
    """The largest mean spend of the final pool at k = 3."""
    return largest(row.number("mean") for row in paper.rows("stage2", pool="final", k=3))


@quantity
def largest_final_use(paper: Paper) -> Interval:
    """The largest mean spend over B_eff of the final pools."""
    rows = paper.rows("stage2", pool="final")
    return largest(row.number("mean") / row.number("B") for row in rows)


@quantity
def final_rows_k3(paper: Paper) -> float:
    """The number of final rows at k = 3."""
    return len(paper.rows("stage2", pool="final", k=3))


@quantity
def final_rows_k5(paper: Paper) -> float:
    """The number of final rows at k = 5."""
    return len(paper.rows("stage2", pool="final", k=5))


@quantity
def stress_rows_k3(paper: Paper) -> float:
    """The number of stress rows at k = 3."""
    return len(paper.rows("stage2", pool="stress", k=3))


@quantity
def stress_rows_k5(paper: Paper) -> float:
    """The number of stress rows at k = 5."""
    return len(paper.rows("stage2", pool="stress", k=5))


@quantity
def largest_N_final(paper: Paper) -> float:  # noqa: N802 - the paper's letter
    """The largest N of a final row."""
    return max(row.count("N") for row in paper.rows("stage2", pool="final"))


@quantity
def largest_N_stress(paper: Paper) -> float:  # noqa: N802 - the paper's letter
    """The largest N of a stress row."""
    return max(row.count("N") for row in paper.rows("stage2", pool="stress"))


@quantity
def largest_stress(paper: Paper) -> Interval:
    """The largest stress ratio."""
    return largest(_ratios(paper, "stress", 3) + _ratios(paper, "stress", 5))


@quantity
def largest_final(paper: Paper) -> Interval:
    """The largest final ratio."""
    return largest(_ratios(paper, "final", 3) + _ratios(paper, "final", 5))


@quantity
def strongest_final_is_a_seed(paper: Paper) -> float:
    """One if the strongest final prompt at k = 3 is a seed."""
    best = max(valid(paper, "final", 3), key=lambda pair: pair[1].middle)
    return float(best[0]["id"].startswith("init_"))


@quantity
def change_of_final_mean(paper: Paper) -> Interval:
    """The average final ratio at k = 5 minus that at k = 3."""
    return average(_ratios(paper, "final", 5)) - average(_ratios(paper, "final", 3))


@quantity
def change_of_shared_final(paper: Paper) -> Interval:
    """The ratio at k = 5 minus that at k = 3 of the prompt in both final pools."""
    old = {row["id"]: ratio for row, ratio in valid(paper, "final", 3)}
    shared = [ratio - old[row["id"]] for row, ratio in valid(paper, "final", 5) if row["id"] in old]
    return largest(shared)


@quantity
def stress_rows_repeating_final(paper: Paper) -> float:
    """The number of prompts in both pools whose stress row repeats the final row in every digit."""
    final = {(r["k"], r["id"]): r for r in paper.rows("stage2", pool="final")}
    columns = ("N", "mean", "U", "B", "rho")
    rows = [r for r in paper.rows("stage2", pool="stress") if (r["k"], r["id"]) in final]
    return sum(all(r[c] == final[r["k"], r["id"]][c] for c in columns) for r in rows)


@quantity
def rows_where_budget_remains(paper: Paper) -> float:
    """The number of valid rows whose B_eff can be what remains after the mean spend."""
    fitting = 0
    for pool in ("heldout", "final", "stress"):
        for k in (3, 5):
            for row, _ in valid(paper, pool, k):
                # The smallest remainder is at most K less the mean spend.
                most = interval(k * paper.setting("T_max")) - row.number("mean")
                fitting += row.number("B").low <= most.high
    return fitting


@quantity
def survivors_at_floor_k5(paper: Paper) -> float:
    """The number of held-out rows left at N = 4 at k = 5 that pass the survivor test."""
    slack = paper.setting("survivor_slack")
    pairs = valid(paper, "heldout", 5)
    return sum(row.count("N") == 4 and ratio.high <= slack for row, ratio in pairs)


@quantity
def survivors_at_floor_k3(paper: Paper) -> float:
    """The number of valid held-out rows left at N = 4 at k = 3 that pass the survivor test."""
    slack = paper.setting("survivor_slack")
    pairs = valid(paper, "heldout", 3)
    return sum(row.count("N") == 4 and ratio.high <= slack for row, ratio in pairs)


@quantity
def heldout_sources(paper: Paper) -> float:
    """The number of books in the held-out identifiers."""
    rows = paper.rows("stage2", pool="heldout", k=3)
    return len({row["id"].split(".")[1] for row in rows})


@released
def fewest_distinct(paper: Paper) -> float:
    """The fewest distinct spends among the 20 of a held-out row."""
    return min(row.count("distinct") for row in paper.rows("released_distinct", N=20))


@quantity
def smallest_N(paper: Paper) -> float:  # noqa: N802 - the paper's letter
    """The smallest N of any row."""
    return min(row.count("N") for row in paper.rows("stage2"))


@quantity
def largest_N(paper: Paper) -> float:  # noqa: N802 - the paper's letter
    """The largest N of a held-out row."""
    return max(row.count("N") for row in paper.rows("stage2", pool="heldout"))


@quantity
def least_flagged_ratio(paper: Paper) -> Interval:
    """The smallest ratio of a flagged row."""
    return smallest(row.number("U") / row.number("B") for row in flagged(paper))
