"""The door for a mechanism that chooses among whole outputs, and two that do.

Best-of-n and CP-k serve no law at a step; what they promise holds for the output as a whole. So
they get drafts: whole outputs that *we* draw, of the safe model, or of the risky model where the
output's log-ratio stays under a cap. They choose one. Whatever the choice, an output y that is one
of n safe drafts or of m capped risky ones has

    q(y) <= (n + m e^cap) p_safe(y),

so the charge is log(n + m e^cap), computed here from the plan and never by the mechanism. A rule
in full:

    class FirstOfTwo:
        def plan(self, budget: float) -> Plan:
            return Plan(safe=2 if budget >= math.log(2) else 1)

        def choose(self, drafts: Drafts) -> Draft:
            return drafts.safe[0]

References:
    Vyas, Kakade, Barak (2023), On provable copyright protection for generative models: CP-k.
    Beirami et al. (2024), Theoretical guarantees on the best-of-n alignment policy.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.draws import Stream, gumbel, sound_stream
from nafaudit.core.errors import InputError, LawError
from nafaudit.mechanisms.doors import World

# A draft costs a whole output of both models.
MOST_DRAFTS = 64


@dataclass(frozen=True)
class Plan:
    """What will be drawn, fixed before anything is seen.

    Attributes:
        safe: Drafts of the safe model; at least 1, so that there is always something to serve.
        risky: Drafts of the risky model.
        cap: Risky drafts whose log p_risky(y) / p_safe(y) is above this are thrown away.
    """

    safe: int = 1
    risky: int = 0
    cap: float = 0.0

    def __post_init__(self) -> None:
        if self.safe < 1 or self.risky < 0 or self.safe + self.risky > MOST_DRAFTS:
            raise InputError(
                f"a plan draws at least 1 safe draft and at most {MOST_DRAFTS} in all, got "
                f"{self.safe} and {self.risky} risky ones."
            )
        if math.isnan(self.cap):
            raise InputError("the cap of a plan is NaN; it must be a number of nats.")

    @property
    def cost(self) -> float:
        """The charge, log(n + m e^cap)."""
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
    """

    tokens: tuple[int, ...]
    safe: NDArray[np.float64]
    risky: NDArray[np.float64]

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
    """Plans for a budget, then chooses; built without arguments."""

    def plan(self, budget: float) -> Plan:
        """What to draw under a budget of so many nats for the whole output."""
        ...

    def choose(self, drafts: Drafts) -> Draft:
        """The draft that is served."""
        ...


class BestOfN:
    """n drafts of the safe model; the one that the risky model likes best. Costs log n."""

    def plan(self, budget: float) -> Plan:
        """As many drafts as the budget pays for."""
        return Plan(safe=_count(budget))

    def choose(self, drafts: Drafts) -> Draft:
        """The likeliest under the risky model."""
        return max(drafts.safe, key=lambda draft: float(draft.risky.sum()))


class CapK:
    """CP-k: the first risky draft under the cap, else a safe one. Costs log(1 + M e^cap)."""

    tries = 8

    def plan(self, budget: float) -> Plan:
        """The cap that makes the whole cost the budget."""
        if budget <= 0:
            return Plan()
        # log(e^K - 1) without overflow; -expm1 keeps its digits for small budgets.
        spare = budget + math.log(-math.expm1(-budget))
        return Plan(safe=1, risky=self.tries, cap=spare - math.log(self.tries))

    def choose(self, drafts: Drafts) -> Draft:
        """The first that passed."""
        return (*drafts.risky, drafts.safe[0])[0]


RULES: dict[str, type[SequenceRule]] = {"best-of-n": BestOfN, "cp-k": CapK}


def _count(budget: float) -> int:
    if budget >= math.log(MOST_DRAFTS):
        return MOST_DRAFTS
    # exp(log 3) may be 2.9999999999999996, which still pays for three.
    return max(1, math.floor(math.exp(budget) * (1 + 1e-12)))


def write(
    world: World, rule: SequenceRule, name: str, prompt: tuple[int, ...], k: float, stream: Stream
) -> tuple[Draft, float]:
    """Draws as the rule plans, lets it choose; returns the draft and its charge.

    Args:
        world: The two models.
        rule: Anybody's.
        name: Of the rule, for errors.
        prompt: Token ids.
        k: Nats per token; the budget is k times the length limit.
        stream: Key of the draws.

    Raises:
        LawError: The rule raised, planned more than the budget pays for, or chose what was not
            drawn; the message names it.
    """
    budget = k * world.decoding.max_new_tokens
    try:
        plan = _as_planned(rule.plan(budget))
        cost = plan.cost
    except Exception as error:  # whatever their code raises is theirs, and is named so
        raise LawError(f"{name}: plan raised {type(error).__name__}: {error}") from error
    if cost > budget + 1e-9:
        raise LawError(f"{name} plans to spend {cost:.6g} nats of a budget of {budget:.6g}.")
    drafts = _draw(world, prompt, plan, stream)
    try:
        shown = _copies(drafts)
        chosen = rule.choose(shown)
    except Exception as error:
        raise LawError(f"{name}: choose raised {type(error).__name__}: {error}") from error
    pairs = zip((*shown.safe, *shown.risky), (*drafts.safe, *drafts.risky), strict=True)
    for theirs, ours in pairs:
        if chosen is theirs:
            return ours, cost
    raise LawError(f"{name} chose an output that is not among its drafts.")


def _as_planned(said: Plan) -> Plan:
    """A plan of our own with their numbers: what it costs is not theirs to say."""
    return Plan(operator.index(said.safe), operator.index(said.risky), float(said.cap))


def _copies(drafts: Drafts) -> Drafts:
    """What a rule may look at and spoil; the originals are what is recorded."""
    safe, risky = (
        tuple(Draft(draft.tokens, draft.safe.copy(), draft.risky.copy()) for draft in group)
        for group in (drafts.safe, drafts.risky)
    )
    return Drafts(safe, risky)


def _draw(world: World, prompt: tuple[int, ...], plan: Plan, stream: Stream) -> Drafts:
    """All drafts of a plan, one step of each at a time; no draft knows of the others."""
    count = plan.safe + plan.risky
    kinds = ["safe"] * plan.safe + ["risky"] * plan.risky
    streams = [sound_stream(stream.key, f"{kind} draft", "", i) for i, kind in enumerate(kinds)]
    tokens: list[list[int]] = [[] for _ in range(count)]
    logs: list[list[tuple[float, float]]] = [[] for _ in range(count)]
    rows = list(range(count))
    for step in range(world.decoding.max_new_tokens):
        laws = world.laws([(*prompt, *tokens[row]) for row in rows])
        for at, row in enumerate(rows):
            law = laws[kinds[row] == "risky"][at]
            token = int(np.argmax(law + gumbel(streams[row], step, world.size)))
            tokens[row].append(token)
            logs[row].append((float(laws[0][at, token]), float(laws[1][at, token])))
        rows = [row for row in rows if tokens[row][-1] not in world.stops]
        if not rows:
            break
    drafts = [
        Draft(tuple(written), *np.array(log, np.float64).T)
        for written, log in zip(tokens, logs, strict=True)
    ]
    passed = [draft for draft in drafts[plan.safe :] if draft.ratio <= plan.cap]
    return Drafts(tuple(drafts[: plan.safe]), tuple(passed))
