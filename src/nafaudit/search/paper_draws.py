"""Trajectories by the paper's seeds, on a pair: what is recorded is looked up, the rest decoded.

The paper adds offsets to seed *values*, so that two of its requests may name one seed. A seed is
recorded once, under the trajectory number that has it; whoever names it twice gets it twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nafaudit.core.design import Extent
from nafaudit.core.draws import trajectory_seeds
from nafaudit.runner.execute import Prompts
from nafaudit.runner.recording import OnProgress
from nafaudit.search.candidate import Measured
from nafaudit.search.measured import Draws, Request
from nafaudit.search.recorder import Recorder


def number_of(prompt: str, seed: int) -> int:
    """The trajectory of a prompt that starts from this seed.

    Seed number i lies i + (i mod 3) above the first, which meets every whole number but 1 once.

    Raises:
        ValueError: No trajectory has it.
    """
    above = seed - trajectory_seeds(prompt, 1)[0]
    number = above - (0, 2, 1)[above % 3]
    if number < 0:
        raise ValueError(f"no trajectory of {prompt!r} has the seed {seed}.")
    return number


class PaperDraws:
    """Answers requests of the allocation paths; an instance is a `measured.Draw`.

    Args:
        recorder: Where trajectories are, and are decoded into.
        prompts: Returns every prompt that may be asked for, by id.
        budget: The budget that is searched.
        on_progress: Called as trajectories end.
    """

    def __init__(
        self,
        recorder: Recorder,
        prompts: Callable[[], Prompts],
        budget: float,
        on_progress: OnProgress,
    ) -> None:
        self._recorder = recorder
        self._prompts = prompts
        self._budget = budget
        self._on_progress = on_progress
        self.stage = "first pool"
        self.asked: dict[str, set[int]] = {}

    def __call__(self, requests: Sequence[Request]) -> list[Draws]:
        """One answer per request, in order."""
        groups: dict[tuple[tuple[int, ...], int], list[str]] = {}
        for request in requests:
            numbers = tuple(number_of(request.id, seed) for seed in request.seeds)
            so_far = self.asked.setdefault(request.id, set())
            so_far |= set(numbers)
            groups.setdefault((numbers, len(so_far)), []).append(request.id)
        extents = [
            Extent((self._budget,), count, tuple(ids), numbers)
            for (numbers, count), ids in groups.items()
        ]
        self._recorder.fill(extents, self._prompts(), self.stage, self._on_progress)
        return [self._draws(request) for request in requests]

    def _draws(self, request: Request) -> Draws:
        rows = [self._row(request.id, seed) for seed in request.seeds]
        spends, granted = tuple(row.spend for row in rows), tuple(row.granted for row in rows)
        return Draws(request.id, spends, granted, request.seeds)

    def _row(self, prompt: str, seed: int) -> Measured:
        return self._recorder.book.get(prompt, self._budget, number_of(prompt, seed))

    def rows(self, prompt: str) -> list[Measured]:
        """Every trajectory that was asked of a prompt, each once."""
        book = self._recorder.book
        return [book.get(prompt, self._budget, n) for n in sorted(self.asked.get(prompt, ()))]

    def debt(self, prompt: str) -> float:
        """Its prefix debt, which all of its trajectories share."""
        return self.rows(prompt)[0].debt

    @property
    def count(self) -> int:
        """Different trajectories so far."""
        return sum(map(len, self.asked.values()))
