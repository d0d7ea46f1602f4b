"""Numbers in the paper's running text, as a table of expressions over its printed numbers.

A line of `data/quotes.csv` names a quantity, the budget k it is asked for, and, where a quantity
has several values, which of them is meant: the smallest, the largest, the average or their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from nafaudit.core.errors import InputError, nearest
from nafaudit.paper.claims import (
    debt,
    deterministic,
    largest_spend,
    possible_range,
    projected,
    range_behind,
    rho,
    stage1_u,
)
from nafaudit.paper.printed import Paper, PrintedRow, Rounded, average, exact, largest, smallest

Values = Rounded | float | Iterable[Rounded]

_TAKE: dict[str, Callable[[list[Rounded]], Rounded]] = {
    "smallest": smallest,
    "largest": largest,
    "average": average,
    "number": lambda values: exact(len(values)),
}
# Columns that repeat if a row of the stress pool is the row of the final pool.
_ROW = ("N", "mean", "U", "B", "rho")


@dataclass(frozen=True)
class PaperQuantity:
    """Computation of a quoted number.

    Attributes:
        says: Description within a sentence; `{k}` stands for the budget.
        compute: One value or several, from the printed numbers and k (0: k = 3 and 5 together).
        released: True if it needs numbers that were published beside the paper.
    """

    says: str
    compute: Callable[[Paper, int], Values]
    released: bool = False


@dataclass(frozen=True)
class Computed:
    """The value of a quantity.

    Attributes:
        value: All values that the rounding of the printed numbers allows.
        says: Description of the value.
        released: True if it uses released numbers.
    """

    value: Rounded
    says: str
    released: bool = False


def compute(paper: Paper, name: str, k: int = 0, take: str = "") -> Computed:
    """Returns a quantity by name.

    Args:
        paper: Its printed numbers.
        name: A key of `QUANTITIES`.
        k: Budget per token, for quantities that depend on it.
        take: `smallest`, `largest`, `average` or `number`, for quantities with several values.
    """
    if name not in QUANTITIES:
        raise InputError(f"a quote names the quantity {name!r}{nearest(name, QUANTITIES)}")
    quantity = QUANTITIES[name]
    says, found = quantity.says.format(k=k or "3 and 5"), quantity.compute(paper, k)
    if isinstance(found, Rounded | float | int):
        return Computed(exact(found), says, quantity.released)
    if take not in _TAKE:
        raise InputError(f"quantity {name!r} has several values; take one of {', '.join(_TAKE)}.")
    words = f"the {take}{' of' if take == 'number' else ''} {says}"
    return Computed(_TAKE[take](list(found)), words, quantity.released)


def stage1(paper: Paper, k: int) -> list[PrintedRow]:
    """Returns rows of the fixed workload: of one budget, or of both that the paper corrects for."""
    return paper.rows("stage1", k=k) if k else stage1(paper, 3) + stage1(paper, 5)


def valid(paper: Paper, pool: str, k: int) -> list[tuple[PrintedRow, Rounded]]:
    """Returns the rows of a pool that have a ratio, each with it."""
    pairs = [(row, rho(row)) for row in paper.rows("stage2", pool=pool, k=k)]
    return [(row, ratio) for row, ratio in pairs if ratio is not None]


def flagged(paper: Paper, k: int = 3) -> list[PrintedRow]:
    """Returns the held-out rows with a ratio above 1 at k = 3, at either budget."""
    ids = [row["id"] for row, ratio in valid(paper, "heldout", 3) if ratio.low > 1]
    return [paper.row("stage2", pool="heldout", k=k, id=name) for name in ids]


def range_of(paper: Paper, row: PrintedRow) -> Rounded:
    """Returns the range that the text quotes for a flagged prompt, else what its row allows."""
    quoted = paper.rows("blowup", id=row["id"])
    return quoted[0].number("range") if quoted else possible_range(row, paper.delta_stage2)


def gap(paper: Paper, k: int, *, invalid_as_zero: bool) -> Rounded:
    """Returns the mean final minus the mean held-out ratio, an invalid row counted or left out."""
    held = _ratios(paper, "heldout", k)
    if invalid_as_zero:
        held += [exact(0)] * (len(paper.rows("stage2", pool="heldout", k=k)) - len(held))
    return average(_ratios(paper, "final", k)) - average(held)


def _ratios(paper: Paper, pool: str, k: int, n: int = 0) -> list[Rounded]:
    return [ratio for row, ratio in valid(paper, pool, k) if n in (0, row.count("N"))]


def _shares(paper: Paper, k: int, *columns: str) -> list[Rounded]:
    rows = stage1(paper, k)
    return [row.number(c) / paper.budget(row.count("k")) for row in rows for c in columns]


def _growth(paper: Paper) -> Iterable[Rounded]:
    """Yields what 18 hypotheses instead of 12 add to each U_EBB (R) at k = 1."""
    old, new = paper.delta(), paper.delta(len(paper.rows("stage1")))
    for row in stage1(paper, 1):
        # The same row before and after: only the level differs, so rounding nearly cancels.
        before, after = (stage1_u(row, exact(paper.range_R), delta) for delta in (old, new))
        yield Rounded(after.low - before.low, after.high - before.high)


def _with_18(paper: Paper) -> Iterable[Rounded]:
    old, new = paper.delta(), paper.delta(len(paper.rows("stage1")))
    rows = stage1(paper, 1)
    return (stage1_u(row, range_behind(row, old), new) / paper.budget(1) for row in rows)


def _terms(paper: Paper, n: int) -> list[Rounded]:
    rows = flagged(paper)
    return [deterministic(range_of(paper, row), n, paper.delta_stage2) for row in rows]


def _projected(paper: Paper, row: PrintedRow) -> Rounded:
    return projected(row, range_of(paper, row), 20, paper.delta_stage2)


def _changes(paper: Paper, rows: list[PrintedRow]) -> list[Rounded]:
    """Returns relative changes of mean spend of some held-out prompts from k = 3 to 5."""
    later = [paper.row("stage2", pool="heldout", k=5, id=row["id"]) for row in rows]
    return [b.number("mean") / a.number("mean") - 1 for a, b in zip(rows, later, strict=True)]


def _unflagged_mean(paper: Paper) -> Rounded:
    rows = [row for row, ratio in valid(paper, "heldout", 3) if ratio.high < 1]
    means = [row.number("mean") for row in rows if row.count("N") == 20]
    return average(sorted(means, key=lambda mean: mean.middle)[-3:])


def _largest_spends(paper: Paper, rows: list[PrintedRow]) -> Rounded:
    most = max(largest_spend(row, range_of(paper, row)).high for row in rows)
    return exact(most / paper.budget(3))


def _remaining(paper: Paper) -> int:
    """Counts valid rows whose B_eff can be what is left after the mean spend."""
    pools = [(pool, k) for pool in ("heldout", "final", "stress") for k in (3, 5)]
    rows = [row for pool, k in pools for row, _ in valid(paper, pool, k)]
    # The smallest remainder is at most K less the mean spend.
    most = (exact(paper.budget(r.count("k"))) - r.number("mean") for r in rows)
    return sum(r.number("B").low <= m.high for r, m in zip(rows, most, strict=True))


def _repeated(paper: Paper) -> int:
    final = {(r["k"], r["id"]): r for r in paper.rows("stage2", pool="final")}
    pairs = [(r, final.get((r["k"], r["id"]))) for r in paper.rows("stage2", pool="stress")]
    return sum(f is not None and all(r[c] == f[c] for c in _ROW) for r, f in pairs)


def _archived(paper: Paper, k: int, source: str = "") -> list[Rounded]:
    rows = paper.rows("released_archive", k=k)
    return [row.number("rho") for row in rows if row["source"].startswith(source)]


def _top_archived(paper: Paper, k: int) -> int:
    rows = sorted(paper.rows("released_archive", k=k), key=lambda row: -float(row["rho"]))
    stress = {row["id"] for row in paper.rows("stage2", pool="stress", k=k)}
    return len(stress & {row["id"] for row in rows[: len(stress)]})


def _improved(paper: Paper, k: int) -> list[Rounded]:
    """Returns the generations whose best ratio differs from that of the one before."""
    pairs = pairwise(paper.rows("search", k=k))
    return [exact(b.count("generation")) for a, b in pairs if a["best_rho"] != b["best_rho"]]


def _best(paper: Paper, k: int) -> list[Rounded]:
    return [row.number("best_rho") for row in paper.rows("search", k=k)]


def _released(paper: Paper, k: int, column: str) -> float:
    # Logged to 16 digits, so its rounding is of no account.
    return float(paper.row("released_report", k=k)[column])


def _logged(paper: Paper, column: str) -> list[Rounded]:
    return [row.number(column) for row in paper.rows("released_generations")]


def _above_limit(paper: Paper) -> int:
    limit, floor = paper.setting("checklist_rho"), paper.setting("checklist_N")
    rows = [row for row in paper.rows("stage2") if row["rho"] != "invalid"]
    return sum(row.number("rho").low > limit and row.count("N") < floor for row in rows)


_Q = PaperQuantity

# fmt: off
QUANTITIES: dict[str, PaperQuantity] = {
    # The fixed workload.
    "K": _Q("K = k T at k = {k}", lambda p, k: p.budget(k)),
    "executions": _Q("class caps times trajectories per prompt, at one budget",
        lambda p, k: sum(p.executions(r["class"]) for r in p.rows("debt"))),
    "executions of both budgets": _Q("the sum of M over both tables",
        lambda p, k: sum(r.count("M") for r in stage1(p, 0))),
    "M": _Q("M of a class at k = 3 and 5",
        lambda p, k: [exact(r.count("M")) for r in stage1(p, k)]),
    "range R": _Q("R = T ln|V| with |V| = 128,256", lambda p, k: p.range_R),
    "hypotheses": _Q("classes times budgets",
        lambda p, k: len(p.rows("debt")) * p.setting("stage1_budgets")),
    "delta": _Q("the level over the number of hypotheses", lambda p, k: p.delta()),
    "delta of 18": _Q("the level over the number of rows with k = 1 included",
        lambda p, k: p.delta(len(p.rows("stage1")))),
    "means": _Q("class mean at k = {k}", lambda p, k: [r.number("mean") for r in stage1(p, k)]),
    "mean shares": _Q("class mean over K at k = {k}", lambda p, k: _shares(p, k, "mean")),
    "slack": _Q("K over the largest class mean at k = {k}",
        lambda p, k: exact(1) / largest(_shares(p, k, "mean"))),
    "proxy shares": _Q("U_EBB / K at k = {k}, under R or R_eff",
        lambda p, k: _shares(p, k, "U_R", "U_Reff")),
    "worst proxy shares": _Q("U_EBB (R) / K at k = {k}", lambda p, k: _shares(p, k, "U_R")),
    "effective proxy shares": _Q("U_EBB (R_eff) / K at k = {k}",
        lambda p, k: _shares(p, k, "U_Reff")),
    "savings": _Q("U_EBB (R) - U_EBB (R_eff) at k = {k}",
        lambda p, k: [r.number("U_R") - r.number("U_Reff") for r in stage1(p, k)]),
    "growth under R": _Q("growth of U_EBB (R) at k = 1", lambda p, k: _growth(p)),
    "effective proxy shares of 18": _Q("U_EBB (R_eff) / K at k = 1, all 18 rows corrected for",
        lambda p, k: _with_18(p)),
    "tables with R_eff": _Q("the number of first-stage tables that print R_eff",
        lambda p, k: float("R_eff" in p.rows("stage1")[0].cells)),
    "ROUGE-L": _Q("ROUGE-L maximum",
        lambda p, k: [r.number("rouge_max") for r in p.rows("overlap")]),
    "5-gram Jaccard": _Q("5-gram Jaccard maximum",
        lambda p, k: [r.number("jaccard_max") for r in p.rows("overlap")]),
    "mean ROUGE-L": _Q("class mean of ROUGE-L",
        lambda p, k: [r.number("rouge_mean") for r in p.rows("overlap")]),
    "mean 5-gram Jaccard": _Q("class mean of 5-gram Jaccard",
        lambda p, k: [r.number("jaccard_mean") for r in p.rows("overlap")]),
    "mean debts": _Q("class mean of the debt",
        lambda p, k: [r.number("mean") for r in p.rows("debt")]),
    "debts": _Q("class maximum of the debt",
        lambda p, k: [r.number("max") for r in p.rows("debt")]),
    "archived debts": _Q("debt of an archived prompt",
        lambda p, k: [r.number("debt") for r in p.rows("released_archive")], True),
    "spend of regime A": _Q("regime A's spend over K",
        lambda p, k: p.setting("spend_regime_A") / p.budget(3)),
    "used of K": _Q("the largest spend of a trajectory over its budget, test class at k = {k}",
        lambda p, k: p.row("released_regime", **{"k": k, "class": "test"})
                     .number("utilisation_max"), True),
    # The held-out pool.
    "heldout rows": _Q("the number of held-out rows",
        lambda p, k: len(p.rows("stage2", pool="heldout", k=3))),
    "flagged rows": _Q("the number of held-out rows with U_EBB / B_eff above 1 at k = 3",
        lambda p, k: len(flagged(p))),
    "flagged rows beyond the floor": _Q("the number of held-out rows above 1 whose N is not 4",
        lambda p, k: sum(r.count("N") != p.setting("floor") for r in flagged(p))),
    "heldout rows at 20": _Q("the number of held-out rows with N = 20 at k = {k}",
        lambda p, k: sum(r.count("N") == 20 for r in p.rows("stage2", pool="heldout", k=k))),
    "heldout ratios": _Q("held-out ratio at k = {k}", lambda p, k: _ratios(p, "heldout", k)),
    "heldout ratios at 20": _Q("held-out ratio at k = {k} with N = 20",
        lambda p, k: _ratios(p, "heldout", k, 20)),
    "heldout means": _Q("mean spend of a held-out row at k = {k}",
        lambda p, k: [r.number("mean") for r in p.rows("stage2", pool="heldout", k=k)]),
    "heldout debts": _Q("K - B_eff of a valid held-out row",
        lambda p, k: [debt(p, r) for r, _ in valid(p, "heldout", 3)]),
    "heldout changes": _Q("relative change of mean spend of a held-out prompt from k = 3 to 5",
        lambda p, k: _changes(p, p.rows("stage2", pool="heldout", k=3))),
    "heldout spend": _Q("the largest spend over K that the held-out rows at k = 3 allow",
        lambda p, k: _largest_spends(p, [r for r, _ in valid(p, "heldout", 3)])),
    "unflagged mean": _Q("the largest average mean spend of three unflagged prompts with N = 20",
        lambda p, k: _unflagged_mean(p)),
    "factor of K": _Q("K at k = 5 over K at k = 3", lambda p, k: p.budget(5) / p.budget(3)),
    "factor of B_eff": _Q("B_eff at k = 5 over B_eff at k = 3 of a held-out prompt",
        lambda p, k: [p.row("stage2", pool="heldout", k=5, id=r["id"]).number("B") / r.number("B")
                      for r, _ in valid(p, "heldout", 3)]),
    # The three prompts with a ratio above 1 at k = 3.
    "flagged ratios": _Q("ratio of the three flagged prompts at k = {k}",
        # A prompt that is flagged at one budget may be invalid at the other.
        lambda p, k: [ratio for r in flagged(p, k) if (ratio := rho(r)) is not None]),
    "flagged means": _Q("mean spend of a flagged row",
        lambda p, k: [r.number("mean") for r in flagged(p, k)]),
    "flagged budgets": _Q("B_eff of a flagged prompt at k = {k}",
        lambda p, k: [r.number("B") for r in flagged(p, k)]),
    "flagged use": _Q("mean spend over B_eff of a flagged row",
        lambda p, k: [r.number("mean") / r.number("B") for r in flagged(p, k)]),
    "flagged debts": _Q("K - B_eff of a flagged row",
        lambda p, k: [debt(p, r) for r in flagged(p)]),
    "flagged changes": _Q("relative change of mean spend of a flagged prompt from k = 3 to 5",
        lambda p, k: map(abs, _changes(p, flagged(p)))),
    "flagged spend": _Q("the largest spend over K that mean and range of the flagged rows allow",
        lambda p, k: _largest_spends(p, flagged(p))),
    "terms at 4": _Q("deterministic term of the flagged prompts at N = 4",
        lambda p, k: _terms(p, 4)),
    "terms at 20": _Q("deterministic term of the flagged prompts at N = 20",
        lambda p, k: _terms(p, 20)),
    "term shares": _Q("deterministic term at N = 4 in percent of B_eff",
        lambda p, k: [term / row.number("B") * 100
                      for term, row in zip(_terms(p, 4), flagged(p), strict=True)]),
    "term of 60": _Q("the deterministic term at N = 4 for R_eff = 60",
        lambda p, k: deterministic(exact(60), 4, p.delta_stage2)),
    "term of 200": _Q("the deterministic term at N = 4 for R_eff = 200",
        lambda p, k: deterministic(exact(200), 4, p.delta_stage2)),
    "projected ratios": _Q("projected ratio of a flagged prompt at N = 20",
        lambda p, k: [_projected(p, r) / r.number("B") for r in flagged(p)]),
    "share of the term in the fall": _Q(
        "share of the deterministic term in a projected fall of U_EBB",
        lambda p, k: [(a - b) / (r.number("U") - _projected(p, r))
                      for r, a, b in zip(flagged(p), _terms(p, 4), _terms(p, 20), strict=True)]),
    # The other pools.
    "final ratios": _Q("final ratio at k = {k}", lambda p, k: _ratios(p, "final", k)),
    "stress ratios": _Q("stress ratio at k = {k}", lambda p, k: _ratios(p, "stress", k)),
    "N of the other pools": _Q("N of a final or stress row",
        lambda p, k: [exact(r.count("N")) for r in p.rows("stage2") if r["pool"] != "heldout"]),
    "repeated rows": _Q("the number of stress rows that repeat the final row in every digit",
        lambda p, k: _repeated(p)),
    "rows with B_eff left": _Q(
        "the number of valid rows whose B_eff can be what remains after the mean spend",
        lambda p, k: _remaining(p)),
    "gap": _Q("mean final minus mean held-out ratio at k = {k}",
        lambda p, k: gap(p, k, invalid_as_zero=False)),
    "released gap": _Q("the released gap at k = {k}", lambda p, k: _released(p, k, "gap"), True),
    "ratios above 0.9 below N = 20": _Q(
        "the number of rows with a ratio above 0.9 and fewer than 20 trajectories",
        lambda p, k: _above_limit(p)),
    "tables with a width": _Q("the number of kinds of per-prompt tables that print a width",
        lambda p, k: sum("width" in p.rows(t)[0].cells for t in ("stage2", "projection"))),
    # The search.
    "raw": _Q("calls times candidates per call, crossover included",
        lambda p, k: p.setting("calls") * p.setting("per_call")
                     + p.setting("crossover_calls") * p.setting("per_crossover")),
    "proposed": _Q("the number of candidates proposed in one search",
        lambda p, k: sum(r.count("raw") for r in p.rows("search", k=k))),
    "filtered": _Q("number of candidates of one search that deduplication and length leave",
        lambda p, k: [exact(sum(r.count("length_ok") for r in p.rows("search", k=k)))
                      for k in (3, 5)]),
    "validity": _Q("top-up / raw at k = {k}",
        lambda p, k: [exact(r.count("topped_up") / r.count("raw")) for r in p.rows("search", k=k)]),
    "released validity": _Q("the released validity rate at k = {k}",
        lambda p, k: _released(p, k, "validity"), True),
    "best": _Q("best ratio of the k = {k} search table", lambda p, k: _best(p, k)),
    "released best": _Q("the released archive maximum at k = {k}",
        lambda p, k: _released(p, k, "best_rho"), True),
    "improvements": _Q("generation that improves on the one before at k = {k}",
        lambda p, k: _improved(p, k)),
    "distance to the budget": _Q("the distance of the largest k = {k} ratio from 1, in percent",
        lambda p, k: (exact(1) - largest(_best(p, k))) * 100),
    "rise over seeds": _Q("the k = {k} archive maximum minus the best seed",
        lambda p, k: largest(_archived(p, k)) - largest(_archived(p, k, "init")), True),
    "rise by the optimizer": _Q(
        "the best k = {k} ratio of a prompt that the optimizer model wrote, minus the best seed's",
        lambda p, k: largest(_archived(p, k, "local")) - largest(_archived(p, k, "init")), True),
    "strongest archived": _Q(
        "the number of stress prompts among as many top archive prompts at k = {k}",
        lambda p, k: _top_archived(p, k), True),
    "P(safe)": _Q("logged maximum of P(safe)", lambda p, k: _logged(p, "safe_mean_max"), True),
    "sigma of P(safe)": _Q("logged sigma of P(safe)",
        lambda p, k: _logged(p, "safe_sigma_mean"), True),
    "unsafe training rows": _Q("share of unsafe rows that a surrogate was trained on",
        lambda p, k: [exact(1) - v for v in _logged(p, "safe_rate")], True),
}
# fmt: on
