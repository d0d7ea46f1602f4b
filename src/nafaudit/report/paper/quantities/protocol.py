"""What the text quotes of the protocol itself: levels, machines, and its own checklist."""

from __future__ import annotations

from nafaudit.report.agreement import out_of_step
from nafaudit.report.paper.interval import Interval, largest
from nafaudit.report.paper.quantities.registry import quantity
from nafaudit.report.paper.source import Paper

# Tables with one line per prompt, and those of the search; the latter print ratios as well.
_PER_PROMPT = ("stage2", "projection")
_RATIO_TABLES = ("stage2", "search")


@quantity
def delta_stress_over_final(paper: Paper) -> float:
    """The stress level over the final level."""
    return paper.setting("delta_stress") / paper.setting("delta_final")


@quantity
def gpus(paper: Paper) -> float:
    """Accounts times GPUs of each."""
    return paper.setting("machine_accounts") * paper.setting("gpus_per_account")


@quantity
def devices_needed(paper: Paper) -> float:
    """The number of GPUs that the device indices of the second listing need."""
    return paper.setting("largest_device_index") + 1


@quantity
def tables_without_N(paper: Paper) -> float:  # noqa: N802 - the paper's letter
    """The number of second-stage tables of ratios without a column N."""
    return sum(len(set(_ks(paper, t))) for t in _RATIO_TABLES if "N" not in _columns(paper, t))


@quantity
def per_prompt_tables_with_width(paper: Paper) -> float:
    """The number of per-prompt tables that print a width."""
    return sum("width" in _columns(paper, table) for table in _PER_PROMPT)


@quantity
def stage1_tables_with_range(paper: Paper) -> float:
    """The number of first-stage tables that print R_eff."""
    return float("R_eff" in _columns(paper, "stage1"))


@quantity
def ratios_above_limit_below_floor(paper: Paper) -> float:
    """The number of rows with a ratio above 0.9 and fewer than 20 trajectories."""
    limit, floor = paper.setting("checklist_rho"), paper.setting("checklist_N")
    rows = [row for row in paper.rows("stage2") if row["rho"] != "invalid"]
    return sum(row.number("rho").low > limit and row.count("N") < floor for row in rows)


def odd_classes(paper: Paper) -> dict[tuple[int, str], str]:
    """Classes whose mean spend and mean ROUGE-L contradict each other, by budget, with how."""
    found: dict[tuple[int, str], str] = {}
    for k in (3, 5):
        rows = paper.rows("overlap", k=k)
        means = {r["class"]: r.number("mean").middle for r in paper.rows("stage1", k=k)}
        overlap = {r["class"]: r.number("rouge_mean").middle for r in rows}
        found |= {(k, name): how for name, how in out_of_step(means, overlap).items()}
    return found


@quantity
def classes_out_of_step(paper: Paper) -> float:
    """The number of classes with low spend and high overlap, or the reverse, by thirds."""
    return len(odd_classes(paper))


@quantity
def largest_effective_share(paper: Paper) -> Interval:
    """The largest U_EBB (R_eff) / K at k = 3 and 5."""
    rows = paper.rows("stage1", k=3) + paper.rows("stage1", k=5)
    return largest(r.number("U_Reff") / paper.budget(r.count("k")) for r in rows)


def _columns(paper: Paper, table: str) -> list[str]:
    return list(paper.rows(table)[0].cells)


def _ks(paper: Paper, table: str) -> list[str]:
    return [row["k"] for row in paper.rows(table)]
