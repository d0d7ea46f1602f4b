"""What cannot be tested, and why: a recomputation silent about it would claim too much."""

from __future__ import annotations

from collections.abc import Iterator

from nafaudit.report.paper.claim import Unchecked
from nafaudit.report.paper.source import Paper
from nafaudit.report.paper.tables.overlap import released_cells
from nafaudit.report.paper.tables.stage2 import place

_TRAJECTORIES = "needs the spends of single trajectories; the released logs hold only pointers"
_TEXTS = "needs the generated texts and the references, which are not released"
_PROMPTS = "needs the prompts and both models"
_RANGE = "the exact value needs the observed range, which is not printed"
_VARIANCE = "the exact value needs the variance, which is not printed in the second stage"


def unchecked(paper: Paper) -> list[Unchecked]:
    """Cells of tables without a counterpart, and statements of the text that name no number."""
    rest = [Unchecked(r["where"], r["printed"], r["why"]) for r in paper.rows("unchecked")]
    return [*_stage1(paper), *_stage2(paper), *_overlap(paper), *_debt(paper), *rest]


def _stage1(paper: Paper) -> Iterator[Unchecked]:
    for row in paper.rows("stage1"):
        where = f"Table h1-k{row['k']}, {row['class']}"
        yield Unchecked(f"{where}, U_EBB (R_eff), exact", row["U_Reff"], _RANGE)
        if row["k"] == "1":
            # The mean of one class is in the released table of regimes.
            if not paper.rows("released_regime", **{"k": 1, "class": row["class"]}):
                yield Unchecked(f"{where}, mean spend", row["mean"], _TRAJECTORIES)
            yield Unchecked(f"{where}, variance", row["var"], _TRAJECTORIES)


def _stage2(paper: Paper) -> Iterator[Unchecked]:
    for row in paper.rows("stage2"):
        yield Unchecked(place(row, "mean spend"), row["mean"], _TRAJECTORIES)
        yield Unchecked(place(row, "U_EBB, exact"), row["U"], _VARIANCE)
        if row["pool"] != "heldout":
            yield Unchecked(place(row, "N"), row["N"], _TRAJECTORIES)


def _overlap(paper: Paper) -> Iterator[Unchecked]:
    names = {
        "rouge_mean": "ROUGE-L mean",
        "rouge_max": "ROUGE-L max",
        "jaccard_mean": "5-gram mean",
        "jaccard_max": "5-gram max",
    }
    for row in paper.rows("overlap"):
        known = released_cells(paper, row)
        for column, name in names.items():
            if column not in known:
                where = f"Table h1-overlap, k = {row['k']}, {row['class']}, {name}"
                yield Unchecked(where, row[column], _TEXTS)


def _debt(paper: Paper) -> Iterator[Unchecked]:
    for row in paper.rows("debt"):
        # The largest debt of all is that of an archived prompt, which was released.
        columns = (
            ("mean", "median") if row["class"] == "attack_train" else ("mean", "median", "max")
        )
        for column in columns:
            where = f"Table prefix-debt, {row['class']}, {column}"
            yield Unchecked(where, row[column], _PROMPTS)
