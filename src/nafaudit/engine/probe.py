"""Asks the machine, before a run, whether the promises of the row layout hold on it.

Two questions: do cached rows give the logits of a plain forward pass (they must, or the model
is refused), and is a row decoded alone bit-identical to the same row in a crowd? If not, rows are
decoded in constant numbers and asked again; if that does not help, the run still stands, but says
that its records depend on batching.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nafaudit.core.design import Decoding
from nafaudit.core.draws import sound_stream
from nafaudit.core.errors import InputError
from nafaudit.core.trajectory import Key, Steps, Trajectory
from nafaudit.engine.decode import Decoder
from nafaudit.engine.prompts import PromptRequest, RowRequest
from nafaudit.engine.proof import Numerics, numerics_of
from nafaudit.engine.rows import RowModel
from nafaudit.models.pair import Pair
from nafaudit.protocols import Mechanism

_TOKENS = 8
_CROWD = 32
_BUDGETS = (0.0, 0.5, float("inf"))


@dataclass(frozen=True)
class Probe:
    """The findings of a probe.

    Attributes:
        batch_free: True if rows were bit-identical alone and in a crowd.
        deviation: Largest difference of a charge in nats, over tokens both ways agree on.
        plain_error: Largest difference of a logit from a plain forward pass.
        digest: Hash of products, logits and records of fixed prompts. Equal on machines that
            compute the same bits, whatever their batch.
    """

    batch_free: bool
    deviation: float
    plain_error: float
    digest: str


def probe(
    pair: Pair,
    mechanism: Mechanism,
    decoding: Decoding,
    *,
    width: int,
    batch: int,
    speculate: int = 0,
    threaded: bool = False,
    numerics: Numerics | None = None,
) -> Probe:
    """Decodes a few random prompts in two ways and compares every bit.

    The crowd is decoded as the run will be; rows alone are decoded plainly, whatever that is.

    Args:
        pair: The models.
        mechanism: What is audited.
        decoding: Warps and length limit.
        width: Positions per row.
        batch: Rows of the crowd, at least.
        speculate: As the run will.
        threaded: As the run will.
        numerics: By which arithmetic; found out if None.

    Raises:
        InputError: A model does not keep to the row layout, or speculation changes its records.
    """
    new = min(_TOKENS, decoding.max_new_tokens)
    ids = [i for i, token in enumerate(pair.vocabulary.tokens) if token is not None]
    longest = width - new
    how_computed = numerics or numerics_of((pair.safe, pair.risky), width, batch=batch)
    digest = hashlib.sha256(how_computed.digest.encode())
    plain = [
        _plain_error(digest, name, model, _random_ids("plain", ids, width), width, how_computed)
        for name, model in (("safe", pair.safe), ("risky", pair.risky))
    ]
    # Rows that fill the run's batch, and then five: an uneven number. One prompt is as long as a
    # prompt can be, the others are short. A batch of many rows is filled for two tokens only.
    rows = max(min(batch, _CROWD), 5) + 5
    count = -(-rows // len(_BUDGETS))
    lengths = [*(2 + i % min(24, longest - 1) for i in range(count - 1)), longest]
    prompts = [_prompt(i, ids, n) for i, n in enumerate(lengths)]
    spare = count * len(_BUDGETS) - rows
    prompts[1] = replace(prompts[1], rows=prompts[1].rows[spare:])
    warped = Decoding(new, decoding.temperature, decoding.repetition_penalty)

    def decode(
        batch: int, chosen: list[PromptRequest], warped: Decoding = warped, **how: Any
    ) -> dict[Key, Trajectory]:
        shape: Any = {"width": width, "batch": batch, "numerics": how_computed}
        decoder = Decoder(pair, mechanism, warped, **shape, **how)
        return {trajectory.key: trajectory for trajectory in decoder.decode(chosen)}

    as_run: Any = {"speculate": speculate, "threaded": threaded, "shared": False}
    crowd = decode(max(min(batch, _CROWD), 5), prompts, **as_run)
    again = decode(1, prompts[:1]) | decode(3, prompts[-2:])
    pairs = [(crowd[key], again[key]) for key in again]
    if batch > _CROWD:
        brief = replace(warped, max_new_tokens=min(2, new))
        # Few prompts with many rows each: a prompt has to be read, a row does not.
        more = [_prompt(count + i, ids, 2, 8) for i in range(-(-batch // (8 * len(_BUDGETS))))]
        full = decode(batch, [prompts[0], *more], brief, **as_run)
        pairs += [(full[k], t) for k, t in decode(1, prompts[:1], brief).items()]
    batch_free = all(one.same_as(other) for one, other in pairs)
    if speculate and not batch_free:
        raise InputError(
            "on this machine --speculate changes a row's last bits, so records would depend on it. "
            "Leave it out."
        )
    # The first prompt in the crowd: the same for every batch, where rows are free of it.
    for key in sorted(key for key in again if key.prompt == prompts[0].prompt):
        for column in Steps.columns:
            digest.update(getattr(crowd[key].steps, column).tobytes())
    return Probe(
        batch_free=batch_free,
        deviation=max(_deviation(one, other) for one, other in pairs),
        plain_error=max(plain),
        digest=digest.hexdigest()[:16],
    )


class Settled(NamedTuple):
    """The arithmetic of a run, and its probe."""

    numerics: Numerics
    probe: Probe


def settle(
    pair: Pair, mechanism: Mechanism, decoding: Decoding, *, depends: str = "", **shape: Any
) -> Settled:
    """Chooses the arithmetic of a run: free rows where they are free, constant numbers elsewhere.

    Args:
        pair: The models.
        mechanism: What is audited.
        decoding: Warps and length limit.
        depends: Why rows must be constant, if that is known.
        shape: As `probe` takes it.
    """
    models = (pair.safe, pair.risky)
    size = {"width": shape["width"], "batch": shape["batch"]}
    how = numerics_of(models, **size, depends=depends)
    seen = probe(pair, mechanism, decoding, **shape, numerics=how)
    if seen.batch_free or how.constant:
        return Settled(how, seen)
    alone = "a row decoded alone has other last bits than in a crowd"
    depends = f"{how.why}; {alone}" if how.why else alone  # fewer threads are said once
    how = numerics_of(models, **size, depends=depends)
    return Settled(how, probe(pair, mechanism, decoding, **shape, numerics=how))


def _random_ids(name: str, ids: Sequence[int], length: int) -> tuple[int, ...]:
    draw = random.Random(name)
    return tuple(draw.choice(ids) for _ in range(length))


def _prompt(number: int, ids: Sequence[int], length: int, draws: int = 1) -> PromptRequest:
    name = f"probe {number}"
    rows = tuple(
        RowRequest(k, i, sound_stream(0, "probe", name, i)) for i in range(draws) for k in _BUDGETS
    )
    return PromptRequest(name, _random_ids(name, ids, length), rows)


def _deviation(one: Trajectory, other: Trajectory) -> float:
    length = min(len(one), len(other))
    agree = int(np.cumprod(one.steps.token[:length] == other.steps.token[:length]).sum())
    # The step at which tokens part still had the same prefix.
    upto = min(agree + 1, length)
    with np.errstate(invalid="ignore"):
        gaps = np.abs(one.steps.charge[:upto] - other.steps.charge[:upto])
    return float(np.nan_to_num(gaps, nan=0.0).max())


@torch.inference_mode()
def _plain_error(
    digest: Any, name: str, model: Any, tokens: Sequence[int], width: int, how: Numerics
) -> float:
    """Compares a row's logits, read in passes and then stepped, with one plain forward pass."""
    try:
        rows = RowModel(model, 1, width, how.constant, common=how.common)
        # Past a pass's end, so that joining passes is tested; no longer, to spare memory.
        tokens = tokens[: rows.pass_tokens + 24]
        stepped = min(4, len(tokens) - 1)
        read = tokens[: len(tokens) - stepped]
        cached: list[Tensor] = []
        prompt = rows.prefill(read, lambda start, logits: cached.append(logits))
        rows.admit(0, prompt)
        for position in range(len(read), len(tokens)):
            cached.append(rows.step([tokens[position]], [position]))
        ids = torch.tensor([list(tokens)], device=model.device)
        plain = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
    except (RuntimeError, ValueError, AttributeError, TypeError, IndexError) as error:
        raise InputError(
            f"the {name} model ({type(model).__name__}) cannot be run with rows at positions of "
            f"their own: {error}. It cannot be audited here; choose another attention model."
        ) from error
    logits = torch.cat(cached)
    digest.update(logits.to(torch.float64).cpu().numpy().tobytes())
    gap = (logits - plain).abs()
    tolerance = max(1e-3, 4 * torch.finfo(model.dtype).eps) * (1 + plain.abs().max())
    if not (gap <= tolerance).all():
        raise InputError(
            f"the {name} model ({type(model).__name__}) gives other logits with its rows at their "
            f"own positions than in a plain forward pass (off by {float(gap.max()):.3g}): its "
            "attention needs something that this engine does not pass on, so it cannot be "
            "audited here."
        )
    return float(gap.max())
