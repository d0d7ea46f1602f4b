"""The checklist of the paper itself: which of the items that it claims to pass does it pass?"""

from __future__ import annotations

from dataclasses import replace

from nafaudit.paper.checklist import (
    HIGH_RATIO,
    LOOK,
    MIN_EXECUTIONS,
    MIN_TRAJECTORIES,
    ChecklistItem,
    ItemAnswer,
    cells_out_of_step,
    judged,
    out_of_step,
)
from nafaudit.paper.printed import Paper, load
from nafaudit.paper.quantities import compute, stage1

# In its words: "we pass steps (2), (3), (5), and partially step (6), but do not pass ...".
# "Agree qualitatively" and "partially" can be read so that the claim holds, and item 2 by its pass
# criterion alone.
_OPEN = (3, 6)
CLAIMED = {1: "fail", 2: "pass", 3: "pass", 4: "fail", 5: "pass", 6: "partly pass", 7: "fail"}


def of_paper(paper: Paper | None = None) -> list[ChecklistItem]:
    """Answers all seven items for the paper itself, each with what the paper claims."""
    source = paper or load()

    least = min(stage1(source, 0), key=lambda row: row.count("M"))
    share = compute(source, "effective proxy shares", take="largest").value
    reported = bool(compute(source, "tables with R_eff").value.middle)
    criterion = share.low <= 1
    executions = (
        f"fewest trajectories: {least['M']}, class {least['class']}; largest U_EBB (R_eff) / K "
        f"{share.middle:.2f}; R_eff itself is {'' if reported else 'not '}reported"
    )
    enough = least.count("M") >= MIN_EXECUTIONS and criterion and reported
    if criterion and not enough:
        executions += "; the claim holds by the item's pass criterion, U_EBB <= K"
    needed = -(-MIN_EXECUTIONS // source.setting(f"cap_{least['class']}"))

    odd: dict[str, list[str]] = {}
    compared = 0
    for k in (3, 5):
        spend = {r["class"]: r.number("mean").middle for r in stage1(source, k)}
        rows = source.rows("overlap", k=k)
        overlap = {r["class"]: r.number("rouge_mean").middle for r in rows}
        compared += len(spend.keys() & overlap.keys())
        for label, how in out_of_step(spend, overlap).items():
            odd.setdefault(label, []).append(f"{label} at k = {k} ({how})")
    cells, count = cells_out_of_step(odd, compared)

    few = compute(source, "ratios above 0.9 below N = 20").value.middle
    widths = compute(source, "tables with a width").value.middle
    # Intervals round outwards: no share is negative.
    unsafe = max(0.0, compute(source, "unsafe training rows", take="largest").value.middle)
    items = [
        judged(1, False, "one anchor was run", "run a second anchor of equal capability"),
        judged(
            2,
            enough,
            executions,
            f"{needed:.0f} trajectories per {least['class']} prompt, print R_eff",
            least.count("M"),
        ),
        judged(
            3,
            not odd,
            f"{cells}; all overlaps are small, so that the claim holds if high means much",
            LOOK,
            count,
        ),
        judged(
            4,
            few == 0,
            f"{few:.0f} rows with rho > {HIGH_RATIO} have fewer than {MIN_TRAJECTORIES} "
            "trajectories",
            f"run {MIN_TRAJECTORIES} trajectories for each of them",
            few,
        ),
        judged(
            5,
            widths == 2,
            f"{widths:.0f} of 2 kinds of per-prompt tables print a width, though it follows from "
            "the mean and U_EBB where both are printed",
            "print U_EBB less the mean beside each",
            widths,
        ),
        judged(
            6,
            False,
            f"no AUC is printed; {unsafe:.0%} of the training rows are unsafe (released log), and "
            "an AUC needs both kinds; that the surrogate saturates was seen and said",
            "train on all evaluated prompts, uncertified ones included",
            unsafe,
        ),
        judged(7, False, "one search per budget, all with one seed", "search with a second seed"),
    ]
    items = [replace(item, claimed=CLAIMED[item.number]) for item in items]
    open_ones = (*_OPEN, 2) if criterion else _OPEN
    return [
        replace(item, answer=ItemAnswer.DEPENDS)
        if item.number in open_ones and item.answer is ItemAnswer.FAIL
        else item
        for item in items
    ]
