"""Which settings a search has: those of the protocol that a design file or an option names."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nafaudit.core.errors import InputError
from nafaudit.core.options import declared, load
from nafaudit.search.paper_settings import PaperSettings
from nafaudit.search.settings import SearchSettings


def search_settings(
    design: Path | None, overrides: Mapping[str, Any]
) -> SearchSettings | PaperSettings:
    """Merges defaults, a design file and the command line, in this order.

    Args:
        design: A TOML file with the names of the options, or None.
        overrides: Values from the command line; None means not given.

    Raises:
        InputError: A value is wrong, or belongs to the other protocol.
    """
    kind: type[SearchSettings | PaperSettings] = SearchSettings
    other = "--protocol paper: add that, or leave it out"
    if (overrides.get("protocol") or _read(design).get("protocol")) == "paper":
        kind = PaperSettings
        other = "the protocol sound; the paper's sizes are set by --size NAME=N"
    known = {one.name for one in declared(kind)} | set(kind.refused)
    for name, value in overrides.items():
        if value is not None and name not in known:
            raise InputError(f"--{name.replace('_', '-')} = {value} belongs to {other}.")
    given = {name: value for name, value in overrides.items() if name in known}
    return load(kind, design, given)


def _read(design: Path | None) -> dict[str, Any]:
    """A design file's values; what is wrong with the file is said where all of it is read."""
    if design is None:
        return {}
    try:
        return tomllib.loads(design.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return {}
