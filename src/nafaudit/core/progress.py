"""Progress of long work, as every command reports it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """A report of how far long work is.

    Attributes:
        stage: What it is doing, in words; empty if there is one stage.
        done: Pieces of this stage that are finished, those of earlier sessions included.
        total: All pieces of this stage.
        tokens: Written in this session, unfinished trajectories included.
        seconds: Since this session began to decode.
        worst: Largest spend over budget so far; -inf before the first.
        unit: What `done` and `total` count.
        resumed: Pieces of earlier sessions.
        under_way: What is written of unfinished trajectories, in trajectories of full length.
    """

    stage: str
    done: int
    total: int
    tokens: int = 0
    seconds: float = 0.0
    worst: float = -math.inf
    unit: str = "trajectories"
    resumed: int = 0
    under_way: float = 0.0


OnProgress = Callable[[Progress], None]
