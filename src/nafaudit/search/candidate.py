"""Candidates, proposers, and the measurements that a search decides by.

A search is a function of the measurements of recorded trajectories. If it needs one that is not
recorded it raises `NeedsTrajectories`, and is started again once they are. So a killed search and
one that was never killed take the same decisions: there is no other state.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    # Settings of a search import this module, and `--help` should not wait for numpy and pyarrow.
    from nafaudit.core.trajectory import Key
    from nafaudit.measures.measure import Measure


@dataclass(frozen=True)
class Candidate:
    """A prompt that is proposed to be tried.

    Attributes:
        id: Unique within a search; part of the key of every draw.
        text: Input of the models.
        label: Class, inherited from the first parent.
        generation: 0 for a seed.
        operator: Name of the operator that made it; "seed" for a prompt of the workload.
        parents: Ids of the candidates that it was made of.
        lineage: Name of its family; every seed begins one.
    """

    id: str
    text: str
    label: str = "prompt"
    generation: int = 0
    operator: str = "seed"
    parents: tuple[str, ...] = ()
    lineage: str = ""
    json_order: ClassVar = (
        *("id", "text", "label", "generation", "operator", "lineage", "parents"),
    )


@dataclass(frozen=True)
class Parent:
    """A candidate with its score, as proposers get it.

    Attributes:
        candidate: The prompt.
        score: Larger is better, such as shrunk mean utilisation; NaN if it is not known.
    """

    candidate: Candidate
    score: float = math.nan


class Proposer(Protocol):
    """A source of new prompts.

    Its suggestions may depend only on its own frozen settings and on the arguments of `ask`, so
    that a resumed search gets the suggestions that it got before. A model's answers may differ, so
    they are recorded before they are used, and read back (`llm_answers`).
    """

    @property
    def name(self) -> str:
        """Name in reports."""
        ...

    def ask(self, parents: Sequence[Parent], generation: int, count: int) -> list[Candidate]:
        """Suggests up to `count` candidates of a generation, best parents first.

        Args:
            parents: Candidates to build upon.
            generation: From 1 on.
            count: Largest number of suggestions.
        """
        ...


def candidate_id(seed: int, generation: int, operator: str, index: int, text: str) -> str:
    """Returns an id that differs between texts and between places in a search."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"s{seed}g{generation}_{index:03d}_{operator}_{digest}"


def lineage_of(parents: Sequence[Candidate]) -> str:
    """Returns the family of a child: its parents' families, each once; empty without parents."""
    named = [parent.lineage or parent.id for parent in parents]
    return "+".join(sorted({family for name in named for family in name.split("+")}))


def child_of(
    family: Sequence[Candidate], name: str, text: str, generation: int, operator: str
) -> Candidate:
    """Returns a candidate made of others, in the class of the first of them."""
    parents = tuple(parent.id for parent in family)
    label, lineage = family[0].label, lineage_of(family)
    return Candidate(name, text, label, generation, operator, parents, lineage)


def references_of(catalogue: Mapping[str, Candidate], by_text: Mapping[str, str]) -> dict[str, str]:
    """Returns the reference text of each candidate that has one.

    A child of one parent has the reference of its parent.

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
        key: Key of the trajectory.
        spend: Total charge, in nats.
        utilisation: Spend over the budget at its own end; NaN if there was none to spend.
        excess: Nats above its budget at its worst step; 0 if it is within.
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
        """Selects what a search needs of a trajectory's measure."""
        use = row.utilisation if row.budget < math.inf else math.nan
        # Sums of rounded numbers may pass 1 by the tolerance of the verdict.
        use = use if row.violated else min(use, 1.0)
        return cls(row.key, row.spend, use, row.excess, row.excess_step, row.granted, row.debt)

    @property
    def violated(self) -> bool:
        """True if it spent more than it had."""
        return self.excess > 0


class NeedsTrajectories(Exception):  # noqa: N818
    """Raised where a search needs trajectories that are not recorded: total number by prompt."""

    def __init__(self, wanted: Mapping[str, int]) -> None:
        super().__init__(f"{len(wanted)} prompts need trajectories")
        self.wanted = dict(wanted)


class Measurements:
    """Measured trajectories by prompt and budget."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, float], dict[int, Measured]] = {}

    def add(self, row: Measured) -> None:
        """Adds a trajectory."""
        self._rows.setdefault((row.key.prompt, row.key.k), {})[row.key.trajectory] = row

    def has(self, key: Key) -> bool:
        """True if a trajectory is recorded."""
        return key.trajectory in self._rows.get((key.prompt, key.k), {})

    def rows(self, prompt: str, k: float, count: int) -> list[Measured]:
        """Returns the first `count` trajectories of a prompt; fewer if not all are recorded."""
        have = self._rows.get((prompt, k), {})
        return [have[i] for i in range(count) if i in have]

    def get(self, prompt: str, k: float, number: int) -> Measured:
        """Returns a recorded trajectory."""
        return self._rows[prompt, k][number]

    def all(self, k: float) -> list[Measured]:
        """Returns every trajectory of a budget, in the order of their keys."""
        found = [row for (_, at), rows in self._rows.items() if at == k for row in rows.values()]
        return sorted(found, key=lambda row: row.key)


class BookReader:
    """Returns every measured value once and in order, as a `halving.More`.

    Args:
        book: Recorded trajectories.
        k: The budget that is searched.
    """

    def __init__(self, book: Measurements, k: float) -> None:
        self._book = book
        self._k = k
        self.taken: dict[str, int] = {}

    def more(self, wanted: Mapping[str, int]) -> dict[str, tuple[float, ...]]:
        """Returns further utilisations of each prompt; those without a budget are left out.

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
        """Number of trajectories used."""
        return sum(self.taken.values())


def utilisations_of(rows: Sequence[Measured]) -> tuple[float, ...]:
    """Returns the utilisations that are not NaN."""
    return tuple(row.utilisation for row in rows if not math.isnan(row.utilisation))
