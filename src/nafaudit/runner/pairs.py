"""The registered pairs of `--pair`, and the protocol that chooses a run's prompts.

A protocol (`AuditProtocol`) decides which prompts a run has and where a row ends. `SOUND` is the
default one; the paper's is in `paper/workload.py`, and `answers.py: protocol_of` chooses. How many
of the prompts a run takes, `limit_of` says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from nafaudit.core.errors import InputError, nearest
from nafaudit.core.settings import RunSettings
from nafaudit.lab import prompts as lab
from nafaudit.lab.shipped import WEIGHTS, cache_directory, smollm2_pair
from nafaudit.workload import (
    Prompt,
    PromptSource,
    Sourced,
    Workload,
    read_corpus,
    read_prompts,
)
from nafaudit.workload.passages import Passage


@dataclass(frozen=True)
class NamedPair:
    """A registered pair: its checkpoints, and its prompts if the user gives none.

    Attributes:
        locate: Returns the safe and the risky checkpoint.
        workload: Returns all its prompts.
        limit: Number of prompts that a run takes by default; 0 for all.
        passages: Returns its protected text.
        shapes: Names in shapes.csv, safe and risky, for sizes before a download; if None, its
            configurations are read.
        ordinary: Returns text that neither model memorised, of the kind that both were made for.
        others: Returns prompts of other kinds than the workload's, for further held-out pools.
        start: Classes that a search starts from by default; all if empty. Openings of protected
            passages are left out: with these at hand there is nothing to search for.
    """

    locate: Callable[[], tuple[str, str]]
    workload: Callable[[], Workload]
    limit: int = 0
    passages: Callable[[], list[Passage]] = list
    shapes: tuple[str, str] | None = None
    ordinary: Callable[[], list[Passage]] = list
    others: Callable[[], list[Prompt]] = list
    start: tuple[str, ...] = ()


def _tiny() -> tuple[str, str]:
    from nafaudit.lab.tiny import build_pair

    safe, risky = build_pair(cache_directory() / "pairs")
    return str(safe), str(risky)


def _tiny_workload() -> Workload:
    from nafaudit.lab.tiny import SENTENCES

    prompts = [Prompt(f"tiny:{i}", text, "sentence") for i, text in enumerate(SENTENCES)]
    return Workload(tuple(Sourced(p, PromptSource(p.id, split=p.label)) for p in prompts))


def _tiny_passages() -> list[Passage]:
    from nafaudit.lab.tiny import SENTENCES

    return [Passage(f"tiny:{i}", text) for i, text in enumerate(SENTENCES)]


def _shipped(anchor: str) -> Callable[[], tuple[str, str]]:
    return lambda: (str(WEIGHTS / anchor), str(WEIGHTS / "risky"))


def _on_hub(risky: str) -> Callable[[], tuple[str, str]]:
    """Returns where a pair on the hub is; its safe model is trained on licensed text only."""
    return lambda: ("jacquelinehe/tinycomma-1.8b-llama3-tokenizer", risky)


_LAB: dict[str, Any] = {
    "limit": 48,
    "passages": lab.passages,
    "ordinary": lab.ordinary,
    "start": ("neutral", "factual", "creative"),
    "others": lab.others,
}


PAIRS = {
    "lab": NamedPair(_shipped("safe"), lab.lab_workload, **_LAB),
    "tiny": NamedPair(_tiny, _tiny_workload, passages=_tiny_passages),
    # A real model, and the same after it memorised pages; nafaudit lab memorise makes it.
    "smollm2": NamedPair(
        lambda: smollm2_pair().checkpoints,
        lambda: smollm2_pair().workload,
        limit=10,
        passages=lambda: smollm2_pair().passages,
    ),
    # The same risky model and prompts: what changes hangs on the choice of the anchor.
    "lab-safe2": NamedPair(_shipped("safe2"), lab.lab_workload, **_LAB),
    # The paper's pair and that of the mechanism's authors. Neither's data may be shipped: prompts
    # are the lab's, in the paper's six classes, unless --data names the paper's own files.
    "paper": NamedPair(
        _on_hub("meta-llama/Llama-3.1-8B-Instruct"),
        lab.lab_workload,
        shapes=("tinycomma-1.8b", "llama-3.1-8b"),
        **_LAB,
    ),
    "authors": NamedPair(
        _on_hub("meta-llama/Llama-3.1-70B"),
        lab.lab_workload,
        shapes=("tinycomma-1.8b", "llama-3.1-70b"),
        **_LAB,
    ),
}


def named_pair(name: str) -> NamedPair:
    """Returns a registered pair."""
    if name not in PAIRS:
        raise InputError(
            f"unknown pair {name!r}{nearest(name, PAIRS)} Known: {', '.join(PAIRS)}; for your own "
            "give --safe and --risky."
        )
    return PAIRS[name]


def known_checkpoints() -> Iterator[tuple[str, str]]:
    """Yields the checkpoints of every registered pair that is on this machine."""
    for pair in PAIRS.values():
        with contextlib.suppress(InputError):
            yield pair.locate()


class AuditProtocol(Protocol):
    """A protocol's own part: its prompts, and where a row ends. `SOUND` is the default one."""

    def workload(self, settings: RunSettings) -> Workload:
        """Returns the prompts of a run with their sources, before any limit; reads no model."""

    def stops(self, settings: RunSettings, end: int | None) -> tuple[int, ...] | None:
        """Returns the ids that end a row; None for what the models declare.

        Args:
            settings: What was asked for.
            end: The tokenizer's own end of text, if it has one.
        """


class SoundProtocol:
    """Prompts of a file, of several, or of a named pair; rows end where the models say."""

    def workload(self, settings: RunSettings) -> Workload:
        """Returns the prompts of a run with their sources, before any limit; reads no model."""
        classes, cap = settings.classes, settings.cap
        if settings.corpus:
            return read_corpus(settings.corpus, classes, cap)
        if settings.prompts is not None:
            return read_prompts(settings.prompts).select(classes, cap)
        if settings.safe is not None:
            raise InputError(
                "your own pair has no prompts yet: give --prompts FILE (JSON Lines with 'id' and "
                "'text'), --data DIR (the paper's six files), or [classes.NAME] tables in a design "
                "file."
            )
        return named_pair(settings.pair).workload().select(classes, cap)

    def stops(self, settings: RunSettings, end: int | None) -> tuple[int, ...] | None:
        """Returns None: a row ends where the models declare it."""
        return None


SOUND: AuditProtocol = SoundProtocol()


@dataclass(frozen=True)
class GivenPrompts:
    """Prompts that were given as an object; all else is as another protocol has it.

    Attributes:
        given: The prompts.
        other: The protocol that says where a row ends.
    """

    given: Workload
    other: AuditProtocol

    def workload(self, settings: RunSettings) -> Workload:
        """Returns the prompts of the classes that the settings name."""
        if settings.data is not None or settings.corpus:
            raise InputError("prompts and the files of a design both name a workload; give one.")
        return self.given.select(settings.classes, settings.cap)

    def stops(self, settings: RunSettings, end: int | None) -> tuple[int, ...] | None:
        """Returns the ids that end a row."""
        return self.other.stops(settings, end)


def limit_of(settings: RunSettings) -> int:
    """Returns how many prompts to take; 0 for all."""
    if settings.limit is not None:
        return settings.limit
    given = (settings.prompts, settings.data, settings.safe)
    if settings.corpus or any(name is not None for name in given):
        return 0
    return named_pair(settings.pair).limit


def checkpoints_of(settings: RunSettings) -> tuple[str, str]:
    """Returns the places of the two checkpoints."""
    if settings.safe is not None and settings.risky is not None:
        return settings.safe, settings.risky
    return named_pair(settings.pair).locate()
