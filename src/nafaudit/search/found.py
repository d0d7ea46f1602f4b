"""A finished search: what every table and file of it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nafaudit.core.finding import Kept
from nafaudit.search.confirm import ControlComparison, Copied, Finalist, HeldOut, Named
from nafaudit.search.explore import SEARCH, STRATEGIES, SearchTrace, Steered
from nafaudit.search.pools import Pools
from nafaudit.search.settings import SearchBasics


@dataclass(frozen=True)
class Overlaps:
    """What trajectories under the searched budget repeat of protected passages.

    Attributes:
        passages: How many were looked for.
        everything: The most of any trajectory, explored or fresh.
        by_prompt: The most of each prompt's fresh trajectories.
    """

    passages: int
    everything: Copied
    by_prompt: dict[str, Copied]

    def of(self, prompt: str) -> Copied:
        """The most of one prompt's fresh trajectories; nothing if it has none."""
        return self.by_prompt.get(prompt, Copied())


@dataclass(frozen=True)
class SearchResult:
    """A finished search.

    Attributes:
        path: Its run directory; fresh draws are in `confirm` there.
        settings: What was asked for.
        pools: How the workload was divided.
        explored: What each search and each control did.
        finalists: Of the searches, confirmed.
        controls: First finalists of the controls, confirmed.
        comparisons: Search against each control.
        heldout: The pool of the workload that nobody saw.
        others: Held-out pools of other kinds.
        named: Prompts that are shown to use more than a share of their budget.
        overlaps: What was repeated of protected text; None if no passage is known.
        embedding: What a surrogate saw of texts; empty without one.
        looked: Prompts that were given a trajectory: what corrections count.
        trajectories: All that were judged, fresh ones included.
        violating: Prompts with a trajectory above its budget.
        outcome: The three-valued answer.
        counterexamples: Directories of replayable bundles.
        batch_free: True if records do not depend on their batch on this machine.
        remark: What else the user should know of the machine; empty if there is nothing.
        proposer: Who suggested, and what became of its answers; plain data.
    """

    path: Path
    settings: SearchBasics
    pools: Pools
    explored: tuple[SearchTrace, ...]
    finalists: tuple[Finalist, ...]
    controls: tuple[Finalist, ...]
    comparisons: tuple[ControlComparison, ...]
    heldout: HeldOut
    others: tuple[HeldOut, ...]
    named: Named
    overlaps: Overlaps | None
    embedding: str
    looked: int
    trajectories: int
    violating: int
    outcome: Kept
    counterexamples: tuple[Path, ...]
    batch_free: bool
    remark: str
    proposer: Mapping[str, Any]

    def maxima(self, strategy: str) -> list[float]:
        """Confirmed utilisation of the first finalist of every search seed."""
        everyone = (*self.finalists, *self.controls)
        return [one.use.mean for one in everyone if one.strategy == strategy and one.rank == 1]

    @property
    def spread(self) -> dict[str, list[float]]:
        """Confirmed utilisation of first finalists, of the search and of each control."""
        return {strategy: self.maxima(strategy) for strategy in STRATEGIES}

    @property
    def searches(self) -> list[SearchTrace]:
        """The searches without their controls."""
        return [one for one in self.explored if one.strategy == SEARCH]

    @property
    def steered(self) -> list[tuple[int, Steered]]:
        """What the surrogate did, with the search seed."""
        return [(one.seed, step) for one in self.searches for step in one.steered]
