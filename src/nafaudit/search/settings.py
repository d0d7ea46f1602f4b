"""What a user may set for a search of the sound protocol."""

from __future__ import annotations

from dataclasses import dataclass

from nafaudit.core.errors import InputError, nearest
from nafaudit.core.ledger import is_baseline
from nafaudit.core.settings import Settings
from nafaudit.search.basics import SearchBasics
from nafaudit.search.halving import halving_plan

CHOICES = {
    "archive": ("dpp", "elites"),
    "surrogate": ("auto", "off"),
    "embedding": ("auto", "tfidf", "minilm"),
}
TRAINING_DRAWS = 10
"""Trajectories behind each label that teaches a surrogate: what its gate asks for."""


@dataclass(frozen=True)
class SearchSettings(SearchBasics):
    """Everything `nafaudit search` can be told in the sound protocol.

    Attributes:
        k: Budgets that are searched, one after the other, in nats per token.
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
        archive: Which prompts are built upon: `dpp` or `elites`.
        surrogate: `auto` lets a surrogate choose among proposals if it passes its gate; `off`.
        training: Prompts of the workload that teach it before a search begins.
        embedding: What it sees of a text: `auto`, `tfidf` or `minilm`.
        others: JSON Lines file of held-out prompts of other kinds; the pair's own if empty.
        passages: File of protected passages that outputs are compared with; the pair's own.
        above: A prompt is named if its mean utilisation is shown to be above this.
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
    archive: str = "dpp"
    surrogate: str = "auto"
    training: int = 0
    embedding: str = "auto"
    others: str | None = None
    passages: str | None = None
    above: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        least = {"pool": 2, "generations": 0, "training": 0}
        names = (
            "searches", "pool", "generations", "proposals", "screened", "draws", "survivors",
            "parents", "finalists", "fresh", "heldout", "heldout_draws", "training",
        )  # fmt: skip
        for name in names:
            if getattr(self, name) < least.get(name, 1):
                raise InputError(
                    f"{name.replace('_', '-')} must be at least {least.get(name, 1)}, got "
                    f"{getattr(self, name)}."
                )
        self._check_protocol()
        for name, known in CHOICES.items():
            value = getattr(self, name)
            if value not in known:
                raise InputError(
                    f"{name} must be {' or '.join(known)}, got {value!r}{nearest(value, known)}"
                )
        if not 0 < self.above < 1:
            raise InputError(f"above must be between 0 and 1, got {self.above}.")
        for size in (self.pool, self.screened):
            halving_plan(size, self.draws, min(self.survivors, size))

    def check_budgets(self) -> None:
        """Several budgets are searched one after the other."""
        if not self.k or any(map(is_baseline, self.k)) or len(set(self.k)) < len(self.k):
            raise InputError(
                f"a search looks at budgets above 0, each once, got k = "
                f"{', '.join(map(str, self.k))}; give one, or several as in --k 1,3,5."
            )

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


@dataclass(frozen=True)
class StudySettings(SearchSettings):
    """The same for a study, which asks for more search seeds and one finalist of each.

    Attributes:
        searches: Ten are the fewest whose exact limits may leave out one at each end.
        finalists: Best prompts of a search that are confirmed.
    """

    searches: int = 10
    finalists: int = 1
