"""The door for a black box: what a decoder is given, and what it hands back.

Without this file only a rule that our own engine samples from could be audited. A decoder does
everything itself; we hand it two models and some requests, and believe nothing of what it
returns but that these are its tokens. A decoder in full:

    class SafeModel:
        def __init__(self, world: World) -> None:
            self.world = world

        def decode(self, requests: Sequence[Request]) -> list[Output]:
            return [Output(self.write(request)) for request in requests]

        def write(self, request: Request) -> list[int]:
            draw, tokens = np.random.default_rng(request.seed), []
            while len(tokens) < request.max_new_tokens:
                safe, risky = self.world.laws([(*request.prompt, *tokens)])
                tokens.append(int(draw.choice(self.world.size, p=np.exp(safe[0]))))
                if tokens[-1] in self.world.stops:
                    break
            return tokens

A `World` is the two models, whether checkpoints or a table of numbers: the same decoder runs on
both. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.debt import DebtRule, prefix_debt
from nafaudit.core.design import Decoding

Law = NDArray[np.float64]

# What a decoder may claim of every step, in the words of `core.trajectory.Steps`.
STEP_CLAIMS = ("allowance", "charge", "theta", "served", "safe", "risky")


class World(Protocol):
    """Two models over one vocabulary, as a decoder may see them; a decoder is built with one.

    A decoder that loads checkpoints itself reads only the paths, the ids and the settings.
    """

    @property
    def size(self) -> int:
        """How many token ids there are; a law has one entry for each."""
        ...

    @property
    def stops(self) -> frozenset[int]:
        """Ids that end an output; the stop token is the output's last."""
        ...

    @property
    def special(self) -> frozenset[int]:
        """Ids that owe no prefix debt."""
        ...

    @property
    def decoding(self) -> Decoding:
        """Temperature and penalty; the laws below have them already."""
        ...

    @property
    def debt(self) -> DebtRule:
        """Which prefix debt is promised."""
        ...

    @property
    def checkpoints(self) -> tuple[str, str]:
        """Where the safe and the risky checkpoint are; empty strings if they are nowhere."""
        ...

    def laws(self, prefixes: Sequence[Sequence[int]]) -> tuple[Law, Law]:
        """Next-token log-laws, safe and risky, after each prefix: two arrays [rows, size].

        Asking again for the same prefixes, each one token longer, is fast.
        """
        ...

    def along(self, tokens: Sequence[int], *, raw: bool = False) -> tuple[Law, Law]:
        """The log-laws after tokens[:1], tokens[:2], ...: two arrays [len(tokens), size].

        With `raw`, those of the models as they are, before temperature and penalty.
        """
        ...


@dataclass(frozen=True)
class Request:
    """One output that is wanted.

    Attributes:
        prompt: Token ids; at least one.
        k: Nats per token; 0 asks for the safe model alone, inf for the risky one.
        seed: Below 2**63. Equal requests with equal seeds must give equal tokens.
        max_new_tokens: An output ends here, or at its own stop token.
    """

    prompt: tuple[int, ...]
    k: float
    seed: int
    max_new_tokens: int


@dataclass(frozen=True)
class Output:
    """The tokens, and whatever the decoder claims of them; None where it claims nothing.

    Attributes:
        tokens: What was written, the stop token included, nothing after it.
        allowance: k_t of each step, in nats.
        charge: What each step was charged, in nats.
        theta: Weight of the risky law at each step.
        served: log p_served of each token.
        safe: log p_safe of each token.
        risky: log p_risky of each token.
        laws: The served log-law of each step [steps, size]: shown, it is checked to be a law.
        debt: Prefix debt of the prompt, in nats.
        spend: Total charge, in nats.
    """

    tokens: Sequence[int]
    allowance: Sequence[float] | None = None
    charge: Sequence[float] | None = None
    theta: Sequence[float] | None = None
    served: Sequence[float] | None = None
    safe: Sequence[float] | None = None
    risky: Sequence[float] | None = None
    laws: Law | None = None
    debt: float | None = None
    spend: float | None = None


class BlackBox(Protocol):
    """A decoder of which nothing is believed: `Class(world).decode(requests)`.

    `decode` may be asked for any number of outputs at once, of prompts of any length, and returns
    one output per request, in order. How they share a batch must not show in the tokens.
    """

    def __init__(self, world: World) -> None: ...

    def decode(self, requests: Sequence[Request]) -> Sequence[Output]:
        """Writes one output for every request."""
        ...


def debt_of(world: World, prompt: Sequence[int]) -> float:
    """The promised prefix debt of a prompt, in nats."""
    if len(prompt) < 2:
        return 0.0
    # The whole prompt, as the engine reads it: a product of fewer rows may differ in a bit.
    safe, risky = world.along(prompt, raw=True) if world.debt.raw else world.along(prompt)
    rows, following = np.arange(len(prompt) - 1), np.asarray(prompt[1:])
    with np.errstate(invalid="ignore"):
        ratios = risky[rows, following] - safe[rows, following]
    counted = np.array([token not in world.special for token in prompt[1:]], bool)
    return prefix_debt(ratios, counted, world.debt)
