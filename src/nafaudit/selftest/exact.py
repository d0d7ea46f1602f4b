"""The truth about a decoder in a small world, by summing over every output it can write.

No statistics: probability, spend and log-ratio of each output, hence the divergence that the
promise is about, the mean of whatever a bound estimates, and the chance of any event.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nafaudit.core.ledger import Account, Payment, recorded_gap
from nafaudit.mechanisms.doors import Law, Request, World, debt_of
from nafaudit.mechanisms.protocols import Mechanism, Served, booked
from nafaudit.mechanisms.reference import AnchoredDecoder, Row


@dataclass(frozen=True)
class Leaf:
    """One output.

    Attributes:
        tokens: What was written.
        served: Log-probability that the decoder writes it.
        safe: Log-probability that the safe model does.
        spend: Z, what the decoder says it was charged.
        true_spend: What the laws it really sampled cost, in nats.
        budget: B at the output's own end, not below 0.
    """

    tokens: tuple[int, ...]
    served: float
    safe: float
    spend: float
    true_spend: float
    budget: float

    @property
    def ratio(self) -> float:
        """L, the realised log-likelihood ratio."""
        return self.served - self.safe


@dataclass(frozen=True)
class Truth:
    """Every output of one request."""

    leaves: tuple[Leaf, ...] = field(repr=False)

    def mean(self, value: Callable[[Leaf], float]) -> float:
        """Exact expectation under the decoder's own law."""
        return math.fsum(math.exp(leaf.served) * value(leaf) for leaf in self.leaves)

    def probability(self, event: Callable[[Leaf], bool]) -> float:
        """Exact probability of an event."""
        return math.fsum(math.exp(leaf.served) for leaf in self.leaves if event(leaf))

    @property
    def divergence(self) -> float:
        """D_KL of what is written from what the safe model would write, in nats."""
        return self.mean(lambda leaf: leaf.ratio)

    def renyi(self, alpha: float) -> float:
        """D_alpha of the same; the largest log-ratio of any output for alpha = inf."""
        if alpha == 1:
            return self.divergence
        if alpha == math.inf:
            return max(leaf.ratio for leaf in self.leaves)
        powers = (alpha * leaf.served - (alpha - 1) * leaf.safe for leaf in self.leaves)
        return math.log(math.fsum(map(math.exp, powers))) / (alpha - 1)


@dataclass(frozen=True)
class _Node:
    row: Row
    served: float = 0.0
    safe: float = 0.0
    true_spend: float = 0.0


def truth(decoder: AnchoredDecoder, request: Request) -> Truth:
    """Sums over everything that a decoder may answer to a request.

    Args:
        decoder: The reference decoder or a subclass whose laws depend on nothing but the prefix.
        request: Its seed plays no part.
    """
    open_, leaves = [_Node(Row(request, decoder.debt(request)))], []
    while open_:
        grown = [child for node in open_ for child in _children(decoder, node)]
        leaves += [_leaf(decoder, node) for node in grown if decoder.ended(node.row)]
        open_ = [node for node in grown if not decoder.ended(node.row)]
    return Truth(tuple(leaves))


@dataclass(frozen=True)
class _Open:
    """An output in the making, with the account that pays for it."""

    tokens: tuple[int, ...]
    account: Account
    served: float = 0.0
    safe: float = 0.0
    spend: float = 0.0
    true_spend: float = 0.0


def truth_of_mechanism(world: World, mechanism: Mechanism, request: Request) -> Truth:
    """Sums over everything that a step-level mechanism may answer; spends are in its currency."""
    debt = debt_of(world, request.prompt) if mechanism.debt.n else 0.0
    open_, leaves = [_Open((), mechanism.ledger.open(request.k, debt))], []
    while open_:
        prefixes = [(*request.prompt, *node.tokens) for node in open_]
        safe, risky = (torch.from_numpy(np.array(law)) for law in world.laws(prefixes))
        granted = [node.account.allowance() for node in open_]
        allowance = torch.tensor(granted, dtype=torch.float64)
        served = mechanism.rule.serve(prefixes, safe, risky, allowance)
        grown = [
            child
            for row, node in enumerate(open_)
            for child in _drawn(mechanism, node, served, safe, risky, row)
        ]
        ended = [_ended(world, node, request) for node in grown]
        for node in (node for node, over in zip(grown, ended, strict=True) if over):
            tokens = np.array(node.tokens, np.int32)
            budget = max(0.0, float(mechanism.ledger.accrued(request.k, debt, tokens)[-1]))
            numbers = node.served, node.safe, node.spend, node.true_spend
            leaves.append(Leaf(node.tokens, *numbers, budget))
        open_ = [node for node, over in zip(grown, ended, strict=True) if not over]
    return Truth(tuple(leaves))


def _ended(world: World, node: _Open, request: Request) -> bool:
    return len(node.tokens) == request.max_new_tokens or node.tokens[-1] in world.stops


def _drawn(
    mechanism: Mechanism, node: _Open, served: Served, safe: Tensor, risky: Tensor, row: int
) -> list[_Open]:
    law, anchor, other = served.law[row].numpy(), safe[row].numpy(), risky[row].numpy()
    cost, found = divergence(law, anchor), []
    for token in np.flatnonzero(law > -np.inf).tolist():
        ratio = float(law[token] - anchor[token])
        paid = booked(mechanism.rule, float(served.charge[row]), ratio)
        account = copy.deepcopy(node.account)
        account.pay(Payment(paid, ratio, token, recorded_gap(other[token], anchor[token])))
        found.append(
            _Open(
                (*node.tokens, token),
                account,
                node.served + float(law[token]),
                node.safe + float(anchor[token]),
                node.spend + paid,
                node.true_spend + cost,
            )
        )
    return found


def divergence(p: Law, q: Law) -> float:
    """D_KL(p || q) of two log-laws, in nats."""
    inside = p > -np.inf
    with np.errstate(invalid="ignore"):
        terms: NDArray[np.float64] = np.exp(p[inside]) * (p[inside] - q[inside])
    return max(0.0, math.fsum(terms))


def _children(decoder: AnchoredDecoder, node: _Node) -> list[_Node]:
    safe, risky = decoder.laws([node.row])
    allowance = np.array([decoder.allowance(node.row)])
    law, charge, _ = decoder.serve(safe, risky, allowance)
    sampled = decoder.sampled(node.row, law[0], safe[0], risky[0])
    cost, found = divergence(sampled, safe[0]), []
    for token in np.flatnonzero(sampled > -np.inf):
        row = Row(node.row.request, node.row.debt, [*node.row.tokens], node.row.spent)
        decoder.pay(row, float(charge[0]), float(law[0, token] - safe[0, token]))
        row.tokens.append(int(token))
        served, anchor = node.served + sampled[token], node.safe + safe[0, token]
        found.append(_Node(row, float(served), float(anchor), node.true_spend + cost))
    return found


def _leaf(decoder: AnchoredDecoder, node: _Node) -> Leaf:
    row = node.row
    budget = max(0.0, row.step * row.request.k - AnchoredDecoder.debt(decoder, row.request))
    tokens = tuple(row.tokens)
    return Leaf(tokens, node.served, node.safe, row.spent, node.true_spend, budget)
