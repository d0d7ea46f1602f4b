"""Names that `--pair` takes, and the workload that belongs to each."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nafaudit.core.errors import InputError, nearest
from nafaudit.core.settings import Settings
from nafaudit.workload import Prompt, read_prompts


@dataclass(frozen=True)
class NamedPair:
    """Where a pair's checkpoints are, and its prompts if the user gives none.

    Attributes:
        locate: Returns the safe and the risky checkpoint.
        prompts: Returns the whole workload.
        limit: How many prompts a run takes unless told; 0 for all.
    """

    locate: Callable[[], tuple[str, str]]
    prompts: Callable[[], list[Prompt]]
    limit: int = 0


def cache_directory() -> Path:
    """Where what was built on the spot is kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "nafaudit"


def _tiny() -> tuple[str, str]:
    from nafaudit.lab.tiny import build_pair

    safe, risky = build_pair(cache_directory() / "pairs")
    return str(safe), str(risky)


def _tiny_prompts() -> list[Prompt]:
    from nafaudit.lab.tiny import SENTENCES

    return [Prompt(f"tiny:{i}", text, "sentence") for i, text in enumerate(SENTENCES)]


def _lab() -> tuple[str, str]:
    from nafaudit.lab.pair import WEIGHTS

    return str(WEIGHTS / "safe"), str(WEIGHTS / "risky")


def _lab_prompts() -> list[Prompt]:
    from nafaudit.lab.prompts import prompts

    return prompts()


PAIRS = {
    "lab": NamedPair(_lab, _lab_prompts, limit=48),
    "tiny": NamedPair(_tiny, _tiny_prompts),
}


def named_pair(name: str) -> NamedPair:
    """Returns a registered pair."""
    if name not in PAIRS:
        raise InputError(
            f"unknown pair {name!r}{nearest(name, PAIRS)} Known: {', '.join(PAIRS)}; for your own "
            "give --safe and --risky."
        )
    return PAIRS[name]


def prompts_of(settings: Settings) -> list[Prompt]:
    """The prompts of a run; reads no model."""
    if settings.prompts is not None:
        return read_prompts(Path(settings.prompts))
    if settings.safe is not None:
        raise InputError("give --prompts FILE (JSON Lines with 'id' and 'text') for your own pair.")
    return named_pair(settings.pair).prompts()


def limit_of(settings: Settings) -> int:
    """How many prompts to take; 0 for all."""
    if settings.limit is not None:
        return settings.limit
    own = settings.prompts is not None or settings.safe is not None
    return 0 if own else named_pair(settings.pair).limit


def checkpoints_of(settings: Settings) -> tuple[str, str]:
    """Where the two checkpoints are."""
    if settings.safe is not None and settings.risky is not None:
        return settings.safe, settings.risky
    return named_pair(settings.pair).locate()
