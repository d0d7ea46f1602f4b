"""Faults of real deployments: server features, lies, rare triggers, batches, stops and caches.

As in `faults.py`, each is a decoder that is wrong in one way; `catalogue.py` lists them all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import log_softmax

from nafaudit.mechanisms.doors import Law, Output, Request
from nafaudit.mechanisms.reference import AnchoredDecoder, Row
from nafaudit.selftest.faults import allowance_of, blend, only

# What servers offer, applied after the charge.


class LooseTopP(AnchoredDecoder):
    """Drops the least likely one per cent of the served law."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The served law without the end of its tail."""
        order = np.argsort(-law, kind="stable")
        before = np.cumsum(np.exp(law[order])) - np.exp(law[order])
        return only(law, order[before < 0.99])


class EpsilonCut(AnchoredDecoder):
    """Drops tokens of less than one per cent."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The served law above a fixed floor."""
        return only(law, np.flatnonzero(law >= min(math.log(0.01), float(law.max()))))


class Typical(AnchoredDecoder):
    """Keeps the 90 % of the served law whose surprisal is closest to its entropy."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The served law's middle."""
        mass = np.exp(law)
        entropy = -math.fsum(mass[mass > 0] * law[mass > 0])
        order = np.argsort(np.abs(-law - entropy), kind="stable")
        before = np.cumsum(mass[order]) - mass[order]
        return only(law, order[before < 0.9])


class NoRepeatedPairs(AnchoredDecoder):
    """Forbids a token that would repeat a pair of tokens of the text so far."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The served law without what followed the last token before."""
        text = row.prefix
        banned = {b for a, b in itertools.pairwise(text) if a == text[-1]}
        kept = [token for token in range(len(law)) if token not in banned]
        return only(law, np.array(kept)) if kept else law


class StopsFavoured(AnchoredDecoder):
    """Makes the stop token three times as likely, after the charge."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The served law with a push towards the end."""
        pushed = law.copy()
        pushed[list(self.world.stops)] += math.log(3)
        return np.asarray(log_softmax(pushed))


class BadSpeculation(AnchoredDecoder):
    """Drafts with the risky model, and replaces a refused draft by a draw from the served law."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """Accepted drafts and wrong replacements."""
        accepted = np.minimum(law, risky)
        refused = max(1e-300, 1 - float(np.exp(accepted).sum()))
        return np.asarray(np.logaddexp(accepted, law + math.log(refused)))


class BestOfFour(AnchoredDecoder):
    """Writes four outputs and hands back the likeliest."""

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        """One of four for every request."""
        many = [replace(r, seed=(4 * r.seed + i) % (1 << 63)) for r in requests for i in range(4)]
        outputs = super().decode(many)
        groups = [outputs[i : i + 4] for i in range(0, len(outputs), 4)]
        return [max(group, key=lambda o: math.fsum(o.served or ())) for group in groups]


# Seldom wrong.


class HalfRisky(AnchoredDecoder):
    """Draws from the risky model at every other step."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The wrong law, half of the time."""
        return risky if row.step % 2 else law


class TriggeredRisky(AnchoredDecoder):
    """Draws from the risky model for prompts whose last token is even."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The wrong law, for some."""
        return risky if row.request.prompt[-1] % 2 == 0 else law


class VeryRareRisky(AnchoredDecoder):
    """Draws from the risky model in one execution of forty."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The wrong law, hardly ever."""
        return risky if row.request.seed % 40 == 0 else law


class SometimesRisky(AnchoredDecoder):
    """Draws from the risky model in one step of five, at random."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The served law with a share of the risky one."""
        return blend(law, risky, 0.2)


# Lies.


class TotalHalved(AnchoredDecoder):
    """Claims half of its total, and says nothing of any step."""

    def output(self, row: Row) -> Output:
        """Tokens and a wrong total."""
        return Output(row.tokens, debt=row.debt, spend=row.spent / 2)


class ClaimsTheBudget(AnchoredDecoder):
    """Ignores its budget by half, and claims that every step cost its k."""

    def allowance(self, row: Row) -> float:
        """Twice the budget."""
        doubled = replace(row.request, k=2 * row.request.k)
        return allowance_of(replace(row, request=doubled), row.debt)

    def output(self, row: Row) -> Output:
        """A charge that looks well behaved."""
        k = min(row.request.k, 1e9)
        return Output(row.tokens, charge=[k] * row.step, spend=k * row.step)


class ClaimsAnotherToken(AnchoredDecoder):
    """Claims the probabilities of the likeliest token instead of its own."""

    def pay(self, row: Row, charge: float, ratio: float) -> None:
        """Books right, claims a log-probability that is too large."""
        super().pay(row, charge, ratio)
        row.claims["served"][-1] *= 0.5


# Debts and ledgers.


class DebtSummed(AnchoredDecoder):
    """Adds up the five largest log-ratios instead of averaging them: too careful."""

    def debt(self, request: Request) -> float:
        """Up to five times what is owed."""
        return super().debt(request) * min(5, max(1, len(request.prompt) - 1))


class DebtForgiven(AnchoredDecoder):
    """Forgets the debt after ten tokens."""

    def allowance(self, row: Row) -> float:
        """An allowance without its debt, later."""
        return allowance_of(row, row.debt if row.step < 10 else 0.0)


class NoBank(AnchoredDecoder):
    """Lets unspent budget lapse: every step has its own k."""

    def allowance(self, row: Row) -> float:
        """k, whatever was left."""
        return min(row.request.k, super().allowance(row))


class PooledBudget(AnchoredDecoder):
    """Lets the rows of a batch share one budget."""

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        """Writes with one bank for all."""
        self.spent, self.rows = 0.0, max(1, len(requests))
        return super().decode(requests)

    def allowance(self, row: Row) -> float:
        """What the mean spend of the batch leaves."""
        return allowance_of(replace(row, spent=self.spent / self.rows), row.debt)

    def pay(self, row: Row, charge: float, ratio: float) -> None:
        """Books for all."""
        super().pay(row, charge, ratio)
        self.spent += charge


class MaxDivergence(AnchoredDecoder):
    """Charges the largest log-ratio of a step, which is another promise."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """Right laws, other charges."""
        law, _, theta = super().serve(safe, risky, allowance)
        gaps = np.where(law > -np.inf, law - safe, -np.inf)
        return law, np.maximum(0.0, gaps.max(axis=1)), theta


# Batches, stops and caches.


class SwappedRows(AnchoredDecoder):
    """Hands the outputs of a batch back in reverse."""

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        """Right outputs, wrong places."""
        return super().decode(requests)[::-1]


class BatchNoise(AnchoredDecoder):
    """Draws one noise for all rows of a batch."""

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        """Writes with the first row's seed."""
        shared = requests[0].seed if requests else 0
        return super().decode([replace(r, seed=shared) for r in requests])


class StripsItsStop(AnchoredDecoder):
    """Takes the stop token off its outputs."""

    def output(self, row: Row) -> Output:
        """All but the stop, in tokens and claims."""
        out = super().output(row)
        if row.tokens[-1] not in self.world.stops or row.step < 2:
            return out
        charge, served = (row.claims[name][:-1] for name in ("charge", "served"))
        return Output(row.tokens[:-1], charge=charge, served=served, debt=row.debt, spend=row.spent)


class StopsElsewhere(AnchoredDecoder):
    """Takes one ordinary token for a stop token."""

    def ended(self, row: Row) -> bool:
        """Ends at token 3 too."""
        return super().ended(row) or bool(row.tokens and row.tokens[-1] == 3)


class SometimesStale(AnchoredDecoder):
    """Serves the laws of the step before at every tenth step, and claims nothing."""

    def laws(self, rows: Sequence[Row]) -> tuple[Law, Law]:
        """Laws that are now and then one token late."""
        late = [row.prefix[:-1] if row.step % 10 == 9 else row.prefix for row in rows]
        return self.world.laws(late)

    def output(self, row: Row) -> Output:
        """Tokens only."""
        return Output(row.tokens)


class StaleAnchor(AnchoredDecoder):
    """Keeps the safe model's law of the step before."""

    def laws(self, rows: Sequence[Row]) -> tuple[Law, Law]:
        """A safe law that is one token late."""
        late = [row.prefix[:-1] if row.step else row.prefix for row in rows]
        return self.world.laws(late)[0], self.world.laws([row.prefix for row in rows])[1]


class ForgetsThePrompt(AnchoredDecoder):
    """Loses all but the last token of the prompt."""

    def laws(self, rows: Sequence[Row]) -> tuple[Law, Law]:
        """Laws of a shorter text."""
        return self.world.laws([(row.request.prompt[-1], *row.tokens) for row in rows])


class ColdRisky(AnchoredDecoder):
    """Cools the risky law before the solve, and does not say so."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """A mixture with a model that nobody named; it is charged rightly."""
        return super().serve(safe, np.asarray(log_softmax(risky / 0.7, axis=1)), allowance)


class SilentColdRisky(ColdRisky):
    """The same, and claims nothing: it keeps the budget with another risky model."""

    def output(self, row: Row) -> Output:
        """Tokens only."""
        return Output(row.tokens)
