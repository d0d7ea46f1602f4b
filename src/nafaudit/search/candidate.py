"""What a search is about: without these nouns proposer, evaluator and archive could not meet."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from nafaudit.core.errors import InputError


@dataclass(frozen=True)
class Candidate:
    """A prompt that somebody proposes to try.

    Attributes:
        id: Unique within a search; part of the key of every draw.
        text: What the models are given.
        label: Its class, inherited from the first parent.
        generation: 0 for a seed.
        operator: How it was made; "seed" if nobody made it.
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
    """A candidate with what is known of it: the way in which a proposer is told.

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


def check_unique(candidates: Iterable[Candidate]) -> None:
    """Raises `InputError` if two candidates share an id: they would share their draws too."""
    seen: dict[str, str] = {}
    for candidate in candidates:
        if candidate.id in seen:
            same = "the same text" if seen[candidate.id] == candidate.text else "another text"
            raise InputError(
                f"candidate id {candidate.id!r} is used twice, the second time with {same}; "
                "ids must be unique within a search. Rename one of the two."
            )
        seen[candidate.id] = candidate.text
