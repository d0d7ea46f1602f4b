"""What a charge is counted in; else every check would take a charge for nats of KL.

A design records it beside the mechanism's name, so that records can be checked without the
mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KL = "kl"
REALISED = "realised"
NONE = "none"
WHOLE = "whole"
# What a design need not say: it follows from the ledger.
UNSAID = (KL, WHOLE)


@dataclass(frozen=True)
class Currency:
    """What the charges of a mechanism are, and what keeping them in budget says.

    Attributes:
        spec: As a design records it.
        words: The same in words.
        order: Rényi order of what a kept budget K bounds: 1 the KL of the output's law from the
            safe model's, inf its largest log-ratio; NaN if nothing is said.
        signed: True if a charge may be negative: what is not spent by a step is given back.
        promised: False if the mechanism promises no budget, and KL is charged to inform.
    """

    spec: str
    words: str
    order: float = math.nan
    signed: bool = False
    promised: bool = True

    @property
    def is_kl(self) -> bool:
        """True if a charge is the KL of the step's law from the safe law."""
        return self.spec in (KL, NONE)


def renyi_spec(alpha: float) -> str:
    """The currency of a Rényi divergence."""
    return f"renyi:{alpha:g}"


def recorded_currency(identity: Mapping[str, Any]) -> Currency:
    """The currency of a design's records."""
    whole = str(identity["ledger"]).startswith("whole:")
    return currency_of(identity.get("currency", WHOLE if whole else KL))


def currency_of(spec: str) -> Currency:
    """Reads a specification; an unknown word is somebody's own."""
    if spec == KL:
        return Currency(KL, "KL of the step's law from the safe law", order=1.0)
    if spec == REALISED:
        words = "log p_served - log p_safe of the token that was drawn"
        return Currency(spec, words, order=math.inf, signed=True)
    if spec == WHOLE:
        return Currency(spec, "the most that choosing can add to a log-ratio", order=math.inf)
    if spec == NONE:
        return Currency(spec, "KL, to inform: no budget is promised", promised=False)
    name, _, order = spec.partition(":")
    if name == "renyi":
        words = f"Rényi divergence of order {order} of the step's law from the safe law"
        return Currency(spec, words, order=float(order))
    return Currency(spec, f"{spec}, a currency of the mechanism's own")
