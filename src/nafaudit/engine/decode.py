"""Decodes prompts under a budget: many rows at once, each as if it were alone.

One step of every active row: two laws, the served law, the noise, the token, the payment.
Finished rows leave, waiting rows enter. A prompt is read once, whatever the number of its
trajectories and budgets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nafaudit.core.debt import prefix_debt
from nafaudit.core.design import Decoding
from nafaudit.core.draws import Stream
from nafaudit.core.errors import InputError, LawError
from nafaudit.core.ledger import Account, Banking, Payment, is_baseline, recorded_gap
from nafaudit.core.trajectory import STEP_TYPES, Key, Steps, Trajectory, theta_as_recorded
from nafaudit.engine.rows import Prefilled, RowModel
from nafaudit.engine.sample import Draws, draw, draw_together, draws
from nafaudit.mechanisms.anchored import Anchored
from nafaudit.mechanisms.laws import NEG_INF, log_law, log_probabilities, warp
from nafaudit.mechanisms.protocols import Mechanism, Rule, booked
from nafaudit.models.pair import Pair

# Laws are padded to a multiple of this many lanes, so that a row starts at the same offset
# within a vector register whatever its place in the batch.
_LANES = 64
# On a CPU, laws are worked on in pieces of this many numbers, to stay in the cache.
_PIECE = 1 << 15


# With an allowance of 0 and of inf this rule serves the safe and the risky law unchanged.
_BASELINE_RULE = Anchored()
_BASELINE_LEDGER = Banking()


class RowRequest(NamedTuple):
    """One trajectory to decode: its budget, its number, and the key of its draws."""

    k: float
    trajectory: int
    stream: Stream


@dataclass(frozen=True)
class PromptRequest:
    """A prompt and all the trajectories that are wanted of it."""

    prompt: str
    tokens: tuple[int, ...]
    rows: tuple[RowRequest, ...]


@dataclass(frozen=True)
class _Prompt:
    """A prompt, read by both models."""

    request: PromptRequest
    debt: float
    safe: Prefilled
    risky: Prefilled


class _Step(NamedTuple):
    """One step's record, in the order of `Steps`."""

    token: int
    allowance: float
    charge: float
    theta: float
    served: float
    safe: float
    risky: float


@dataclass
class _Row:
    """A trajectory in the making."""

    key: Key
    stream: Stream
    debt: float
    account: Account
    prefix: list[int]
    records: list[_Step] = field(default_factory=list)

    @property
    def step(self) -> int:
        return len(self.records)

    def write(self, record: _Step) -> None:
        """Takes in one step: the record, the prefix and the account."""
        self.records.append(record)
        self.prefix.append(record.token)
        gap = recorded_gap(record.risky, record.safe)
        self.account.pay(Payment(record.charge, record.served - record.safe, record.token, gap))

    def trajectory(self, stopped: bool) -> Trajectory:
        columns = zip(_Step._fields, zip(*self.records, strict=True), strict=True)
        arrays = {name: np.array(values, STEP_TYPES[name]) for name, values in columns}
        return Trajectory(self.key, self.debt, stopped, Steps(**arrays))


class Decoder:
    """A pair and a mechanism, ready to decode.

    Args:
        pair: The two models.
        mechanism: What is audited.
        decoding: Warps and length limit.
        width: Positions per row, as the design fixes them.
        batch: Rows decoded together; changes speed, never results.
    """

    def __init__(
        self, pair: Pair, mechanism: Mechanism, decoding: Decoding, *, width: int, batch: int
    ) -> None:
        if batch < 1:
            raise InputError(f"batch must be at least 1, got {batch}.")
        if width > pair.context:
            raise InputError(
                f"rows of {width} positions do not fit the pair's context of {pair.context}; "
                "lower --max-new-tokens or leave out the longest prompts."
            )
        self.pair = pair
        self.mechanism = mechanism
        self.decoding = decoding
        self.width = width
        self.batch = batch
        # Told after every step how many rows have written a token; for progress, and free to raise.
        self.watch: Callable[[int], None] = lambda rows: None
        self.device = pair.risky.device
        self._safe = RowModel(pair.safe, batch, width)
        self._risky = RowModel(pair.risky, batch, width)
        known = torch.tensor([token is not None for token in pair.vocabulary.tokens])
        lanes = -(-len(known) // _LANES) * _LANES
        self._forbidden = torch.ones(lanes, dtype=torch.bool, device=self.device)
        self._forbidden[: len(known)] = ~known.to(self.device)
        self._all_known = bool(known.all()) and lanes == len(known)

    @torch.inference_mode()
    def decode(self, requests: Iterable[PromptRequest]) -> Iterator[Trajectory]:
        """Yields every requested trajectory, in the order in which they end."""
        waiting = self._waiting(requests)
        rows: list[_Row] = []
        logits = _Logits(len(self._forbidden))
        while True:
            while len(rows) < self.batch and (entering := next(waiting, None)) is not None:
                row, prompt = entering
                self._safe.admit(len(rows), prompt.safe)
                self._risky.admit(len(rows), prompt.risky)
                logits.admit(self._cut(prompt.safe.logits), self._cut(prompt.risky.logits))
                rows.append(row)
            if not rows:
                return
            self._write_tokens(rows, logits)
            self.watch(len(rows))
            for slot in reversed(range(len(rows))):
                stopped = rows[slot].prefix[-1] in self.pair.vocabulary.stops
                if stopped or rows[slot].step == self.decoding.max_new_tokens:
                    yield rows[slot].trajectory(stopped)
                    self._leave(rows, slot)
            if not rows:
                logits = _Logits(len(self._forbidden))
            else:
                tokens = [row.prefix[-1] for row in rows]
                positions = [len(row.prefix) - 1 for row in rows]
                logits.renew(
                    self._cut(self._safe.step(tokens, positions)),
                    self._cut(self._risky.step(tokens, positions)),
                )

    def debt(self, tokens: Sequence[int]) -> float:
        """Returns the prefix debt of a prompt; it depends on nothing but the prompt."""
        return self._read(PromptRequest("", tuple(tokens), ())).debt

    def _waiting(self, requests: Iterable[PromptRequest]) -> Iterator[tuple[_Row, _Prompt]]:
        for request in requests:
            if not request.rows:
                continue
            prompt = self._read(request)
            for wanted in request.rows:
                key = Key(request.prompt, self.mechanism.name, wanted.k, wanted.trajectory)
                ledger = _BASELINE_LEDGER if is_baseline(wanted.k) else self.mechanism.ledger
                account = ledger.open(wanted.k, prompt.debt)
                row = _Row(key, wanted.stream, prompt.debt, account, list(request.tokens))
                yield row, prompt

    @torch.inference_mode()
    def _read(self, request: PromptRequest) -> _Prompt:
        tokens = request.tokens
        if not tokens:
            raise InputError(f"prompt {request.prompt!r} has no tokens; leave it out.")
        if len(tokens) + self.decoding.max_new_tokens > self.width:
            raise InputError(
                f"prompt {request.prompt!r} has {len(tokens)} tokens; with "
                f"{self.decoding.max_new_tokens} new ones it does not fit the run's "
                f"{self.width} positions."
            )
        safe_logp, safe = self._read_by(self._safe, tokens)
        risky_logp, risky = self._read_by(self._risky, tokens)
        with np.errstate(invalid="ignore"):
            ratios = risky_logp - safe_logp
        counted = np.array([t not in self.pair.vocabulary.special for t in tokens[1:]], bool)
        return _Prompt(request, prefix_debt(ratios, counted, self.mechanism.debt), safe, risky)

    def _read_by(
        self, model: RowModel, tokens: Sequence[int]
    ) -> tuple[NDArray[np.float64], Prefilled]:
        """Reads a prompt with one model; returns log p(x_i | x_<i) for i = 1 .. L-1 too."""
        logp: list[Tensor] = []

        def visit(start: int, logits: Tensor) -> None:
            following = torch.tensor(tokens[start + 1 : start + 1 + len(logits)], dtype=torch.long)
            if not len(following):
                return
            scored = self._cut(logits[: len(following)])
            seen = self._seen([tokens[: start + i + 1] for i in range(len(following))])
            scored = warp(scored, seen, self.decoding)
            logp.append(log_probabilities(scored, following.to(self.device)))

        prefilled = model.prefill(tokens, visit)
        if not logp:
            return np.empty(0), prefilled
        return torch.cat(logp).cpu().numpy(), prefilled

    def _write_tokens(self, rows: list[_Row], logits: _Logits) -> None:
        """One step of every row: serve, sample, pay, record."""
        made: dict[tuple[int, int], Draws] = {}
        size = len(rows) if self.device.type != "cpu" else max(1, _PIECE // logits.lanes)
        # A baseline is a model alone, whatever rule is audited.
        alone = [slot for slot, row in enumerate(rows) if is_baseline(row.key.k)]
        mixed = [slot for slot, row in enumerate(rows) if not is_baseline(row.key.k)]
        for rule, slots in ((_BASELINE_RULE, alone), (self.mechanism.rule, mixed)):
            for start in range(0, len(slots), size):
                part = slots[start : start + size]
                self._write_piece(rule, [rows[slot] for slot in part], *logits.of(part), made)

    def _write_piece(
        self,
        rule: Rule,
        rows: list[_Row],
        safe_logits: Tensor,
        risky_logits: Tensor,
        made: dict[tuple[int, int], Draws],
    ) -> None:
        prefixes = [row.prefix for row in rows]
        seen = self._seen(prefixes)
        safe = log_law(warp(safe_logits, seen, self.decoding))
        risky = log_law(warp(risky_logits, seen, self.decoding))
        allowed = [row.account.allowance() for row in rows]
        allowance = torch.tensor(allowed, dtype=torch.float64, device=self.device)
        served = rule.serve(prefixes, safe, risky, allowance)
        size = len(self.pair.vocabulary)
        chosen = [_draws(row, size, made) for row in rows]
        laws = served.law[:, :size]
        if self.device.type == "cpu":
            token = torch.tensor([draw(law, one) for law, one in zip(laws, chosen, strict=True)])
        else:
            token = draw_together(laws, chosen)
        token = token.unsqueeze(-1)
        drawn = [law.gather(-1, token).squeeze(-1) for law in (served.law, safe, risky)]
        # One transfer for everything that the ledger and the record need.
        columns = [token.squeeze(-1).to(torch.float64), served.charge, served.theta, *drawn]
        values = torch.stack(columns, dim=1).tolist()
        for row, limit, (picked, charge, theta, *logp) in zip(rows, allowed, values, strict=True):
            if math.isnan(charge) or math.isnan(logp[0]) or logp[0] == NEG_INF:
                raise LawError(
                    f"mechanism {self.mechanism.name} served prompt {row.key.prompt!r} a law "
                    f"that is not one at step {row.step}: charge {charge}, log p {logp[0]}."
                )
            paid = booked(rule, charge, logp[0] - logp[1])
            row.write(_Step(int(picked), limit, paid, theta_as_recorded(theta), *logp))

    def _leave(self, rows: list[_Row], slot: int) -> None:
        """Takes a finished row out; the last row takes its slot."""
        last = len(rows) - 1
        if slot != last:
            self._safe.move(last, slot)
            self._risky.move(last, slot)
            rows[slot] = rows[last]
        rows.pop()

    def _seen(self, prefixes: Sequence[Sequence[int]]) -> Tensor | None:
        if self.decoding.repetition_penalty == 1.0:
            return None
        seen = torch.zeros(len(prefixes), len(self._forbidden), dtype=torch.bool)
        for row, prefix in enumerate(prefixes):
            seen[row, list(prefix)] = True
        return seen.to(self.device)

    def _cut(self, logits: Tensor) -> Tensor:
        """Logits over the tokenizer's ids, padded to whole lanes; other rows are forbidden."""
        lanes = len(self._forbidden)
        logits = logits[..., : len(self.pair.vocabulary)].to(self.device)
        if self._all_known:
            return logits
        padded = torch.nn.functional.pad(logits, (0, lanes - logits.shape[-1]))
        return padded.masked_fill_(self._forbidden, NEG_INF)


class _Logits:
    """The next logits of both models for every slot, as the models returned them."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self._rows: list[tuple[Tensor, Tensor]] = []

    def admit(self, safe: Tensor, risky: Tensor) -> None:
        """Takes in those of a row that enters at the next free slot."""
        self._rows.append((safe, risky))

    def renew(self, safe: Tensor, risky: Tensor) -> None:
        """Takes in those of all rows, after a step."""
        self._rows = list(zip(safe, risky, strict=True))

    def of(self, slots: list[int]) -> tuple[Tensor, Tensor]:
        """Those of some slots, [slots, lanes] each."""
        if len(slots) == 1:
            safe, risky = self._rows[slots[0]]
            return safe.unsqueeze(0), risky.unsqueeze(0)
        chosen = [self._rows[slot] for slot in slots]
        return torch.stack([safe for safe, _ in chosen]), torch.stack([r for _, r in chosen])


def _draws(row: _Row, size: int, made: dict[tuple[int, int], Draws]) -> Draws:
    """The row's draws for this step; budgets that share a stream share the work."""
    where = (row.stream.key, row.step)
    if where not in made:
        made[where] = draws(row.stream, row.step, size)
    return made[where]
