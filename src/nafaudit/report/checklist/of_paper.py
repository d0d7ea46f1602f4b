"""The checklist of the paper itself: which of the items that it claims to pass does it pass?"""

from __future__ import annotations

from dataclasses import replace

from nafaudit.report.checklist.items import (
    HIGH_RATIO,
    MIN_EXECUTIONS,
    MIN_TRAJECTORIES,
    Answer,
    Item,
    judged,
)
from nafaudit.report.paper.quantities import QUANTITIES
from nafaudit.report.paper.quantities.protocol import odd_classes
from nafaudit.report.paper.source import Paper, load

# In its words: "we pass steps (2), (3), (5), and partially step (6), but do not pass ...".
CLAIMED = {1: "fail", 2: "pass", 3: "pass", 4: "fail", 5: "pass", 6: "partly pass", 7: "fail"}


def of_paper(paper: Paper | None = None) -> list[Item]:
    """All seven items, each with what the paper claims."""
    source = paper or load()
    items = [
        Item(1, Answer.FAIL, "one anchor was run", "run a second anchor of equal capability"),
        _executions(source),
        _agreement(source),
        _floor(source),
        _widths(source),
        _surrogate(source),
        Item(
            7, Answer.FAIL, "one search per budget, all with one seed", "search with a second seed"
        ),
    ]
    return [replace(item, claimed=CLAIMED[item.number]) for item in items]


def _value(paper: Paper, name: str) -> float:
    return QUANTITIES[name](paper).middle


def _executions(paper: Paper) -> Item:
    fewest = _value(paper, "fewest_per_class")
    rows = [row for row in paper.rows("stage1") if row["k"] != "1"]
    least = min(rows, key=lambda row: row.count("M"))
    share = QUANTITIES["largest_effective_share"](paper)
    reported = _value(paper, "stage1_tables_with_range")
    text = (
        f"fewest executions: {fewest:.0f}, class {least['class']}; largest U_EBB (R_eff) / K "
        f"{share.middle:.2f}; R_eff itself is {'' if reported else 'not '}reported"
    )
    good = fewest >= MIN_EXECUTIONS and share.low <= 1 and bool(reported)
    prompts = paper.setting(f"cap_{least['class']}")
    todo = (
        f"{-(-MIN_EXECUTIONS // prompts):.0f} trajectories per {least['class']} prompt, print R_eff"
    )
    return judged(2, good, text, todo, fewest)


def _agreement(paper: Paper) -> Item:
    odd = [f"{label} at k = {k} ({how})" for (k, label), how in odd_classes(paper).items()]
    text = f"{len(odd)} classes out of step by ROUGE-L in thirds: {'; '.join(odd) or 'none'}"
    return judged(3, not odd, text, "read these classes' outputs", len(odd))


def _floor(paper: Paper) -> Item:
    few = _value(paper, "ratios_above_limit_below_floor")
    text = f"{few:.0f} rows with rho > {HIGH_RATIO} have fewer than {MIN_TRAJECTORIES} trajectories"
    return judged(4, few == 0, text, f"run {MIN_TRAJECTORIES} trajectories for each of them", few)


def _widths(paper: Paper) -> Item:
    tables = _value(paper, "per_prompt_tables_with_width")
    text = (
        f"{tables:.0f} of 2 kinds of per-prompt tables print a width, though it follows from the "
        "mean and U_EBB where both are printed"
    )
    return judged(5, tables == 2, text, "print U_EBB less the mean beside each", tables)


def _surrogate(paper: Paper) -> Item:
    unsafe = _value(paper, "unsafe_share_of_training")
    text = (
        f"no AUC is printed; {unsafe:.0%} of the training rows are unsafe (released log), and an "
        "AUC needs both kinds"
    )
    return judged(
        6, False, text, "train on all evaluated prompts, uncertified ones included", unsafe
    )
