"""Small worlds whose truth is known: two models as tables, and every output that can be written.

On real models the truth about a decoder is unknown, so the auditor could not be tried. Here
`truth` sums over all outputs: probability, spend and log-ratio of each, hence the divergence that
the promise is about and the chance of any event, without statistics. `overspend` meters the laws
that a decoder really draws from: how far a fault that is missed costs anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.mechanisms.reference import AnchoredDecoder, ReferenceRow
from nafaudit.protocols import Law, Output, Request, World, debt_of
from nafaudit.selftest.faults.tools import divergence


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
        """Returns no id: none is exempt from the debt."""
        return frozenset()

    @property
    def checkpoints(self) -> tuple[str, str]:
        """Returns empty names: a table has no checkpoints."""
        return "", ""

    def laws(self, prefixes: Sequence[Sequence[int]]) -> tuple[Law, Law]:
        """Returns next-token log-laws after each prefix."""
        places = self._contexts(
            [prefix[-2] if len(prefix) > 1 else 0 for prefix in prefixes],
            [prefix[-1] for prefix in prefixes],
        )
        return self.safe[places], self.risky[places]

    def prefix_laws(self, tokens: Sequence[int], *, raw: bool = False) -> tuple[Law, Law]:
        """Returns the log-laws after tokens[:1], tokens[:2], ...; no table is warped."""
        places = self._contexts([0, *tokens[:-1]], tokens)
        return self.safe[places], self.risky[places]

    along = prefix_laws  # its old name, which recorded decoders call

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
        seed: Seed of the world.
        size: Number of token ids; id 0 ends an output.
        contexts: How many different next-token laws there are.
        gap: How far the risky logits stray from the safe ones, as a standard deviation.
        stop: Probability of the stop token in both models; 0 for none.
        zeros: Share of tokens that each model, on its own, gives no probability.
        debt: The promised prefix debt; the usual one if None.
    """
    rng = np.random.default_rng([seed, size, contexts])
    safe = rng.normal(0.0, 1.5, (contexts, size))
    risky = safe + rng.normal(0.0, gap, (contexts, size))
    for logits in (safe, risky):
        banned = rng.random((contexts, size)) < zeros
        banned[:, :2] = False
        logits[banned] = -np.inf
    laws = []
    for logits in (safe, risky):
        law = log_softmax(logits, axis=1)
        if stop:
            # Token 0 has the same probability everywhere; the others keep their proportions.
            law[:, 0] = -np.inf
            law = log_softmax(law, axis=1) + np.log1p(-stop)
            law[:, 0] = np.log(stop)
        laws.append(np.asarray(law))
    rule = DebtRule() if debt is None else debt
    return ToyWorld(laws[0], laws[1], frozenset({0} if stop else ()), rule)


def toy_prompts(world: ToyWorld, seed: int, prompts: int, length: int = 6) -> list[tuple[int, ...]]:
    """Returns prompts without stop tokens; every other one, by the risky model, owes most."""
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


@dataclass(frozen=True)
class Leaf:
    """One output.

    Attributes:
        tokens: What was written.
        served: Log-probability that the decoder writes it.
        safe: Log-probability that the safe model does.
        spend: Z, what the decoder says it was charged.
        true_spend: What the laws it really sampled cost, in nats.
        budget: B at the output's own end, not below 0.
    """

    tokens: tuple[int, ...]
    served: float
    safe: float
    spend: float
    true_spend: float
    budget: float

    @property
    def ratio(self) -> float:
        """L, the realised log-likelihood ratio."""
        return self.served - self.safe


@dataclass(frozen=True)
class Truth:
    """Every output of one request."""

    leaves: tuple[Leaf, ...] = field(repr=False)

    def mean(self, value: Callable[[Leaf], float]) -> float:
        """Returns the exact expectation under the decoder's own law."""
        return math.fsum(math.exp(leaf.served) * value(leaf) for leaf in self.leaves)

    def probability(self, event: Callable[[Leaf], bool]) -> float:
        """Returns the exact probability of an event."""
        return math.fsum(math.exp(leaf.served) for leaf in self.leaves if event(leaf))

    @property
    def divergence(self) -> float:
        """D_KL of what is written from what the safe model would write, in nats."""
        return self.mean(lambda leaf: leaf.ratio)

    def renyi(self, alpha: float) -> float:
        """Returns the Renyi divergence D_alpha; for alpha = inf the largest log-ratio."""
        if alpha == 1:
            return self.divergence
        if alpha == math.inf:
            return max(leaf.ratio for leaf in self.leaves)
        powers = (alpha * leaf.served - (alpha - 1) * leaf.safe for leaf in self.leaves)
        return math.log(math.fsum(map(math.exp, powers))) / (alpha - 1)


@dataclass(frozen=True)
class _DecoderNode:
    """An output that a decoder has begun."""

    row: ReferenceRow
    served: float = 0.0
    safe: float = 0.0
    true_spend: float = 0.0


def truth(decoder: AnchoredDecoder, request: Request) -> Truth:
    """Sums over everything that a decoder may answer to a request.

    Args:
        decoder: The reference decoder or a subclass whose laws depend on nothing but the prefix.
        request: Its seed plays no part.
    """
    debt = AnchoredDecoder.debt(decoder, request)  # what is owed, whatever the decoder counts
    leaves = []
    open_ = [_DecoderNode(ReferenceRow(request, decoder.debt(request)))]
    while open_:
        grown = []
        for node in open_:
            safe, risky = decoder.laws([node.row])
            allowance = np.array([decoder.allowance(node.row)])
            law, charge, _ = decoder.serve(safe, risky, allowance)
            sampled = decoder.sampled(node.row, law[0], safe[0], risky[0])
            cost = divergence(sampled, safe[0])
            for token in np.flatnonzero(sampled > -np.inf):
                row = ReferenceRow(request, node.row.debt, [*node.row.tokens], node.row.spent)
                decoder.pay(row, float(charge[0]), float(law[0, token] - safe[0, token]))
                row.tokens.append(int(token))
                served = float(node.served + sampled[token])
                anchor = float(node.safe + safe[0, token])
                grown.append(_DecoderNode(row, served, anchor, node.true_spend + cost))
        open_ = []
        for node in grown:
            if not decoder.ended(node.row):
                open_.append(node)
                continue
            row, budget = node.row, max(0.0, node.row.step * request.k - debt)
            numbers = node.served, node.safe, row.spent, node.true_spend, budget
            leaves.append(Leaf(tuple(row.tokens), *numbers))
    return Truth(tuple(leaves))


# Sums of float64 numbers differ by less than this.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Overspend:
    """True spend against budget, over some trajectories.

    Attributes:
        executions: How many.
        exceeding: How many of them truly spend more than their budget.
        ratio: Mean of the true spend over mean of the budget.
        prefixes: How many truly cost more than was granted at some prefix.
        worst: The largest excess of any prefix over its grant, in nats; 0 if there is none.
    """

    executions: int = field(metadata={"json": None})
    exceeding: int = field(metadata={"json": None})
    ratio: float
    prefixes: int = field(default=0, metadata={"json": None})
    worst: float = field(default=0.0, metadata={"json": None})
    json_properties: ClassVar = ("share",)

    @property
    def share(self) -> float:
        """Share of trajectories beyond their budget."""
        return self.exceeding / self.executions


def overspend(decoder: AnchoredDecoder, requests: Sequence[Request]) -> Overspend:
    """Lets a decoder write, and meters every law that it samples against the safe model.

    Prefixes are held to max(0, (t+1) k - debt), of the prompt that was asked for, whatever else
    the decoder counts. Requests at k = inf have no budget, so none should be among them.
    """
    sampled, output = decoder.sampled, decoder.output
    open_: dict[int, list[float]] = {}
    closed: dict[int, tuple[Output, list[float]]] = {}

    def meter(row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        drawn_from = sampled(row, law, safe, risky)
        # The decoder may have asked for another prefix than its own.
        anchor = decoder.world.laws([row.prefix])[0][0]
        open_.setdefault(id(row), []).append(divergence(drawn_from, anchor))
        return drawn_from

    def close(row: ReferenceRow) -> Output:
        written = output(row)
        closed[id(written)] = written, open_.pop(id(row))
        return written

    setattr(decoder, "sampled", meter)  # noqa: B010  one decoder, not its class
    setattr(decoder, "output", close)  # noqa: B010
    outputs = decoder.decode(requests)
    # An output is known by itself: some decoders hand back fewer than they wrote, or in disorder.
    costs = [closed[id(written)][1] for written in outputs]
    true = np.array([sum(steps) for steps in costs])
    budget = np.array(
        [
            max(0.0, len(written.tokens) * request.k - debt_of(decoder.world, request.prompt))
            for request, written in zip(requests, outputs, strict=True)
        ]
    )
    exceeding = int((true > budget * (1 + _ROUNDING) + _ROUNDING).sum())
    excess = np.array(
        [
            _prefix_excess(decoder.world, request, steps)
            for request, steps in zip(requests, costs, strict=True)
        ]
    )
    return Overspend(
        len(requests),
        exceeding,
        float(true.mean() / budget.mean()),
        prefixes=int((excess > 0).sum()),
        worst=float(max(excess, default=0.0)),
    )


def _prefix_excess(world: World, request: Request, costs: Sequence[float]) -> float:
    """Returns the most that any prefix costs above its grant, in nats; 0 if none does."""
    steps = np.arange(1, len(costs) + 1)
    granted = np.maximum(0.0, steps * request.k - debt_of(world, request.prompt))
    beyond = np.cumsum(costs) - granted
    return float(np.max(np.where(beyond > _ROUNDING * (1 + granted), beyond, 0.0), initial=0.0))
