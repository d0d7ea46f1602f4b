"""Decodes with a mechanism that chooses among whole outputs; baselines as everybody's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.design import Decoding
from nafaudit.core.ledger import is_baseline
from nafaudit.core.ledger import replay as allowances
from nafaudit.core.trajectory import STEP_TYPES, Key, Steps, Trajectory
from nafaudit.engine.decode import Decoder
from nafaudit.engine.prompts import PromptRequest
from nafaudit.engine.proof import Numerics, numerics_of
from nafaudit.engine.world import PairWorld
from nafaudit.mechanisms.registry import SequenceMechanism
from nafaudit.mechanisms.sequences import Draft, write
from nafaudit.models.pair import Pair


class SequenceDecoder:
    """A pair and a sequence-level mechanism, ready to decode.

    The charge of a choice is booked at the first step of what is chosen, when the drafts are drawn;
    the steps after it choose nothing. No law is served at a step, so its log-probability is not a
    number.
    """

    def __init__(
        self,
        pair: Pair,
        mechanism: SequenceMechanism,
        decoding: Decoding,
        *,
        width: int,
        batch: int,
        numerics: Numerics | None = None,
    ) -> None:
        self.mechanism = mechanism
        models = (pair.safe, pair.risky)
        self.numerics = numerics or numerics_of(models, width, batch=batch)
        shape: Any = {"width": width, "batch": batch, "numerics": self.numerics}
        self._baselines = Decoder(pair, mechanism, decoding, **shape)
        self._world = PairWorld(pair, decoding, mechanism.debt, **shape)

    def decode(self, requests: Iterable[PromptRequest]) -> Iterator[Trajectory]:
        """Yields every requested trajectory, baselines of a prompt first."""
        for request in requests:
            alone = tuple(row for row in request.rows if is_baseline(row.k))
            yield from self._baselines.decode([replace(request, rows=alone)])
            for row in (row for row in request.rows if not is_baseline(row.k)):
                name = self.mechanism.name
                draft, charge = write(
                    self._world,
                    self.mechanism.sequence,
                    name,
                    request.tokens,
                    row.k,
                    row.stream,
                )
                key = Key(request.prompt, name, row.k, row.trajectory)
                yield self._record(key, draft, charge)

    def _record(self, key: Key, draft: Draft, charge: NDArray[np.float64]) -> Trajectory:
        columns = {
            "token": np.array(draft.tokens),
            "allowance": np.zeros(len(draft.tokens)),
            "charge": charge,
            "theta": np.full(len(draft.tokens), np.nan),
            "served": np.full(len(draft.tokens), np.nan),
            "safe": draft.safe,
            "risky": draft.risky,
        }
        steps = Steps(**{name: x.astype(STEP_TYPES[name]) for name, x in columns.items()})
        stopped = draft.tokens[-1] in self._world.stops
        allowance = allowances(self.mechanism.ledger, key.k, 0.0, steps)
        return Trajectory(key, 0.0, stopped, replace(steps, allowance=allowance))
