"""What the text quotes of the final and stress pools, and of the gap to the held-out one."""

from __future__ import annotations

from nafaudit.report.paper.interval import Interval, average, interval, largest
from nafaudit.report.paper.quantities.registry import quantity
from nafaudit.report.paper.quantities.rows import ratios_of, valid
from nafaudit.report.paper.source import Paper


def _gap(paper: Paper, k: int, *, invalid_as_zero: bool) -> Interval:
    held = ratios_of(paper, "heldout", k)
    if invalid_as_zero:
        held += [interval(0)] * (len(paper.rows("stage2", pool="heldout", k=k)) - len(held))
    return average(ratios_of(paper, "final", k)) - average(held)


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
    return average(ratios_of(paper, "heldout", 3)) / average(ratios_of(paper, "final", 3)) - 1


@quantity
def largest_final_k3(paper: Paper) -> Interval:
    """The largest final ratio at k = 3."""
    return largest(ratios_of(paper, "final", 3))


@quantity
def largest_final_k5(paper: Paper) -> Interval:
    """The largest final ratio at k = 5."""
    return largest(ratios_of(paper, "final", 5))


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
    return largest(ratios_of(paper, "stress", 3) + ratios_of(paper, "stress", 5))


@quantity
def largest_final(paper: Paper) -> Interval:
    """The largest final ratio."""
    return largest(ratios_of(paper, "final", 3) + ratios_of(paper, "final", 5))


@quantity
def strongest_final_is_a_seed(paper: Paper) -> float:
    """One if the strongest final prompt at k = 3 is a seed."""
    best = max(valid(paper, "final", 3), key=lambda pair: pair[1].middle)
    return float(best[0]["id"].startswith("init_"))


def _seeds_in_final(paper: Paper, k: int) -> int:
    return sum(row["id"].startswith("init_") for row in paper.rows("stage2", pool="final", k=k))


@quantity
def seeds_in_final_k3(paper: Paper) -> float:
    """The number of final rows at k = 3 that are seeds."""
    return _seeds_in_final(paper, 3)


@quantity
def seeds_in_final_k5(paper: Paper) -> float:
    """The number of final rows at k = 5 that are seeds."""
    return _seeds_in_final(paper, 5)


@quantity
def change_of_final_mean(paper: Paper) -> Interval:
    """The average final ratio at k = 5 minus that at k = 3."""
    return average(ratios_of(paper, "final", 5)) - average(ratios_of(paper, "final", 3))


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
                most = interval(paper.budget(k)) - row.number("mean")
                fitting += row.number("B").low <= most.high
    return fitting


@quantity
def smallest_N(paper: Paper) -> float:  # noqa: N802 - the paper's letter
    """The smallest N of any row."""
    return min(row.count("N") for row in paper.rows("stage2"))


@quantity
def factor_of_budget_final(paper: Paper) -> Interval:
    """The average B_eff of the final pool at k = 5 over that at k = 3."""
    means = [
        average(r.number("B") for r in paper.rows("stage2", pool="final", k=k)) for k in (3, 5)
    ]
    return means[1] / means[0]
