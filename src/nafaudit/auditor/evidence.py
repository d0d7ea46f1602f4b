"""Which laws of a family fit the tokens of a silent decoder, and what follows for its budget.

A law is *out* once an e-value against it reaches 1 / level: a bet that is fair if the tokens were
drawn from that law (Wasserman, Ramdas, Balakrishnan 2020, Universal inference; Ville 1939 for its
running maximum). The bet against law j is on the other laws of the family, whole or in some
answers, steps, prompts, budgets or states of the debt. What is not out is the *confidence set*.
Where all of it overspends, the decoder is refuted; where all of it keeps the budget, it is not; and
where nothing in it fits, its law is none that is known, and nothing follows.

`certificate` needs no family: while the debt is owed nothing may be spent, so that any decoder that
keeps the budget draws from the safe model itself there. It also gives a lower bound of the spend.
Nothing here needs torch or models.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtr

from nafaudit.auditor.family import AFTER_SOLVE, GEOMETRIC, Answers, Followed
from nafaudit.auditor.sampler import shared_noise_p
from nafaudit.core.finding import replayed_tolerance
from nafaudit.core.promise import ACCUSED_AT, MEANS_LEVEL
from nafaudit.stats.betting import lower_rows
from nafaudit.stats.certificate import log_cap

Array = NDArray[np.float64]

LEVEL = ACCUSED_AT
"""How often an audit of a decoder whose law is listed may accuse it wrongly."""
SHARES = {"laws": 0.6, "certificate": 0.1, "claims": 0.1, "safe": 0.1, "repeats": 0.1}
"""How the level is split: the confidence set; the certificate; tests of the tokens against what is
claimed, over all arms; against the safe model at k = 0; and of answers that repeat each other.
Under Eq. 1 there is no certificate, and bounds of means of prompts have its share: half of it
where totals are shown, half where they are those of laws that fit (`MEANS_LEVEL` each)."""
LOOKS = (60, 120, 240)
"""Answers per budget after which laws are put out, in an order fixed before; no more are read."""
FITS = 2.3
"""A law fits if the bet against it has gained at most this many nats."""
LEAST_EXCESS = 0.01
"""Of K: laws that overspend by less refute nothing."""
MOST_EXCESS = 0.10
"""Of K: WITHIN needs that no law that is left overspends by more."""
LEAST_ANSWERS = 60
"""Answers per budget that a refutation by laws needs."""
CLAIMED = "what it claims"
"""The law of a decoder that shows what it served, as one of the family."""
# Standard deviation of log p_risky / p_safe from which a token says something of the noise.
_LEAST_SPREAD = 0.1
# What rounding may make of a prefix.
_SLACK, _RELATIVE = 0.01, 0.002
# Shares of the tokens that a bet on some answers, steps or prompts thinks are of another law.
_SOME = np.array([0.02, 0.1, 0.3])
# A law that the bet on whole laws puts out by this much needs no other bet.
_FAR = 12.0
# A token that a law forbids is this unlikely; and what one token can gain in a bet on some tokens.
_MOST_GAIN, _MOST_RATIO = 700.0, 60.0
# Tokens whose ratios are multiplied before a logarithm is taken: e^480 is still a number.
_TERMS = 8
_BETS = {
    "whole": 0.4,
    "answers": 0.1,
    "steps": 0.1,
    "prompts": 0.05,
    "budget": 0.05,
    "window": 0.1,
    "state": 0.1,
    "states": 0.1,
}


def out_at() -> float:
    """Returns the nats at which a law is out.

    An accusation comes of the second group of the family or, if shapes that are paid for are
    looked at too, of the third: each has half of the share.
    """
    return -math.log(LEVEL * SHARES["laws"] / 2)


@dataclass(frozen=True, eq=False)
class Evidence:
    """Answers of one program, and what each law of the family makes of them.

    Attributes:
        answers: What was written.
        laws: The family along it.
        unpaid: Steps at which nothing is granted yet [answers, steps].
        binding: Steps at which the promised ledger serves a mixture.
        slack: What sums and single charges of a law that is shown may be off by; empty if none is.
    """

    answers: Answers
    laws: Followed
    unpaid: NDArray[np.bool_]
    binding: NDArray[np.bool_]
    slack: tuple[float, ...] = ()

    @staticmethod
    def of(answers: Answers, laws: Followed) -> Evidence:
        """Returns the evidence of some answers; the first ledger says when the promise binds."""
        theta = laws.theta[laws.names.index("1 k")]
        steps = np.arange(1, theta.shape[1] + 1)
        unpaid = steps * answers.k[:, None] <= answers.debt[:, None]
        return Evidence(answers, laws, unpaid, (theta > 0) & (theta < 1))

    def first(self, count: int) -> Evidence:
        """Returns the evidence of the first so many answers of each budget, in their order."""
        answers = self.answers
        seen: Counter[float] = Counter()
        rows = []
        for row in np.argsort(answers.rank, kind="stable").tolist():
            seen[answers.k[row]] += 1
            if seen[answers.k[row]] <= count:
                rows.append(row)
        chosen = np.zeros(len(answers), bool)
        chosen[rows] = True
        return self.rows(chosen)

    def rows(self, chosen: NDArray[np.bool_]) -> Evidence:
        """Returns the evidence of some answers."""
        some = np.flatnonzero(chosen)
        columns = (getattr(self.laws, n)[:, some] for n in ("logp", "theta", "charge"))
        laws = Followed(self.laws.names, *columns)
        kept = self.unpaid[some], self.binding[some]
        return Evidence(self.answers.some(some), laws, *kept, self.slack)

    def without(self, names: Collection[str]) -> Evidence:
        """Returns the same answers with some laws left out."""
        if not names:
            return self
        rows = [at for at, name in enumerate(self.laws.names) if name not in names]
        columns = (getattr(self.laws, n)[rows] for n in ("logp", "theta", "charge"))
        return replace(self, laws=Followed(tuple(self.laws.names[r] for r in rows), *columns))

    @property
    def excess(self) -> Array:
        """The mean of the worst prefix excess, as a share of K, at the worst budget [laws]."""
        return np.asarray(self._by_budget().max(axis=0))

    @property
    def nats(self) -> Array:
        """The same in nats, at that budget [laws]."""
        budgets = np.unique(self.answers.k)
        worst = budgets[self._by_budget().argmax(axis=0)]
        return np.asarray(self.excess * worst * self.answers.limit)

    def _by_budget(self) -> Array:
        """The mean of the worst prefix excess as a share of K [budgets, laws]."""
        worst = np.maximum(self.laws.excess(self.answers), 0.0)
        found = []
        for k in np.unique(self.answers.k):
            rows = self.answers.k == k
            found.append(worst[:, rows].mean(axis=1) / (k * self.answers.limit))
        return np.stack(found)

    def mean_excess(self, *, surely: bool = False) -> tuple[Array, Array]:
        """The largest mean total of a prompt beyond K, as a share of kT and in nats [laws].

        Eq. 1 itself is about the mean total of each prompt, whatever its prefixes cost.

        Args:
            surely: True for lower confidence limits of the means, at their share of the level.
        """
        answers, totals = self.answers, self.laws.totals()
        groups = {(k, p) for k, p in zip(answers.k.tolist(), answers.prompt.tolist(), strict=True)}
        worst, nats = np.zeros(len(totals)), np.zeros(len(totals))
        for k, prompt in sorted(groups):
            rows = (answers.k == k) & (answers.prompt == prompt)
            limit = np.maximum(0.0, k * answers.limit - answers.debt[rows][0])
            here = totals[:, rows]
            level = MEANS_LEVEL / len(groups)
            means = lower_rows(here, math.inf, level) if surely else here.mean(axis=1)
            share = (means - limit) / (k * answers.limit)
            nats = np.where(share > worst, means - limit, nats)
            worst = np.maximum(worst, share)
        return worst, nats

    @property
    def breaks(self) -> NDArray[np.bool_]:
        """Which laws exceed a grant at some prefix by more than rounding [laws]."""
        grants = self.answers.grants
        slack = np.repeat((_SLACK + _RELATIVE * grants)[None], len(self.laws.names), axis=0)
        if CLAIMED in self.laws.names and self.slack:
            # What is shown is as exact as the decoder computes.
            at = self.laws.names.index(CLAIMED)
            slack[at] = np.maximum(slack[at], replayed_tolerance(grants, *self.slack))
        # A charge that is no number keeps no budget.
        charge = np.nan_to_num(self.laws.charge, nan=np.inf, posinf=np.inf)
        over = np.cumsum(charge, axis=-1) - grants > slack
        return np.asarray((over & self.answers.alive).any(axis=(1, 2)))


def log_e_values(evidence: Evidence, *, independent: bool = True) -> Array:
    """Computes the logarithm of the e-value against each law; one that was once out stays out.

    Of answers that share their draws only the mean of their e-values is one. Else every bet is a
    mixture of ratios of likelihoods and grows answer by answer, so that its largest value at
    `LOOKS` is as good as its last (Ville). The answers are in the order of their numbers.
    """
    if not independent:
        gain = evidence.laws.logp.sum(axis=2)
        gain = np.clip(gain, -_MOST_GAIN, None)
        each = logsumexp(gain, axis=0) - math.log(len(gain)) - gain
        return np.asarray(logsumexp(each, axis=1) - math.log(each.shape[1]))
    found = _log_e_values(evidence)
    for look in LOOKS:
        part = evidence.first(look)
        if len(part.answers) < len(evidence.answers):
            before = _log_e_values(part)
            found = np.where(before >= out_at(), np.maximum(before, found), found)
    return found


def _log_e_values(evidence: Evidence) -> Array:
    """Computes them after all answers.

    Of a law that the bet on whole laws alone puts far out, that is all that is computed.
    """
    logp = evidence.laws.logp
    totals = logp.sum(axis=(1, 2))
    found = np.empty(len(totals))
    finite = np.where(np.isfinite(totals), totals, -np.inf)
    bets = _Bets(evidence)
    for j in range(len(totals)):
        if not np.isfinite(totals[j]):
            found[j] = np.inf
            continue
        gain = _log_sum(finite - totals[j]) - math.log(len(totals))
        found[j] = math.log(_BETS["whole"]) + gain
        if found[j] < _FAR:
            found[j] = bets.log_e(j)
    return found


class _Bets:
    """All bets against one law after the other.

    Args:
        evidence: The answers and the family.
    """

    def __init__(self, evidence: Evidence) -> None:
        answers, laws = evidence.answers, evidence.laws
        alive = answers.alive
        self._limit = answers.limit
        # Only tokens that there are, side by side [laws, tokens].
        known = np.nan_to_num(laws.logp[:, alive], nan=-_MOST_GAIN)
        self._logp = np.clip(known, -_MOST_GAIN, None)
        state = np.where(evidence.unpaid, 0, np.where(evidence.binding, 1, 2))[alive]
        answer, step = np.nonzero(alive)
        number = np.unique(answers.k, return_inverse=True)[1][answer]
        # By the limit, so that a later answer that is longer changes no label.
        block = step * 4 // answers.limit
        labels = {
            "answers": answer,
            "prompts": np.unique(answers.prompt, return_inverse=True)[1][answer],
            "budget": number,
            "window": step,
            "state": state,
            "states": state + 3 * number,
            "block": block,
            "blocks": block + 4 * number,
        }
        # Gains add up, so that sums of each law are enough [laws, labels].
        self._sums = {name: _added(self._logp, each) for name, each in labels.items()}
        # A bet on one of the three states is as dear where one of them does not occur.
        nothing = np.zeros((len(self._logp), 3 - self._sums["state"].shape[1]))
        self._sums["state"] = np.concatenate([self._sums["state"], nothing], axis=1)

    def log_e(self, j: int) -> float:
        """Computes the logarithm of the whole bet against one law."""
        gain = {name: sums - sums[j] for name, sums in self._sums.items()}
        parts = {
            "whole": _mean(gain["budget"].sum(axis=1)),
            "answers": _mean(_some(gain["answers"])),
            "steps": _mean(_some_tokens(self._logp - self._logp[j])),
            "prompts": _mean(_some(gain["prompts"])),
            "budget": _mean(gain["budget"]),
            "window": _mean(_windows(gain["window"], self._limit)),
            "state": _mean(gain["state"]),
        }
        # Each label has a law of its own.
        each = (gain[name] for name in ("state", "states", "block", "blocks"))
        apart = [(_log_sum(one, axis=0) - math.log(len(one))).sum() for one in each]
        parts["states"] = _mean(np.array(apart))
        bets = [math.log(_BETS[name]) + value for name, value in parts.items()]
        return float(_log_sum(np.array(bets)))


def _added(values: Array, labels: NDArray[np.integer]) -> Array:
    """Adds up columns by label [rows, labels]; the labels that there are, in their order."""
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    return np.asarray(np.add.reduceat(values[:, order], starts, axis=1))


def _mean(values: Array) -> float:
    """Averages bets of all laws, and of several kinds of each."""
    return float(_log_sum(values) - math.log(values.size))


def _log_sum(values: Array, axis: int | None = None) -> Array:
    """Returns log of the sum of exp; scipy's takes a tenth of a millisecond before it begins."""
    top = np.max(values, axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        total = np.log(np.exp(values - top).sum(axis=axis))
    return np.asarray(total + (top.squeeze(axis) if axis is not None else top.item()))


def _some(values: Array) -> Array:
    """Bets that a share of what stands along the last axis is of another law."""
    bets = [np.logaddexp(math.log1p(-s), math.log(s) + values).sum(axis=-1) for s in _SOME]
    return np.stack(bets)


def _some_tokens(gain: Array) -> Array:
    """Bets that a share of the tokens is of another law; logarithms of products of a few terms."""
    ratio = np.exp(np.minimum(gain, _MOST_RATIO))
    rest = -ratio.shape[1] % _TERMS
    if rest:
        ratio = np.concatenate([ratio, np.ones((len(ratio), rest))], axis=1)
    # Terms lie in the first axis, so that what is multiplied is contiguous.
    terms = ratio.reshape(len(ratio), _TERMS, -1)
    found = []
    for share in _SOME:
        mixed = terms * share
        mixed += 1 - share
        found.append(np.log(np.multiply.reduce(mixed, axis=1)).sum(axis=-1))
    return np.stack(found)


def _windows(places: Array, steps: int) -> Array:
    """Returns the gains of dyadic stretches of steps.

    Args:
        places: Gains added up over answers [laws, steps].
        steps: The length limit.
    """
    rest = np.zeros((len(places), steps - places.shape[1]))
    places = np.concatenate([np.zeros((len(places), 1)), places, rest], axis=1)
    total = np.cumsum(places, axis=1)
    found = []
    width = steps
    while width >= 1:
        for start in range(0, steps, width):
            found.append(total[:, min(start + width, steps)] - total[:, start])
        if width == 1:
            break
        width = -(-width // 2)
    return np.stack(found)


# Tokens on which a test of shared noise needs to look.
_LEAN_TOKENS = 100


def shared_noise(evidence: Evidence, law: str) -> float:
    """Tests whether answers lean the same way at the same steps; returns about a p-value.

    What leans is log p_risky / p_safe of the token, standardised by a law that fits. Its
    distribution is taken to be normal, so that this accuses nobody: it only keeps evidence from
    being multiplied. While the debt is owed every decoder that keeps its budget draws from the safe
    model, so that these steps can be looked at whatever the law.

    Args:
        evidence: The answers and the family.
        law: Name of a law that fits; if it is no geometric mixture, only unpaid steps are looked
            at.

    Returns:
        About a p-value; NaN where there are too few steps to tell.
    """
    answers, laws = evidence.answers, evidence.laws
    alive = answers.alive
    if law in GEOMETRIC:
        theta = laws.theta[laws.names.index(law)]
    else:
        theta, alive = np.zeros(alive.shape), alive & evidence.unpaid
    ratio = answers.stacked("risky") - answers.stacked("safe")
    usable = np.isfinite(ratio[alive])
    if usable.sum() < _LEAN_TOKENS:
        return math.nan
    mean, spread = answers.moments(alive, usable, theta[alive][usable])
    # A law with hardly a choice says nothing of the noise.
    choice = spread > _LEAST_SPREAD
    lean = np.full(usable.shape, math.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.where(choice, (ratio[alive][usable] - mean) / spread, math.nan)
    lean[usable] = ndtr(score)
    places = np.full(alive.shape, math.nan)
    places[alive] = lean
    return float(shared_noise_p(places))


def with_law(evidence: Evidence, laws: Followed) -> Evidence:
    """Adds laws to a family."""
    return replace(evidence, laws=Followed.joined([evidence.laws, laws]))


PARTLY = ("the risky model alone", "2 k", "3 k", "no debt")
"""Laws that a decoder may have in some answers or on some prompts, and 1 k in the others."""


def with_parts(evidence: Evidence) -> Evidence:
    """Adds decoders that are another law in some answers, or on some prompts."""
    answers, laws = evidence.answers, evidence.laws
    names = list(laws.names)
    base = names.index("1 k")
    parts = []
    for name in PARTLY:
        other = names.index(name)
        parts.append(_some_answers(answers, laws, base, other, 0.1))
        parts.append(_some_prompts(answers, laws, base, other, 0.15))
    return with_law(evidence, Followed.joined(parts))


def _posterior(one: Array, other: Array, share: Array) -> tuple[Array, Array]:
    """Returns log-probabilities of a mixture of two laws step by step, and the other's share."""
    cum_one = np.cumsum(one, axis=-1)
    cum_other = np.cumsum(other, axis=-1)
    with np.errstate(divide="ignore"):
        low, high = np.log1p(-share)[:, None], np.log(share)[:, None]
    joint = np.logaddexp(low + cum_one, high + cum_other)
    before = np.concatenate([np.zeros((len(one), 1)), joint[:, :-1]], axis=1)
    weight = np.exp(high + cum_other - joint)
    return joint - before, weight


def _some_answers(
    answers: Answers, laws: Followed, base: int, other: int, share: float
) -> Followed:
    """Each answer is of one of two laws, by chance."""
    shares = np.full(len(answers), share)
    logp, weight = _posterior(laws.logp[base], laws.logp[other], shares)
    return _part(laws, base, other, weight[:, -1], logp, f"{laws.names[other]} in some answers")


def _some_prompts(
    answers: Answers, laws: Followed, base: int, other: int, share: float
) -> Followed:
    """Answers of one prompt are of one law; which of the two is seen from those before."""
    logp, believed = np.empty_like(laws.logp[base]), np.empty(len(answers))
    for prompt in np.unique(answers.prompt):
        rows = np.flatnonzero(answers.prompt == prompt)
        rows = rows[np.argsort(answers.rank[rows], kind="stable")]
        belief = np.array([share])
        for row in rows:
            one, other_ = laws.logp[base, row : row + 1], laws.logp[other, row : row + 1]
            found, weight = _posterior(one, other_, np.clip(belief, 1e-12, 1 - 1e-12))
            logp[row], belief = found[0], weight[:, -1]
        believed[rows] = belief
    return _part(laws, base, other, believed, logp, f"{laws.names[other]} on some prompts")


def _part(laws: Followed, base: int, other: int, weight: Array, logp: Array, name: str) -> Followed:
    """Returns two laws mixed, charged by how far each answer turned out to be of the other."""
    part = np.nan_to_num(weight)[:, None]
    charge = (1 - part) * laws.charge[base] + part * laws.charge[other]
    return Followed((name,), logp[None], laws.theta[base][None], charge[None])


class Reason(StrEnum):
    """Why the tokens of a silent decoder decide what they do."""

    KEEPS = "keeps"
    BREAKS = "breaks"
    OPEN = "open"
    UNSURE = "unsure"
    NO_LAW = "no-law"


@dataclass(frozen=True)
class Fit:
    """What the tokens of a silent decoder say of its budget.

    Attributes:
        reason: What follows.
        law: The law that its tokens fit and that is named; empty if none is known.
        best: The law that they fit best.
        other: The law of the other kind that is hardest to rule out; empty if there is none.
        excess: By what share of K the law that decides exceeds it: the largest that is left where
            the budget is kept, the smallest where it is not.
        nats: The same in nats, at the budget where it is.
        gap: How many nats less likely than the law that is named the other one makes the tokens.
        more: About how many more answers per budget would decide.
        answers: How many were looked at, per budget.
        left: The confidence set, each law with its e-value's logarithm.
        prefixes: False where only the mean total of a prompt is promised.
    """

    reason: Reason
    law: str = ""
    best: str = ""
    other: str = ""
    excess: float = math.nan
    nats: float = math.nan
    gap: float = math.nan
    more: int = 0
    answers: int = 0
    left: tuple[tuple[str, float], ...] = ()
    prefixes: bool = True

    @property
    def kind(self) -> str:
        """What is wrong: sampling, where something acts after the solve; else the budget."""
        return "sampling" if self.best in AFTER_SOLVE else "budget"

    @property
    def fits(self) -> str:
        """Says which law the tokens fit, as the beginning of a sentence."""
        if self.best not in AFTER_SOLVE:
            return f"its tokens fit {self.law}"
        said = (
            f"its tokens look like {self.best}: check the generation config for what acts after "
            "the solve"
        )
        return said if self.law == self.best else f"{said} ({self.law} fits too)"

    @property
    def text(self) -> str:
        """Says it, without a full stop."""
        fits = self.fits
        excess = f"{self.excess:.1%} ({self.nats:.1f} nats)"
        if self.reason == Reason.KEEPS:
            return f"{fits}; no law that fits exceeds K by more than {excess}"
        if self.reason == Reason.BREAKS:
            return (
                f"{fits}; every law we know that keeps the budget is excluded (smallest excess "
                f"left {excess})"
            )
        if self.reason == Reason.UNSURE:
            why = f"the smallest excess left, {excess}, is too small to accuse"
            if self.answers < LEAST_ANSWERS:
                why = f"fewer than {LEAST_ANSWERS} answers per budget refute no law"
            elif not self.prefixes:
                why = "it is not sure enough that the mean of a prompt exceeds K"
            return f"{fits}; no law that keeps the budget fits, but {why}"
        if self.reason == Reason.OPEN:
            also = f", but also {self.other}" if self.other else ""
            return f"{fits}{also}; about {self.more} more answers per budget would decide"
        return (
            "its tokens fit no law that we know, so whether the budget was kept is not shown; show "
            "weights or distributions to be judged by what it spends"
        )


def decide(evidence: Evidence, log_e: Array, keeps_prefixes: bool = True) -> Fit:
    """Judges a silent decoder by the laws that are left.

    Args:
        evidence: The answers and the family.
        log_e: Logarithm of the e-value against each law.
        keeps_prefixes: False where only the mean total of a prompt is promised.
    """
    names, breaks, excess = evidence.laws.names, evidence.breaks, evidence.excess
    over, sizes = breaks, evidence.nats
    if not keeps_prefixes:
        # A law is over K by its mean; it breaks the promise where that is sure.
        excess, sizes = evidence.mean_excess()
        over, breaks = excess > _RELATIVE, evidence.mean_excess(surely=True)[0] > _RELATIVE
    answers = int(np.unique(evidence.answers.k, return_counts=True)[1].min())
    left = np.flatnonzero(log_e < out_at())
    fitting = np.flatnonzero(log_e <= FITS)
    order = left[np.argsort(log_e[left], kind="stable")]
    kept = tuple((names[j], float(log_e[j])) for j in order)

    def found(reason: Reason, law: int, other: int | None, at: int | None) -> Fit:
        """Says what follows; `at` is the law whose excess decides."""
        share, nats = (0.0, 0.0) if at is None else (float(excess[at]), float(sizes[at]))
        totals = evidence.laws.logp.sum(axis=(1, 2))
        gap = math.nan if other is None else float(totals[law] - totals[other])
        more = 0
        if reason == Reason.OPEN and other is not None:
            # Evidence grows with the number of answers; what is needed is about 12 nats.
            more = max(10 * math.ceil(answers * (12 / max(gap, 1.0) - 1) / 10), 10)
            more = max(more, LEAST_ANSWERS - answers)
        return Fit(
            reason, names[law], names[best], "" if other is None else names[other], share, nats,
            gap, max(more, 0), answers, kept, keeps_prefixes,
        )  # fmt: skip

    if not fitting.size:
        return Fit(Reason.NO_LAW, answers=answers, left=kept, prefixes=keeps_prefixes)
    best = _said(fitting, log_e, names)
    first = int(fitting[np.argmin(log_e[fitting])])
    if names[first] in AFTER_SOLVE and names[best] != "1 k":
        best = first
    if breaks[left].all():
        smallest = int(left[np.argmin(excess[left])])
        keeping = np.flatnonzero(~breaks)
        other = int(keeping[np.argmin(log_e[keeping])]) if keeping.size else None
        if excess[smallest] >= LEAST_EXCESS and answers >= LEAST_ANSWERS:
            return found(Reason.BREAKS, best, other, smallest)
        return found(Reason.UNSURE, best, other, smallest)
    keeping = fitting[~over[fitting]]
    above = left[over[left]]
    worst = int(above[np.argmax(excess[above])]) if above.size else None
    if keeping.size and (worst is None or excess[worst] <= MOST_EXCESS):
        return found(Reason.KEEPS, _said(keeping, log_e, names), worst, worst)
    # What is hardest to rule out of the other kind than the law that fits best.
    others = left[~over[left]] if over[best] else above[excess[above] > MOST_EXCESS]
    other = int(others[np.argmin(log_e[others])]) if others.size else worst
    if over[left].all():
        return found(Reason.UNSURE, best, None, worst)
    return found(Reason.OPEN, best, other, worst)


def _said(laws: NDArray[np.intp], log_e: Array, names: Sequence[str]) -> int:
    """Returns the law that is named: the promised one if it fits, else the one that fits best.

    What a decoder itself claims is named only where no other law fits.
    """
    for law in laws.tolist():
        if names[law] == "1 k":
            return int(law)
    listed = [law for law in laws.tolist() if names[law] != CLAIMED] or laws.tolist()
    return int(listed[int(np.argmin(log_e[listed]))])


# How small an overspend would have been seen.

TIMES = (1.1, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)
"""Multiples of k that are simulated; each is a ledger of the family."""
PROBABILITY = 0.95
_SIMULATED = 200


def smallest_seen(evidence: Evidence) -> float:
    """Returns the smallest of `TIMES` that 95 % of simulated audits refute; inf if none.

    At each step of these very answers tokens are drawn anew from the law that a decoder with a
    larger budget would serve there; of a token only l = log p_risky / p_safe counts, whose mean and
    variance the tables have, and which is taken to be normal: it is summed over hundreds of steps.
    The bet is the one on whole laws, so that the real one sees at least as much.
    """
    answers, laws = evidence.answers, evidence.laws
    if np.unique(answers.k, return_counts=True)[1].min() < LEAST_ANSWERS:
        return math.inf
    geometric = [at for at, name in enumerate(laws.names) if name in GEOMETRIC]
    names = [laws.names[at] for at in geometric]
    keeping = np.flatnonzero(~evidence.breaks[geometric])
    alive = answers.alive
    theta = laws.theta[geometric][:, alive]
    safe, risky = answers.stacked("safe")[alive], answers.stacked("risky")[alive]
    usable = (
        np.isfinite(safe) & np.isfinite(risky) & np.isfinite(laws.logp[geometric][:, alive]).all(0)
    )
    theta = theta[:, usable]
    # log q = log p_s + theta l - psi(theta)
    level = (
        safe[usable] + theta * (risky - safe)[usable] - laws.logp[geometric][:, alive][:, usable]
    )
    levels = level.sum(axis=1)
    rng = np.random.default_rng(0)
    for times in TIMES:
        served = theta[names.index(f"{times:g} k")]
        mean, spread = answers.moments(alive, usable, served)
        drawn = mean[:, None] + spread[:, None] * rng.standard_normal((mean.size, _SIMULATED))
        totals = theta @ drawn - levels[:, None]
        whole = logsumexp(totals, axis=0) - math.log(len(laws.names)) + math.log(_BETS["whole"])
        out = (whole[None, :] - totals[keeping] >= out_at()).all(axis=0)
        if out.mean() >= PROBABILITY:
            return times
    return math.inf


# The certificate.

_COUNTED = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, math.inf)
_STAKES = np.array([0.02, 0.1, 0.3, 0.7])
# Share of the learned law in a bet on a log-ratio, which bounds what it can lose.
_LEARNED = 0.05
# By how much a debt may be off, relative to 1 + its size.
_DEBT_SLACK = 1e-3


@dataclass(frozen=True)
class Certificate:
    """Evidence of overspending that holds whatever the decoder's law.

    Attributes:
        log_e: Logarithm of the e-value against every decoder that keeps the budget at each prefix.
        fires: True if that is enough to accuse.
        at: Budgets whose own answers are that evidence; that with most of it, if none is alone.
        spends: By budget, the mean total that its answers cost at least, with 97.5 % confidence.
        granted: By budget, the mean that they were granted.
    """

    log_e: float
    fires: bool
    at: tuple[float, ...] = ()
    spends: tuple[tuple[float, float], ...] = ()
    granted: tuple[tuple[float, float], ...] = ()


def certificate(evidence: Evidence) -> Certificate:
    """Bets that more is spent than is granted, first of all while the debt is owed."""
    answers = evidence.answers
    log_e, whole = _certified(evidence)
    fires, at = log_e >= (least := -math.log(LEVEL * SHARES["certificate"])), ()
    budgets = np.unique(answers.k).tolist()
    if fires:
        alone = {k: _certified(evidence.rows(answers.k == k))[0] for k in budgets}
        at = tuple(k for k in budgets if alone[k] >= least) or (
            max(budgets, key=alone.__getitem__),
        )
    spends, granted = [], []
    for k in budgets:
        rows = answers.k == k
        spends.append((k, _least_mean(_floored(whole[rows]))))
        owed = np.maximum(0.0, answers.lengths * k - answers.debt)
        granted.append((k, float(owed[rows].mean())))
    return Certificate(log_e, fires, at, tuple(spends), tuple(granted))


def _certified(evidence: Evidence) -> tuple[float, Array]:
    """Returns the bet's logarithm, and log r / p_s of each whole answer.

    For any law r, KL(q || p_s) >= E_q log r / p_s; a law that is learned from earlier answers is a
    good r. Where nothing is granted q is p_s, and r / p_s has the mean 1.
    """
    answers = evidence.answers
    order = np.argsort(answers.rank, kind="stable")
    ratio = np.cumsum(evidence.laws.logp - _safe(evidence), axis=-1)
    ratio = np.where(np.isnan(ratio), -np.inf, ratio)
    lengths, debt = answers.lengths, np.maximum(0.0, answers.debt * (1 - _DEBT_SLACK) - _DEBT_SLACK)
    paths = []
    whole = np.empty(len(answers))
    for counted in _COUNTED:
        # Up to where it counts is fixed before: what an answer's own end grants is less.
        free = np.floor(np.minimum(debt / answers.k + counted, answers.limit))
        limit = np.maximum(0.0, free * answers.k - debt)
        steps = np.minimum(lengths, free).astype(int)
        gains = _learned(ratio, steps, order)
        if math.isinf(counted):
            whole = gains
        bets = np.zeros((len(answers), _STAKES.size))
        for a in range(len(answers)):
            if not steps[a]:
                continue
            if limit[a] <= 0:
                bets[a] = np.logaddexp(np.log1p(-_STAKES), np.log(_STAKES) + gains[a])
            else:
                bets[a] = np.log1p(_STAKES * (_floored(gains[a]) - limit[a]) / (limit[a] + _LOSS))
        paths.append(np.cumsum(bets[order], axis=0))
    # A few odd answers must not decide alone which bet is right: all are kept.
    joint = logsumexp(np.concatenate(paths, axis=1), axis=1) - math.log(len(paths) * _STAKES.size)
    return max(0.0, float(np.nan_to_num(joint).max(initial=0.0))), whole


def copies(evidence: Evidence, tokens: Sequence[NDArray[np.integer]]) -> float:
    """Returns log of the e-value of answers that repeat others, whatever the decoder's law.

    A decoder that keeps its budget writes a given beginning of surprisal S under the safe model
    with a chance of at most p(S, B), B what that many tokens were granted (`log_cap`). The bet is
    that an answer begins as an earlier one of its prompt and budget did; answers that are drawn
    from a few seeds do.
    """
    answers = evidence.answers
    # Beginnings of 4, 8, 16, ... tokens, and whole answers [answers, beginnings].
    counts = np.array([2**i for i in range(2, 12) if 2**i < answers.alive.shape[1]], np.int64)
    counts = np.minimum(
        np.concatenate([np.tile(counts, (len(answers), 1)), answers.lengths[:, None]], axis=1),
        answers.lengths[:, None],
    )
    surprisal = -np.cumsum(_safe(evidence), axis=-1)
    at = np.arange(len(answers))[:, None], counts - 1
    caps = log_cap(surprisal[at], answers.grants[at])
    pays = np.exp(-np.maximum(caps, -300.0))
    # Beginnings that nearly every decoder may repeat say nothing; nor does one twice.
    said = (caps < math.log(_RARE)) & (np.diff(counts, axis=1, prepend=0) > 0)
    earlier: dict[tuple[int, float], list[int]] = {}
    path = [np.zeros(_STAKES.size)]
    for row in np.argsort(answers.rank, kind="stable").tolist():
        before = earlier.setdefault((int(answers.prompt[row]), float(answers.k[row])), [])
        gain = number = 0.0
        for other in before:
            shared = min(len(tokens[row]), len(tokens[other]))
            differ = np.flatnonzero(tokens[row][:shared] != tokens[other][:shared])
            same = int(differ[0]) if differ.size else shared
            some = said[other]
            gain += float(pays[other][some & (counts[other] <= same)].sum())
            number += float(some.sum())
        if number:
            path.append(np.log1p(_STAKES * (gain / number - 1)))
        before.append(row)
    joint = logsumexp(np.cumsum(path, axis=0), axis=1) - math.log(_STAKES.size)
    return max(0.0, float(joint.max()))


_LOSS = -math.log1p(-_LEARNED)
# Beginnings that a decoder within its budget repeats with more than this chance are not bet on.
_RARE = 0.8


def _floored(gain: Array) -> Array:
    """Returns log((1 - e) + e r / p_s), which is at least -`_LOSS`."""
    return np.asarray(np.logaddexp(math.log1p(-_LEARNED), math.log(_LEARNED) + gain))


def _safe(evidence: Evidence) -> Array:
    return np.asarray(evidence.laws.logp[evidence.laws.names.index("the safe model alone")])


def _learned(ratio: Array, steps: NDArray[np.integer], order: NDArray[np.integer]) -> Array:
    """Returns log r / p_s of beginnings under a mixture of all laws, learned answer by answer.

    Args:
        ratio: Running log q / p_s [laws, answers, steps].
        steps: How many tokens of each answer count.
        order: In which the answers are learned from.
    """
    weights = np.zeros(len(ratio))
    found = np.zeros(ratio.shape[1])
    for a in order.tolist():
        if not (count := int(steps[a])):
            continue
        gains = np.clip(ratio[:, a, count - 1], -_MOST_GAIN, _MOST_GAIN)
        found[a] = _log_sum(weights + gains) - _log_sum(weights)
        weights = weights + gains
        weights -= weights.max()
    return found


def _least_mean(values: Array, level: float = 0.025) -> float:
    """Returns a lower confidence bound of the mean of independent values above -`_LOSS`."""
    if not values.size:
        return 0.0
    low, high = -_LOSS, float(values.max(initial=0.0))
    for _ in range(40):
        middle = (low + high) / 2
        paths = np.log1p(_STAKES * ((values - middle) / (middle + _LOSS + 1e-12))[:, None])
        joint = logsumexp(np.cumsum(paths, axis=0), axis=1) - math.log(_STAKES.size)
        # Of answers whose means differ only the last value is a bet on their mean.
        if joint[-1] >= -math.log(level):
            low = middle
        else:
            high = middle
    return max(0.0, low)
