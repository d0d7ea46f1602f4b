"""The engine as the lab's measurements want it: token lists in, outputs under a budget out."""

from __future__ import annotations

from collections.abc import Sequence

from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.core.draws import sound_stream
from nafaudit.engine.decode import Decoder
from nafaudit.engine.prompts import PromptRequest, RowRequest
from nafaudit.lab.measure import LabPair, Output
from nafaudit.mechanisms.registry import mechanism

_NEW_TOKENS = 200
_BATCH = 32


class LabDecoder:
    """KL-anchored decoding of the lab's pair."""

    def __init__(self, pair: LabPair, new_tokens: int = _NEW_TOKENS) -> None:
        self._pair = pair.pair
        self._new_tokens = new_tokens

    def __call__(
        self, prompts: Sequence[list[int]], k: float, trajectories: int, seed: int
    ) -> list[list[Output]]:
        """Returns ``trajectories`` outputs for every prompt."""
        requests = [
            PromptRequest(
                str(number),
                tuple(tokens),
                tuple(
                    RowRequest(k, j, sound_stream(seed, "lab", str(number), j))
                    for j in range(trajectories)
                ),
            )
            for number, tokens in enumerate(prompts)
        ]
        decoder = Decoder(
            self._pair,
            mechanism("anchored", DebtRule()),
            Decoding(max_new_tokens=self._new_tokens),
            width=max(map(len, prompts)) + self._new_tokens,
            batch=min(_BATCH, len(prompts) * trajectories),
        )
        outputs: dict[tuple[int, int], Output] = {}
        for trajectory in decoder.decode(requests):
            steps = trajectory.steps
            where = (int(trajectory.key.prompt), trajectory.key.trajectory)
            outputs[where] = Output(
                tuple(steps.token.tolist()),
                tuple(steps.theta.tolist()),
                tuple(steps.charge.tolist()),
            )
        return [[outputs[i, j] for j in range(trajectories)] for i in range(len(prompts))]
