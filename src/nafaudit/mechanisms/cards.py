"""What a reader needs to know of each mechanism, as data; no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """One registered mechanism."""

    name: str
    formula: str
    guarantee: str
    reference: str


CARDS = (
    Card(
        name="anchored",
        formula="p_theta ~ p_safe^(1-theta) p_risky^theta, largest theta with "
        "KL(p_theta||p_safe) <= max(0, (t+1)k - spent - debt)",
        guarantee="KL(law of the output || safe model's) <= max(0, kT - debt)",
        reference="He et al., Anchored Decoding",
    ),
)
