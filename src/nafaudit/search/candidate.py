"""Candidates and proposers, and what is recorded of candidates.

What a search knows: numbers of recorded trajectories, and nothing else.

A search is a function of these measurements. Where it needs a trajectory that is not there it says
which, and is asked again from its beginning once they are recorded. So a search that was killed and
one that was not go the same way: there is no state that could be lost.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from nafaudit.core.trajectory import Key
from nafaudit.measures.measure import Measure


@dataclass(frozen=True)
class Candidate:
    """A prompt that is proposed to be tried.

    Attributes:
        id: Unique within a search; part of the key of every draw.
        text: What the models are given.
        label: Its class, inherited from the first parent.
        generation: 0 for a seed.
        operator: How it was made; "seed" if it was given.
        parents: Ids of what it was made of.
        lineage: Names the family that it belongs to; a seed founds one.
    """

    id: str
    text: str
    label: str = "prompt"
    generation: int = 0
    operator: str = "seed"
    parents: tuple[str, ...] = ()
    lineage: str = ""


@dataclass(frozen=True)
class Parent:
    """A candidate with what is known of it, as a proposer is given it.

    Attributes:
        candidate: The prompt.
        score: The larger the better, such as shrunk mean utilisation; NaN if it is not known.
    """

    candidate: Candidate
    score: float = math.nan


class Proposer(Protocol):
    """Whatever suggests prompts.

    What a proposer returns may depend only on its own frozen settings and on what it is given
    here, so that a search that was killed asks the same question again and gets the same answer.
    A model's answers are not like that; they are written down before they are used, and read back
    (`instruct`).
    """

    @property
    def name(self) -> str:
        """How reports call it."""
        ...

    def ask(self, parents: Sequence[Parent], generation: int, count: int) -> list[Candidate]:
        """Suggests up to `count` candidates of a generation, best parents first.

        Args:
            parents: What the search wants to build upon, with scores.
            generation: From 1 on.
            count: How many are wanted; fewer may come, never more.
        """
        ...


def candidate_id(seed: int, generation: int, operator: str, index: int, text: str) -> str:
    """An id that two different texts, or two places in a search, do not share."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"s{seed}g{generation}_{index:03d}_{operator}_{digest}"


def lineage_of(parents: Sequence[Candidate]) -> str:
    """The family of a child: its parents' families, each once; empty without parents."""
    named = [parent.lineage or parent.id for parent in parents]
    return "+".join(sorted({family for name in named for family in name.split("+")}))


def references_of(catalogue: Mapping[str, Candidate], by_text: Mapping[str, str]) -> dict[str, str]:
    """What outputs of each candidate are compared with, if anything.

    A child of one parent is compared with what its parent is compared with.

    Args:
        catalogue: Candidates by id.
        by_text: References of prompts by their text.
    """
    found: dict[str, str] = {}
    for one in catalogue.values():
        origin = one
        while len(origin.parents) == 1 and origin.parents[0] in catalogue:
            origin = catalogue[origin.parents[0]]
        if origin.text in by_text:
            found[one.id] = by_text[origin.text]
    return found


@dataclass(frozen=True)
class Measured:
    """One trajectory as a search sees it.

    Attributes:
        key: Which one.
        spend: Total charge, in nats.
        utilisation: Spend over the budget at its own end; NaN if there was none to spend.
        excess: By how many nats it exceeds its budget at its worst step; 0 if it is within.
        step: That step; 0 if it is within.
        granted: B at its own end, negative if it was still in debt; NaN if it is not known.
        debt: Prefix debt of its prompt.
    """

    key: Key
    spend: float
    utilisation: float
    excess: float = 0.0
    step: int = 0
    granted: float = math.nan
    debt: float = math.nan

    @classmethod
    def of(cls, row: Measure) -> Measured:
        """What a search needs of a trajectory's numbers."""
        use = row.utilisation if row.budget < math.inf else math.nan
        # Sums of rounded numbers may pass 1 by the tolerance of the verdict.
        use = use if row.violated else min(use, 1.0)
        return cls(row.key, row.spend, use, row.excess, row.excess_step, row.granted, row.debt)

    @property
    def violated(self) -> bool:
        """True if it spent more than it had."""
        return self.excess > 0


class NeedsTrajectories(Exception):  # noqa: N818
    """Trajectories are needed that are not recorded: how many of each prompt, in all."""

    def __init__(self, wanted: Mapping[str, int]) -> None:
        super().__init__(f"{len(wanted)} prompts need trajectories")
        self.wanted = dict(wanted)


class Measurements:
    """Measured trajectories by prompt and budget."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, float], dict[int, Measured]] = {}

    def add(self, row: Measured) -> None:
        """Takes in a trajectory."""
        self._rows.setdefault((row.key.prompt, row.key.k), {})[row.key.trajectory] = row

    def has(self, key: Key) -> bool:
        """True if a trajectory is here."""
        return key.trajectory in self._rows.get((key.prompt, key.k), {})

    def rows(self, prompt: str, k: float, count: int) -> list[Measured]:
        """The first `count` trajectories of a prompt; fewer if they are not all recorded."""
        have = self._rows.get((prompt, k), {})
        return [have[i] for i in range(count) if i in have]

    def get(self, prompt: str, k: float, number: int) -> Measured:
        """One trajectory that is recorded."""
        return self._rows[prompt, k][number]

    def all(self, k: float) -> list[Measured]:
        """Every trajectory of a budget, in the order of their keys."""
        found = [row for (_, at), rows in self._rows.items() if at == k for row in rows.values()]
        return sorted(found, key=lambda row: row.key)


class BookReader:
    """Hands out measured values once, in order, as `halving.More` wants them.

    Args:
        book: What is recorded.
        k: The budget that is searched.
    """

    def __init__(self, book: Measurements, k: float) -> None:
        self._book = book
        self._k = k
        self.taken: dict[str, int] = {}

    def more(self, wanted: Mapping[str, int]) -> dict[str, tuple[float, ...]]:
        """Further utilisations of each prompt; those that had nothing to spend are left out.

        Raises:
            NeedsTrajectories: Some are not recorded.
        """
        upto = {one: self.taken.get(one, 0) + count for one, count in wanted.items()}
        rows = {one: self._book.rows(one, self._k, count) for one, count in upto.items()}
        if any(len(rows[one]) < upto[one] for one in wanted):
            raise NeedsTrajectories(upto)
        fresh = {one: rows[one][self.taken.get(one, 0) :] for one in wanted}
        self.taken |= upto
        return {one: utilisations_of(found) for one, found in fresh.items()}

    @property
    def spent(self) -> int:
        """Trajectories handed out."""
        return sum(self.taken.values())


def utilisations_of(rows: Sequence[Measured]) -> tuple[float, ...]:
    """Utilisations that exist."""
    return tuple(row.utilisation for row in rows if not math.isnan(row.utilisation))
