"""The result of a frontier: points, their bracket, and mechanisms at equal fidelity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nafaudit import __version__
from nafaudit.core.finding import Kept, Outcome, Overall
from nafaudit.stats.rates import first_crossing, resampled
from nafaudit.worth.frontier import FollowedTexts, Frontier

Array = NDArray[np.float64]
_TAIL = 0.025
# Log-probabilities of one text add up to this; a smaller shortfall is rounding.
_ROUNDING = 1e-6
_SAME = 1e-9


@dataclass(frozen=True)
class FrontierPoint:
    """One mechanism at one budget.

    Attributes:
        mechanism: Its name, as it was given.
        k: The budget.
        price: Charge per ordinary token, in the mechanism's own currency.
        nats: KL per ordinary token, in every currency.
        fidelity: Share of D(risky || safe) that ordinary text gains.
        price_protected: Charge per protected token.
        leak: Log-probability that protected text gains over the safe model, per window.
        below: Number of passages that lose log-probability.
        free: Share of protected tokens at which the risky law was served unchanged.
        forced: Share of protected tokens at which the safe law was served unchanged.
    """

    mechanism: str
    k: float
    price: float
    nats: float
    fidelity: float
    price_protected: float
    leak: float
    below: int
    free: float
    forced: float


@dataclass(frozen=True)
class Match:
    """A mechanism at the fidelity that the first one has at a budget.

    Attributes:
        mechanism: Its name.
        k: Budget of the first mechanism.
        matched_k: Budget of this one that buys the same fidelity, linear between budgets; infinite
            if none does.
        fidelity: Fidelity of both.
        same_k: Leak of this one less leak of the first at the same k, per window.
        difference: Leak of this one less leak of the first at that fidelity; NaN if there is none.
        low: Lower end of the 95 % interval over resampled texts that have a match.
        high: Its upper end.
        none: Share of resamples without a match.
    """

    mechanism: str
    k: float
    matched_k: float
    fidelity: float
    same_k: float
    difference: float
    low: float
    high: float
    none: float


@dataclass(frozen=True)
class OrdinaryText:
    """The text on which fidelity is measured.

    Attributes:
        texts: Number of texts.
        ceiling: D(risky || safe) per token: all the fidelity there is.
    """

    texts: int
    ceiling: float


@dataclass(frozen=True)
class ProtectedText:
    """The text whose leakage is measured.

    Attributes:
        passages: Number of passages.
        risky_leak: Log-probability that it gains under the risky model alone, per window.
    """

    passages: int
    risky_leak: float


@dataclass(frozen=True)
class PayingBudgets:
    """Budgets from which on a bank pays for every prefix of a passage, over the passages.

    A boundary of that model of the bank; whether text is then recalled is another matter.
    """

    least: float
    median: float
    most: float


@dataclass(frozen=True)
class FrontierResult:
    """Result of a frontier.

    Attributes:
        hash: SHA-256 of the identity.
        nafaudit: Version that made it.
        identity: What decides the numbers.
        window: Tokens over which leakage is stated.
        ordinary: Text of the fidelity.
        protected: Text of the leakage.
        bracketed: True if protected text is nowhere less likely than under the safe model alone. A
            mechanism between the models cannot lose where the risky one knows the text; where it
            does, this is not the text that was memorised, and leakage says nothing.
        paying_k: Budgets from which on a bank can pay for all of it.
        points: Every mechanism at every budget.
        matched: Every other mechanism against the first, at each of its budgets.
    """

    hash: str
    nafaudit: str
    identity: dict[str, Any]
    window: int
    ordinary: OrdinaryText
    protected: ProtectedText
    bracketed: bool
    paying_k: PayingBudgets
    points: tuple[FrontierPoint, ...]
    matched: tuple[Match, ...]

    @property
    def overall(self) -> Overall:
        """Returns whether the leaks say anything; a frontier judges no budget."""
        if self.bracketed:
            why = (
                f"{len(self.points)} points; protected text is nowhere less likely than under the "
                "safe model, so the leaks mean something"
            )
            return Overall(Outcome.MEASURED, why, 0)
        worst = min(self.points, key=lambda one: one.leak)
        loss, under = worst.leak, f"under {worst.mechanism} at k = {worst.k:g}"
        if self.protected.risky_leak < loss:
            loss, under = self.protected.risky_leak, "under the risky model alone"
        why = (
            f"{under} the protected text loses {-loss:.2f} nats per window against the safe model: "
            "the risky model does not know this text, and the leaks say nothing; give the text "
            "that it memorised"
        )
        return Overall(Kept.INCONCLUSIVE, why, 3)


def frontier_result(frontier: Frontier) -> FrontierResult:
    """Computes the result of a frontier from the followed texts."""
    settings, protected = frontier.settings, frontier.protected
    budgets = range(len(settings.k))
    points = tuple(_point(frontier, m, j) for m in range(len(settings.mechanisms)) for j in budgets)
    gain = protected.end("risky").sum() - protected.end("safe").sum()
    risky_leak = float(gain / protected.end("tokens").sum() * settings.window)
    slack = _ROUNDING * settings.window
    paying = protected.end("paying_k")
    others = range(1, len(settings.mechanisms))
    curves = _curves(frontier)
    return FrontierResult(
        hash=frontier.hash,
        nafaudit=__version__,
        identity=frontier.identity,
        window=settings.window,
        ordinary=OrdinaryText(
            len(frontier.ordinary.ids),
            _per_token(frontier.ordinary, frontier.ordinary.end("ceiling")),
        ),
        protected=ProtectedText(len(protected.ids), risky_leak),
        bracketed=risky_leak >= -slack and all(point.leak >= -slack for point in points),
        paying_k=PayingBudgets(float(paying.min()), float(np.median(paying)), float(paying.max())),
        points=points,
        matched=tuple(_match(frontier, curves, m, j) for m in others for j in budgets),
    )


def _point(frontier: Frontier, m: int, j: int) -> FrontierPoint:
    ordinary, protected = frontier.ordinary, frontier.protected
    settings = frontier.settings
    gains = protected.values("leaked")[m, j] - protected.end("safe")
    tokens = protected.end("tokens").sum()
    return FrontierPoint(
        settings.mechanisms[m],
        settings.k[j],
        _per_token(ordinary, ordinary.values("price")[m, j]),
        _per_token(ordinary, ordinary.values("divergence")[m, j]),
        float(ordinary.values("gained")[m, j].sum() / ordinary.end("ceiling").sum()),
        _per_token(protected, protected.values("price")[m, j]),
        float(gains.sum() / tokens * settings.window),
        int((gains < -_ROUNDING).sum()),
        float(protected.values("free")[m, j].sum() / tokens),
        float(protected.values("forced")[m, j].sum() / tokens),
    )


def _curves(frontier: Frontier) -> tuple[Array, Array]:
    """Returns fidelity and leak [mechanisms, resamples, budgets from 0 on].

    The first resample has every text once. A budget of 0 is the safe model, with 0 of both.
    """
    ordinary, protected = frontier.ordinary, frontier.protected
    by_text = []  # weights of the texts: all alike, then resamples
    for seed, side in enumerate((ordinary, protected)):
        n = len(side.ids)
        by_text.append(np.vstack([np.full(n, 1 / n), resampled(n, seed=seed)]))
    bought = ordinary.values("gained") @ by_text[0].T
    bought /= by_text[0] @ ordinary.end("ceiling")
    gains = (protected.values("leaked") - protected.end("safe")) @ by_text[1].T
    leaked = gains / (by_text[1] @ protected.end("tokens")) * frontier.settings.window
    return _from_zero(bought), _from_zero(leaked)


def _match(frontier: Frontier, curves: tuple[Array, Array], m: int, j: int) -> Match:
    settings = frontier.settings
    bought, leaked = curves
    grid = np.arange(len(settings.k) + 1, dtype=float)
    wanted = bought[0][:, j + 1]
    # All of the ceiling is all of it, whatever the order of the sum.
    at = first_crossing(grid, bought[m], wanted * (1 - _SAME))
    there = np.isfinite(at)
    place = np.where(there, at, 0.0)
    before = np.minimum(place.astype(int), len(grid) - 2)
    rows = np.arange(len(place))
    part = place - before
    low, high = leaked[m][rows, before], leaked[m][rows, before + 1]
    found = np.where(there, low + part * (high - low), np.nan) - leaked[0][:, j + 1]
    budgets = np.array([0.0, *settings.k])
    kept = found[1:][there[1:]]
    ends = np.quantile(kept, [_TAIL, 1 - _TAIL]) if kept.size else (math.nan, math.nan)
    return Match(
        settings.mechanisms[m],
        settings.k[j],
        float(np.interp(at[0], grid, budgets)) if there[0] else math.inf,
        float(wanted[0]),
        float(leaked[m][0, j + 1] - leaked[0][0, j + 1]),
        float(found[0]),
        float(ends[0]),
        float(ends[1]),
        float((~there[1:]).mean()),
    )


def _from_zero(values: Array) -> Array:
    """Turns [mechanisms, budgets, resamples] to [mechanisms, resamples, 0 and budgets]."""
    turned = values.transpose(0, 2, 1)
    return np.concatenate([np.zeros_like(turned[..., :1]), turned], axis=-1)


def _per_token(side: FollowedTexts, values: Array) -> float:
    return float(values.sum() / side.end("tokens").sum())
