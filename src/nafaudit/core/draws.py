"""All randomness: the noise of every token as a pure function of (stream, step, lane).

Nothing here has state, so a row's tokens cannot depend on its batch, its order, a kill or a
resume. Changing one bit of this file voids every recorded run: `LAYOUT` names the version.

Layout 1. A *stream* is a 128-bit key. Step `t` of a stream owns the Philox4x64-10 counters
(1, t, 0, 0), (2, t, 0, 0), ... (low word first); each yields four 64-bit words, and lane `v`
(the token id) takes word `v mod 4` of block `v // 4`. The top 52 bits `m` of a word give
u = (m + 1/2) 2^-52, which is never 0 or 1 and is exact in float64, and the Gumbel noise
-log(-log u).

References:
    Salmon, Moraes, Dror, Shaw (2011), "Parallel random numbers: as easy as 1, 2, 3", SC'11.
    Gumbel (1954), "Statistical theory of extreme values": argmax(log p + noise) ~ p.

The paper's seeds name its trajectories and repeat them. A seed follows from the prompt's id and the
trajectory's number alone, so budgets share it. Ids whose hashes agree modulo 100,000, or nearly so,
share seeds too.

Reference: Fowler, Noll, Vo, the 32-bit FNV-1a hash.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.errors import InputError
from nafaudit.core.trajectory import budget_text

LAYOUT = 1

_WORD = (1 << 64) - 1

# Making a generator takes seven times as long as setting one. Nothing of what it was set to is
# ever read again.
_PHILOX = np.random.Philox(0)
_STATE: Any = _PHILOX.state
_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True)
class Stream:
    """The 128-bit key of one trajectory's draws."""

    key: int

    def __post_init__(self) -> None:
        if not 0 <= self.key < 1 << 128:
            raise ValueError(f"a stream key must be in [0, 2**128), got {self.key}.")

    @property
    def words(self) -> tuple[int, int]:
        """The key as two 64-bit words, low word first."""
        return self.key & _WORD, self.key >> 64


def _stream(*parts: str | int) -> Stream:
    text = json.dumps(["nafaudit draws", LAYOUT, *parts], ensure_ascii=True)
    digest = hashlib.blake2b(text.encode("ascii"), digest_size=16).digest()
    return Stream(int.from_bytes(digest, "little"))


def sound_stream(seed: int, purpose: str, prompt: str, trajectory: int) -> Stream:
    """Returns the stream of the sound protocol.

    The budget and the mechanism are left out on purpose: arms share their draws, so that a
    difference between them is the mechanism's. `purpose` gives fresh draws, for confirmation.
    """
    return _stream("sound", seed, purpose, prompt, trajectory)


def paper_stream(seed_value: int) -> Stream:
    """Returns the stream of the paper's protocol: equal seed values repeat a row."""
    return _stream("paper", seed_value)


def request_place(stream: Stream, prompt: str, k: float, trajectory: int) -> bytes:
    """Returns the place of a request to a black box among all of a run's, to be sorted by.

    It mixes prompts, budgets and numbers, and follows from the row alone, whatever else is asked.
    """
    parts = [stream.key, prompt, budget_text(k), trajectory]
    return hashlib.sha256(json.dumps(parts).encode("ascii")).digest()


def words(stream: Stream, step: int, lanes: int) -> NDArray[np.uint64]:
    """Returns the raw 64-bit word of lanes 0 .. lanes-1 at a step."""
    if step < 0 or lanes < 1:
        raise ValueError(f"need step >= 0 and lanes >= 1, got {step} and {lanes}.")
    with _ONE_AT_A_TIME:
        _STATE["state"]["key"][:] = stream.words
        # NumPy adds one to the counter before its first block, hence block numbers from 1.
        _STATE["state"]["counter"][:] = (0, step, 0, 0)
        _PHILOX.state = _STATE
        return np.asarray(_PHILOX.random_raw(lanes), dtype=np.uint64)


def uniforms(raw: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Maps words to (0, 1): the midpoints of 2^52 equal cells."""
    cells = (raw >> np.uint64(12)).astype(np.float64)
    return np.asarray((cells + 0.5) * 2.0**-52)


def noise_of(raw: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Returns the Gumbel noise that words stand for."""
    return np.asarray(-np.log(-np.log(uniforms(raw))))


def gumbel(stream: Stream, step: int, lanes: int) -> NDArray[np.float64]:
    """Returns the noise to add to a served log-law; the token is the argmax of the sum."""
    return noise_of(words(stream, step, lanes))


def request_seed(stream: Stream, budget: str) -> int:
    """Returns the seed that a black box is handed for a trajectory under a budget, below 2**63.

    Unlike the arms of our own engine, budgets share no draws: how a decoder draws from its seed is
    not known, and evidence of several budgets may be multiplied only where draws are independent.

    Args:
        stream: The trajectory's draws, which budgets share.
        budget: The budget as text (`core.trajectory.budget_text`).
    """
    text = json.dumps(["nafaudit requests", 2, str(stream.key), budget], ensure_ascii=True)
    digest = hashlib.blake2b(text.encode("ascii"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


BASE_SEEDS = (42, 43, 44)

_OFFSET_BASIS = 2166136261
_PRIME = 16777619
_OFFSETS = 100_000


def fnv1a(text: str) -> int:
    """Computes 32-bit FNV-1a over the code points of a text, not over its bytes as is usual."""
    value = _OFFSET_BASIS
    for character in text:
        value = (value ^ ord(character)) * _PRIME & 0xFFFFFFFF
    return value


def trajectory_seeds(prompt: str, n: int) -> list[int]:
    """Returns the seeds of a prompt's first n trajectories; no two of them are equal.

    Args:
        prompt: Id of the prompt.
        n: How many.
    """
    offset = fnv1a(prompt) % _OFFSETS
    return [BASE_SEEDS[i % len(BASE_SEEDS)] + offset + i for i in range(n)]


def row_stream(protocol: str, seed: int, purpose: str, prompt: str, trajectory: int) -> Stream:
    """Returns the stream of a trajectory's draws; budgets share it in both protocols.

    Args:
        protocol: As a design's identity has it.
        seed: Run seed; the paper's protocol has none.
        purpose: What the draws are for; the paper's protocol knows no purpose.
        prompt: Id of the prompt.
        trajectory: Number of the trajectory.

    Raises:
        InputError: The draws of such a run are not known here.
    """
    if protocol == "sound":
        return sound_stream(seed, purpose, prompt, trajectory)
    if protocol == "paper":
        return paper_stream(trajectory_seeds(prompt, trajectory + 1)[-1])
    raise InputError(f"the draws of a run with protocol {protocol!r} cannot be recomputed.")
