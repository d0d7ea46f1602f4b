"""The paper's tables and equations, cell by cell, each with the value that its inputs give.

A cell that nothing printed or released can test is listed with what it would need: a recomputation
that is silent about such cells would claim too much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

from nafaudit.paper.claims import (
    PASS_MARKS,
    Cell,
    Claim,
    Unchecked,
    count_behind,
    debt,
    deterministic,
    largest_spend,
    possible_range,
    possible_variance,
    projected,
    range_behind,
    rho,
    stage1_u,
    variance_behind,
)
from nafaudit.paper.printed import Paper, PrintedRow, Rounded, corners, exact

_TRAJECTORIES = (
    "needs the spends of single trajectories: the released logs of these are pointers to files "
    "that are not there, and the released summaries do not hold them"
)
_TEXTS = "needs the generated texts and the references, which are not released"
_PROMPTS = "needs the prompts and both models"
_RANGE = "the exact value needs the observed range, which is not printed"
_VARIANCE = "the exact value needs the variance, which is not printed in the second stage"

_released = partial(Claim, released=True)


def stage1_cells(paper: Paper) -> Iterator[Cell]:
    """Yields Tables h1-k1, h1-k3 and h1-k5: mean, variance and both bounds of every class."""
    delta, range_r = paper.delta(), exact(paper.range_R)
    for row in paper.rows("stage1"):
        which = {"k": row["k"], "class": row["class"]}
        where = f"Table h1-k{row['k']}, {row['class']}"
        budget, tight = paper.budget(row.count("k")), range_behind(row, delta)
        upper, below = f"{where}, U_EBB (R)", f"{where}, U_EBB (R_eff)"

        # M is ten times the class cap where the paper says so: not in its table for k = 1.
        if row["k"] == "1":
            says, expected = "the M that U_EBB (R) implies", count_behind(row, range_r, delta)
        else:
            says = "class cap times trajectories per prompt"
            expected = exact(paper.executions(row["class"]))
        # A count is exact: one execution too few is one too few.
        counted = exact(row.count("M"))
        yield Claim("trajectories per prompt", f"{where}, M", row["M"], says, counted, expected)

        computed, says = stage1_u(row, range_r, delta), "U_EBB of mean, variance, M and R"
        yield Claim("U_EBB (R)", upper, row["U_R"], says, row.number("U_R"), computed)

        # R_eff is not printed, so the cell is checked by the range that it implies.
        spread = 2 * math.sqrt(row.number("var").low * (row.count("M") - 1) / row.count("M"))
        possible = Rounded(spread, max(spread, min(budget, paper.range_R)))
        says = "the range it implies (possible: 2 s to K)"
        yield Claim("U_EBB (R_eff)", below, row["U_Reff"], says, possible, tight)
        yield Unchecked(f"{below}, exact", row["U_Reff"], _RANGE)

        for column, name in (("R", "R"), ("Reff", "R_eff")):
            if mark := row[f"pass_{column}"]:
                place, ratio = f"{where}, pass ({name})", row.number(f"U_{column}") / budget
                says = f"U_EBB ({name}) / K"
                yield Claim("pass marks at k = 1", place, mark, says, PASS_MARKS[mark], ratio)

        for other in paper.rows("released_summary", **which):
            names = {"mean": "mean spend", "var": "variance", "U_R": "U_EBB (R)"}
            for column, name in names.items():
                found = (row.number(column), exact(float(other[column])))
                place, point = f"{where}, {name}", f"{name} as released"
                yield _released(point, place, row[column], "the released value", *found)

        # What the authors' later table of regimes says of the same trajectories.
        regimes = paper.rows("released_regime", **which)
        for other in regimes:
            if row["k"] == "1":
                found = (row.number("mean"), other.number("mean"))
                place, point = f"{where}, mean spend", "mean spend as released"
                yield _released(point, place, row["mean"], "the released value", *found)
            # Spends are at least 0, so no range exceeds the largest of them.
            least, excess = Rounded(-math.inf, 0.0), tight - other.number("Z_max")
            says = "the implied range minus the released largest spend"
            yield _released("U_EBB (R_eff)", below, row["U_Reff"], says, least, excess)
        if row["k"] == "1":
            if not regimes:
                yield Unchecked(f"{where}, mean spend", row["mean"], _TRAJECTORIES)
            yield Unchecked(f"{where}, variance", row["var"], _TRAJECTORIES)


def stage2_cells(paper: Paper) -> Iterator[Cell]:
    """Yields Tables h2-heldout, h2-final and h2-stress: the ratio of every prompt, and the rest."""
    first: dict[str, PrintedRow] = {}
    for row in paper.rows("stage2"):
        pool, k, stress = row["pool"], row["k"], row["pool"] == "stress"
        where = f"Table h2-{pool}, k = {k}" if stress else f"Table h2-{pool}-k{k}"
        where = f"{where}, {row['id']}"

        ratio = rho(row)
        if ratio is None or row["rho"] == "invalid":
            says = "B_eff, which is 0 for an invalid row"
            yield Claim("validity", f"{where}, rho", row["rho"], says, exact(0), row.number("B"))
        else:
            found = (row.number("rho"), ratio)
            yield Claim("rho", f"{where}, rho", row["rho"], "U_EBB / B_eff", *found)

        # The variance is not printed, so U_EBB is checked by the spends that it makes possible.
        spend = largest_spend(row, possible_range(row, paper.delta_stage2))
        allowed = Rounded(0.0, paper.budget(row.count("k")))
        says = "the largest spend that mean, U_EBB and N imply (possible: up to K)"
        yield Claim("U_EBB of single prompts", f"{where}, U_EBB", row["U"], says, allowed, spend)
        yield Unchecked(f"{where}, U_EBB, exact", row["U"], _VARIANCE)
        yield Unchecked(f"{where}, mean spend", row["mean"], _TRAJECTORIES)

        if pool == "heldout":
            logged = paper.row("released_distinct", k=k, id=row["id"]).count("N")
            found = (exact(row.count("N")), exact(logged))
            yield _released("N as released", f"{where}, N", row["N"], "the released N", *found)
        else:
            yield Unchecked(f"{where}, N", row["N"], _TRAJECTORIES)

        if row["rho"] == "invalid":
            continue
        earlier = first.setdefault(row["id"], row)
        if earlier is not row:
            says = f"K - B_eff less the {debt(paper, earlier)} of another table"
            found = (exact(0), debt(paper, row) - debt(paper, earlier))
            yield Claim("one debt per prompt", f"{where}, B_eff", row["B"], says, *found)
        for other in paper.rows("released_archive", k=k, id=row["id"]):
            found = (row.number("B"), exact(float(other["B"])))
            says, place = "the archived B_eff", f"{where}, B_eff"
            yield _released("B_eff as released", place, row["B"], says, *found)


def overlap_cells(paper: Paper) -> Iterator[Cell]:
    """Yields Tables h1-overlap and prefix-debt, as far as printed or released numbers go."""
    names = {"rouge_mean": "ROUGE-L mean", "rouge_max": "ROUGE-L max",
             "jaccard_mean": "5-gram mean", "jaccard_max": "5-gram max"}  # fmt: skip
    for row in paper.rows("overlap"):
        known: dict[str, float] = {}
        for other in paper.rows("released_regime", **{"k": row["k"], "class": row["class"]}):
            known["rouge_mean"] = float(other["rouge_mean"])
        if row["k"] == "3":
            other = paper.row("released_overlap", **{"class": row["class"]})
            known |= {column: float(other[column]) for column in ("rouge_mean", "jaccard_mean")}
        for column, name in names.items():
            where = f"Table h1-overlap, k = {row['k']}, {row['class']}, {name}"
            if column in known:
                found = (row.number(column), exact(known[column]))
                says, point = "the released value", "overlap as released"
                yield _released(point, where, row[column], says, *found)
            else:
                yield Unchecked(where, row[column], _TEXTS)
    for row in paper.rows("debt"):
        where, expected = f"Table prefix-debt, {row['class']}", paper.executions(row["class"])
        says, counted = "class cap times trajectories per prompt", exact(row.count("M"))
        point = "trajectories per prompt"
        yield Claim(point, f"{where}, M", row["M"], says, counted, exact(expected))
        for column in ("mean", "median", "max"):
            # The largest debt of all is that of an archived prompt, which was released.
            if (row["class"], column) != ("attack_train", "max"):
                yield Unchecked(f"{where}, {column}", row[column], _PROMPTS)


def search_cells(paper: Paper) -> Iterator[Cell]:
    """Yields Tables h2-search-k3 and -k5: a funnel whose every stage limits the next."""
    names = {"raw": "Raw", "dedup": "Dedup", "length_ok": "Len. OK", "screened": "Screen",
             "medium": "Med.", "under_09": "< 0.9", "topped_up": "Top-up"}  # fmt: skip
    raw = paper.setting("calls") * paper.setting("per_call")
    raw += paper.setting("crossover_calls") * paper.setting("per_crossover")
    for row in paper.rows("search"):
        where = f"Table h2-search-k{row['k']}, generation {row['generation']}"
        counts = {column: row.count(column) for column in names}
        stages = (("length_ok", "screened"), ("screened", "medium"), ("under_09", "topped_up"))
        kept = {b: min(counts[a], paper.setting(f"keep_{b}")) for a, b in stages}
        limits = {
            "raw": ("candidates asked for", exact(raw)),
            "dedup": ("at most Raw", Rounded(0, counts["raw"])),
            "length_ok": ("at most Dedup", Rounded(0, counts["dedup"])),
            "screened": ("the cap or what is left", exact(kept["screened"])),
            "medium": ("the cap or what is left", exact(kept["medium"])),
            "under_09": ("at most Med.", Rounded(0, counts["medium"])),
            "topped_up": ("at most the cap or what is left", Rounded(0, kept["topped_up"])),
        }
        logged = paper.row("released_generations", k=row["k"], generation=row["generation"])
        for column, (says, limit) in limits.items():
            place, found = f"{where}, {names[column]}", exact(counts[column])
            yield Claim("search funnel", place, row[column], says, found, limit)
            other = exact(logged.count(column))
            yield _released("search log", place, row[column], "the released count", found, other)
        place, best = f"{where}, Best rho", exact(float(logged["best_rho"]))
        found = row.number("best_rho")
        yield _released("search log", place, row["best_rho"], "the released value", found, best)


def proxy_cells(paper: Paper) -> Iterator[Cell]:
    """Yields Equation bernstein-blowup and Tables bernstein-vs-N and minN-projection."""
    delta, says = paper.delta_stage2, "3 R_eff ln(2/delta) / N"
    for row in paper.rows("blowup"):
        name, observed = row["id"], paper.row("stage2", pool="heldout", k=3, id=row["id"])
        n, range_, term = observed.count("N"), row.number("range"), row.number("term")
        where, computed = f"Equation bernstein-blowup, {name}", deterministic(range_, n, delta)
        yield Claim("blow-up equation", where, row["term"], says, term, computed)
        implied = corners(
            lambda upper, mean, r, n=n: variance_behind(upper, mean, r, n, delta),
            *((observed.number("U"), 1), (observed.number("mean"), -1), (range_, -1)),
        )
        possible = possible_variance(range_, n)
        what = f"the variance implied with U_EBB (possible: {possible})"
        where, point = f"Proxy artifacts (2), range of {name}", "ranges of the flagged prompts"
        yield Claim(point, where, row["range"], what, possible, implied)
    for row in paper.rows("bernstein"):
        n = row.count("N")
        for size in (column for column in row.cells if column != "N"):
            where, term = f"Table bernstein-vs-N, N = {n}, R_eff = {size}", row.number(size)
            computed = deterministic(exact(float(size)), n, delta)
            yield Claim("Table bernstein-vs-N", where, row[size], says, term, computed)
    for row in paper.rows("projection"):
        observed = paper.row("stage2", pool="heldout", k=3, id=row["id"])
        range_ = paper.row("blowup", id=row["id"]).number("range")
        n, budget = int(paper.setting("heldout_trajectories")), observed.number("B")
        upper, before = projected(observed, range_, n, delta), observed.number("U") / budget
        printed = "U_EBB / B_eff of Table h2-heldout-k3"
        marks = (PASS_MARKS[row["status_4"]], PASS_MARKS[row["status_20"]])
        cells = (
            ("U_4", "U_EBB in Table h2-heldout-k3", row.number("U_4"), observed.number("U")),
            ("rho_4", printed, row.number("rho_4"), before),
            ("status_4", printed, marks[0], before),
            ("U_20", "U_EBB with mean, variance and range of N = 4", row.number("U_20"), upper),
            ("rho_20", "projected U_EBB / B_eff", row.number("rho_20"), upper / budget),
            ("status_20", "projected U_EBB / B_eff", marks[1], upper / budget),
        )
        for column, what, allowed, computed in cells:
            where = f"Table minN-projection, {row['id']}, {column.replace('_', ' at N = ')}"
            yield Claim("minimum-N projection", where, row[column], what, allowed, computed)


# In the order of the paper.
TABLES: tuple[Callable[[Paper], Iterator[Cell]], ...] = (
    stage1_cells,
    stage2_cells,
    overlap_cells,
    search_cells,
    proxy_cells,
)
