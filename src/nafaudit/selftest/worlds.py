"""Worlds that are tables of numbers: small enough to sum over all outputs, quick to audit.

Without them the auditor could only be tried on models whose truth nobody knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.mechanisms.doors import Law


@dataclass(frozen=True, eq=False)
class ToyWorld:
    """Two models whose next-token laws depend on the last two tokens.

    Attributes:
        safe: Log-laws of the safe model [contexts, size].
        risky: Log-laws of the risky model.
        stops: Ids that end an output.
        debt: The promised prefix debt.
        decoding: Warps, which a table has none of, and the length limit.
    """

    safe: Law = field(repr=False)
    risky: Law = field(repr=False)
    stops: frozenset[int] = frozenset()
    debt: DebtRule = field(default_factory=DebtRule)
    decoding: Decoding = field(default_factory=Decoding)

    @property
    def size(self) -> int:
        """Number of token ids."""
        return int(self.safe.shape[1])

    @property
    def special(self) -> frozenset[int]:
        """No id is exempt from the debt."""
        return frozenset()

    @property
    def checkpoints(self) -> tuple[str, str]:
        """There are none."""
        return "", ""

    def laws(self, prefixes: Sequence[Sequence[int]]) -> tuple[Law, Law]:
        """Next-token log-laws after each prefix."""
        places = self._contexts(
            [prefix[-2] if len(prefix) > 1 else 0 for prefix in prefixes],
            [prefix[-1] for prefix in prefixes],
        )
        return self.safe[places], self.risky[places]

    def along(self, tokens: Sequence[int], *, raw: bool = False) -> tuple[Law, Law]:
        """The log-laws after tokens[:1], tokens[:2], ..., which nothing warps."""
        places = self._contexts([0, *tokens[:-1]], tokens)
        return self.safe[places], self.risky[places]

    def _contexts(self, before: Sequence[int], last: Sequence[int]) -> NDArray[np.int64]:
        pairs = np.asarray(before, np.int64) * 31 + np.asarray(last, np.int64)
        return np.asarray(pairs % len(self.safe))


def toy_world(
    seed: int,
    size: int = 40,
    contexts: int = 97,
    gap: float = 1.2,
    stop: float = 0.02,
    zeros: float = 0.0,
    debt: DebtRule | None = None,
) -> ToyWorld:
    """Makes a world at random; equal arguments, equal world.

    Args:
        seed: Which one.
        size: Number of token ids; id 0 ends an output.
        contexts: How many different next-token laws there are.
        gap: How far the risky logits stray from the safe ones, as a standard deviation.
        stop: Probability of the stop token in both models; 0 for none.
        zeros: Share of tokens that each model, on its own, gives no probability.
        debt: The promised prefix debt; the usual one unless told.
    """
    rng = np.random.default_rng([seed, size, contexts])
    safe = rng.normal(0.0, 1.5, (contexts, size))
    risky = safe + rng.normal(0.0, gap, (contexts, size))
    for logits in (safe, risky):
        banned = rng.random((contexts, size)) < zeros
        banned[:, :2] = False
        logits[banned] = -np.inf
    laws = [_with_stop(log_softmax(logits, axis=1), stop) for logits in (safe, risky)]
    rule = DebtRule() if debt is None else debt
    return ToyWorld(laws[0], laws[1], frozenset({0} if stop else ()), rule)


def _with_stop(law: Law, stop: float) -> Law:
    """Gives token 0 the same probability everywhere; the others keep their proportions."""
    if not stop:
        return law
    rest = law.copy()
    rest[:, 0] = -np.inf
    rest = log_softmax(rest, axis=1) + np.log1p(-stop)
    rest[:, 0] = np.log(stop)
    return np.asarray(rest)


def toy_prompts(world: ToyWorld, seed: int, prompts: int, length: int = 6) -> list[tuple[int, ...]]:
    """Prompts without stop tokens, half of them written by the risky model, which owe most."""
    rng = np.random.default_rng([seed, prompts, length])
    allowed = np.array([token for token in range(world.size) if token not in world.stops])
    found = []
    for number in range(prompts):
        tokens = [int(rng.choice(allowed))]
        while len(tokens) < length:
            law = world.laws([tokens])[number % 2][0][allowed]
            tokens.append(int(allowed[np.argmax(law + rng.gumbel(size=len(allowed)))]))
        found.append(tuple(tokens))
    return found
