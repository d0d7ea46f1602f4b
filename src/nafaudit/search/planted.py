"""The planted prompt on a real pair: who finds, among many, the one that is known to use most?

Every prompt of a pool has a bank of recorded trajectories. A trial draws from the banks, with
replacement, and lets three rules choose. So a prompt's law is what its bank shows, spends and
budgets of real trajectories, the truth is the bank's mean, and trials are many without a decoder.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nafaudit.search.allocation import UNREADY, Rule, survivor_path
from nafaudit.search.candidate import Measured, utilisations_of
from nafaudit.search.halving import halving_plan, ranked, successive_halving
from nafaudit.search.measured import Draws, Request
from nafaudit.search.studies import Share

NOMINAL = 20
"""Trajectories that the paper's rule gives to what it tops up."""
UNIFORM = 4
SHARE = 10
"""Trajectories per prompt of the pool that halving may use."""
BANK = 24
"""Trajectories that stand for a prompt's law."""


@dataclass(frozen=True)
class Hidden:
    """How often each rule names the prompt that uses most.

    Attributes:
        pool: Prompts.
        bank: Trajectories of each.
        best: Its id: the largest mean of the bank.
        use: Its mean utilisation.
        next: That of the runner-up.
        paper: Largest rho after Algorithm 1, the surrogate saying one thing of all.
        uniform: Largest mean of 4.
        halving: Winner of successive halving.
    """

    pool: int
    bank: int
    best: str
    use: float
    next: float
    paper: Share
    uniform: Share
    halving: Share


class _Deal:
    """Draws from a bank and counts them."""

    def __init__(self, bank: Mapping[str, Sequence[Measured]], chance: random.Random) -> None:
        self._bank, self._chance = bank, chance
        self.spent = 0

    def take(self, name: str, count: int) -> list[Measured]:
        self.spent += count
        return self._chance.choices(self._bank[name], k=count)

    def more(self, wanted: Mapping[str, int]) -> dict[str, tuple[float, ...]]:
        return {name: utilisations_of(self.take(name, n)) for name, n in wanted.items()}

    def draws(self, asked: Sequence[Request]) -> list[Draws]:
        found = [(one.id, self.take(one.id, one.n)) for one in asked]
        return [
            Draws(name, tuple(r.spend for r in rows), tuple(r.granted for r in rows))
            for name, rows in found
        ]


def find_planted(
    bank: Mapping[str, Sequence[Measured]], high: float, trials: int = 500, seed: int = 0
) -> Hidden:
    """Draws from the banks again and again, and lets each rule choose.

    Args:
        bank: Trajectories of each prompt, equally many.
        high: R of the paper's rule, which is K.
        trials: How often.
        seed: Of the draws.
    """
    sizes = {len(rows) for rows in bank.values()}
    if len(bank) < 2 or len(sizes) != 1 or min(sizes) < 2:
        raise ValueError(f"need 2 prompts with equally many trajectories, got {sizes}.")
    means = {name: _mean(utilisations_of(rows)) for name, rows in bank.items()}
    order = sorted(means, key=lambda name: -means[name])
    chance = random.Random(f"nafaudit search planted {seed}")
    hits, cost = dict.fromkeys(("paper", "uniform", "halving"), 0), dict[str, int]()
    for _ in range(trials):
        for who, choose in (("paper", _paper), ("uniform", _uniform), ("halving", _halving)):
            deal = _Deal(bank, chance)
            hits[who] += choose(list(bank), deal, high) == order[0]
            cost[who] = cost.get(who, 0) + deal.spent
    shares = {who: Share(hits[who], trials, cost[who] / trials) for who in hits}
    return Hidden(
        len(bank), min(sizes), order[0], means[order[0]], means[order[1]],
        shares["paper"], shares["uniform"], shares["halving"],
    )  # fmt: skip


def _paper(ids: list[str], deal: _Deal, high: float) -> str:
    """No seed is used twice here, which the paper's top-up does: the rule without that fault."""
    rows = survivor_path(ids, NOMINAL, deal.draws, Rule(high), [UNREADY] * len(ids))
    return max(rows, key=lambda row: row.stored_rho).id


def _uniform(ids: list[str], deal: _Deal, high: float) -> str:
    del high
    return ranked(deal.more(dict.fromkeys(ids, UNIFORM)))[0]


def _halving(ids: list[str], deal: _Deal, high: float) -> str:
    del high
    return successive_halving(ids, halving_plan(len(ids), SHARE * len(ids)), deal.more).ranking[0]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else -math.inf
