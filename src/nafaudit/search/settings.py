"""What a user may set for a search, beside everything that a run can be told."""

from __future__ import annotations

from dataclasses import dataclass

from nafaudit.core.errors import InputError
from nafaudit.core.ledger import is_baseline
from nafaudit.core.settings import Settings
from nafaudit.search.filters import LengthWindow
from nafaudit.search.halving import halving_plan
from nafaudit.search.operators import OPERATORS
from nafaudit.search.propose import chosen


@dataclass(frozen=True)
class SearchSettings(Settings):
    """Everything `nafaudit search` can be told; the names of `nafaudit run` mean the same here.

    Attributes:
        k: The one budget that is searched, in nats per token.
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
        shortest: Fewest tokens of a prompt.
        longest: Most tokens of a prompt.
        operators: Ways to make new prompts.
    """

    k: tuple[float, ...] = (1.0,)
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
    shortest: int = 20
    longest: int = 250
    operators: tuple[str, ...] = tuple(OPERATORS)

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
        self._check_budget()
        _ = self.window
        chosen(self.operators)
        for size in (self.pool, self.screened):
            halving_plan(size, self.draws, min(self.survivors, size))

    def _check_budget(self) -> None:
        if len(self.k) != 1 or is_baseline(self.k[0]):
            raise InputError(
                f"a search looks at one budget above 0, got k = {', '.join(map(str, self.k))}; "
                "search each in its own run, for example --k 1."
            )
        if self.trajectories != Settings.trajectories:
            raise InputError(
                f"a search shares its trajectories out itself, got trajectories = "
                f"{self.trajectories}; set --draws (of a generation) and --fresh (of a finalist)."
            )
        if self.protocol != "sound":
            raise InputError(
                f"a search has the protocol sound, got {self.protocol!r}; leave it out."
            )
        if self.decoder is not None:
            raise InputError(
                f"a search decodes with our own engine, got decoder = {self.decoder!r}; audit a "
                "black box with nafaudit run --decoder."
            )

    @property
    def budget(self) -> float:
        """The budget that is searched."""
        return self.k[0]

    @property
    def window(self) -> LengthWindow:
        """Allowed lengths of a prompt."""
        return LengthWindow(self.shortest, self.longest)

    @property
    def search_seeds(self) -> tuple[int, ...]:
        """One per search."""
        return tuple(range(self.seed, self.seed + self.searches))
