"""Sound decoders of many families: each keeps the banked budget at every prefix, in its own way.

The promise is about what is spent, not about how. So these differ from the anchored decoder in
their rule, their ledger, or in how much they leave unspent, and none of them may be accused. What
is sampled is what is charged: the charge is the true KL of the served law to the safe one, and
after every step the charges are at most max(0, (t+1) k - debt).

As they stand they are open: what they claim is true. Those that serve a geometric mixture show its
weight; the others show the law of every step. `silent` takes the claims away.

At k = 0 each serves the safe model alone. At k = inf there is no budget to keep, and a decoder may
still differ from the risky model: cooled, capped, or the safe model there too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax

from nafaudit.mechanisms.anchored import LEAST_ALLOWANCE
from nafaudit.mechanisms.divergences import Renyi
from nafaudit.mechanisms.reference import AnchoredDecoder, ReferenceRow
from nafaudit.protocols import Law, Output, Request, World
from nafaudit.selftest.faults.tools import about, allowance_of, name_of, silent

# The weight of a metered mixture is found to within 2 to the minus this.
_HALVINGS = 30


@dataclass(frozen=True)
class CarefulCase:
    """One sound decoder.

    Attributes:
        decoder: The class, which is open.
        conforms: True if it does what the anchored decoder does, and not only keeps its budget.
    """

    decoder: type[AnchoredDecoder]
    conforms: bool = False

    @property
    def silent(self) -> type[AnchoredDecoder]:
        """Returns the same decoder, showing its tokens alone."""
        return silent(self.decoder)

    @property
    def name(self) -> str:
        """Returns the class's name in small letters, with hyphens."""
        return name_of(self.decoder)

    @property
    def about(self) -> str:
        """Returns one line on what it does."""
        return about(self.decoder)


def divergences(laws: Law, safe: Law) -> NDArray[np.float64]:
    """Returns D_KL of each row from the same row of the safe laws, in nats."""
    with np.errstate(invalid="ignore"):
        terms = np.where(laws > -np.inf, np.exp(laws) * (laws - safe), 0.0)
    total = np.maximum(0.0, terms.sum(axis=1))
    # Also where a probability is so small that it is 0 as a number.
    banned = ((laws > -np.inf) & (safe == -np.inf)).any(axis=1)
    return np.where(banned | np.isnan(total), np.inf, total)


def normalised(logits: Law) -> Law:
    """Returns rows of log-laws; a row that has no mass is NaN throughout."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(log_softmax(np.where(np.isnan(logits), -np.inf, logits), axis=1))


def geodesics(safe: Law, risky: Law, theta: NDArray[np.float64]) -> Law:
    """Returns the geometric mixtures of rows of laws, each at its own weight."""
    weight = theta[:, None]
    with np.errstate(invalid="ignore"):
        mixed = normalised((1 - weight) * safe + weight * risky)
    return np.where(weight == 0, safe, np.where(weight == 1, risky, mixed))


# Geometric mixtures, which spend less than they might.


class SpendsNineTenths(AnchoredDecoder):
    """Spends nine tenths of each allowance, and states the whole."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """Solves for less."""
        return super().serve(safe, risky, 0.9 * allowance)


class SpendsFourFifths(AnchoredDecoder):
    """Allows itself four fifths of each allowance."""

    def allowance(self, row: ReferenceRow) -> float:
        """Returns what it allows itself."""
        return 0.8 * super().allowance(row)


class SmallerBudget(AnchoredDecoder):
    """Keeps to four fifths of k throughout."""

    def allowance(self, row: ReferenceRow) -> float:
        """Returns what a budget of 0.8 k allows."""
        return allowance_of(row, row.debt, times=0.8)


class StepByStep(AnchoredDecoder):
    """Spends at most k at any step, and banks nothing once the debt is paid."""

    def allowance(self, row: ReferenceRow) -> float:
        """Returns k, or less while the prompt owes."""
        return min(row.request.k, super().allowance(row))


class DebtPaidTwice(AnchoredDecoder):
    """Pays the debt of its prompt twice over, and states it once."""

    def allowance(self, row: ReferenceRow) -> float:
        """Returns what is left after twice the debt."""
        return allowance_of(row, 2 * row.debt)


class SafeAlone(AnchoredDecoder):
    """Serves the safe model alone, whatever the budget, even at k = inf."""

    def allowance(self, row: ReferenceRow) -> float:
        """Allows nothing."""
        return 0.0


class LateStart(AnchoredDecoder):
    """Spends nothing in the first ten steps, and then what it has saved."""

    def allowance(self, row: ReferenceRow) -> float:
        """Returns nothing, then the bank; no limit stays none."""
        allowed = super().allowance(row)
        return allowed if row.step >= 10 or allowed == math.inf else 0.0


class Lumpy(AnchoredDecoder):
    """Saves for six steps, and spends all that it has at the seventh."""

    def allowance(self, row: ReferenceRow) -> float:
        """Returns the bank at every seventh step; no limit stays none."""
        allowed = super().allowance(row)
        return allowed if row.step % 7 == 6 or allowed == math.inf else 0.0


class RandomSlack(AnchoredDecoder):
    """Spends a random share of each allowance, which the seed of the request decides."""

    def allowance(self, row: ReferenceRow) -> float:
        """Returns the share."""
        chance = np.random.default_rng([row.request.seed, row.step, 7])
        return (1.0 - chance.random()) * super().allowance(row)


class Capped(AnchoredDecoder):
    """Gives the risky model a weight of at most one half, even at k = inf."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """Solves, and cuts the weight."""
        law, charge, theta = super().serve(safe, risky, allowance)
        if len(rows := np.flatnonzero(theta > 0.5)):
            law, charge, theta = law.copy(), charge.copy(), theta.copy()
            theta[rows] = 0.5
            law[rows] = geodesics(safe[rows], risky[rows], theta[rows])
            charge[rows] = divergences(law[rows], safe[rows])
        return law, charge, theta


class LowerWeight(AnchoredDecoder):
    """Serves a weight a fifth below the largest that is paid for, and says so."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """Solves, and lowers the weight of what is limited."""
        theta = super().serve(safe, risky, allowance)[2]
        theta = np.where(np.isinf(allowance), theta, np.maximum(0.0, theta - 0.2))
        law = geodesics(safe, risky, theta)
        return law, divergences(law, safe), theta


class AllOrNothing(AnchoredDecoder):
    """Serves the risky model where the allowance pays for it, else the safe one."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """Serves one of the two."""
        cost = divergences(risky, safe)
        paid = cost <= allowance
        theta = paid.astype(np.float64)
        return np.where(paid[:, None], risky, safe), np.where(paid, cost, 0.0), theta


# Geometric mixtures that are limited in another currency, which is never less than KL.


class RenyiSteps(AnchoredDecoder):
    """Limits the Renyi divergence of each step, of order 2, and pays its KL."""

    order = 2.0

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """Solves in the other currency."""
        law, _, theta = self.solve(safe, risky, allowance)
        return law, divergences(law, safe), theta

    def solve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """Returns what the rule of this order serves, with its own charge."""
        tensors = [torch.from_numpy(np.ascontiguousarray(x)) for x in (safe, risky, allowance)]
        served = Renyi(self.order).serve([()] * len(safe), *tensors)
        return served.law.numpy(), served.charge.numpy(), served.theta.numpy()


class LargestRatio(RenyiSteps):
    """Limits the largest log-ratio of any token at each step, and pays its KL."""

    order = math.inf


class RenyiBudget(RenyiSteps):
    """Limits and pays a Renyi divergence of order 2, and states weights but no charges."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """Serves the rule's law for the rule's charge."""
        return self.solve(safe, risky, allowance)

    def output(self, row: ReferenceRow) -> Output:
        """Leaves out what is not in nats of KL."""
        return replace(super().output(row), allowance=None, charge=None, spend=None)


# Other families. They show the law of every step.


class ShowsLaws(AnchoredDecoder):
    """Shows the law that each token is drawn from, instead of a weight."""

    shows_laws = True

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._drawn: dict[int, list[Law]] = {}

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        """Writes all requests."""
        self._drawn = {}
        return super().decode(requests)

    def draw(self, row: ReferenceRow, law: Law) -> int:
        """Draws the token and keeps the law."""
        if self.shows_laws:
            self._drawn.setdefault(id(row), []).append(law)
        return super().draw(row, law)

    def output(self, row: ReferenceRow) -> Output:
        """Returns the finished output, with its laws."""
        drawn = self._drawn.pop(id(row), None)
        laws = None if drawn is None else np.stack(drawn)
        return replace(super().output(row), theta=None, laws=laws)


class Metered(ShowsLaws):
    """Serves the largest weight of a family whose law's true KL is within the allowance."""

    def mixed(self, safe: Law, risky: Law, theta: NDArray[np.float64]) -> Law:
        """Returns the family's laws, each row at its own weight."""
        return geodesics(safe, risky, theta)

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """Halves the weight's bracket, all rows at once; where no law fits, the safe one does."""
        law, charge = safe.copy(), np.zeros(len(safe))
        rows = np.flatnonzero(allowance >= LEAST_ALLOWANCE)
        rows = self._put(rows, np.ones(len(rows)), law, charge, safe, risky, allowance)
        low, high = np.zeros(len(rows)), np.ones(len(rows))
        given = safe[rows], risky[rows]
        for _ in range(_HALVINGS if len(rows) else 0):
            middle = (low + high) / 2
            fits = divergences(self.mixed(*given, middle), given[0]) <= allowance[rows]
            low, high = np.where(fits, middle, low), np.where(fits, high, middle)
        self._put(rows, low, law, charge, safe, risky, allowance)
        return law, charge, np.full(len(safe), np.nan)

    def _put(
        self,
        rows: NDArray[np.intp],
        theta: NDArray[np.float64],
        law: Law,
        charge: Law,
        safe: Law,
        risky: Law,
        allowance: Law,
    ) -> NDArray[np.intp]:
        """Serves some rows at some weights if they are paid for; returns the others."""
        if not len(rows):
            return rows
        tried = self.mixed(safe[rows], risky[rows], theta)
        cost = divergences(tried, safe[rows])
        fits = cost <= allowance[rows]
        law[rows[fits]], charge[rows[fits]] = tried[fits], cost[fits]
        return rows[~fits]


class Arithmetic(Metered):
    """Serves the largest arithmetic mixture that the allowance pays for."""

    def mixed(self, safe: Law, risky: Law, theta: NDArray[np.float64]) -> Law:
        """Returns (1 - theta) p_safe + theta p_risky."""
        with np.errstate(divide="ignore"):
            weights = np.log1p(-theta)[:, None], np.log(theta)[:, None]
        return np.asarray(np.logaddexp(safe + weights[0], risky + weights[1]))


class RootMean(Metered):
    """Serves the largest mixture by square roots that the allowance pays for."""

    order = 0.5

    def mixed(self, safe: Law, risky: Law, theta: NDArray[np.float64]) -> Law:
        """Returns the power mean of this order, normalised."""
        with np.errstate(divide="ignore"):
            weights = np.log1p(-theta)[:, None], np.log(theta)[:, None]
        powers = self.order * safe + weights[0], self.order * risky + weights[1]
        return normalised(np.logaddexp(*powers) / self.order)


class MeteredTopP(Metered):
    """Keeps the likeliest 95 % of a mixture, and pays for what is left."""

    mass = 0.95

    def mixed(self, safe: Law, risky: Law, theta: NDArray[np.float64]) -> Law:
        """Returns mixtures without their tails."""
        law = super().mixed(safe, risky, theta)
        with np.errstate(invalid="ignore"):
            ordered = -np.sort(-law, axis=1)
            mass = np.exp(ordered)
            kept = np.cumsum(mass, axis=1) - mass < self.mass
            last = np.take_along_axis(ordered, kept.sum(axis=1)[:, None] - 1, axis=1)
            return normalised(np.where(law >= last, law, -np.inf))


class MeteredCooling(Metered):
    """Cools a mixture to a temperature of 0.7, and pays for what comes of it."""

    temperature = 0.7

    def mixed(self, safe: Law, risky: Law, theta: NDArray[np.float64]) -> Law:
        """Returns mixtures at another temperature."""
        return normalised(super().mixed(safe, risky, theta) / self.temperature)


class MeteredHeating(MeteredCooling):
    """Heats a mixture to a temperature of 1.3, and pays for what comes of it."""

    temperature = 1.3


class MeteredColdRisky(ShowsLaws):
    """Mixes the safe law with the risky one at a temperature of 0.7, and pays for that."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """Solves with the cold law; the weight is none of the risky model's own."""
        law, charge, theta = super().serve(safe, normalised(risky / 0.7), allowance)
        return law, charge, np.full_like(theta, np.nan)


CAREFUL: tuple[CarefulCase, ...] = (
    CarefulCase(AnchoredDecoder, conforms=True),
    *map(
        CarefulCase,
        (
            SpendsNineTenths,
            SpendsFourFifths,
            SmallerBudget,
            StepByStep,
            DebtPaidTwice,
            SafeAlone,
            LateStart,
            Lumpy,
            RandomSlack,
            Capped,
            LowerWeight,
            AllOrNothing,
            RenyiSteps,
            LargestRatio,
            RenyiBudget,
            Arithmetic,
            RootMean,
            MeteredTopP,
            MeteredCooling,
            MeteredHeating,
            MeteredColdRisky,
        ),
    ),
)
