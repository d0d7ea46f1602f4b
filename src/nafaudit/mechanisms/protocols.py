"""What a step-level mechanism is: a rule that serves a law, and a ledger that pays for it.

A new mechanism is a class with `serve`; a new budget is a `Ledger` and its `Account`
(`nafaudit.core.ledger`). The engine knows neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from nafaudit.core.debt import DebtRule
from nafaudit.core.ledger import Ledger


class Served(NamedTuple):
    """What a rule returns for a batch of rows.

    Attributes:
        law: Log-probabilities [rows, vocabulary], float64; this is what is sampled.
        charge: Cost of each row's law [rows], float64, in the rule's currency.
        theta: Weight of the risky law [rows], exactly 0 or 1 if that law is served unchanged;
            NaN for rules without a weight.
    """

    law: Tensor
    charge: Tensor
    theta: Tensor


class Rule(Protocol):
    """Two next-token laws and an allowance in, the served law and its charge out.

    A rule that charges in anything but nats of KL to the safe law says so in an attribute
    `currency`; without it, the charge of a rule from outside is recomputed as that KL, so that
    nobody can pay less by saying so.
    """

    def serve(
        self, prefixes: Sequence[Sequence[int]], safe: Tensor, risky: Tensor, allowance: Tensor
    ) -> Served:
        """Serves one step for every row.

        Args:
            prefixes: Prompt and output tokens of each row so far; most rules ignore them.
            safe: Log-law of the safe model [rows, vocabulary], float64, warped.
            risky: The same of the risky model.
            allowance: What each row may be charged [rows], float64; inf for no limit.
        """
        ...


@dataclass(frozen=True)
class Mechanism:
    """A rule, its ledger and its debt, under the name that records carry."""

    name: str
    rule: Rule
    ledger: Ledger
    debt: DebtRule
