"""A trajectory as a line of the paper's own files, with its scores, seed and source record.

Beyond the paper's fields a line has what `store/export.py` adds to lose nothing, so that our own
importer gives back the record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nafaudit.core.draws import trajectory_seeds
from nafaudit.core.trajectory import Trajectory
from nafaudit.overlap.paper import paper_scores
from nafaudit.store.export import as_row
from nafaudit.store.run import Run
from nafaudit.workload import Source, TokenizedPrompt


@dataclass(frozen=True)
class PaperRows:
    """What is the same for every line of a run.

    Attributes:
        run: The run.
        variant: `text` writes the budget that is left as final budget, as the paper's text has
            it; `code` the budget that was granted.
    """

    run: Run
    variant: str = "code"

    def line(self, trajectory: Trajectory) -> dict[str, Any]:
        """One trajectory in the paper's schema."""
        key = trajectory.key
        prompt = self._prompts.get(key.prompt)
        row = as_row(trajectory, prompt, self._identity, self._vocabulary)
        source = self._sources.get(key.prompt, Source(""))
        session = self._session
        row["metadata"] |= {
            "domain": source.domain,
            "split": source.split or row["metadata"]["split"],
            "novel_source": source.novel_source,
            "model_pair": session.get("pair"),
            # A registered pair is known by the hashes of its weights.
            "target_model": session.get("risky") or row["metadata"]["target_model"],
            "anchor_model": session.get("safe") or row["metadata"]["anchor_model"],
            "n": session.get("prefix_n"),
            "seed": self._seed(key.prompt, key.trajectory),
            "timestamp": session.get("started"),
        }
        if source.record:
            row["source_record"] = dict(source.record)
        self._complete(row, prompt)
        return row

    def _complete(self, row: dict[str, Any], prompt: TokenizedPrompt | None) -> None:
        """Scores and totals, with 0 where the paper's files have 0."""
        total = row["aggregate"]
        spend, granted = total["total_spend"], total["final_budget"]
        reference = prompt.prompt.reference if prompt else ""
        scores = paper_scores(total["generation"] or "", reference)
        total |= {"rouge_l": scores.rouge_l, "minhash_5gram": scores.minhash_5gram}
        total["budget_utilization"] = _utilisation(spend, granted)
        if self.variant == "text" and None not in (spend, granted):
            total["final_budget"] = granted - spend
            row["nafaudit"]["final_budget"] = granted

    def _seed(self, prompt: str, trajectory: int) -> int | None:
        if self._identity["protocol"] != "paper":
            return None
        return trajectory_seeds(prompt, trajectory + 1)[-1]

    @cached_property
    def _identity(self) -> Mapping[str, Any]:
        identity: Mapping[str, Any] = self.run.design["identity"]
        return identity

    @cached_property
    def _prompts(self) -> dict[str, TokenizedPrompt]:
        return {prompt.prompt.id: prompt for prompt in self.run.prompts()}

    @cached_property
    def _sources(self) -> dict[str, Source]:
        return self.run.sources()

    @cached_property
    def _session(self) -> Mapping[str, Any]:
        """The session that began the run."""
        return next(iter(self.run.sessions), {})

    @cached_property
    def _vocabulary(self) -> dict[str, Any]:
        pieces = self.run.pieces
        return {
            "tokens": [None if p is None else p.decode(errors="replace") for p in pieces],
            "pieces": pieces,
            "stops": sorted(self.run.stops),
        }


def _utilisation(spend: float | None, budget: float | None) -> float | None:
    """Spend over budget: 0 where the paper's files have 0, null where nothing is known."""
    if spend is None or budget is None:
        return None
    if abs(budget) <= 1e-12 or not math.isfinite(budget):
        return 0.0
    return spend / budget
