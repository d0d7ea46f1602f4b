"""Who suggests prompts: the local operators, and the two controls that a search must beat."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from nafaudit.core.errors import InputError, nearest
from nafaudit.search.candidate import Candidate, Parent, candidate_id, lineage_of
from nafaudit.search.filters import canonical
from nafaudit.search.operators import OPERATORS, Operator

# How often a child is tried again if it came out as one of its parents, or not at all.
TRIES = 8


def chance_of(*parts: str | int) -> random.Random:
    """A source of chance that follows from its name alone, on every machine."""
    return random.Random("nafaudit search " + " ".join(map(str, parts)))


def chosen(names: Sequence[str]) -> list[Operator]:
    """The operators of these names.

    Raises:
        InputError: A name is unknown, or there is none.
    """
    for name in names:
        if name not in OPERATORS:
            known = f"{', '.join(OPERATORS)}{nearest(name, OPERATORS)}"
            raise InputError(f"unknown operator {name!r}; known: {known}")
    if not names:
        raise InputError(f"at least one operator is needed; known: {', '.join(OPERATORS)}.")
    return [OPERATORS[name] for name in names]


def _child(
    parents: Sequence[Parent], operators: Sequence[Operator], chance: random.Random, *, blind: bool
) -> tuple[str, Operator, list[Candidate]] | None:
    """A text that none of its parents has; None if chance did not find one."""
    for _ in range(TRIES):
        operator = chance.choice(operators)
        if len(parents) < operator.arity:
            continue
        family = _pick(parents, operator.arity, chance, blind=blind)
        texts = [parent.text for parent in family]
        text = operator.make(texts, chance)
        if text and canonical(text) not in {"", *map(canonical, texts)}:
            return text, operator, family
    return None


def _pick(
    parents: Sequence[Parent], count: int, chance: random.Random, *, blind: bool
) -> list[Candidate]:
    """Different parents, each the better of two drawn at random unless blind."""
    left = list(parents)
    taken = []
    for _ in range(count):
        pair = chance.sample(left, 1 if blind else min(2, len(left)))
        best = max(pair, key=lambda parent: -math.inf if math.isnan(parent.score) else parent.score)
        left.remove(best)
        taken.append(best.candidate)
    return taken


@dataclass(frozen=True)
class LocalProposer:
    """Mutation and crossover by local operators; better parents have more children.

    Attributes:
        seed: Search seed; another one gives another search.
        operators: Names of the operators in use.
        blind: True draws parents without looking at their scores.
    """

    seed: int = 0
    operators: tuple[str, ...] = tuple(OPERATORS)
    blind: bool = False

    def __post_init__(self) -> None:
        chosen(self.operators)

    @property
    def name(self) -> str:
        """How reports call it."""
        return "local"

    def ask(self, parents: Sequence[Parent], generation: int, count: int) -> list[Candidate]:
        """One child per place, each from its own draw, so that more does not change the first."""
        if not parents:
            raise InputError("a local proposer needs parents, got none; start it from seeds.")
        operators, made = chosen(self.operators), []
        for index in range(count):
            chance = chance_of(self.seed, generation, index)
            child = _child(parents, operators, chance, blind=self.blind)
            if child is not None:
                made.append(_candidate(self.seed, generation, index, *child))
        return made


def _candidate(
    seed: int, generation: int, index: int, text: str, operator: Operator, family: list[Candidate]
) -> Candidate:
    return Candidate(
        id=candidate_id(seed, generation, operator.name, index, text),
        text=text,
        label=family[0].label,
        generation=generation,
        operator=operator.name,
        parents=tuple(parent.id for parent in family),
        lineage=lineage_of(family),
    )


@dataclass(frozen=True)
class RandomProposer:
    """The control without feedback: the same operators on the seeds, whatever was found.

    Attributes:
        seeds: The pool that every generation is made of.
        seed: Search seed.
        operators: Names of the operators in use.
    """

    seeds: tuple[Candidate, ...]
    seed: int = 0
    operators: tuple[str, ...] = tuple(OPERATORS)

    @property
    def name(self) -> str:
        """How reports call it."""
        return "random"

    def ask(self, parents: Sequence[Parent], generation: int, count: int) -> list[Candidate]:
        """As the local proposer, from the seeds; `parents` are not looked at."""
        del parents
        pool = [Parent(candidate) for candidate in self.seeds]
        return LocalProposer(self.seed, self.operators, blind=True).ask(pool, generation, count)


@dataclass(frozen=True)
class SeedsProposer:
    """The control without invention: further prompts of a pool, each once, in a drawn order.

    Attributes:
        pool: Prompts that the search was not started from.
        seed: Search seed.
    """

    pool: tuple[Candidate, ...]
    seed: int = 0

    @property
    def name(self) -> str:
        """How reports call it."""
        return "seeds"

    def ask(self, parents: Sequence[Parent], generation: int, count: int) -> list[Candidate]:
        """The next `count` of the pool, if every generation asks for as many; then none."""
        del parents
        order = list(self.pool)
        chance_of(self.seed, "seeds").shuffle(order)
        return order[(generation - 1) * count : generation * count]
