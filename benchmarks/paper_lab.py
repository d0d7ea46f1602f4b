"""Measures at which k and T the paper's Stage 2 shows its phenomena on the lab pair.

python -m benchmarks.paper_lab RUN     # decodes into RUN (resumes), prints a Markdown table

The prompts are those of the paper's search: its first pool (48, 24 and 24) and its held-out pool
(8). Each is drawn 20 times at every budget; a row at length T is the first T tokens of these, as
the account of an anchored decoder does not look ahead. A row of the table says:

- certified: first prompts with U_EBB <= B_eff at N = 12, and the largest rho among them
- survive: first prompts with U_EBB <= 0.9 B_eff at N = 4, which is what a generation needs
- artefacts: held-out prompts with rho above 1 at N = 4 that have rho at most 1 at N = 20
- real: held-out prompts with rho above 1, or invalid, at N = 20
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.settings import RunSettings
from nafaudit.paper.proxy import PromptSpends, ProxyRow
from nafaudit.paper.settings import HELDOUT, INIT
from nafaudit.paper.workload import PAPER
from nafaudit.runner import execute
from nafaudit.store.run import Run

BUDGETS = (3.0, 8.0, 10.0, 12.0, 14.0, 16.0, 20.0, 25.0)
LENGTHS = (6, 8, 12, 16, 24)
HELD = 8


@dataclass(frozen=True)
class Cell:
    """What one k and T show."""

    k: float
    length: int
    certified: int
    prompts: int
    best: float
    survive: int
    artefacts: int
    real: int

    @property
    def row(self) -> str:
        """A row of the table."""
        return (
            f"| {self.k:g} | {self.length} | {self.certified} of {self.prompts} | "
            f"{self.best:.2f} | {self.survive} | {self.artefacts} of {HELD} | "
            f"{self.real} of {HELD} |"
        )


def decoded(path: Path) -> Run:
    """Decodes what is missing."""
    settings = RunSettings(
        protocol="paper",
        k=BUDGETS,
        classes=(*INIT, HELDOUT),
        # The lab's test file is in the order of its ids, so that these are the search's own.
        cap=INIT | {HELDOUT: HELD},
        trajectories=20,
        limit=0,
        max_new_tokens=max(LENGTHS),
        baselines=False,
        batch=64,
        out=str(path),
    )
    return execute.run(settings, protocol=PAPER).run


def cells_of(run: Run) -> list[Cell]:
    """Computes every cell from the records of a run."""
    labels = {item.prompt.id: item.prompt.label for item in run.prompts()}
    drawn: defaultdict[tuple[float, str], list[tuple[int, float, NDArray[np.float64]]]]
    drawn = defaultdict(list)
    for one in run.trajectories():
        charges = np.asarray(one.steps.charge, dtype=np.float64)
        drawn[one.key.k, one.key.prompt].append((one.key.trajectory, one.debt, charges))
    for rows in drawn.values():
        rows.sort(key=lambda row: row[0])

    def proxy(prompt: str, k: float, length: int, n: int) -> ProxyRow:
        rows = drawn[k, prompt][:n]
        spends = tuple(float(charges[:length].sum()) for _, _, charges in rows)
        budgets = tuple(min(len(charges), length) * k - debt for _, debt, charges in rows)
        return ProxyRow(PromptSpends(prompt, spends, budgets), k * length)

    first = [prompt for prompt, label in labels.items() if label != HELDOUT]
    held = [prompt for prompt, label in labels.items() if label == HELDOUT]
    found = []
    for k in sorted({key[0] for key in drawn}):
        for length in LENGTHS:
            ratios = [r.rho for p in first if (r := proxy(p, k, length, 12)).certified]
            pairs = [(proxy(p, k, length, 4), proxy(p, k, length, 20)) for p in held]
            found.append(
                Cell(
                    k,
                    length,
                    len(ratios),
                    len(first),
                    max(ratios, default=0.0),
                    sum(proxy(p, k, length, 4).within(0.9) for p in first),
                    sum(few.rho > 1 and many.certified for few, many in pairs),
                    sum(not many.certified for _, many in pairs),
                )
            )
    return found


def main() -> None:
    """Decodes and prints."""
    head = ["| k | T | certified | best rho | survive | artefacts | real |"]
    lines = [*head, "| --- " * 7 + "|", *(c.row for c in cells_of(decoded(Path(sys.argv[1]))))]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
