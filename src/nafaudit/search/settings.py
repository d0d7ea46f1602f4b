"""What a user may set for a search of the sound protocol."""

from __future__ import annotations

from dataclasses import dataclass

from nafaudit.core.errors import InputError
from nafaudit.core.settings import Settings
from nafaudit.search.basics import SearchBasics
from nafaudit.search.halving import halving_plan


@dataclass(frozen=True)
class SearchSettings(SearchBasics):
    """Everything `nafaudit search` can be told in the sound protocol.

    Attributes:
        max_new_tokens: Length limit T.
        searches: Independent searches; the first has the run's seed, each other the next one.
        pool: Prompts of the workload that a search starts from.
        generations: Rounds of new prompts after the first pool.
        proposals: Prompts that are proposed in a generation.
        screened: How many of them get a trajectory.
        draws: Trajectories of a generation, shared out by successive halving.
        survivors: Prompts of a generation that are never dropped.
        parents: Prompts that the next generation is made of.
        finalists: Best prompts of a search that are confirmed.
        fresh: Fresh trajectories of each finalist.
        heldout: Prompts that no search ever sees, confirmed beside the finalists.
        heldout_draws: Trajectories of each.
    """

    max_new_tokens: int = 64
    searches: int = 2
    pool: int = 12
    generations: int = 2
    proposals: int = 24
    screened: int = 12
    draws: int = 72
    survivors: int = 2
    parents: int = 6
    finalists: int = 2
    fresh: int = 24
    heldout: int = 10
    heldout_draws: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        least = {"pool": 2, "generations": 0}
        names = (
            "searches", "pool", "generations", "proposals", "screened", "draws", "survivors",
            "parents", "finalists", "fresh", "heldout", "heldout_draws",
        )  # fmt: skip
        for name in names:
            if getattr(self, name) < least.get(name, 1):
                raise InputError(
                    f"{name.replace('_', '-')} must be at least {least.get(name, 1)}, got "
                    f"{getattr(self, name)}."
                )
        self._check_protocol()
        for size in (self.pool, self.screened):
            halving_plan(size, self.draws, min(self.survivors, size))

    def _check_protocol(self) -> None:
        if self.trajectories != Settings.trajectories:
            raise InputError(
                f"a search shares its trajectories out itself, got trajectories = "
                f"{self.trajectories}; set --draws (of a generation) and --fresh (of a finalist)."
            )
        if self.protocol != "sound":
            raise InputError(f"these are settings of the protocol sound, got {self.protocol!r}.")

    @property
    def search_seeds(self) -> tuple[int, ...]:
        """One per search."""
        return tuple(range(self.seed, self.seed + self.searches))
