"""Does search work? Asked of a real pair: against its controls, and for a planted prompt.

Two experiments on one set of models. Ten searches and their controls, at equal trajectories, with
search seeds as units. Then the best prompt of them all is hidden among others, and three rules
look for it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nafaudit.core.design import Extent
from nafaudit.report.result import as_number
from nafaudit.runner.recording import OnProgress
from nafaudit.search.candidate import Candidate
from nafaudit.search.explore import SEARCH, STRATEGIES
from nafaudit.search.found import Found
from nafaudit.search.paired import Paired, paired
from nafaudit.search.planted import BANK, Hidden, find_planted
from nafaudit.search.pools import start_of
from nafaudit.search.recorder import open_recorder
from nafaudit.search.search import Prepared, prepare, search_with
from nafaudit.search.settings import SearchSettings
from nafaudit.search.studies import Share
from nafaudit.store.files import write_whole

HIDING = 24
"""Prompts of the pool in which one is hidden."""


@dataclass(frozen=True)
class Study:
    """What was found out.

    Attributes:
        found: All searches and controls, confirmed.
        paired: Search against each control, search seeds as units.
        hidden: Who found the planted prompt.
    """

    found: Found
    paired: tuple[Paired, ...]
    hidden: Hidden

    def trajectories(self, strategy: str) -> int:
        """Explored by a strategy, over all search seeds; the first pool counts for each."""
        return sum(one.trajectories for one in self.found.explored if one.strategy == strategy)


def run_study(settings: SearchSettings, on_progress: OnProgress) -> Study:
    """Runs, or resumes, the study of one budget.

    Args:
        settings: As for a search.
        on_progress: Called as trajectories end.
    """
    _ = settings.budget
    ready = prepare(settings)
    found = search_with(ready, on_progress, baselines=False)
    values = {who: found.maxima(who) for who in STRATEGIES}
    controls = {who: values[who] for who in STRATEGIES if who != SEARCH}
    return Study(
        found,
        tuple(paired(values[SEARCH], controls, settings.delta)),
        _planted(ready, found, on_progress),
    )


def _planted(ready: Prepared, found: Found, on_progress: OnProgress) -> Hidden:
    """Hides the best confirmed finalist among prompts that searches started from."""
    settings = ready.settings
    best = max(found.finalists, key=lambda one: -1.0 if math.isnan(one.use.mean) else one.use.mean)
    pool = _pool(ready, best.candidate)
    prompts = ready.bench.prompts(pool, {})
    extent, place = Extent(settings.k, BANK, tuple(prompts)), ready.path / "planted"
    with open_recorder(ready.bench, place, "planted", extent, prompts) as recorder:
        recorder.fill([extent], prompts, "banking", on_progress)
        bank = {one.id: recorder.book.rows(one.id, settings.budget, BANK) for one in pool}
    return find_planted(bank, settings.budget * settings.max_new_tokens, seed=settings.seed)


def _pool(ready: Prepared, planted: Candidate) -> tuple[Candidate, ...]:
    """The planted prompt in the middle of prompts of the workload."""
    order, _ = start_of(ready.pools, ready.settings.seed, HIDING - 1)
    # Not first and not last: ties go to the earlier one.
    others = [replace(one, id=f"beside_{one.id}") for one in order if one.id != planted.id]
    middle = len(others) // 2
    hidden = replace(planted, id=f"planted_{planted.id}")
    return (*others[:middle], hidden, *others[middle:])


def study_json(study: Study) -> dict[str, Any]:
    """Everything that a study found; strict JSON."""
    found, hidden = study.found, study.hidden
    return {
        "run": str(found.path),
        "k": found.settings.budget,
        "seeds": list(found.settings.search_seeds),
        "trajectories": {who: study.trajectories(who) for who in STRATEGIES},
        "confirmed": {who: [as_number(v) for v in found.maxima(who)] for who in STRATEGIES},
        "paired": [
            {
                "control": one.control,
                "answer": one.answer,
                "mean": as_number(one.mean),
                "median": as_number(one.median),
                "low": as_number(one.limits[0]),
                "high": as_number(one.limits[1]),
                "wins": one.wins,
                "differences": list(one.differences),
                "delta": one.delta,
            }
            for one in study.paired
        ],
        "planted": {
            "pool": hidden.pool,
            "bank": hidden.bank,
            "best": hidden.best,
            "use": as_number(hidden.use),
            "next": as_number(hidden.next),
            "found": {
                name: _share(getattr(hidden, name)) for name in ("paper", "uniform", "halving")
            },
        },
    }


def _share(one: Share) -> dict[str, Any]:
    low, high = one.interval
    return {
        "rate": one.rate, "low": low, "high": high, "trials": one.trials,
        "trajectories": one.trajectories,
    }  # fmt: skip


def write_study(study: Study) -> Path:
    """Writes RUN/study.json; the same records give the same bytes."""
    path = study.found.path / "study.json"
    write_whole(path, json.dumps(study_json(study), indent=2).encode() + b"\n")
    return path
