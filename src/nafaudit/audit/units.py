"""Cuts a run's requests into units of work; which cut is made changes speed only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nafaudit.engine.prompts import PromptRequest

# A unit refills its batch so often: its last rows leave slots empty, and that is once a unit.
_BATCHES = 4
# Units a worker has at least, if there are rows enough: the last ones end at about one time.
_SHARES = 4

Unit = tuple[PromptRequest, ...]


def cut(requests: Sequence[PromptRequest], workers: int, batch: int) -> list[Unit]:
    """Returns units that together ask for every row once, in the order of the requests.

    Args:
        requests: What is wanted.
        workers: How many share it.
        batch: Rows that a worker decodes together.
    """
    rows = sum(len(request.rows) for request in requests)
    size = min(_BATCHES * batch, max(1, rows // (_SHARES * workers)))
    units: list[Unit] = []
    unit: list[PromptRequest] = []
    room = size
    for request in requests:
        left = request.rows
        while left:
            # A prompt is read once a unit, so it is divided only if it fills one by itself.
            taken = left if len(left) <= room else left[: room if len(left) > size else 0]
            if taken:
                unit.append(replace(request, rows=taken))
                left, room = left[len(taken) :], room - len(taken)
            if not taken or not room:
                units.append(tuple(unit))
                unit, room = [], size
    if unit:
        units.append(tuple(unit))
    return units
