"""Asks the machine, before a run, whether the promises of the row layout hold on it.

Two questions: do cached rows give the logits of a plain forward pass (they must, or the model
is refused), and is a row decoded alone bit-identical to the same row in a crowd (if not, the
run still stands, but says that its records depend on batching).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nafaudit.core.design import Decoding
from nafaudit.core.draws import sound_stream
from nafaudit.core.errors import InputError
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.engine.decode import Decoder, PromptRequest, RowRequest
from nafaudit.engine.rows import RowModel
from nafaudit.mechanisms.protocols import Mechanism
from nafaudit.models.pair import Pair

_TOKENS = 8
_BUDGETS = (0.0, 0.5, float("inf"))


@dataclass(frozen=True)
class Probe:
    """What the probe saw.

    Attributes:
        batch_free: True if rows were bit-identical alone and in a crowd.
        deviation: Largest difference of a charge in nats, over tokens both ways agree on.
        plain_error: Largest difference of a logit from a plain forward pass.
    """

    batch_free: bool
    deviation: float
    plain_error: float


def probe(pair: Pair, mechanism: Mechanism, decoding: Decoding, *, width: int, batch: int) -> Probe:
    """Decodes a few random prompts in two ways and compares every bit.

    Raises:
        InputError: The model does not keep to the row layout.
    """
    new = min(_TOKENS, decoding.max_new_tokens)
    short = Decoding(new, decoding.temperature, decoding.repetition_penalty)
    longest = min(24, width - new)
    prompts = [_prompt(i, 2 + i * (longest - 2) // 6, len(pair.vocabulary)) for i in range(7)]
    crowd = _decode(Decoder(pair, mechanism, short, width=width, batch=max(batch, 5)), prompts)
    alone = Decoder(pair, mechanism, short, width=width, batch=1)
    few = Decoder(pair, mechanism, short, width=width, batch=3)
    again = _decode(alone, prompts[3:5]) | _decode(few, prompts[5:])
    pairs = [(crowd[key], again[key]) for key in again]
    return Probe(
        batch_free=all(one.same_as(other) for one, other in pairs),
        deviation=max(_deviation(one, other) for one, other in pairs),
        plain_error=max(
            _plain_error(name, model, prompts[-1].tokens, width)
            for name, model in (("safe", pair.safe), ("risky", pair.risky))
        ),
    )


def _prompt(number: int, length: int, vocabulary: int) -> PromptRequest:
    tokens = tuple(random.Random(number).randrange(vocabulary) for _ in range(length))
    name = f"probe {number}"
    rows = tuple(RowRequest(k, 0, sound_stream(0, "probe", name, 0)) for k in _BUDGETS)
    return PromptRequest(name, tokens, rows)


def _decode(decoder: Decoder, prompts: list[PromptRequest]) -> dict[Key, Trajectory]:
    return {trajectory.key: trajectory for trajectory in decoder.decode(prompts)}


def _deviation(one: Trajectory, other: Trajectory) -> float:
    length = min(len(one), len(other))
    agree = int(np.cumprod(one.steps.token[:length] == other.steps.token[:length]).sum())
    # The step at which tokens part still had the same prefix.
    upto = min(agree + 1, length)
    with np.errstate(invalid="ignore"):
        gaps = np.abs(one.steps.charge[:upto] - other.steps.charge[:upto])
    return float(np.nan_to_num(gaps, nan=0.0).max())


@torch.inference_mode()
def _plain_error(name: str, model: Any, tokens: Sequence[int], width: int) -> float:
    """Steps a row through the cache and compares its logits with one plain forward pass."""
    rows = RowModel(model, 1, width)
    half = len(tokens) // 2
    prompt = rows.prefill(tokens[:half], lambda start, logits: None)
    rows.admit(0, prompt)
    later = [rows.step([token], [half + i])[0] for i, token in enumerate(tokens[half:])]
    cached = torch.stack([prompt.logits, *later])
    ids = torch.tensor([list(tokens)], device=model.device)
    plain = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, half - 1 :]
    gap = (cached - plain).abs()
    tolerance = max(1e-3, 32 * torch.finfo(model.dtype).eps) * (1 + plain.abs().max())
    if not (gap <= tolerance).all():
        raise InputError(
            f"the {name} model ({type(model).__name__}) gives other logits with its rows at their "
            f"own positions than in a plain forward pass (off by {float(gap.max()):.3g}): its "
            "attention needs something that this engine does not pass on, so it cannot be "
            "audited here."
        )
    return float(gap.max())
