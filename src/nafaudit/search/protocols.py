"""Which settings a search has: those of the protocol that a design file or an option names."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from nafaudit.core.errors import InputError
from nafaudit.core.settings import load_settings_of
from nafaudit.search.settings import SearchBasics, SearchSettings

_SURROGATE = (
    "the sound search has no surrogate any more: its gate needs 100 held-out prompts of ten "
    "trajectories and stayed shut at every size that was measured "
    "(docs/decisions/006-no-surrogate.md). Leave it out; the search draws what it proposes"
)
REMOVED = {
    "archive": "there is one archive, the greedy k-DPP set. Leave it out",
    "surrogate": _SURROGATE,
    "training": _SURROGATE,
    "embedding": _SURROGATE,
    "study": "studies are a program of the repository: python -m benchmarks.search_study --help",
}
"""Options that were taken away, with the reason; a design file has them too."""


def search_settings(
    design: Path | None,
    overrides: Mapping[str, Any],
    paper: type[SearchBasics] | None = None,
) -> SearchBasics:
    """Merges defaults, a design file and the command line, in this order.

    Args:
        design: A TOML file with the names of the options, or None.
        overrides: Values from the command line; None means not given.
        paper: Settings of the paper's protocol; None if they cannot be asked for.

    Raises:
        InputError: A value is wrong, or belongs to the other protocol.
    """
    written = _read(design)
    for name, why in REMOVED.items():
        if overrides.get(name):
            raise InputError(f"--{name} is refused: {why}.")
        if name in written:
            raise InputError(f"{design}: {name} is refused: {why}.")
    kind: type[SearchBasics] = SearchSettings
    other = "--protocol paper: add that, or leave it out"
    if (overrides.get("protocol") or written.get("protocol")) == "paper" and paper:
        kind = paper
        other = "the protocol sound; the paper's sizes are set by --size NAME=N"
    known = {one.name for one in fields(kind)}
    for name, value in overrides.items():
        if value is not None and name not in known and name not in REMOVED:
            raise InputError(f"--{name.replace('_', '-')} = {value} belongs to {other}.")
    given = {name: value for name, value in overrides.items() if name in known}
    return load_settings_of(kind, design, given)


def _read(design: Path | None) -> dict[str, Any]:
    """A design file's values; what is wrong with the file is said where all of it is read."""
    if design is None:
        return {}
    try:
        return tomllib.loads(design.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return {}
