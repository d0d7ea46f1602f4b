"""Replays what was written, many texts at once: prompt ids, output ids and a promise are enough.

Trajectories of different budgets often wrote the same tokens; their laws are computed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nafaudit.core.draws import Stream
from nafaudit.core.trajectory import Key, Replayed
from nafaudit.engine.laws import Piece, Reader, Text, prompt_logp
from nafaudit.mechanisms.replay import Replayer, Task, debt_of_laws
from nafaudit.protocols import Mechanism, Served

# Laws are asked for in pieces of this many numbers, so that they stay in a processor's cache.
_PIECE = 1 << 16


@dataclass(frozen=True)
class Written:
    """What somebody's decoder wrote, and what is claimed of it.

    Attributes:
        key: Which trajectory; its budget is the promised one.
        prompt: Token ids of the prompt.
        tokens: Token ids that were written; at least one.
        stopped: True if the last token is a stop token.
        stream: Key of the draws, if they are ours.
        theta: Claimed weights, if there are any.
    """

    key: Key
    prompt: tuple[int, ...]
    tokens: NDArray[np.int32]
    stopped: bool = False
    stream: Stream | None = None
    theta: NDArray[np.floating] | None = None


class _Debts(NamedTuple):
    """A prompt's debt as promised, and counted in the other laws, if there are others."""

    promised: float
    other: float | None


class Seen(Protocol):
    """Looks at every replayed step while its laws are at hand."""

    def __call__(self, key: Key, first: int, served: Served, safe: Tensor, risky: Tensor) -> None:
        """Takes the steps from `first` on: what was served, and both models' laws."""
        ...


@dataclass
class _Open:
    """A text on its way through the models, with the trajectories that wrote it."""

    written: list[Written]
    prompt_logp: dict[bool, list[list[NDArray[np.float64]]]] = field(default_factory=dict)
    replayers: list[Replayer] = field(default_factory=list)


def replay_written(
    reader: Reader, mechanism: Mechanism, written: Sequence[Written], look: Seen | None = None
) -> Iterator[Replayed]:
    """Yields a second record of every trajectory, in an order of our own.

    Args:
        reader: The pair and its warps.
        mechanism: The promise: rule, ledger and debt.
        written: What to replay.
        look: Shown every step while its laws are at hand.
    """
    groups: dict[Text, _Open] = {}
    for one in written:
        text = Text(one.prompt, tuple(one.tokens.tolist()))
        groups.setdefault(text, _Open([])).written.append(one)
    texts = list(groups)
    debts: dict[tuple[int, ...], _Debts] = {}
    for piece in reader.read(texts):
        text = texts[piece.text]
        group = groups[text]
        if text.prompt not in debts:
            _owe(group, piece, text, reader, mechanism, debts)
        yield from _replay_piece(group, piece, text, mechanism, debts, look)


def _owe(
    group: _Open,
    piece: Piece,
    text: Text,
    reader: Reader,
    mechanism: Mechanism,
    debts: dict[tuple[int, ...], _Debts],
) -> None:
    """Collects the prompt's log-probabilities; settles its debts with the last of them."""
    promised = mechanism.debt.raw
    # Without warps, or without a debt, both counts are one.
    two = reader.decoding.warps and mechanism.debt.n > 0
    counts = (promised, not promised) if two else (promised,)
    for raw in counts:
        columns = group.prompt_logp.setdefault(raw, [[], []])
        for column, part in zip(columns, prompt_logp(piece, text.prompt, raw=raw), strict=True):
            column.append(part)
    if piece.stop >= len(text.prompt) - 1:
        special = reader.pair.vocabulary.special
        settled = {
            raw: debt_of_laws(mechanism, text.prompt, special, *map(np.concatenate, columns))
            for raw, columns in group.prompt_logp.items()
        }
        debts[text.prompt] = _Debts(settled[promised], settled.get(not promised))


def _replay_piece(
    group: _Open,
    piece: Piece,
    text: Text,
    mechanism: Mechanism,
    debts: dict[tuple[int, ...], _Debts],
    look: Seen | None,
) -> Iterator[Replayed]:
    offset = len(text.prompt) - 1  # the law at this position is of the first written token
    first, last = max(piece.start, offset), min(piece.stop, len(text.tokens) - 1)
    if last <= first:
        return
    if not group.replayers:
        owed = debts[text.prompt]
        group.replayers = [Replayer(mechanism, _task(one, owed)) for one in group.written]
    rows = 1
    at = first
    while at < last:
        safe, risky = piece.laws(at, min(last, at + rows))
        rows = max(1, _PIECE // safe.shape[-1])
        for replayer in group.replayers:
            served = replayer.feed(safe, risky)
            if look is not None:
                whole = Served(*(torch.cat(parts) for parts in zip(*served, strict=True)))
                look(replayer.task.key, at - offset, whole, safe, risky)
        at += len(safe)
    if at == len(text.tokens) - 1:
        yield from (replayer.result() for replayer in group.replayers)
        group.replayers = []


def _task(one: Written, debts: _Debts) -> Task:
    written = one.key, one.prompt, one.tokens, debts.promised, one.stopped, one.stream, one.theta
    return Task(*written, other_debt=debts.other)
