"""One search as a function of recorded trajectories: generations of prompts, each halved.

Nothing here draws a trajectory or keeps a state. `explore` goes as far as the records reach and
then raises `NeedsTrajectories`; called with more records it decides the same and goes further.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from nafaudit.search.archive import Tfidf, dpp_archive
from nafaudit.search.candidate import BookReader, Candidate, Measurements, Parent, Proposer
from nafaudit.search.filters import AdmittedPrompts, Pools, admit, start_of
from nafaudit.search.halving import Rung, halving_plan, shrink, successive_halving
from nafaudit.search.propose import LocalProposer, RandomProposer, SeedsProposer
from nafaudit.search.settings import SearchSettings

SEARCH, RANDOM, SEEDS = "search", "random", "seeds"
STRATEGIES = (SEARCH, RANDOM, SEEDS)
"""The search, then its two controls."""


@dataclass(frozen=True)
class Generation:
    """Numbers of a generation's prompts, in the columns of the paper's tables.

    Attributes:
        generation: 0 for the first pool.
        raw: Proposed.
        dedup: Of them new.
        length_ok: Of them of an allowed length.
        screened: Of them given a trajectory.
        medium: Of them drawn again.
        survivors: Of them kept after that.
        topped_up: Survivors that were drawn a third time, or more often.
        best: Largest shrunk mean utilisation of any prompt so far; NaN if none is known.
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
    """A surrogate's part in one generation.

    Attributes:
        generation: Number of the generation.
        offered: Number of candidates that it could choose among.
        kept: Number that were drawn.
        reasons: Reasons why it did not choose; empty if it did.
        judged: Number of prompts that it never saw and was judged on.
        unsafe: How many of these it should tell from the others.
        auc: AUC on these; NaN if they are of one class.
        saturated: True if it says nearly the same of every candidate.
    """

    generation: int
    offered: int
    kept: int
    reasons: tuple[str, ...] = ()
    judged: int = 0
    unsafe: int = 0
    auc: float = math.nan
    saturated: bool = False

    @property
    def steers(self) -> bool:
        """True if the surrogate chose."""
        return not self.reasons


@dataclass(frozen=True)
class SearchTrace:
    """The course of one search, or of one control.

    Attributes:
        strategy: One of `STRATEGIES`.
        seed: Search seed.
        generations: Counts, the first pool included.
        ranking: Every prompt tried with its shrunk mean utilisation, best first.
        draws: Trajectories of each prompt.
        steered: The paper's surrogate, generation by generation; empty without one.
    """

    strategy: str
    seed: int
    generations: tuple[Generation, ...]
    ranking: tuple[Parent, ...]
    draws: Mapping[str, int]
    steered: tuple[Steered, ...] = ()

    @property
    def trajectories(self) -> int:
        """Number of trajectories used."""
        return sum(self.draws.values())


@dataclass(frozen=True)
class _Renamed:
    """A control's proposer, with a prefix before ids: equal ids would have equal draws."""

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
    """Runs all generations of a search.

    Args:
        strategy: One of `STRATEGIES`; all of them share the first pool and its draws.
        seed: Search seed.
        pools: The workload, divided.
        settings: Sizes.
        tokens: Counts the tokens of a text.
        book: Recorded trajectories.
        catalogue: Gets every candidate that was tried, by its id.
        proposer: Proposer of the search itself; the local operators if None.

    Raises:
        NeedsTrajectories: The records do not reach to the end.
    """
    start, rest = start_of(pools, seed, settings.pool)
    count = settings.proposals
    if strategy == RANDOM:
        proposer = _Renamed(RandomProposer(start, seed, settings.operators), RANDOM)
    elif strategy == SEEDS:
        # The workload has no copies any more, so no more are asked for than are drawn.
        proposer, count = _Renamed(SeedsProposer(rest, seed), SEEDS), settings.screened
    else:
        proposer = proposer or LocalProposer(seed, settings.operators)
    avoid = [one.text for one in pools.unseen]
    trail = _Trail(settings, BookReader(book, settings.budget), catalogue)
    trail.draw(0, AdmittedPrompts(start))
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


class _Trail:
    """Prompts that a search has tried so far, with their values."""

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

    def draw(self, generation: int, admission: AdmittedPrompts) -> None:
        """Halves a generation and counts it."""
        kept = admission.kept
        chosen = list(kept[: self._settings.screened] if generation else kept)
        self.tried += chosen
        self._catalogue |= {one.id: one for one in chosen}
        before = self.reader.spent
        plan: tuple[Rung, ...] = ()
        if chosen:
            # Every generation has an equal number of trajectories, whatever its size.
            keep = min(self._settings.survivors, len(chosen))
            plan = halving_plan(len(chosen), self._settings.draws, keep)
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

    def ranking(self) -> list[Parent]:
        """Returns every prompt tried, best first; scores are NaN while none has a value."""
        groups = [self._values.get(one.id, ()) for one in self.tried]
        if not any(groups):
            return [Parent(one) for one in self.tried]
        found = shrink(groups)
        return [Parent(self.tried[i], found.values[i]) for i in found.order()]

    def parents(self) -> list[Parent]:
        """Returns a good and diverse set to build upon, with the best prompt, best first."""
        ranking, keep = self.ranking(), self._settings.parents
        if len(ranking) <= keep or math.isnan(ranking[0].score):
            return ranking[:keep]
        texts = [parent.candidate.text for parent in ranking]
        scores = [parent.score for parent in ranking]
        places = dpp_archive(scores, Tfidf.of(texts).embed(texts), keep)
        if 0 not in places:
            places = [0, *places[: keep - 1]]
        return [ranking[i] for i in sorted(places)]
