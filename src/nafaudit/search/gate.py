"""Whether a surrogate may steer: held against prompts it never saw, it passes or is switched off.

Labels from few trajectories are noisy, so that not even an oracle would agree with them; the rank
correlation is therefore divided by what their reliability allows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from nafaudit.core.errors import InputError
from nafaudit.core.finding import Answer, Finding
from nafaudit.search.surrogate import Predicted

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Limits:
    """What a surrogate must reach.

    Attributes:
        auc: Of telling the top decile from the rest.
        spearman: Disattenuated rank correlation.
        lower: Its 95 % lower end over prompts drawn again.
        coverage: Range in which the intervals' coverage must lie.
        prompts: Least number of held-out prompts.
        trajectories: Least number of trajectories behind a label.
    """

    auc: float = 0.8
    spearman: float = 0.7
    lower: float = 0.5
    coverage: tuple[float, float] = (0.85, 0.95)
    prompts: int = 100
    trajectories: float = 10.0


@dataclass(frozen=True)
class Judgement:
    """What was measured, and why the gate is shut if it is.

    Attributes:
        auc: Of the top decile; NaN if it cannot be told.
        spearman: Plain rank correlation.
        disattenuated: Divided by the root of the labels' reliability, at most 1.
        lower: Its 95 % lower end.
        coverage: Share of prompts inside their interval.
        prompts: How many were held out.
        reasons: Why it may not steer; empty if it may.
    """

    auc: float
    spearman: float
    disattenuated: float
    lower: float
    coverage: float
    prompts: int
    reasons: tuple[str, ...]

    @classmethod
    def unfitted(cls, prompts: int, reason: str) -> Judgement:
        """A surrogate that could not even be fitted."""
        return replace(cls.untested((reason,)), prompts=prompts)

    @classmethod
    def untested(cls, reasons: tuple[str, ...] = ()) -> Judgement:
        """A surrogate of which nothing was measured, as the paper's; without a reason it steers."""
        unknown = math.nan
        return cls(unknown, unknown, unknown, unknown, unknown, 0, reasons)

    @property
    def steers(self) -> bool:
        """True if the surrogate may choose prompts."""
        return not self.reasons

    def finding(self) -> Finding:
        """The same as a finding: FINE if it steers, INFO if it was switched off."""
        text = "the surrogate steers" if self.steers else "switched off: " + "; ".join(self.reasons)
        numbers = {
            "auc": self.auc, "spearman": self.spearman, "disattenuated": self.disattenuated,
            "lower": self.lower, "coverage": self.coverage, "prompts": self.prompts,
        }  # fmt: skip
        verdict = Answer.FINE if self.steers else Answer.INFO
        return Finding("surrogate-gate", verdict, self.auc, text, None, numbers)


def auc(scores: Array, positive: NDArray[np.bool_]) -> float:
    """Chance that a positive has a larger score than a negative, ties counting half."""
    yes, no = int(positive.sum()), int((~positive).sum())
    if not yes or not no:
        return math.nan
    ranks = rankdata(scores)
    return float((ranks[positive].sum() - yes * (yes + 1) / 2) / (yes * no))


def top_decile(target: Array) -> NDArray[np.bool_]:
    """The tenth of the prompts with the largest target, at least one, ties to the first."""
    count = max(1, round(0.1 * target.size))
    flags = np.zeros(target.size, dtype=bool)
    flags[np.argsort(-target, kind="stable")[:count]] = True
    return flags


def spearman(a: Array, b: Array) -> float:
    """Rank correlation; NaN if one side has a single value."""
    first, second = rankdata(a), rankdata(b)
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan
    return float(np.corrcoef(first, second)[0, 1])


def _lower(mean: Array, target: Array, reliability: float, seed: int, draws: int) -> float:
    chance = np.random.default_rng([seed, 5])
    found = []
    for _ in range(draws):
        again = chance.integers(0, target.size, target.size)
        found.append(spearman(mean[again], target[again]))
    values = np.array(found)
    values = values[np.isfinite(values)] / math.sqrt(reliability)
    return float(np.quantile(values, 0.05)) if values.size else math.nan


def judge(
    predicted: Predicted,
    target: Array,
    reliability: float,
    trajectories: float,
    limits: Limits | None = None,
    seed: int = 0,
    draws: int = 400,
) -> Judgement:
    """Holds predictions of unseen prompts against their targets.

    Args:
        predicted: By a surrogate that did not see these prompts.
        target: What they turned out to be.
        reliability: Share of the targets' variance that is not label noise, in [0, 1]; labels
            with none shut the gate, and so does NaN.
        trajectories: Mean number behind a target.
        limits: What is asked for.
        seed: Of the bootstrap over prompts.
        draws: Bootstrap draws.
    """
    limits = limits or Limits()
    if reliability < 0 or reliability > 1:
        raise InputError(f"reliability must be in [0, 1], got {reliability}.")
    if predicted.mean.size != target.size or not target.size:
        raise InputError(f"{predicted.mean.size} predictions for {target.size} targets.")
    plain, trusted = spearman(predicted.mean, target), reliability > 0
    inside = float(((predicted.low <= target) & (target <= predicted.high)).mean())
    found = {
        "auc": auc(predicted.mean, top_decile(target)),
        "spearman": plain,
        "disattenuated": min(1.0, plain / math.sqrt(reliability)) if trusted else math.nan,
        "lower": _lower(predicted.mean, target, reliability, seed, draws) if trusted else math.nan,
        "coverage": inside,
    }
    reasons = _reasons(found, target.size, trajectories, limits)
    if not trusted:
        reasons.insert(0, "the labels do not tell prompts from noise")
    return Judgement(**found, prompts=target.size, reasons=tuple(reasons))


def _reasons(
    found: dict[str, float], prompts: int, trajectories: float, limits: Limits
) -> list[str]:
    low, high = limits.coverage
    asked = {
        f"AUC {found['auc']:.2f} below {limits.auc:g}": found["auc"] >= limits.auc,
        f"disattenuated rank correlation {found['disattenuated']:.2f} below {limits.spearman:g}":
            found["disattenuated"] >= limits.spearman,
        f"its lower end {found['lower']:.2f} not above {limits.lower:g}":
            found["lower"] > limits.lower,
        f"intervals cover {found['coverage']:.0%}, not {low:.0%} to {high:.0%}":
            low <= found["coverage"] <= high,
        f"{prompts} held-out prompts, fewer than {limits.prompts}": prompts >= limits.prompts,
        f"{trajectories:.1f} trajectories a label, fewer than {limits.trajectories:g}":
            trajectories >= limits.trajectories,
    }  # fmt: skip
    return [reason for reason, fine in asked.items() if not fine]
