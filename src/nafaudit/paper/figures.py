"""The paper's figures: its four, drawn from its printed numbers, and three of them for runs.

Runs and logs with held-out prompts get the figures of ratio and spend, a run of the paper's search
also that of the deterministic term.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nafaudit.core.trajectory import Arm
from nafaudit.measures.audit import AuditResult
from nafaudit.paper.checklist import PromptRatio, ratios
from nafaudit.paper.claims import deterministic, largest_spend, possible_range
from nafaudit.paper.printed import Paper, PrintedRow, exact, load
from nafaudit.paper.quantities import flagged, range_of, valid
from nafaudit.stats.moments import ebb_range_term
from nafaudit.views.figures import RunFigure
from nafaudit.views.figures.style import (
    BLUE,
    GREEN,
    GREY,
    HATCHES,
    MARKERS,
    PAGE,
    PALETTE,
    VERMILION,
    canvas,
    count_ticks,
    finite,
    left_out,
    legend,
    looks,
    nat_ticks,
    plain,
    save,
    style,
)

# Beginnings of a held-out prompt's id or class.
_HELDOUT_PREFIXES = ("heldout", "held-out", "held_out")
# A prompt is flagged if its ratio rho is above this.
_FLAG_ABOVE = 1.0
_MOST_ROWS = 16
# Upper end, in nats, of the axis of `draw_effective_range`; the bars end below it.
_TOP_OF_SCALE = 260


def draw_heldout(paper: Paper) -> Figure:
    """Draws held-out rho against N, at both budgets."""
    figure, axes = canvas()
    for k, colour, marker in ((3, VERMILION, "s"), (5, BLUE, "o")):
        pairs = valid(paper, "heldout", k)
        # Points of one N stand side by side, in the order of the table.
        shift = np.linspace(-0.6, 0.6, len(pairs))
        sizes = [row.count("N") + float(d) for (row, _), d in zip(pairs, shift, strict=True)]
        ratios_of_k = [ratio.middle for _, ratio in pairs]
        label = f"k = {k} (K = {paper.budget(k):.0f})"
        axes.plot(sizes, ratios_of_k, linestyle="", marker=marker, color=colour, label=label)
    axes.axhline(_FLAG_ABOVE, color=GREY, linestyle="--", linewidth=1, marker="")
    axes.set(xlabel="realised N", ylabel=r"$\rho$ = U / B", xticks=[4, 20], ylim=(0, 1.6))
    axes.set_title("Held-out ratio against N (an invalid prompt has no ratio)")
    axes.legend(loc="upper right")
    return figure


def draw_spend(paper: Paper) -> Figure:
    """Draws where the spends of flagged and unflagged held-out prompts must lie, at k = 3."""
    figure, axes = canvas(height=3.4)
    marked = {row["id"] for row in flagged(paper)}
    rows = sorted(
        (row for row, _ in valid(paper, "heldout", 3)), key=lambda row: row["id"] not in marked
    )
    for place, row in enumerate(rows):
        is_flagged = row["id"] in marked
        colour, marker = (VERMILION, "s") if is_flagged else (BLUE, "o")
        low, high = _spends(paper, row, is_flagged=is_flagged)
        axes.plot([low, high], [place, place], color=colour, marker="|", linewidth=3, alpha=0.6)
        axes.plot(row.number("mean").middle, place, color=colour, marker=marker)
    names = [f"{row['id'].removeprefix('heldout_bookmia.')}  (N = {row['N']})" for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    budget = paper.budget(3)
    axes.axvline(budget, color=GREY, linestyle="--", linewidth=1, marker="")
    axes.set(
        xlabel="spend in nats: mean, and where every trajectory must lie", xlim=(0, 1.05 * budget)
    )
    axes.set_title("Flagged (squares) and other held-out prompts; dashed: K")
    return figure


def draw_bernstein(paper: Paper) -> Figure:
    """Draws the deterministic term against N, with the printed table beside the formula."""
    figure, axes = canvas()
    delta = paper.delta_stage2
    sizes = range(2, 41)
    rows = paper.rows("bernstein")
    ranges = [column for column in rows[0].cells if column != "N"]
    for range_, colour, marker in zip(ranges, PALETTE, MARKERS, strict=False):
        term = [deterministic(exact(float(range_)), n, delta).middle for n in sizes]
        axes.plot(sizes, term, color=colour, marker="", label=f"R_eff = {range_}")
        printed = [row.number(range_).middle for row in rows]
        axes.plot([r.count("N") for r in rows], printed, color=colour, linestyle="", marker=marker)
    axes.axvspan(3.5, 4.5, color="#EEEEEE")
    # The three flagged prompts' B lie within 2 nats; the second's is the middle one.
    budget = flagged(paper)[1].number("B").middle
    axes.axhline(budget, color=GREY, linestyle="--", linewidth=1, marker="")
    axes.set(xlabel="N", ylabel="3 R_eff ln(2/δ) / N, nats", ylim=(0, 1500), xlim=(2, 40))
    axes.set_title("Deterministic term, formula and printed; dashed: B")
    axes.legend()
    return figure


def draw_effective_range(paper: Paper) -> Figure:
    """Draws U_EBB of every class under R and R_eff, at the paper's three budgets."""
    figure = Figure(figsize=(PAGE, 3.0))
    panels = figure.subplots(1, 3, sharey=True)
    for axes, k in zip(panels, (1, 3, 5), strict=True):
        _bars(axes, paper.rows("stage1", k=k))
        budget = paper.budget(k)
        axes.set_title(
            f"k = {k}, K = {budget:.0f}" + ("" if budget < _TOP_OF_SCALE else " (off scale)")
        )
        if budget < _TOP_OF_SCALE:
            axes.axhline(budget, color=GREY, linestyle="--", linewidth=1, marker="")
    panels[0].set_ylabel("U_EBB, nats")
    panels[0].set_ylim(0, _TOP_OF_SCALE)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


FIGURES: dict[str, Callable[[Paper], Figure]] = {
    "heldout": draw_heldout,
    "spend": draw_spend,
    "bernstein": draw_bernstein,
    "effective-range": draw_effective_range,
}


def draw(out: Path, paper: Paper | None = None) -> list[Path]:
    """Writes the paper's four figures as SVG and PDF, and returns their paths."""
    with style():
        source = paper or load()
        return [p for name, figure in FIGURES.items() for p in save(figure(source), out / name)]


def _spends(paper: Paper, row: PrintedRow, *, is_flagged: bool) -> tuple[float, float]:
    """Returns the lowest and highest spend that are possible by a row's mean and range."""
    delta = paper.delta_stage2
    range_ = range_of(paper, row) if is_flagged else possible_range(row, delta)
    n, mean = row.count("N"), row.number("mean")
    return max(0.0, (mean - range_ * ((n - 1) / n)).low), largest_spend(row, range_).high


def _bars(axes: Axes, rows: list[PrintedRow]) -> None:
    places = np.arange(len(rows))
    for shift, column, colour, hatch, label in (
        (-0.2, "U_R", VERMILION, HATCHES[1], "R = T ln|V|"),
        (0.2, "U_Reff", GREEN, HATCHES[0], "R_eff (observed range)"),
    ):
        heights = [row.number(column).middle for row in rows]
        axes.bar(
            places + shift, heights, 0.4, color=colour, hatch=hatch, edgecolor="white", label=label
        )
    for place, row in zip(places, rows, strict=True):
        saved = row.number("U_R").middle - row.number("U_Reff").middle
        height = row.number("U_R").middle
        # The budget's line may pass behind the number.
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        text = f"-{saved:.0f}"
        axes.text(float(place), height + 4, text, ha="center", fontsize=7, bbox=box)
    axes.set_xticks(places, [row["class"] for row in rows], rotation=40, ha="right")


def draw_run_heldout(result: AuditResult) -> Figure:
    """Draws the ratio rho = U_EBB / B of every held-out prompt against its N."""
    figure, axes = canvas()
    rows = _valid(result)
    arms = {(row.mechanism, row.k) for row in rows}
    shown = [look for look in looks(result) if (look.arm.mechanism, look.arm.k) in arms]
    shifts = np.linspace(-0.15, 0.15, len(shown)) if len(shown) > 1 else [0.0]
    for shift, look in zip(shifts, shown, strict=True):
        of_arm = [r for r in rows if (r.mechanism, r.k) == (look.arm.mechanism, look.arm.k)]
        sizes = [row.n + float(shift) for row in of_arm]
        axes.plot(sizes, [row.rho for row in of_arm], linestyle="", color=look.colour,
                  marker=look.marker, label=look.label)  # fmt: skip
    axes.axhline(_FLAG_ABOVE, color=GREY, linestyle="--", linewidth=1, marker="")
    axes.set(xlabel="trajectories N of the prompt", ylabel="rho = U_EBB / B")
    axes.set_ylim(0, 1.08 * max(_FLAG_ABOVE, *(row.rho for row in rows)))
    missing = len(_heldout(result)) - len(rows)
    lost = f"; {missing} without a valid ratio" if missing else ""
    axes.set_title(f"Held-out ratio against N{lost}{left_out(result)}")
    legend(figure, axes)
    return figure


def draw_run_flagged(result: AuditResult) -> Figure:
    """Draws spends of held-out prompts with rho above 1, and of the others, prompt by prompt."""
    rows = sorted(_valid(result), key=lambda row: -row.rho)[:_MOST_ROWS]
    figure, axes = canvas(PAGE, 0.22 * len(rows) + 1.2)
    for place, row in enumerate(rows):
        over = row.rho > _FLAG_ABOVE
        colour, marker = (VERMILION, "s") if over else (BLUE, "o")
        spends = finite(
            [
                one.spend
                for one in result.rows.of_arm(Arm(row.mechanism, row.k))
                if one.key.prompt == row.prompt
            ]
        )
        axes.plot(spends, [place] * len(spends), linestyle="", color=colour, marker=marker,
                  markersize=4, markerfacecolor="none")  # fmt: skip
        axes.plot([row.budget], [place], color=GREY, marker="|", markersize=9)
    names = [f"{plain(row.prompt, 30)}, k = {row.k:g}, rho = {row.rho:.2f}" for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.set(xlabel="spend of each trajectory, nats (grey bar: the budget B)", xlim=(0, None))
    axes.set_title("Flagged (squares, rho > 1) and other held-out prompts")
    return figure


def draw_run_term(result: AuditResult) -> Figure:
    """Draws the deterministic term against N for R_eff of held-out prompts, at the search's delta.

    Marks are the search's own numbers of trajectories; the dashed line is the smallest B_eff.
    """
    paper = (result.search or {})["paper"]
    table, pool = paper["deterministic_term"], paper["pools"]["heldout"]
    figure, axes = canvas()
    counts = [row["N"] for row in table["rows"]]
    sizes = np.unique(np.geomspace(2, max(40, *counts), 80).round().astype(int))
    # Prompts of equal range have one line.
    firsts = {f"{float(one):.3g}": i for i, one in reversed([*enumerate(table["R_eff"])])}
    for i in sorted(firsts.values()):
        range_ = float(table["R_eff"][i])
        colour, marker = PALETTE[i], MARKERS[i]
        term = [ebb_range_term(range_, int(n), table["delta"]) for n in sizes]
        axes.plot(sizes, term, color=colour, marker="", label=f"R_eff = {range_:.3g}")
        axes.plot(counts, [float(row["term"][i]) for row in table["rows"]], color=colour,
                  linestyle="", marker=marker, markerfacecolor="none")  # fmt: skip
    if budgets := [b for b in finite([float(row["B_eff"]) for row in pool]) if b > 0]:
        axes.axhline(min(budgets), color=GREY, linestyle="--", linewidth=1, marker="")
    axes.set(xscale="log", yscale="log", xlabel="trajectories N")
    count_ticks(axes, int(max(sizes)))
    nat_ticks(axes)
    axes.set_ylabel("3 R_eff ln(2/δ) / N, nats")
    axes.set_title(f"Deterministic term at δ = {table['delta']:.2g}; dashed: the smallest B_eff")
    legend(figure, axes)
    return figure


def lacks_term(result: AuditResult) -> str:
    """Says why the term of a search cannot be drawn; empty if it can."""
    found = (result.search or {}).get("paper", {}).get("deterministic_term", {})
    return "" if found.get("R_eff") else "no held-out prompt of a paper search"


def lacks_heldout(result: AuditResult) -> str:
    """Says why held-out figures cannot be drawn; empty if they can."""
    if not _heldout(result):
        return "no held-out prompts; a search, or an imported Stage 2 log, has them"
    return "" if _valid(result) else "no held-out prompt has a valid ratio"


HELDOUT_FIGURES = (
    RunFigure("heldout", "held-out ratio rho against N", draw_run_heldout, lacks_heldout),
    RunFigure(
        "flagged-spend",
        "spends of flagged and other held-out prompts",
        draw_run_flagged,
        lacks_heldout,
    ),
)


TERM_FIGURE = RunFigure(
    "deterministic-term", "the deterministic term of U_EBB against N", draw_run_term, lacks_term
)
"""The paper's figure of its search; `views.figures` has the one of a run's classes."""


def _heldout(result: AuditResult) -> list[PromptRatio]:
    return [
        row
        for row in ratios(result)
        if row.prompt.lower().startswith(_HELDOUT_PREFIXES)
        or result.context.label(row.prompt).lower().startswith(_HELDOUT_PREFIXES)
    ]


def _valid(result: AuditResult) -> list[PromptRatio]:
    return [row for row in _heldout(result) if finite([row.rho])]
