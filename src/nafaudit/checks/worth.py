"""Worth? What a kept budget says about reproducing the run's protected passages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from nafaudit.checks.check import Facts, quantile
from nafaudit.core.finding import Finding, Worth, judge_worth
from nafaudit.core.trajectory import Trajectory
from nafaudit.stats.certificate import cap, critical_k, vacuous


@dataclass
class WorthCheck:
    """Worth? K against the safe model's surprisal S of every passage: nothing is said if S <= K.

    K is what an output of T tokens may be charged, kT, without any debt; S is that of the first T
    tokens of a passage. Passages and budget decide, whatever was decoded.

    Attributes:
        facts: Of the run: its passages, ledger and T.
        k: The budget.
    """

    facts: Facts
    k: float

    def see(self, trajectory: Trajectory) -> None:
        """Needs no trajectory."""

    @cached_property
    def surprisals(self) -> list[float]:
        """S of every passage that is scored as far as an output can reach, smallest first."""
        passages = self.facts.passages
        every = (
            [p.surprisal(self.facts.max_new_tokens) for p in passages.passages] if passages else []
        )
        return sorted(value for value in every if not math.isnan(value))

    @property
    def promised(self) -> float:
        """K in nats; NaN if not known."""
        return self.facts.promised(self.k)

    @property
    def vacuous(self) -> int:
        """Passages that K reaches."""
        return int(vacuous(self.surprisals, self.promised).sum())

    @property
    def verdict(self) -> Worth:
        """The third verdict."""
        judged = 0 if math.isnan(self.promised) else len(self.surprisals)
        return judge_worth(self.vacuous, judged)

    @property
    def share(self) -> str:
        """How many passages the verdict is true of: "24 of 24"; empty if it is unknown."""
        if self.verdict == Worth.UNKNOWN:
            return ""
        n = len(self.surprisals)
        return f"{self.vacuous if self.verdict == Worth.VACUOUS else n - self.vacuous} of {n}"

    def finding(self) -> Finding:
        """The verdict with the share of passages that K reaches."""
        if reason := self._missing():
            return Finding("worth", Worth.UNKNOWN, math.nan, reason)
        n, promised, length = len(self.surprisals), self.promised, self.facts.max_new_tokens
        least, median, most = (quantile(self.surprisals, q) for q in (0.0, 0.5, 1.0))
        caps = cap([least, median], promised).tolist()
        text = (
            f"K = {promised:g} nats for {length} tokens reaches the safe model's surprisal of "
            f"{self.vacuous} of {n} passages (median {median:.0f} nats, least {least:.0f}); a kept "
            f"budget leaves a chance of reproduction of up to {caps[0]:.3g}, median {caps[1]:.3g}"
        )
        numbers = {
            "K": promised,
            "T": length,
            "passages": n,
            "vacuous": self.vacuous,
            "surprisal_min": least,
            "surprisal_median": median,
            "surprisal_max": most,
            "critical_k_min": critical_k(least, length),
            "critical_k_median": critical_k(median, length),
            "cap_max": caps[0],
            "cap_median": caps[1],
        }
        return Finding("worth", self.verdict, self.vacuous / n, text, numbers=numbers)

    def _missing(self) -> str:
        """What is lacking for a verdict, in words; empty if nothing is."""
        if not self.surprisals:
            return "no protected passages are recorded"
        if not self.facts.currency.promised:
            return "the mechanism promises no budget"
        if math.isnan(self.promised):
            return "K is not known, as the record has no length limit or another ledger"
        return ""
