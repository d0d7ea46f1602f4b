"""Everything that code from outside implements or is given, in one file.

Four kinds of class can be audited (docs/protocols.md), from the one of which most is seen to the
one of which least is: a step-level `Rule`, a whole `Mechanism` (rule, ledger and debt), a
`SequenceRule` that chooses among whole drafts, and a `BlackBox` that does everything itself on the
two models of a `World`. A new budget is a `Ledger` with its `Account` (`nafaudit.core.ledger`).
Engine and auditor know mechanisms by these types alone. Nothing here needs torch: its tensors are
type hints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.debt import DebtRule, prefix_debt
from nafaudit.core.design import Decoding
from nafaudit.core.errors import InputError
from nafaudit.core.ledger import KL, REALISED, Ledger

if TYPE_CHECKING:
    from torch import Tensor

Law = NDArray[np.float64]

# What a decoder may claim of every step, in the words of `core.trajectory.Steps`.
STEP_CLAIMS = ("allowance", "charge", "theta", "served", "safe", "risky")
# In which floating-point types a decoder may say that it computes (`BlackBox`).
DECODER_TYPES = ("float32", "bfloat16", "float16", "float64")
# A draft costs a whole output of both models.
MOST_DRAFTS = 64


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
    recomputed as that KL, so that no rule pays less by claiming less. With `realised`, a step is
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
class Resources:
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
        requires: Makes the mechanism from a run's resources, if it cannot do without them.
        shadow: Which second implementation of the rule the auditor has: "kl", "renyi:2",
            "pathwise"; empty for none. The registry sets it for shipped rules alone, so that no
            plug-in, not even a subclass of a shipped rule, chooses what it is recomputed by.
    """

    name: str
    rule: Rule
    ledger: Ledger
    debt: DebtRule
    requires: Callable[[Resources], Mechanism] | None = None
    shadow: str = ""

    def bind(self, resources: Resources) -> Mechanism:
        """Returns the mechanism, ready to serve."""
        return self if self.requires is None else self.requires(resources)

    @property
    def currency(self) -> str:
        """What its charges are counted in."""
        return currency(self.rule)


def currency(rule: Rule) -> str:
    """Names what a rule's charges are counted in."""
    return str(getattr(rule, "currency", KL))


def booked(rule: Rule, charge: float, ratio: float) -> float:
    """Returns what a step is charged, once its token is drawn.

    Args:
        rule: Whose step.
        charge: What the rule says its law costs.
        ratio: log p_served - log p_safe of the token.
    """
    return ratio if currency(rule) == REALISED else charge


@dataclass(frozen=True)
class Plan:
    """What a sequence-level rule wants drawn, fixed before anything is seen.

    Attributes:
        safe: Drafts of the safe model; at least 1, so that there is always something to serve.
        risky: Drafts of the risky model.
        cap: Risky drafts whose log p_risky(y) / p_safe(y) is above this are thrown away.
        block: Tokens after which the next choice is made; 0 to choose whole outputs.
        metered: Nats per token that pathwise decoding may spend on each safe draft; 0 for the
            safe model's own.
    """

    safe: int = 1
    risky: int = 0
    cap: float = 0.0
    block: int = 0
    metered: float = 0.0

    def __post_init__(self) -> None:
        if self.safe < 1 or self.risky < 0 or max(self.safe, self.risky) > MOST_DRAFTS:
            raise InputError(
                f"a plan draws at least 1 safe draft and at most {MOST_DRAFTS} of each kind, got "
                f"{self.safe} and {self.risky} risky ones."
            )
        if math.isnan(self.cap):
            raise InputError("the cap of a plan is NaN; it must be a number of nats.")
        if self.block < 0 or not 0 <= self.metered < math.inf:
            raise InputError(
                f"block and metered of a plan must be at least 0, got {self.block} and "
                f"{self.metered}."
            )
        if self.metered and (self.block or self.risky):
            raise InputError("metered drafts are whole, and the only ones of their plan.")

    def blocks(self, length: int) -> int:
        """Counts the choices in outputs of at most `length` tokens."""
        return -(-length // self.block) if self.block else 1

    def most(self, length: int) -> float:
        """Computes the most that an output of at most `length` tokens can be charged."""
        return self.blocks(length) * self.cost + self.metered * length

    @property
    def cost(self) -> float:
        """The charge of one choice, log(n + m e^cap)."""
        if not self.risky:
            return math.log(self.safe)
        return float(np.logaddexp(math.log(self.safe), math.log(self.risky) + self.cap))


@dataclass(frozen=True, eq=False)
class Draft:
    """A whole output that may be served.

    Attributes:
        tokens: What was drawn, the stop token included.
        safe: log p_safe of each token.
        risky: log p_risky of each token.
        served: log-probability at which each token was drawn.
    """

    tokens: tuple[int, ...]
    safe: NDArray[np.float64]
    risky: NDArray[np.float64]
    served: NDArray[np.float64]

    @property
    def ratio(self) -> float:
        """The whole output's log p_risky(y) - log p_safe(y)."""
        return float(self.risky.sum() - self.safe.sum())


@dataclass(frozen=True)
class Drafts:
    """What was drawn as planned: all safe drafts, and the risky ones under the cap, in order."""

    safe: Sequence[Draft]
    risky: Sequence[Draft]


class SequenceRule(Protocol):
    """Plans for a budget, then chooses among drafts; built without arguments.

    The drafts are whole outputs, or blocks, that the tool itself draws
    (`nafaudit.mechanisms.sequences` says how they are charged). A rule in full:

        class FirstOfTwo:
            def plan(self, budget: float) -> Plan:
                return Plan(safe=2 if budget >= math.log(2) else 1)

            def choose(self, drafts: Drafts) -> Draft:
                return drafts.safe[0]
    """

    def plan(self, budget: float) -> Plan:
        """Says what to draw under a budget, in nats, for the whole output."""
        ...

    def choose(self, drafts: Drafts) -> Draft:
        """Returns the draft that is served."""
        ...


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
        """Computes next-token log-laws, safe and risky, after each prefix: two arrays [rows, size].

        Asking again for the same prefixes, each one token longer, is fast.
        """
        ...

    def prefix_laws(self, tokens: Sequence[int], *, raw: bool = False) -> tuple[Law, Law]:
        """Computes the log-laws after tokens[:1], tokens[:2], ...: two arrays [len(tokens), size].

        With `raw`, those of the models as they are, before temperature and penalty.
        """
        ...


@dataclass(frozen=True)
class Request:
    """One output that is wanted.

    Attributes:
        prompt: Token ids; at least one.
        k: Nats per token; 0 asks for the safe model alone, inf for the risky one.
        seed: Below 2**63; another one for every prompt, budget and number. Equal requests with
            equal seeds must give equal tokens.
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
        theta: Weight of the risky law at each step: its exponent in the geometric mixture
            p_safe^(1 - theta) p_risky^theta / Z, unless `family` says otherwise.
        served: log p_served of each token.
        safe: log p_safe of each token.
        risky: log p_risky of each token.
        laws: The served log-law of each step [steps, size]: shown, it is checked to be a law, and
            kept (4 bytes for each entry) for whoever verifies.
        debt: Prefix debt of the prompt, in nats.
        spend: Total charge, in nats.
        family: What theta is the weight of: "geometric", or "arithmetic" for the mean
            (1 - theta) p_safe + theta p_risky. None is geometric.
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
    family: str | None = None


class BlackBox(Protocol):
    """A decoder of which only the tokens are trusted: `Class(world).decode(requests)`.

    Class or object may say in an attribute `dtype` in which floating-point type it computes what it
    claims: one of `DECODER_TYPES`, or the type of that name of torch or NumPy. Its claims are then
    compared as closely as that type allows; without it, as if it were bfloat16.

    `decode` may be asked for any number of outputs at once, of prompts of any length, and returns
    one output per request, in order. How they share a batch must not show in the tokens. The
    world may be two checkpoints or a table of numbers: the same decoder runs on both. A decoder
    in full:

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
    """

    def __init__(self, world: World) -> None: ...

    def decode(self, requests: Sequence[Request]) -> Sequence[Output]:
        """Writes one output for every request."""
        ...


def debt_of(world: World, prompt: Sequence[int]) -> float:
    """Computes the promised prefix debt of a prompt, in nats."""
    if len(prompt) < 2:
        return 0.0
    # The whole prompt, as the engine reads it: a product of fewer rows may differ in a bit.
    safe, risky = world.prefix_laws(prompt, raw=world.debt.raw)
    rows, following = np.arange(len(prompt) - 1), np.asarray(prompt[1:])
    with np.errstate(invalid="ignore"):
        ratios = risky[rows, following] - safe[rows, following]
    counted = np.array([token not in world.special for token in prompt[1:]], bool)
    return prefix_debt(ratios, counted, world.debt)
