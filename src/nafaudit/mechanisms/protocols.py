"""What a step-level mechanism is: a rule that serves a law, and a ledger that pays for it.

A new mechanism is a class with `serve`; a new budget is a `Ledger` and its `Account`
(`nafaudit.core.ledger`). The engine knows neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from nafaudit.core.debt import DebtRule
from nafaudit.core.ledger import KL, REALISED, Ledger


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
    `currency` (`nafaudit.core.ledger`); without it, the charge of a rule from outside is
    recomputed as that KL, so that nobody can pay less by saying so. With `realised`, a step is
    booked at the log p_served - log p_safe of the token that was drawn, whatever the rule says.
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
class Material:
    """What a mechanism may need of a run beyond its two laws; known once a tokenizer is.

    Attributes:
        pieces: What each token id stands for.
        split: Text in, token ids out, without special ones.
        passages: The run's protected passages.
    """

    pieces: Sequence[bytes | None]
    split: Callable[[str], tuple[int, ...]]
    passages: Sequence[str]


@dataclass(frozen=True)
class Mechanism:
    """A rule, its ledger and its debt, under the name that records carry.

    Attributes:
        name: With everything that decides its laws.
        rule: What is served.
        ledger: What may be spent.
        debt: What a prompt owes.
        needs: Makes the mechanism of a run's material, if it cannot do without.
    """

    name: str
    rule: Rule
    ledger: Ledger
    debt: DebtRule
    needs: Callable[[Material], Mechanism] | None = None

    def of(self, material: Material) -> Mechanism:
        """The mechanism, ready to serve."""
        return self if self.needs is None else self.needs(material)

    @property
    def currency(self) -> str:
        """What its charges are counted in."""
        return currency(self.rule)


def currency(rule: Rule) -> str:
    """What a rule's charges are counted in."""
    return str(getattr(rule, "currency", KL))


def booked(rule: Rule, charge: float, ratio: float) -> float:
    """What a step is charged, once its token is drawn.

    Args:
        rule: Whose step.
        charge: What the rule says its law costs.
        ratio: log p_served - log p_safe of the token.
    """
    return ratio if currency(rule) == REALISED else charge
