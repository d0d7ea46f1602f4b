"""The shipped rules that choose among drafts: best-of-n, blockwise, hybrid and CP-k."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from nafaudit.core.ledger import REALISED
from nafaudit.mechanisms.cards import Spec
from nafaudit.protocols import MOST_DRAFTS, Draft, Drafts, Plan, SequenceRule


@dataclass(frozen=True)
class BestOfN:
    """Of n drafts of the safe model, the likeliest under the risky model. Costs log n.

    Attributes:
        most: Most drafts, however large the budget.
    """

    most: int = MOST_DRAFTS

    def plan(self, budget: float) -> Plan:
        """Plans as many drafts as the budget pays for."""
        return Plan(safe=min(self.most, affordable(budget)))

    def choose(self, drafts: Drafts) -> Draft:
        """Chooses the likeliest draft under the risky model."""
        return max(drafts.safe, key=lambda draft: float(draft.risky.sum()))


@dataclass(frozen=True)
class Blockwise(BestOfN):
    """Best-of-n for each block of a few tokens. Costs log n a block.

    Attributes:
        block: Tokens of a block.
        length: Length limit T of an output.
    """

    block: int = 10
    length: int = 0

    def plan(self, budget: float) -> Plan:
        """Plans as many drafts for each block as the budget pays for in all of them."""
        blocks = Plan(block=self.block).blocks(self.length)
        return Plan(safe=min(self.most, affordable(budget / blocks)), block=self.block)

    def of_length(self, length: int) -> Blockwise:
        """Returns the rule for outputs of at most `length` tokens."""
        return Blockwise(self.most, self.block, length)


@dataclass(frozen=True)
class Hybrid(BestOfN):
    """The best of n outputs of the pathwise decoder. Costs log n and its own log-ratio.

    Drafts of a decoder that is metered in KL would not do: choosing among them may multiply the
    likelihood of outputs that are rare and expensive, and their mean no longer bounds anything.

    Attributes:
        most: Most drafts; half the budget goes to log n, the rest to the drafts.
        length: Length limit T of an output.
    """

    most: int = 4
    length: int = 0

    currency = REALISED

    def plan(self, budget: float) -> Plan:
        """Plans at most half of the budget for choosing, the rest for every draft."""
        n = min(self.most, affordable(budget / 2))
        return Plan(safe=n, metered=max(0.0, (budget - math.log(n)) / self.length))

    def of_length(self, length: int) -> Hybrid:
        """Returns the rule for outputs of at most `length` tokens."""
        return Hybrid(self.most, length)


@dataclass(frozen=True)
class CapK:
    """CP-k: the first risky draft under the cap, else a safe one. Costs log(1 + M e^cap).

    Attributes:
        tries: M, how many risky drafts there are.
    """

    tries: int = 8

    def plan(self, budget: float) -> Plan:
        """Plans the cap that makes the whole cost the budget."""
        if budget <= 0:
            return Plan()
        # log(e^K - 1) without overflow; -expm1 keeps its digits for small budgets.
        spare = budget + math.log(-math.expm1(-budget))
        return Plan(safe=1, risky=self.tries, cap=spare - math.log(self.tries))

    def choose(self, drafts: Drafts) -> Draft:
        """Chooses the first draft that passed."""
        return (*drafts.risky, drafts.safe[0])[0]


RULES: dict[str, Callable[[Spec], SequenceRule]] = {
    "best-of-n": lambda spec: BestOfN(spec.count("n")),
    "blockwise": lambda spec: Blockwise(spec.count("n"), spec.count("block")),
    "cp-k": lambda spec: CapK(spec.count("tries")),
    "hybrid": lambda spec: Hybrid(spec.count("n")),
}


def affordable(budget: float) -> int:
    """Returns how many drafts log n <= budget pays for."""
    if budget >= math.log(MOST_DRAFTS):
        return MOST_DRAFTS
    # exp(log 3) may be 2.9999999999999996, which still pays for three.
    return max(1, math.floor(math.exp(budget) * (1 + 1e-12)))
