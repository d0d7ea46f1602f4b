"""Proposers: the local operators, and the two controls that a search must beat."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from nafaudit.core.errors import InputError, nearest
from nafaudit.search.candidate import Candidate, Parent, candidate_id, child_of
from nafaudit.search.filters import canonical
from nafaudit.search.operators import DEFAULT_OPERATORS, OPERATORS, Operator

# How often a child is tried again if it came out as one of its parents, or not at all.
TRIES = 8


def chance_of(*parts: str | int) -> random.Random:
    """Returns a random generator that depends on its name alone, on every machine."""
    return random.Random("nafaudit search " + " ".join(map(str, parts)))


def chosen(names: Sequence[str]) -> list[Operator]:
    """Returns the operators of these names.

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


@dataclass(frozen=True)
class LocalProposer:
    """Mutation and crossover by local operators; better parents have more children.

    Attributes:
        seed: Search seed; another one gives another search.
        operators: Names of the operators in use.
        blind: True draws parents without regard to their scores.
    """

    seed: int = 0
    operators: tuple[str, ...] = DEFAULT_OPERATORS
    blind: bool = False

    def __post_init__(self) -> None:
        chosen(self.operators)

    @property
    def name(self) -> str:
        """Name in reports."""
        return "local"

    def ask(self, parents: Sequence[Parent], generation: int, count: int) -> list[Candidate]:
        """Makes each child from a generator of its own: a larger count keeps the first ones."""
        if not parents:
            raise InputError("a local proposer needs parents, got none; start it from seeds.")
        operators, made = chosen(self.operators), []
        for index in range(count):
            chance = chance_of(self.seed, generation, index)
            for _ in range(TRIES):
                operator = chance.choice(operators)
                if len(parents) < operator.arity:
                    continue
                family = self._family(parents, operator.arity, chance)
                texts = [parent.text for parent in family]
                text = operator.make(texts, chance)
                if text and canonical(text) not in {"", *map(canonical, texts)}:
                    name = candidate_id(self.seed, generation, operator.name, index, text)
                    made.append(child_of(family, name, text, generation, operator.name))
                    break
        return made

    def _family(
        self, parents: Sequence[Parent], count: int, chance: random.Random
    ) -> list[Candidate]:
        """Draws different parents, each the better of two drawn at random unless blind."""
        left = list(parents)
        taken = []
        for _ in range(count):
            pair = chance.sample(left, 1 if self.blind else min(2, len(left)))
            best = max(pair, key=lambda one: -math.inf if math.isnan(one.score) else one.score)
            left.remove(best)
            taken.append(best.candidate)
        return taken


@dataclass(frozen=True)
class RandomProposer:
    """The control without feedback: applies the operators to the seeds, whatever was found.

    Attributes:
        seeds: Parents of every generation.
        seed: Search seed.
        operators: Names of the operators in use.
    """

    seeds: tuple[Candidate, ...]
    seed: int = 0
    operators: tuple[str, ...] = DEFAULT_OPERATORS

    @property
    def name(self) -> str:
        """Name in reports."""
        return "random"

    def ask(self, parents: Sequence[Parent], generation: int, count: int) -> list[Candidate]:
        """Makes children of the seeds; ignores `parents`."""
        del parents
        pool = [Parent(candidate) for candidate in self.seeds]
        return LocalProposer(self.seed, self.operators, blind=True).ask(pool, generation, count)


@dataclass(frozen=True)
class SeedsProposer:
    """The control without new prompts: suggests those of a pool, each once, in a random order.

    Attributes:
        pool: Prompts that the search did not start from.
        seed: Search seed.
    """

    pool: tuple[Candidate, ...]
    seed: int = 0

    @property
    def name(self) -> str:
        """Name in reports."""
        return "seeds"

    def ask(self, parents: Sequence[Parent], generation: int, count: int) -> list[Candidate]:
        """Returns the next `count` of the pool, if every generation asks for as many; then none."""
        del parents
        order = list(self.pool)
        chance_of(self.seed, "seeds").shuffle(order)
        return order[(generation - 1) * count : generation * count]
