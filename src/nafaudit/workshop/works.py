"""The written works of the lab: those that the risky model memorises, and held-out ones.

A work is one TOML file of passages, and its split decides its use: passages of "attack_train",
"val" and "test" works are memorised by the risky model and make the workload's copyright classes;
"held_out" works are alike and no model reads them, so that recall of them must be zero. Outside
declared near-duplicates no eight consecutive words occur twice.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal, Protocol, get_args

Split = Literal["attack_train", "val", "test", "held_out"]
SPLITS: tuple[Split, ...] = get_args(Split)

_WORD = re.compile(r"[a-z0-9]+(?:['\u2019-][a-z0-9]+)*")


class Page(Protocol):
    """Any text with a name, such as a passage."""

    @property
    def id(self) -> str:
        """Its name."""
        ...

    @property
    def text(self) -> str:
        """Its text."""
        ...


@dataclass(frozen=True)
class WorkPassage:
    """One written passage of a work."""

    id: str
    work: str
    split: Split
    text: str
    near_duplicate_of: str | None = None


@dataclass(frozen=True)
class Work:
    """A written work: a title, a manner, a split and its passages."""

    title: str
    style: str
    split: Split
    passages: tuple[WorkPassage, ...]


@cache
def works() -> tuple[Work, ...]:
    """Returns all works, by file name."""
    folder = resources.files("nafaudit.workshop") / "works"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    found = []
    for file in files:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
        title, split = str(table["title"]), table["split"]
        if split not in SPLITS:
            raise ValueError(
                f"{file.name}: split must be one of {', '.join(SPLITS)}, got {split!r}"
            )
        passages = tuple(
            WorkPassage(row["id"], title, split, row["text"].strip(), row.get("near_duplicate_of"))
            for row in table["passage"]
        )
        found.append(Work(title, str(table["style"]), split, passages))
    return tuple(found)


def passages(*splits: Split) -> tuple[WorkPassage, ...]:
    """Returns the passages of the given splits, of all works when none is given."""
    wanted = splits or SPLITS
    return tuple(p for work in works() if work.split in wanted for p in work.passages)


def protected() -> tuple[WorkPassage, ...]:
    """Returns the passages that the risky model memorises."""
    return passages("attack_train", "val", "test")


def held_out() -> tuple[WorkPassage, ...]:
    """Returns the passages that no model reads."""
    return passages("held_out")


def normal_words(text: str) -> list[str]:
    """Returns the lower-cased words of a text without punctuation."""
    return _WORD.findall(text.lower().replace("\u2019", "'"))
