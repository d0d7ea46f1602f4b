"""Writes one token in every row: two laws, the served law, the noise, the token, the payment.

On a CPU rows are worked on a few at a time, to stay in its cache; elsewhere all at once, with one
transfer for what the host must know.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nafaudit.core.draws import Stream
from nafaudit.core.errors import LawError
from nafaudit.core.ledger import is_baseline
from nafaudit.core.trajectory import theta_as_recorded
from nafaudit.engine.at_once import law_or_flat, sent, table_of_step
from nafaudit.engine.device_draws import DeviceDraws, Draw
from nafaudit.engine.lanes import Lanes
from nafaudit.engine.row import Row, Step
from nafaudit.engine.sample import Draws, draw, draws
from nafaudit.mechanisms.anchored import Anchored
from nafaudit.mechanisms.laws import NEG_INF, log_law
from nafaudit.mechanisms.protocols import Mechanism, Rule, booked

# On a CPU, laws are worked on in pieces of this many numbers, to stay in the cache.
_PIECE = 1 << 16

# With an allowance of 0 and of inf this rule serves the safe and the risky law unchanged.
_BASELINE_RULE = Anchored()


@dataclass
class Guessed:
    """How speculation went: guesses that the served law was asked about, and those that stood."""

    asked: int = 0
    stood: int = 0

    def see(self, guess: int | None, token: int) -> None:
        """Counts one written token, if it was guessed at."""
        if guess is not None:
            self.asked += 1
            self.stood += guess == token


class Writer:
    """A mechanism and its draws.

    Args:
        mechanism: What is audited.
        lanes: How logits become laws.
        batch: Rows that are written together, at most.
        device: Where laws are.
        at_once: Laws of all rows are worked on at once, where they are; None for wherever that is
            not a CPU.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        lanes: Lanes,
        batch: int,
        device: torch.device,
        at_once: bool | None = None,
    ) -> None:
        self.guessed = Guessed()
        self._mechanism = mechanism
        self._lanes = lanes
        self._device = device
        if at_once is None:
            at_once = device.type != "cpu"
        self._noise = DeviceDraws(lanes.ids, batch, device) if at_once else None
        self._made: dict[tuple[int, int], Draws] = {}

    def write(self, rows: list[Row]) -> None:
        """One step of every row: serve, sample, pay, record."""
        if self._noise:
            self._at_once(rows, self._noise)
            return
        size = max(1, _PIECE // self._lanes.width)
        for rule, chosen in self._by_rule(rows):
            for start in range(0, len(chosen), size):
                self._piece(rule, chosen[start : start + size])

    def guess(
        self, rows: list[Row], logits: Tensor, prefixes: Sequence[Sequence[int]], ahead: int
    ) -> list[int]:
        """What a model alone would write so many steps ahead, with the draws of that step."""
        (logits,) = self._lanes.warped(prefixes, logits)
        if self._noise:
            # What is no law here raises when its step is written.
            noise = self._noise.noise([Draw(row.stream, row.step + ahead) for row in rows])
            law = law_or_flat(logits)[0][:, : self._lanes.ids]
            found: list[int] = (law + noise).argmax(dim=-1).cpu().tolist()
            return found
        return [
            draw(law, self._draws(row.stream, row.step + ahead))
            for row, law in zip(rows, log_law(logits)[:, : self._lanes.ids], strict=True)
        ]

    def forget(self, rows: list[Row]) -> None:
        """Lets go of draws that these rows, the only ones left, will not meet again."""
        self._made.clear()
        if self._noise:
            self._noise.keep(Draw(row.stream, row.step) for row in rows)

    def _by_rule(self, rows: list[Row]) -> list[tuple[Rule, list[Row]]]:
        """A baseline is a model alone, whatever rule is audited."""
        alone = [row for row in rows if is_baseline(row.key.k)]
        mixed = [row for row in rows if not is_baseline(row.key.k)]
        return [(_BASELINE_RULE, alone), (self._mechanism.rule, mixed)]

    def _at_once(self, rows: list[Row], noise: DeviceDraws) -> None:
        rule = self._mechanism.rule
        groups = [(rule, rows)] if isinstance(rule, Anchored) else self._by_rule(rows)
        tables, asked, logits = [], [], []
        for rule, chosen in groups:
            if chosen:
                made = noise.noise([Draw(row.stream, row.step) for row in chosen])
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

    def _piece(self, rule: Rule, rows: list[Row]) -> None:
        safe, risky = map(log_law, self._warped(rows))
        prefixes = [row.prefix for row in rows]
        allowed = [row.account.allowance() for row in rows]
        allowance = torch.tensor(allowed, dtype=torch.float64, device=self._device)
        served = rule.serve(prefixes, safe, risky, allowance)
        charges, thetas = served.charge.tolist(), served.theta.tolist()
        laws = [law.numpy() for law in (served.law, safe, risky)]
        for place, (row, limit) in enumerate(zip(rows, allowed, strict=True)):
            made = self._draws(row.stream, row.step)
            token = draw(served.law[place, : self._lanes.ids], made)
            drawn = [float(law[place, token]) for law in laws]
            self._record(rule, row, limit, (token, charges[place], thetas[place], *drawn))

    def _record(self, rule: Rule, row: Row, limit: float, columns: Sequence[float]) -> None:
        picked, charge, theta, *logp = columns
        if math.isnan(charge) or math.isnan(logp[0]) or logp[0] == NEG_INF:
            raise LawError(
                f"mechanism {self._mechanism.name} served prompt {row.key.prompt!r} a law "
                f"that is not one at step {row.step}: charge {charge}, log p {logp[0]}."
            )
        self.guessed.see(row.ahead[0].guess, int(picked))
        paid = booked(rule, charge, logp[0] - logp[1])
        row.write(Step(int(picked), limit, paid, theta_as_recorded(theta), *logp))

    def _warped(self, rows: list[Row]) -> tuple[Tensor, Tensor]:
        """What both models say of each row's next token."""
        safe = _stacked([row.ahead[0].safe for row in rows])
        risky = _stacked([row.ahead[0].risky for row in rows])
        safe, risky = self._lanes.warped([row.prefix for row in rows], safe, risky)
        return safe, risky

    def _draws(self, stream: Stream, step: int) -> Draws:
        """A stream's draws; budgets that share it share the work, and so do guesses."""
        where = (stream.key, step)
        if where not in self._made:
            self._made[where] = draws(stream, step, self._lanes.ids)
        return self._made[where]


def _stacked(rows: list[Tensor]) -> Tensor:
    return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(rows)
