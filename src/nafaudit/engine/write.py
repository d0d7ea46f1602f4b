"""Writes one token in every row: two laws, the served law, the noise, the token, the payment.

On a CPU rows are worked on a few at a time, to stay in its cache; elsewhere all at once, with one
transfer for what the host must know.

On a device all about a step is in one table, for one transfer, and nothing here waits for it (a
rule may). So logits that are no law raise nothing yet: a column of the table marks them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nafaudit.core.draws import Stream
from nafaudit.core.errors import LawError
from nafaudit.core.ledger import Account, Payment, is_baseline, recorded_gap
from nafaudit.core.trajectory import STEP_TYPES, Key, Steps, Trajectory, theta_as_recorded
from nafaudit.engine.lanes import Lanes
from nafaudit.engine.noise import DeviceNoise, NoiseBounds, StreamStep, noise_bounds, pick_token
from nafaudit.mechanisms.anchored import Anchored
from nafaudit.mechanisms.laws import NEG_INF, log_law, normalise
from nafaudit.protocols import Mechanism, Rule, booked


class StepRecord(NamedTuple):
    """One step's record, in the order of `Steps`."""

    token: int
    allowance: float
    charge: float
    theta: float
    served: float
    safe: float
    risky: float


class RowLogits(NamedTuple):
    """Both models' logits at a position ahead of a row.

    Attributes:
        safe: The safe model's logits there.
        risky: The risky model's.
        guess: The token that the next position was read after; None if it was not.
    """

    safe: Tensor
    risky: Tensor
    guess: int | None


@dataclass
class DecodingRow:
    """A trajectory in the making."""

    key: Key
    stream: Stream
    debt: float
    account: Account
    prefix: list[int]
    records: list[StepRecord] = field(default_factory=list)
    ahead: list[RowLogits] = field(default_factory=list)

    @property
    def step(self) -> int:
        """Number of the next step."""
        return len(self.records)

    def write(self, record: StepRecord) -> None:
        """Takes in one step: the record, the prefix and the account."""
        self.records.append(record)
        self.prefix.append(record.token)
        gap = recorded_gap(record.risky, record.safe)
        self.account.pay(Payment(record.charge, record.served - record.safe, record.token, gap))
        # Whatever was read after another token is void.
        known = self.ahead.pop(0)
        if known.guess != record.token:
            self.ahead = []

    def trajectory(self, stopped: bool) -> Trajectory:
        """Returns the finished record."""
        columns = zip(StepRecord._fields, zip(*self.records, strict=True), strict=True)
        arrays = {name: np.array(values, STEP_TYPES[name]) for name, values in columns}
        return Trajectory(self.key, self.debt, stopped, Steps(**arrays))


def sent(values: Sequence[float], device: torch.device) -> Tensor:
    """Sends numbers to a device without waiting for their arrival."""
    return torch.tensor(values, dtype=torch.float64).to(device, non_blocking=True)


def table_of_step(
    rule: Rule,
    prefixes: Sequence[Sequence[int]],
    logits: tuple[Tensor, Tensor],
    allowance: Tensor,
    noise: Tensor,
) -> Tensor:
    """Serves and samples one step of every row.

    Args:
        rule: What serves.
        prefixes: Tokens of each row so far.
        logits: Of the safe and of the risky model [rows, lanes], warped.
        allowance: What each row may be charged [rows].
        noise: Gumbel noise [rows, vocabulary]; lanes beyond the vocabulary are not drawn.

    Returns:
        Per row, in float64: whether its logits are no law, the token, the charge, theta, and the
        token's log-probability as served, of the safe and of the risky model.
    """
    (safe, no_safe), (risky, no_risky) = map(law_or_flat, logits)
    served = rule.serve(prefixes, safe, risky, allowance)
    token = (served.law[:, : noise.shape[-1]] + noise).argmax(dim=-1)
    drawn = [law.gather(-1, token.unsqueeze(-1)).squeeze(-1) for law in (served.law, safe, risky)]
    columns = [no_safe | no_risky, token, served.charge, served.theta, *drawn]
    return torch.stack([column.to(torch.float64) for column in columns], dim=1)


def law_or_flat(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Computes `log_law`; a row for which that would raise gets a flat law and a mark.

    Returns:
        Log-laws [rows, lanes] in float64, and True [rows] for every row whose logits are no law.
    """
    top = logits.amax(dim=-1, keepdim=True)
    x = logits.to(torch.float64)
    x = torch.where(top == torch.inf, torch.where(x == torch.inf, 0.0, NEG_INF), x)
    none = torch.isnan(top) | (top == NEG_INF)  # amax carries NaN
    return normalise(torch.where(none, 0.0, x)), none.squeeze(-1)


# On a CPU, laws are worked on in pieces of this many numbers, to stay in the cache.
_PIECE = 1 << 16

# With an allowance of 0 and of inf this rule serves the safe and the risky law unchanged.
_BASELINE_RULE = Anchored()


@dataclass
class Guessed:
    """Counts of guesses that the served law was asked about, and of those that were accepted."""

    asked: int = 0
    stood: int = 0

    def see(self, guess: int | None, token: int) -> None:
        """Counts one written token, if it was guessed at."""
        if guess is not None:
            self.asked += 1
            self.stood += guess == token

    def plus(self, other: Guessed) -> Guessed:
        """Returns the counts of both."""
        return Guessed(self.asked + other.asked, self.stood + other.stood)


class StepWriter:
    """A mechanism and its draws.

    Args:
        mechanism: What is audited.
        lanes: How logits become laws.
        batch: Rows that are written together, at most.
        device: Where laws are.
        batched: Laws of all rows are worked on at once, where they are; None for wherever that is
            not a CPU.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        lanes: Lanes,
        batch: int,
        device: torch.device,
        batched: bool | None = None,
    ) -> None:
        self.guessed = Guessed()
        self._mechanism = mechanism
        self._lanes = lanes
        self._device = device
        if batched is None:
            batched = device.type != "cpu"
        self._noise = DeviceNoise(lanes.size, batch, device) if batched else None
        self._made: dict[tuple[int, int], NoiseBounds] = {}

    def write(self, rows: list[DecodingRow]) -> None:
        """Writes one step of every row: serve, sample, pay, record."""
        if self._noise:
            self._write_batched(rows, self._noise)
            return
        size = max(1, _PIECE // self._lanes.width)
        rule = self._mechanism.rule
        groups = [(rule, rows)] if rule == _BASELINE_RULE else self._by_rule(rows)
        for rule, chosen in groups:
            for start in range(0, len(chosen), size):
                self._write_some(rule, chosen[start : start + size])

    def guess(
        self, rows: list[DecodingRow], logits: Tensor, prefixes: Sequence[Sequence[int]], ahead: int
    ) -> list[int]:
        """Guesses what a model alone writes `ahead` steps later, with the draws of that step."""
        (logits,) = self._lanes.warped(prefixes, logits)
        if self._noise:
            # Logits that are no law raise when their step is written.
            noise = self._noise.noise([StreamStep(row.stream, row.step + ahead) for row in rows])
            law = law_or_flat(logits)[0][:, : self._lanes.size]
            found: list[int] = (law + noise).argmax(dim=-1).cpu().tolist()
            return found
        return [
            pick_token(law, self._noise_bounds(row.stream, row.step + ahead))
            for row, law in zip(rows, log_law(logits)[:, : self._lanes.size], strict=True)
        ]

    def forget(self, rows: list[DecodingRow]) -> None:
        """Discards draws that these rows, the only ones left, will not use again."""
        self._made.clear()
        if self._noise:
            self._noise.keep(StreamStep(row.stream, row.step) for row in rows)

    def _by_rule(self, rows: list[DecodingRow]) -> list[tuple[Rule, list[DecodingRow]]]:
        """Groups rows by rule: a baseline is a model alone, whatever rule is audited."""
        alone = [row for row in rows if is_baseline(row.key.k)]
        mixed = [row for row in rows if not is_baseline(row.key.k)]
        return [(_BASELINE_RULE, alone), (self._mechanism.rule, mixed)]

    def _write_batched(self, rows: list[DecodingRow], noise: DeviceNoise) -> None:
        rule = self._mechanism.rule
        groups = [(rule, rows)] if rule == _BASELINE_RULE else self._by_rule(rows)
        tables, asked, logits = [], [], []
        for rule, chosen in groups:
            if chosen:
                made = noise.noise([StreamStep(row.stream, row.step) for row in chosen])
                allowed = [row.account.allowance() for row in chosen]
                asked += [(rule, row, limit) for row, limit in zip(chosen, allowed, strict=True)]
                logits.append(self._warped(chosen))
                prefixes = [row.prefix for row in chosen]
                allowance = sent(allowed, self._device)
                tables.append(table_of_step(rule, prefixes, logits[-1], allowance, made))
        values = torch.cat(tables).cpu().tolist()
        if any(no_law for no_law, *_ in values):
            for one in itertools.chain(*logits):
                log_law(one)  # says what is wrong
        for (rule, row, limit), (_, *columns) in zip(asked, values, strict=True):
            self._record(rule, row, limit, columns)

    def _write_some(self, rule: Rule, rows: list[DecodingRow]) -> None:
        """Writes one step: allowance, laws, serve, noise, token, for rows that fit the cache."""
        # Rows that share a slot share its logits, and so both laws.
        places = {id(row.ahead[0]): row for row in rows}
        safe, risky = map(log_law, self._warped([*places.values()]))
        if len(places) < len(rows):
            order = {known: place for place, known in enumerate(places)}
            at = torch.tensor([order[id(row.ahead[0])] for row in rows])
            safe, risky = safe[at], risky[at]
        prefixes = [row.prefix for row in rows]
        allowed = [row.account.allowance() for row in rows]
        allowance = torch.tensor(allowed, dtype=torch.float64, device=self._device)
        served = rule.serve(prefixes, safe, risky, allowance)
        charges, thetas = served.charge.tolist(), served.theta.tolist()
        laws = [law.numpy() for law in (served.law, safe, risky)]
        for place, (row, limit) in enumerate(zip(rows, allowed, strict=True)):
            made = self._noise_bounds(row.stream, row.step)
            token = pick_token(served.law[place, : self._lanes.size], made)
            drawn = [float(law[place, token]) for law in laws]
            self._record(rule, row, limit, (token, charges[place], thetas[place], *drawn))

    def _record(self, rule: Rule, row: DecodingRow, limit: float, columns: Sequence[float]) -> None:
        """Books the charge of one step and writes it; with that the row's account pays it."""
        picked, charge, theta, *logp = columns
        if math.isnan(charge) or math.isnan(logp[0]) or logp[0] == NEG_INF:
            raise LawError(
                f"mechanism {self._mechanism.name} served prompt {row.key.prompt!r} a law "
                f"that is not one at step {row.step}: charge {charge}, log p {logp[0]}."
            )
        self.guessed.see(row.ahead[0].guess, int(picked))
        paid = booked(rule, charge, logp[0] - logp[1])
        row.write(StepRecord(int(picked), limit, paid, theta_as_recorded(theta), *logp))

    def _warped(self, rows: list[DecodingRow]) -> tuple[Tensor, Tensor]:
        """Returns the warped logits of both models for each row's next token."""
        safe = _stacked([row.ahead[0].safe for row in rows])
        risky = _stacked([row.ahead[0].risky for row in rows])
        safe, risky = self._lanes.warped([row.prefix for row in rows], safe, risky)
        return safe, risky

    def _noise_bounds(self, stream: Stream, step: int) -> NoiseBounds:
        """Returns a stream's noise, made once for the budgets and guesses that share it."""
        where = (stream.key, step)
        if where not in self._made:
            self._made[where] = noise_bounds(stream, step, self._lanes.size)
        return self._made[where]


def _stacked(rows: list[Tensor]) -> Tensor:
    return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(rows)
