"""One directory, one search: its sizes and choices are written there before its first draw.

The design of a run says how its trajectories were decoded, not who asked for them. Two searches
in one directory would count each other's trajectories and overwrite each other's answer.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from nafaudit.core.design import differences
from nafaudit.core.errors import InputError
from nafaudit.core.settings import Settings
from nafaudit.search.basics import SearchBasics
from nafaudit.store.files import write_whole

FILE = "settings.json"
_RUNS = {one.name for one in fields(Settings)} - {"k", "delta", "variant"}
"""Settings of a run, which are in its design."""
_NOT_DECISIVE = {"proposer_url", "proposer_timeout"}
"""A server may move, and an answer that was given is in the journal."""


def decisive(settings: SearchBasics) -> dict[str, Any]:
    """What decides a search beside the design of its run, as JSON has it."""
    names = [one.name for one in fields(settings) if one.name not in _RUNS | _NOT_DECISIVE]
    found = {"kind": type(settings).__name__} | {name: getattr(settings, name) for name in names}
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def directory_of(settings: SearchBasics, identity: str) -> Path:
    """Where a search is recorded: where it was told to, or a place that no other search has.

    Args:
        settings: Of the search.
        identity: Hash of its run's design.
    """
    if settings.out:
        return Path(settings.out)
    text = identity + json.dumps(decisive(settings), sort_keys=True)
    return Path("runs") / f"search-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def check_claim(settings: SearchBasics) -> None:
    """Refuses a directory that holds another search; needs no model.

    Raises:
        InputError: It does; what differs is named.
    """
    path = Path(settings.out) / FILE if settings.out else None
    if path is None or not path.is_file():
        return
    try:
        recorded = json.loads(path.read_text())
        found = differences(decisive(settings), recorded)
    except (ValueError, TypeError, AttributeError):
        raise InputError(
            f"{path} is not what was written: it was damaged or edited. Restore it, or search "
            "with another --out."
        ) from None
    if found:
        raise InputError(
            f"{settings.out} holds another search; it differs in\n  "
            + "\n  ".join(found)
            + "\nGive this search its own --out, or repeat its own options to resume."
        )


def claim(path: Path, settings: SearchBasics) -> None:
    """Writes whose directory this is; the same search writes the same bytes."""
    write_whole(path / FILE, json.dumps(decisive(settings), indent=2).encode() + b"\n")
