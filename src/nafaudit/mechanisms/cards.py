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
    Card(
        name="best-of-n",
        formula="n = floor(e^(kT)) drafts of the safe model (64 at most); the one that the risky "
        "model finds likeliest",
        guarantee="log q(y) - log p_safe(y) <= log n <= kT for every output y",
        reference="Beirami et al. (2024), best-of-n alignment policy",
    ),
    Card(
        name="cp-k",
        formula="the first of 8 risky drafts with log p_risky(y)/p_safe(y) <= cap, else a safe "
        "one; cap = log(e^(kT) - 1) - log 8",
        guarantee="log q(y) - log p_safe(y) <= log(1 + 8 e^cap) = kT for every output y",
        reference="Vyas, Kakade, Barak (2023), CP-k",
    ),
)
