"""Which settings a search has: those of the protocol that a design file or an option names."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from nafaudit.core.errors import InputError
from nafaudit.core.settings import load_settings_of
from nafaudit.search.paper_settings import PaperSettings
from nafaudit.search.settings import SearchSettings, StudySettings


def search_settings(
    design: Path | None, overrides: Mapping[str, Any], *, study: bool = False
) -> SearchSettings | PaperSettings:
    """Merges defaults, a design file and the command line, in this order.

    Args:
        design: A TOML file with the names of the options, or None.
        overrides: Values from the command line; None means not given.
        study: True for the sizes of a study, which the paper's protocol does not have.

    Raises:
        InputError: A value is wrong, or belongs to the other protocol.
    """
    protocol = overrides.get("protocol") or _named_in(design)
    kind: type[SearchSettings | PaperSettings]
    kind, other = (
        StudySettings if study else SearchSettings,
        "--protocol paper: add that, or leave it out",
    )
    if protocol == "paper":
        if study:
            raise InputError("--study is of the protocol sound; leave out --protocol paper.")
        kind = PaperSettings
        other = "the protocol sound; the paper's sizes are set by --size NAME=N"
    known = {one.name for one in fields(kind)}
    for name, value in overrides.items():
        if value is not None and name not in known:
            raise InputError(f"--{name.replace('_', '-')} = {value} belongs to {other}.")
    given = {name: value for name, value in overrides.items() if name in known}
    return load_settings_of(kind, design, given)


def _named_in(design: Path | None) -> str:
    """The protocol of a design file; what is wrong with the file is said by who reads it all."""
    if design is None:
        return "sound"
    try:
        return str(tomllib.loads(design.read_text(encoding="utf-8-sig")).get("protocol", "sound"))
    except (OSError, ValueError):
        return "sound"
