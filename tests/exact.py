"""Slow twins: all that a mechanism may answer, and the largest weight by bisection."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch

from nafaudit.core.ledger import Account, Payment, recorded_gap
from nafaudit.protocols import Law, Mechanism, Request, World, booked, debt_of
from nafaudit.selftest.faults.tools import divergence, mixture
from nafaudit.selftest.worlds import Leaf, Truth


@dataclass(frozen=True)
class _MechanismNode:
    """An output that a mechanism has begun, with the account that pays for it."""

    tokens: tuple[int, ...]
    account: Account
    served: float = 0.0
    safe: float = 0.0
    spend: float = 0.0
    true_spend: float = 0.0


def truth_of_mechanism(world: World, mechanism: Mechanism, request: Request) -> Truth:
    """Sums over everything that a step-level mechanism may answer; spends are in its currency."""
    debt = debt_of(world, request.prompt) if mechanism.debt.n else 0.0
    leaves = []
    open_ = [_MechanismNode((), mechanism.ledger.open(request.k, debt))]
    while open_:
        prefixes = [(*request.prompt, *node.tokens) for node in open_]
        safe, risky = (torch.from_numpy(np.array(law)) for law in world.laws(prefixes))
        granted = [node.account.allowance() for node in open_]
        allowance = torch.tensor(granted, dtype=torch.float64)
        served = mechanism.rule.serve(prefixes, safe, risky, allowance)
        grown = []
        for row, node in enumerate(open_):
            law, anchor, other = served.law[row].numpy(), safe[row].numpy(), risky[row].numpy()
            cost = divergence(law, anchor)
            for token in np.flatnonzero(law > -np.inf).tolist():
                ratio = float(law[token] - anchor[token])
                paid = booked(mechanism.rule, float(served.charge[row]), ratio)
                account = copy.deepcopy(node.account)
                gap = recorded_gap(other[token], anchor[token])
                account.pay(Payment(paid, ratio, token, gap))
                grown.append(
                    _MechanismNode(
                        (*node.tokens, token),
                        account,
                        node.served + float(law[token]),
                        node.safe + float(anchor[token]),
                        node.spend + paid,
                        node.true_spend + cost,
                    )
                )
        open_ = []
        for node in grown:
            if len(node.tokens) < request.max_new_tokens and node.tokens[-1] not in world.stops:
                open_.append(node)
                continue
            tokens = np.array(node.tokens, np.int32)
            budget = max(0.0, float(mechanism.ledger.accrued(request.k, debt, tokens)[-1]))
            numbers = node.served, node.safe, node.spend, node.true_spend
            leaves.append(Leaf(node.tokens, *numbers, budget))
    return Truth(tuple(leaves))


def largest_theta(safe: Law, risky: Law, allowance: float) -> float:
    """Returns the largest feasible weight, to the last bit of a bisection of [0, 1]."""
    if allowance < 1e-10:
        return 0.0
    if divergence(risky, safe) <= allowance:
        return 1.0
    if not np.any((safe > -np.inf) & (risky > -np.inf)):
        return 0.0
    low, high = 0.0, 1.0
    while (middle := (low + high) / 2) not in (low, high):
        if divergence(mixture(safe, risky, middle), safe) <= allowance:
            low = middle
        else:
            high = middle
    return low
