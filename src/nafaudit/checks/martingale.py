"""Were the tokens drawn from the law that was charged?"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nafaudit.checks.check import Facts, Worst, log_ratios
from nafaudit.core.finding import ALARM_LEVEL, MIN_TRAJECTORIES, Answer, Finding
from nafaudit.core.trajectory import Trajectory, total
from nafaudit.stats import clustered_mean, student_two_sided

# Fewer prompts than this give no usable error of a mean.
MIN_PROMPTS = 20
# A mean this small, in nats per trajectory, may be the rounding of recorded numbers.
NEGLIGIBLE = 1e-3


@dataclass
class Martingale:
    """Tests that L - Z has mean 0: realised log-ratios against charges.

    If every token is drawn from its served law and every charge is that law's KL to the safe
    law, L - Z is a martingale stopped at a bounded time, and its mean is 0. A decoder that
    samples from another weight, or charges something else, moves it; one that sharpens the
    law after the solve need not.

    The error of the mean is the larger of two: the spread between prompts, and what the
    recorded probabilities imply for tokens that were likely but not certain. The second
    matters for text known by heart: the rare tokens that balance the sum may never be seen.

    Attributes:
        values: L - Z by prompt.
        implied: Least variance of each trajectory's L - Z, from its recorded probabilities.
        missing: Trajectories without a finite L and Z.
    """

    facts: Facts
    values: dict[str, list[float]] = field(default_factory=dict)
    implied: list[float] = field(default_factory=list)
    missing: int = 0
    impossible: Worst = field(default_factory=Worst)

    def see(self, trajectory: Trajectory) -> None:
        """Takes L - Z of one trajectory."""
        if not self.facts.currency.is_kl:
            return
        ratios = log_ratios(trajectory)
        value = math.nan if ratios is None else total(ratios) - trajectory.spend
        if ratios is None or not math.isfinite(value):
            self.missing += 1
            if ratios is not None and math.isinf(value) and not self.facts.foreign:
                # Drawn although forbidden, or forbidden but cheap. Logs of others may merely
                # have rounded a probability to 0.
                self.impossible.offer(math.inf, trajectory.key, int(np.abs(ratios).argmax()))
            return
        self.values.setdefault(trajectory.key.prompt, []).append(value)
        gains = ratios - trajectory.steps.charge
        self.implied.append(total(_least_variance(gains, trajectory.steps.served)))

    def finding(self) -> Finding:
        """FINE or SUSPECT with the mean, its t value and the level."""
        if self.impossible.witness is not None:
            text = "a token was drawn that its own law forbids, or that the safe law forbids "
            text += "at a finite charge"
            return Finding("martingale", Answer.SUSPECT, math.inf, text, self.impossible.witness)
        if not self.facts.currency.is_kl:
            reason = f"charges are no KL but {self.facts.currency.words}"
            return Finding("martingale", Answer.UNKNOWN, math.nan, reason)
        groups = [self.values[prompt] for prompt in sorted(self.values)]
        n = len(self.implied)
        left_out = f"; {self.missing} trajectories have no finite L and Z" if self.missing else ""
        if not n:
            reason = "no trajectory records charges and served and safe log-probabilities"
            return Finding("martingale", Answer.UNKNOWN, math.nan, reason)
        if len(groups) < MIN_PROMPTS or n < MIN_TRAJECTORIES:
            text = f"{len(groups)} prompts with L - Z; the test needs {MIN_PROMPTS}"
            return Finding("martingale", Answer.UNKNOWN, math.nan, text + left_out)
        centre, error = clustered_mean(groups)
        error = max(error, math.sqrt(total(self.implied)) / n)
        t = centre / error if error else math.copysign(math.inf, centre) if centre else 0.0
        p = student_two_sided(t, len(groups) - 1)
        text = (
            f"mean of L - Z is {centre:.3g} nats over {n} trajectories of {len(groups)} prompts "
            f"(t = {t:.2f}, p = {p:.2g}, alarm below {ALARM_LEVEL:g})"
        )
        numbers = {"mean": centre, "error": error, "t": t, "p": p}
        if p >= ALARM_LEVEL or abs(centre) <= NEGLIGIBLE:
            return Finding("martingale", Answer.FINE, centre, text + left_out, None, numbers)
        text += ": tokens were not drawn from the law that was charged, or the charge is no KL"
        return Finding("martingale", Answer.SUSPECT, centre, text + left_out, None, numbers)


def _least_variance(gains: NDArray[np.float64], served: NDArray[np.float32]) -> NDArray[np.float64]:
    """The least variance of a gain of mean 0 that takes this value with this probability.

    With probability p it is g, so on the rest its mean is -p g / (1 - p), and by Jensen its
    variance at least p g^2 + (p g)^2 / (1 - p) = g^2 p / (1 - p).
    """
    logp = np.minimum(served.astype(np.float64), 0.0)
    rest = -np.expm1(logp)
    odds = np.divide(np.exp(logp), rest, out=np.zeros_like(logp), where=rest > 0)
    return np.asarray(gains**2 * odds)
