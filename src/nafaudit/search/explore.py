"""One search, as a function of what is recorded: generations of prompts, each halved.

Nothing here draws a trajectory or keeps a state. `explore` goes as far as the book reaches and
raises `NeedsTrajectories` there; asked again with more records it goes the same way, and further.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from nafaudit.search.archive import Tfidf, dpp_archive
from nafaudit.search.candidate import BookReader, Candidate, Measurements, Parent, Proposer
from nafaudit.search.filters import Admission, Pools, admit, start_of
from nafaudit.search.halving import Rung, halving_plan, shrink, successive_halving
from nafaudit.search.propose import LocalProposer, RandomProposer, SeedsProposer
from nafaudit.search.settings import SearchSettings

SEARCH, RANDOM, SEEDS = "search", "random", "seeds"
STRATEGIES = (SEARCH, RANDOM, SEEDS)
"""The search, then its two controls."""


@dataclass(frozen=True)
class Generation:
    """What happened to a generation's prompts, in the columns of the paper's tables.

    Attributes:
        generation: 0 for the first pool.
        raw: Proposed.
        dedup: Of them new.
        length_ok: Of them of a fair length.
        screened: Of them given a trajectory.
        medium: Of them drawn again.
        survivors: Of them kept after that.
        topped_up: Survivors that were drawn a third time, or more often.
        best: Largest shrunk mean utilisation of anything tried so far; NaN if none is known.
        trajectories: Drawn in this generation.
    """

    generation: int
    raw: int
    dedup: int
    length_ok: int
    screened: int
    medium: int
    survivors: int
    topped_up: int
    best: float
    trajectories: int


@dataclass(frozen=True)
class Steered:
    """What a surrogate did in one generation.

    Attributes:
        generation: Which.
        offered: Candidates that it could choose among.
        kept: How many were drawn.
        reasons: Why it did not choose; empty if it did.
    """

    generation: int
    offered: int
    kept: int
    reasons: tuple[str, ...] = ()

    @property
    def steers(self) -> bool:
        """True if the surrogate chose."""
        return not self.reasons


@dataclass(frozen=True)
class SearchTrace:
    """What one search, or one control, found.

    Attributes:
        strategy: One of `STRATEGIES`.
        seed: Search seed.
        generations: Counts, the first pool included.
        ranking: Everything tried with its shrunk mean utilisation, best first.
        draws: Trajectories of each prompt.
        steered: What the paper's surrogate did, generation by generation; empty without one.
    """

    strategy: str
    seed: int
    generations: tuple[Generation, ...]
    ranking: tuple[Parent, ...]
    draws: Mapping[str, int]
    steered: tuple[Steered, ...] = ()

    @property
    def trajectories(self) -> int:
        """How many it used."""
        return sum(self.draws.values())


@dataclass(frozen=True)
class _Renamed:
    """A control's proposer, under ids of its own: equal ids would be equal draws."""

    proposer: Proposer
    prefix: str

    @property
    def name(self) -> str:
        return self.prefix

    def ask(self, parents: Sequence[Parent], generation: int, count: int) -> list[Candidate]:
        found = self.proposer.ask(parents, generation, count)
        return [replace(one, id=f"{self.prefix}_{one.id}", generation=generation) for one in found]


def explore(
    strategy: str,
    seed: int,
    pools: Pools,
    settings: SearchSettings,
    tokens: Callable[[str], int],
    book: Measurements,
    catalogue: dict[str, Candidate] | None = None,
    proposer: Proposer | None = None,
) -> SearchTrace:
    """Goes through all generations of a search.

    Args:
        strategy: One of `STRATEGIES`; all of them share the first pool and its draws.
        seed: Search seed.
        pools: The workload, divided.
        settings: Sizes.
        tokens: Counts the tokens of a text.
        book: What is recorded.
        catalogue: Gets every candidate that was tried, by its id.
        proposer: Who suggests in the search itself; the local operators if left out.

    Raises:
        NeedsTrajectories: The records do not reach to the end.
    """
    start, rest = start_of(pools, seed, settings.pool)
    control, count = _proposer(strategy, seed, start, rest, settings)
    if strategy != SEARCH or proposer is None:
        proposer = control
    avoid = [one.text for one in pools.unseen]
    trail = _Trail(settings, BookReader(book, settings.budget), catalogue)
    trail.draw(0, Admission(start))
    for generation in range(1, settings.generations + 1):
        asked = proposer.ask(trail.parents(), generation, count)
        history = [*avoid, *(one.text for one in trail.tried)]
        trail.draw(generation, admit(asked, history, tokens, settings.window))
    return SearchTrace(
        strategy,
        seed,
        tuple(trail.rows),
        tuple(trail.ranking()),
        dict(trail.reader.taken),
    )


def _proposer(
    strategy: str,
    seed: int,
    start: tuple[Candidate, ...],
    rest: tuple[Candidate, ...],
    settings: SearchSettings,
) -> tuple[Proposer, int]:
    """Who suggests, and how many a generation."""
    if strategy == RANDOM:
        blind = RandomProposer(start, seed, settings.operators)
        return _Renamed(blind, RANDOM), settings.proposals
    if strategy == SEEDS:
        # Nothing of a workload is a copy any more, so no more are asked for than are drawn.
        return _Renamed(SeedsProposer(rest, seed), SEEDS), settings.screened
    return LocalProposer(seed, settings.operators), settings.proposals


class _Trail:
    """What a search has tried so far."""

    def __init__(
        self,
        settings: SearchSettings,
        reader: BookReader,
        catalogue: dict[str, Candidate] | None,
    ) -> None:
        self._settings = settings
        self._catalogue = {} if catalogue is None else catalogue
        self.reader = reader
        self.tried: list[Candidate] = []
        self.rows: list[Generation] = []
        self._values: dict[str, tuple[float, ...]] = {}

    def draw(self, generation: int, admission: Admission) -> None:
        """Halves a generation and counts it."""
        kept = admission.kept
        chosen = list(kept[: self._settings.screened] if generation else kept)
        self.tried += chosen
        self._catalogue |= {one.id: one for one in chosen}
        before, plan = self.reader.spent, self._plan(len(chosen))
        if plan:
            halved = successive_halving([one.id for one in chosen], plan, self.reader.more)
            self._values |= halved.values
        self.rows.append(
            Generation(
                generation,
                raw=admission.raw,
                dedup=admission.after_dedup,
                length_ok=admission.after_length,
                screened=len(chosen),
                medium=plan[1].alive if len(plan) > 1 else 0,
                survivors=plan[:2][-1].keep if plan else 0,
                topped_up=plan[2].alive if len(plan) > 2 else 0,
                best=self.ranking()[0].score,
                trajectories=self.reader.spent - before,
            )
        )

    def _plan(self, size: int) -> tuple[Rung, ...]:
        """Every generation has the same trajectories to spend, however many came through."""
        keep = min(self._settings.survivors, size)
        return halving_plan(size, self._settings.draws, keep) if size else ()

    def ranking(self) -> list[Parent]:
        """Everything tried, best first; scores are NaN as long as nobody has a value."""
        groups = [self._values.get(one.id, ()) for one in self.tried]
        if not any(groups):
            return [Parent(one) for one in self.tried]
        found = shrink(groups)
        return [Parent(self.tried[i], found.values[i]) for i in found.order()]

    def parents(self) -> list[Parent]:
        """A good and diverse set to build upon, the best one always in it, best first."""
        ranking, keep = self.ranking(), self._settings.parents
        if len(ranking) <= keep or math.isnan(ranking[0].score):
            return ranking[:keep]
        texts = [parent.candidate.text for parent in ranking]
        scores = [parent.score for parent in ranking]
        places = dpp_archive(scores, Tfidf.of(texts).embed(texts), keep)
        if 0 not in places:
            places = [0, *places[: keep - 1]]
        return [ranking[i] for i in sorted(places)]
