"""Sound black boxes: a KL-anchored decoder, and one of any step-level rule or mechanism.

`AnchoredDecoder` is what faulty decoders are made from. It shares the solver with the engine and
nothing else. Each method is one thing that a decoder can get wrong, so a faulty decoder is a
subclass that overrides one of them.

`RuleDecoder` and `MechanismDecoder` let one suite try rules and decoders: the rule's law is sampled
and its true charge is paid, as the engine would; the charge that the rule states is the claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from nafaudit.core.ledger import RISKY_ONLY, Account, Banking, Payment, is_baseline, recorded_gap
from nafaudit.mechanisms.anchored import Anchored
from nafaudit.mechanisms.registry import Guarded
from nafaudit.protocols import (
    STEP_CLAIMS,
    Law,
    Mechanism,
    Output,
    Request,
    Rule,
    Served,
    World,
    booked,
    currency,
    debt_of,
)


@dataclass
class ReferenceRow:
    """An output in the making: what was written, and what was said of each step."""

    request: Request
    debt: float
    tokens: list[int] = field(default_factory=list)
    spent: float = 0.0
    claims: dict[str, list[float]] = field(
        default_factory=lambda: {name: [] for name in STEP_CLAIMS}
    )
    _generator: np.random.Generator | None = None

    @property
    def draws(self) -> np.random.Generator:
        """Random numbers of this row alone, so that no neighbour shows in its tokens."""
        if self._generator is None:
            self._generator = np.random.Generator(np.random.Philox(key=self.request.seed))
        return self._generator

    @property
    def prefix(self) -> tuple[int, ...]:
        """Prompt and output so far."""
        return (*self.request.prompt, *self.tokens)

    @property
    def step(self) -> int:
        """How many tokens are written."""
        return len(self.tokens)


class AnchoredDecoder:
    """Serves the largest mixture that the running budget pays for, and charges for it."""

    def __init__(self, world: World) -> None:
        self.world = world

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        """Writes all requests, one step of every open row at a time."""
        rows = [ReferenceRow(request, self.debt(request)) for request in requests]
        while active := [row for row in rows if not self.ended(row)]:
            safe, risky = self.laws(active)
            allowance = np.array([self.allowance(row) for row in active])
            law, charge, theta = self.serve(safe, risky, allowance)
            numbers = np.stack([allowance, charge, theta], axis=1).tolist()
            for i, row in enumerate(active):
                token = self.draw(row, self.sampled(row, law[i], safe[i], risky[i]))
                drawn = [float(one[i, token]) for one in (law, safe, risky)]
                for name, value in zip(STEP_CLAIMS, numbers[i] + drawn, strict=True):
                    row.claims[name].append(value)
                self.pay(row, numbers[i][1], drawn[0] - drawn[1])
                row.tokens.append(token)
        return [self.output(row) for row in rows]

    def laws(self, rows: Sequence[ReferenceRow]) -> tuple[Law, Law]:
        """Returns both models' next-token laws of every row."""
        return self.world.laws([row.prefix for row in rows])

    def debt(self, request: Request) -> float:
        """Returns what the prompt owes before the first token."""
        return debt_of(self.world, request.prompt)

    def allowance(self, row: ReferenceRow) -> float:
        """Returns k_t = max(0, (t+1) k - spent - debt)."""
        k = row.request.k
        if k == RISKY_ONLY:
            return k
        return max(0.0, (row.step + 1) * k - row.spent - row.debt)

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """Returns the sampled law, its charge, and the weight of the risky law, row by row."""
        tensors = [torch.from_numpy(np.ascontiguousarray(x)) for x in (safe, risky, allowance)]
        served = Anchored().serve([()] * len(safe), *tensors)
        return served.law.numpy(), served.charge.numpy(), served.theta.numpy()

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        """Returns the log-law that the token is really drawn from: the served one."""
        return law

    def draw(self, row: ReferenceRow, law: Law) -> int:
        """Draws the token: argmax of log p and Gumbel noise, whatever the batch."""
        return int(np.argmax(law + row.draws.gumbel(size=len(law))))

    def pay(self, row: ReferenceRow, charge: float, ratio: float) -> None:
        """Books a step; `ratio` is log p_served - log p_safe of its token."""
        row.spent += charge

    def ended(self, row: ReferenceRow) -> bool:
        """Returns True after a stop token, or at the length limit."""
        return row.step == row.request.max_new_tokens or bool(
            row.tokens and row.tokens[-1] in self.world.stops
        )

    def output(self, row: ReferenceRow) -> Output:
        """Returns the finished output."""
        said = [row.claims[name] for name in STEP_CLAIMS]
        allowance, charge, theta, served, safe, risky = said
        return Output(
            row.tokens,
            allowance=allowance,
            charge=charge,
            theta=theta,
            served=served,
            safe=safe,
            risky=risky,
            debt=row.debt,
            spend=row.spent,
        )


class _Kept:
    """A rule that keeps what it served last, before `Guarded` corrects it."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self.said: Served | None = None
        if hasattr(rule, "currency"):
            self.currency = currency(rule)

    def serve(
        self, prefixes: Sequence[Sequence[int]], safe: Tensor, risky: Tensor, allowance: Tensor
    ) -> Served:
        self.said = self._rule.serve(prefixes, safe, risky, allowance)
        return self.said


class RuleDecoder(AnchoredDecoder):
    """A decoder that samples from a given rule.

    Args:
        world: The two models.
        rule: The rule.
        name: Name of the rule, for errors.
    """

    def __init__(self, world: World, rule: Rule, name: str) -> None:
        super().__init__(world)
        self._kept = _Kept(rule)
        self._guarded = Guarded(self._kept, name)
        self._open: list[ReferenceRow] = []
        self._claimed: dict[int, list[float]] = {}

    def laws(self, rows: Sequence[ReferenceRow]) -> tuple[Law, Law]:
        """Returns the laws, and remembers whose they are."""
        self._open = list(rows)
        return super().laws(rows)

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """Returns what the rule serves, if it is a law, with its true charge."""
        tensors = [torch.from_numpy(np.ascontiguousarray(x)) for x in (safe, risky, allowance)]
        served = self._guarded.serve([row.prefix for row in self._open], *tensors)
        said = self._kept.said
        assert said is not None
        for row, charge in zip(self._open, said.charge.tolist(), strict=True):
            self._claimed.setdefault(id(row), []).append(charge)
        return served.law.numpy(), served.charge.numpy(), served.theta.numpy()

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        """Writes all requests."""
        self._claimed = {}
        return super().decode(requests)

    def output(self, row: ReferenceRow) -> Output:
        """Returns the finished output, with the charge that the rule stated."""
        said = super().output(row)
        claims = {name: getattr(said, name) for name in ("allowance", "served", "safe", "risky")}
        return Output(said.tokens, charge=self._claimed[id(row)], debt=said.debt, **claims)


class MechanismDecoder(RuleDecoder):
    """Samples from a mechanism of ours: its own rule, ledger and currency; baselines as the engine.

    Args:
        world: The two models.
        mechanism: Ready to serve.
    """

    def __init__(self, world: World, mechanism: Mechanism) -> None:
        super().__init__(world, mechanism.rule, mechanism.name)
        self._mechanism = mechanism
        self._accounts: dict[int, Account] = {}
        self._drawn: dict[int, int] = {}

    def debt(self, request: Request) -> float:
        """Returns what the prompt owes; 0 where nothing is promised."""
        return super().debt(request) if self._mechanism.debt.n else 0.0

    def allowance(self, row: ReferenceRow) -> float:
        """Returns what the mechanism's own ledger grants."""
        return self._account(row).allowance()

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """Returns the rule's law; a baseline is a model alone, whatever the rule."""
        served = [x.copy() for x in super().serve(safe, risky, allowance)]
        alone = AnchoredDecoder.serve(self, safe, risky, allowance)
        for at, row in enumerate(self._open):
            if is_baseline(row.request.k):
                for ours, model in zip(served, alone, strict=True):
                    ours[at] = model[at]
                self._claimed[id(row)][-1] = float(alone[1][at])
        return served[0], served[1], served[2]

    def draw(self, row: ReferenceRow, law: Law) -> int:
        """Draws the token and keeps it for ledgers that ask for it."""
        self._drawn[id(row)] = super().draw(row, law)
        return self._drawn[id(row)]

    def pay(self, row: ReferenceRow, charge: float, ratio: float) -> None:
        """Books the step as the engine does."""
        if not is_baseline(row.request.k):
            charge = booked(self._mechanism.rule, charge, ratio)
            self._claimed[id(row)][-1] = charge
        gap = recorded_gap(row.claims["risky"][-1], row.claims["safe"][-1])
        self._account(row).pay(Payment(charge, ratio, self._drawn[id(row)], gap))
        super().pay(row, charge, ratio)

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        """Writes all requests."""
        self._accounts, self._drawn = {}, {}
        return super().decode(requests)

    def _account(self, row: ReferenceRow) -> Account:
        if id(row) not in self._accounts:
            k = row.request.k
            ledger = Banking() if is_baseline(k) else self._mechanism.ledger
            self._accounts[id(row)] = ledger.open(k, row.debt)
        return self._accounts[id(row)]
