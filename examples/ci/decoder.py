"""A decoder of your own: it goes from the safe law towards the risky one as far as it may.

Audited as a black box by `nafaudit conform decoder.py:Careful` and
`nafaudit run --decoder decoder.py:Careful`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nafaudit.protocols import Law, Output, Request, World, debt_of


class Careful:
    """Serves the geometric mixture that the budget of k nats a token just pays for."""

    def __init__(self, world: World) -> None:
        self.world = world

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        """Writes one output per request."""
        return [self.write(request) for request in requests]

    def write(self, request: Request) -> Output:
        """Writes one output, and claims the weight of the risky law at each step."""
        draw = np.random.Generator(np.random.Philox(key=request.seed))
        debt, tokens, weights, charges = debt_of(self.world, request.prompt), [], [], []
        while len(tokens) < request.max_new_tokens:
            safe, risky = (law[0] for law in self.world.laws([(*request.prompt, *tokens)]))
            allowed = (len(tokens) + 1) * request.k - debt - sum(charges)
            low, high = 0.0, 1.0
            law, charge = mixture(safe, risky, high)
            if charge > allowed:
                for _ in range(50):
                    middle = (low + high) / 2
                    fits = mixture(safe, risky, middle)[1] <= allowed
                    low, high = (middle, high) if fits else (low, middle)
                high = low
                law, charge = mixture(safe, risky, low)
            tokens.append(int(np.argmax(law + draw.gumbel(size=len(law)))))
            weights.append(high)
            charges.append(charge)
            if tokens[-1] in self.world.stops:
                break
        return Output(tokens, charge=charges, theta=weights, debt=debt, spend=sum(charges))


def mixture(safe: Law, risky: Law, weight: float) -> tuple[Law, float]:
    """Returns the geometric mixture of two log-laws, and its divergence from the safe one."""
    law = (1 - weight) * safe + weight * risky
    law = law - np.logaddexp.reduce(law)
    return law, float(np.sum(np.exp(law) * (law - safe)))
