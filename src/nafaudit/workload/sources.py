"""A workload: prompts in classes, each with the record that it was made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Any

from nafaudit.core.errors import InputError, nearest
from nafaudit.workload.prompts import Prompt


@dataclass(frozen=True)
class Source:
    """Where a prompt came from.

    Attributes:
        where: `file:line`, or another name if it came from no file.
        record: The record as it was read.
        domain: The paper's word for the kind of text.
        split: The paper's word for the class.
        novel_source: The work or person that it is about.
    """

    where: str
    record: Mapping[str, Any] = field(default_factory=dict)
    domain: str | None = None
    split: str | None = None
    novel_source: str | None = None


@dataclass(frozen=True)
class Sourced:
    """A prompt and its source."""

    prompt: Prompt
    source: Source


@dataclass(frozen=True)
class Workload:
    """The prompts of a run, in the order in which a limit takes them.

    Ids are unique, because they key the draws.
    """

    items: tuple[Sourced, ...]

    def __post_init__(self) -> None:
        seen: dict[str, str] = {}
        for item in self.items:
            name, where = item.prompt.id, item.source.where
            if name in seen:
                raise InputError(
                    f"{where}: prompt id {name!r} occurs twice (first: {seen[name]}); ids key the "
                    "draws, so they must be unique over all classes."
                )
            seen[name] = where

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts alone."""
        return [item.prompt for item in self.items]

    @property
    def sources(self) -> dict[str, Source]:
        """Sources by prompt id."""
        return {item.prompt.id: item.source for item in self.items}

    def select(self, classes: Collection[str], cap: Mapping[str, int]) -> Workload:
        """Keeps some classes, all if none is named, and at most so many of each."""
        check_names((*classes, *cap), {item.prompt.label for item in self.items})
        taken: Counter[str] = Counter()
        kept = []
        for item in self.items:
            label = item.prompt.label
            if classes and label not in classes:
                continue
            taken[label] += 1
            if taken[label] <= cap.get(label, taken[label]):
                kept.append(item)
        return Workload(tuple(kept))


def check_names(names: Iterable[str], known: Collection[str]) -> None:
    """Raises for a class that the workload does not have."""
    for name in names:
        if name not in known:
            raise InputError(
                f"the workload has no class {name!r}{nearest(name, known)} "
                f"It has: {', '.join(sorted(known))}."
            )


def in_turn(classes: Iterable[Sequence[Sourced]]) -> Workload:
    """One prompt of each class after the other, so that the first n are a fair sample."""
    rounds = chain.from_iterable(zip_longest(*classes))
    return Workload(tuple(item for item in rounds if item is not None))
