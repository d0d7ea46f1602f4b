"""A study of a search, and a sweep over budgets, on a terminal."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table

from nafaudit.cli.numbers import percent
from nafaudit.cli.show_search import plain_table, points
from nafaudit.search.explore import STRATEGIES
from nafaudit.search.paired import Paired
from nafaudit.search.search import Sweep, best_of
from nafaudit.search.studies import Share
from nafaudit.search.study import Study


def study_text(study: Study, seconds: float) -> str:
    """Both experiments, at most 80 columns wide.

    Args:
        study: What was found.
        seconds: CPU seconds of this session.
    """
    found, hidden = study.found, study.hidden
    used = ", ".join(f"{who} {study.trajectories(who)}" for who in STRATEGIES)
    lines: list[str | Table] = [
        f"k = {found.settings.budget:g}, {len(found.settings.search_seeds)} search seeds\n"
        f"trajectories explored: {used}",
        _seeds(study),
        *(_paired(one) for one in study.paired),
        "",
        f"one prompt hidden among {hidden.pool}: it uses {percent(hidden.use)}, the next "
        f"{percent(hidden.next)}\n({hidden.bank} trajectories of each are their laws)",
        _hidden(study),
        "",
        f"CPU seconds of this session: {seconds:.0f}",
        f"search directory: {found.path}",
    ]
    return _printed(lines)


def _printed(lines: list[str | Table]) -> str:
    console = Console(width=80, highlight=False, color_system=None)
    with console.capture() as captured:
        for line in lines:
            console.print(line, markup=False) if isinstance(line, str) else console.print(line)
    return captured.get().rstrip()


def _seeds(study: Study) -> Table:
    """Confirmed utilisation of the first finalist of each seed."""
    seeds = study.found.settings.search_seeds
    table = plain_table(("first finalist",), [str(seed) for seed in seeds])
    for who in STRATEGIES:
        table.add_row(who, *(_short(value) for value in study.found.maxima(who)))
    return table


def _short(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.0f}%"


def _paired(one: Paired) -> str:
    low, high = one.limits
    words = {
        "beats": f"the search beats {one.control}",
        "loses": f"the search LOSES to {one.control}",
        "not told apart": f"not shown that the search beats {one.control}",
    }[one.answer]
    return (
        f"{words}: in {one.wins} of {len(one.differences)} seeds, mean {points(one.mean)},\n"
        f"  median {points(one.median)} (exact limits {points(low)} to {points(high)}, "
        f"level {one.delta:g})"
    )


def _hidden(study: Study) -> Table:
    table = plain_table(("rule",), ("trajectories", "finds it", "95 % limits"))
    rows: dict[str, Share] = {
        "the paper's, by rho": study.hidden.paper,
        "plain mean of 4": study.hidden.uniform,
        "successive halving": study.hidden.halving,
    }
    for name, share in rows.items():
        low, high = share.interval
        limits = f"{100 * low:.1f} - {100 * high:.1f} %"
        table.add_row(name, f"{share.trajectories:.0f}", f"{100 * share.rate:.1f} %", limits)
    return table


def sweep_text(sweep: Sweep) -> str:
    """One line per budget: does searching pay there?"""
    table = plain_table(("k",), (*STRATEGIES, "held out", "over random", "over seeds", "kept?"))
    for one in sweep.found:
        against = {row.control: row for row in one.comparisons}
        table.add_row(
            f"{one.settings.budget:g}",
            *(percent(best_of(one, who)) for who in STRATEGIES),
            percent(one.heldout.use.mean),
            *(_lead(against[who].difference, against[who].answer) for who in STRATEGIES[1:]),
            str(one.outcome),
        )
    return _printed(
        [
            table,
            "",
            "confirmed mean use of the first finalists; points over each control, * where the\n"
            f"limits exclude 0; level {sweep.delta:g} shared by {len(sweep.found)} budgets",
            *(f"k = {one.settings.budget:g}: {one.path}" for one in sweep.found),
        ]
    )


def _lead(difference: float, answer: str) -> str:
    mark = " " if answer == "not told apart" else "*"
    return "-" if math.isnan(difference) else f"{100 * difference:+.1f}{mark}"
