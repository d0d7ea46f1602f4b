"""Two checkpoints as a `World`, and whole outputs decoded with them.

It keeps the rows of the last call, so that a decoder that asks for each prefix again, one token
longer, pays for one token. A row's laws depend neither on its neighbours nor on its place
(`nafaudit.engine.rows`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.core.errors import InputError
from nafaudit.core.ledger import allowances, is_baseline
from nafaudit.core.trajectory import STEP_TYPES, Key, Steps, Trajectory
from nafaudit.engine.decode import Decoder
from nafaudit.engine.prompts import PromptRequest
from nafaudit.engine.proof import Numerics, numerics_of
from nafaudit.engine.rows import Prefilled, RowModel
from nafaudit.mechanisms.laws import NEG_INF, log_law, warp
from nafaudit.mechanisms.registry import SequenceMechanism
from nafaudit.mechanisms.sequences import decode_by_choice
from nafaudit.models.pair import Pair
from nafaudit.protocols import Draft, Law

Tokens = tuple[int, ...]
_PROMPTS_KEPT = 64


class PairWorld:
    """A `World` over two loaded models.

    Args:
        pair: The models.
        decoding: Warps of their laws.
        debt: The promised prefix debt.
        width: Positions per row.
        batch: Rows that are expected in a call; more make room for themselves.
        checkpoints: Where the models came from.
        numerics: By which arithmetic; found out if None.
    """

    def __init__(
        self,
        pair: Pair,
        decoding: Decoding,
        debt: DebtRule,
        *,
        width: int,
        batch: int = 1,
        checkpoints: tuple[str, str] = ("", ""),
        numerics: Numerics | None = None,
    ) -> None:
        self.size = len(pair.vocabulary)
        self.stops, self.special = pair.vocabulary.stops, pair.vocabulary.special
        self.decoding, self.debt, self.checkpoints = decoding, debt, checkpoints
        self._width = width
        self._known = torch.tensor([token is not None for token in pair.vocabulary.tokens])
        models = (pair.safe, pair.risky)
        how = numerics or numerics_of(models, width, batch=batch)
        self._readers = [_Reader(model, batch, width, how) for model in models]

    def laws(self, prefixes: Sequence[Sequence[int]]) -> tuple[Law, Law]:
        """Returns the next-token log-laws, safe and risky, after each prefix."""
        wanted = [self._checked(prefix) for prefix in prefixes]
        if not wanted:
            return np.empty((0, self.size)), np.empty((0, self.size))
        safe, risky = (
            self._law(reader.next(wanted), wanted, self.decoding) for reader in self._readers
        )
        return safe, risky

    def prefix_laws(self, tokens: Sequence[int], *, raw: bool = False) -> tuple[Law, Law]:
        """Returns the log-laws after tokens[:1], tokens[:2], ...; with `raw`, without warps."""
        read = self._checked(tokens)
        prefixes = [read[: i + 1] for i in range(len(read))]
        warps = Decoding() if raw else self.decoding
        safe, risky = (
            self._law(reader.prefix_logits(read), prefixes, warps) for reader in self._readers
        )
        return safe, risky

    along = prefix_laws  # its old name, which recorded decoders call

    def _checked(self, prefix: Sequence[int]) -> Tokens:
        tokens = tuple(int(token) for token in prefix)
        if not 1 <= len(tokens) <= self._width:
            raise InputError(
                f"a law was asked for after {len(tokens)} tokens; rows of this world have 1 to "
                f"{self._width}."
            )
        if bad := [token for token in tokens if not 0 <= token < self.size]:
            raise InputError(f"token id {bad[0]} is not one of 0 to {self.size - 1}.")
        return tokens

    def _law(self, logits: Tensor, prefixes: Sequence[Tokens], decoding: Decoding) -> Law:
        x = logits[..., : self.size].to("cpu").masked_fill(~self._known, NEG_INF)
        seen = None
        if decoding.repetition_penalty != 1.0:
            seen = torch.zeros(x.shape, dtype=torch.bool)
            for row, prefix in enumerate(prefixes):
                seen[row, list(prefix)] = True
        return np.asarray(log_law(warp(x, seen, decoding)).numpy())


class _Reader:
    """One model and the rows it read last."""

    def __init__(self, model: object, batch: int, width: int, how: Numerics) -> None:
        self._model, self._width, self._how = model, width, how
        self._rows = self._room(batch)
        self._held: list[Tokens] = []
        self._prompts: dict[Tokens, Prefilled] = {}
        self._last: tuple[list[Tokens], Tensor] | None = None

    def _room(self, rows: int) -> RowModel:
        how = self._how
        return RowModel(self._model, rows, self._width, how.constant, common=how.common)

    @torch.inference_mode()
    def prefix_logits(self, tokens: Tokens) -> Tensor:
        """Returns the logits after every prefix of some tokens."""
        seen: list[Tensor] = []
        self._rows.prefill(tokens, lambda _, logits: seen.append(logits.clone()))
        return torch.cat(seen)

    @torch.inference_mode()
    def next(self, wanted: list[Tokens]) -> Tensor:
        """Logits after each prefix."""
        if self._last is not None and self._last[0] == wanted:
            return self._last[1]
        if len(wanted) > self._rows.rows:
            self._rows, self._held = self._room(len(wanted)), []
        sources, fresh = self._sources(wanted)
        logits: dict[int, Tensor] = {}
        # In the order of their slots, rows only ever move down, so that none is overwritten.
        for slot, (source, _) in enumerate(sources):
            if source != slot:
                self._rows.move(source, slot)
        stepped = [wanted[i] for _, i in sources]
        if stepped:
            last = [prefix[-1] for prefix in stepped]
            out = self._rows.step(last, [len(prefix) - 1 for prefix in stepped])
            logits |= {i: out[slot] for slot, (_, i) in enumerate(sources)}
        for slot, i in enumerate(fresh, start=len(sources)):
            prompt = self._prompt(wanted[i])
            self._rows.admit(slot, prompt)
            logits[i] = prompt.logits
        self._held = stepped + [wanted[i] for i in fresh]
        together = torch.stack([logits[i] for i in range(len(wanted))])
        self._last = (list(wanted), together)
        return together

    def _sources(self, wanted: list[Tokens]) -> tuple[list[tuple[int, int]], list[int]]:
        """Returns (slot, index) of prefixes that extend a held row by a token; other indices."""
        slots: dict[Tokens, list[int]] = {}
        for slot, held in reversed(list(enumerate(self._held))):
            slots.setdefault(held, []).append(slot)
        sources, fresh = [], []
        for i, prefix in enumerate(wanted):
            found = slots.get(prefix[:-1])
            if found:
                sources.append((found.pop(), i))
            else:
                fresh.append(i)
        return sorted(sources), fresh

    def _prompt(self, tokens: Tokens) -> Prefilled:
        if tokens not in self._prompts:
            if len(self._prompts) >= _PROMPTS_KEPT:
                self._prompts.pop(next(iter(self._prompts)))
            self._prompts[tokens] = self._rows.prefill(tokens, lambda _, __: None)
        return self._prompts[tokens]


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
                draft, charge = decode_by_choice(
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
