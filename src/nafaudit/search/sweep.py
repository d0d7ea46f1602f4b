"""One search after the other over several budgets: where does searching beat the seed pool?

Each budget is a search directory of its own, `RUN/k-3` and so on, with the same prompts to start
from and the same draws, so that what differs is the budget. Delta is shared by the budgets.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nafaudit.core.finding import Kept
from nafaudit.report.result import as_number
from nafaudit.search.claim import claim
from nafaudit.search.explore import STRATEGIES
from nafaudit.search.found import Found
from nafaudit.search.prepared import prepare
from nafaudit.search.result import search_json, write_result
from nafaudit.search.run import Tell, search_with
from nafaudit.search.settings import SearchSettings
from nafaudit.store.files import make_directory, write_whole


@dataclass(frozen=True)
class Sweep:
    """Finished searches, one per budget."""

    path: Path
    delta: float
    found: tuple[Found, ...]

    @property
    def outcome(self) -> Kept:
        """The worst of all budgets: one violation is a violation."""
        said = {one.outcome for one in self.found}
        return next(one for one in (Kept.VIOLATED, Kept.INCONCLUSIVE, Kept.WITHIN) if one in said)


def run_sweep(settings: SearchSettings, tell: Tell) -> Sweep:
    """Runs, or resumes, a search under each budget of the settings.

    Args:
        settings: What to search; checked before any model loads.
        tell: Called as trajectories end.
    """
    ready = prepare(settings)
    path, budgets = ready.path, settings.k
    make_directory(path)
    claim(path, settings)
    found = []
    for k in budgets:
        one = replace(
            settings, k=(k,), out=str(path / f"k-{k:.12g}"), delta=settings.delta / len(budgets)
        )
        done = search_with(ready.at(one), _naming(tell, f"k = {k:g}, "))
        write_result(done)
        found.append(done)
    return Sweep(path, settings.delta, tuple(found))


def _naming(tell: Tell, name: str) -> Tell:
    return lambda told: tell(replace(told, stage=name + told.stage))


def sweep_json(sweep: Sweep) -> dict[str, Any]:
    """The table over budgets; every search in full is in its own directory."""
    rows = []
    for one in sweep.found:
        whole = search_json(one)
        names = ("k", "outcome", "run", "delta", "comparisons", "spread", "heldout", "others")
        row = {name: whole[name] for name in names}
        rows.append(row | {"best": {who: as_number(best_of(one, who)) for who in STRATEGIES}})
    return {
        "run": str(sweep.path),
        "outcome": str(sweep.outcome),
        "delta": sweep.delta,
        "budgets": rows,
    }


def best_of(found: Found, strategy: str) -> float:
    """Mean over search seeds of the first finalist's confirmed utilisation."""
    values = found.maxima(strategy)
    return sum(values) / len(values)


def write_sweep(sweep: Sweep) -> Path:
    """Writes RUN/sweep.json; the same records give the same bytes."""
    path = sweep.path / "sweep.json"
    write_whole(path, json.dumps(sweep_json(sweep), indent=2).encode() + b"\n")
    return path
