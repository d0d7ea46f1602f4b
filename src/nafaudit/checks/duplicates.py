"""Was a trajectory drawn, or copied from another?"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from nafaudit.checks.check import token_digest
from nafaudit.core.finding import ALARM_LEVEL, Answer, Finding, Witness
from nafaudit.core.trajectory import Key, Trajectory, total


@dataclass
class _Text:
    """One distinct token sequence of one prompt, and who wrote it."""

    keys: list[Key] = field(default_factory=list)
    # The likeliest of the recorded sums: where copies disagree, the mildest reading counts.
    logp: float = -math.inf
    length: int = 0


@dataclass
class Duplicates:
    """Equal outputs of one prompt, with how likely that is for independent draws.

    The chance that any of m pairs agrees on a sequence of probability at most q is at most
    m q, because a second draw repeats y with probability p(y) = exp(sum of log p_served). So
    m times the probability of the least likely repeated sequence is a p value; short or
    likely sequences repeat without meaning anything.

    Budgets share their draws on purpose, so this looks within one arm only.
    """

    texts: dict[str, dict[bytes, _Text]] = field(default_factory=dict)
    missing: int = 0

    def see(self, trajectory: Trajectory) -> None:
        """Remembers a digest of the tokens and their probability."""
        digest = token_digest(trajectory)
        if digest is None:
            self.missing += 1
            return
        text = self.texts.setdefault(trajectory.key.prompt, {}).setdefault(digest, _Text())
        text.keys.append(trajectory.key)
        text.length = len(trajectory)
        logp = total(trajectory.steps.served)
        # NaN, once seen, stays: a chance that is not known is no evidence.
        unknown = math.isnan(text.logp) or math.isnan(logp)
        text.logp = math.nan if unknown else max(text.logp, min(0.0, logp))

    @property
    def pairs(self) -> int:
        """Pairs of trajectories of one prompt: what was looked at."""
        sizes = [sum(len(t.keys) for t in texts.values()) for texts in self.texts.values()]
        return sum(n * (n - 1) // 2 for n in sizes)

    def finding(self) -> Finding:
        """SUSPECT if chance does not explain a repetition, with a bound on its p value."""
        if not self.texts:
            return Finding("duplicates", Answer.UNKNOWN, math.nan, "no trajectory records tokens")
        pairs = self.pairs
        if not pairs:
            reason = "one trajectory per prompt: there is no pair to compare"
            return Finding("duplicates", Answer.UNKNOWN, math.nan, reason)
        repeated = [t for texts in self.texts.values() for t in texts.values() if len(t.keys) > 1]
        copies = sum(len(text.keys) - 1 for text in repeated)
        numbers: dict[str, float] = {"pairs": pairs, "repeated": copies}
        if not repeated:
            text = f"no output repeats another of its prompt ({pairs} pairs)"
            return Finding("duplicates", Answer.FINE, 1.0, text, None, numbers)
        said = f"{copies} outputs repeat another of their prompt ({pairs} pairs)"
        known = [text for text in repeated if not math.isnan(text.logp)]
        if not known:
            said += "; how likely that is cannot be told without served log-probabilities"
            return Finding("duplicates", Answer.UNKNOWN, math.nan, said, None, numbers)
        least = min(known, key=lambda text: (text.logp, min(text.keys)))
        first, second = sorted(least.keys)[:2]
        log10_p = min(0.0, (least.logp + math.log(pairs)) / math.log(10))
        p = 10.0**log10_p
        numbers |= {"p": p, "log10_p": log10_p}
        said += (
            f"; the least likely, trajectory {second.trajectory} after {first.trajectory} with "
            f"{least.length} tokens, happens with p <= {_power(log10_p)} (alarm below "
            f"{ALARM_LEVEL:g})"
        )
        suspect = log10_p < math.log10(ALARM_LEVEL)
        return Finding(
            "duplicates",
            Answer.SUSPECT if suspect else Answer.FINE,
            p,
            said,
            Witness(second, 0) if suspect else None,
            numbers,
        )


def _power(log10_p: float) -> str:
    """A probability in words even where it underflows."""
    return f"{10.0**log10_p:.2g}" if log10_p > -300 else f"10^{log10_p:.0f}"
