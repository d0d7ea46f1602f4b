"""Parts of search.json, each as what it should be, or as nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any


def number(data: Mapping[str, Any], name: str) -> float:
    """A number; NaN if it is missing or something else."""
    value = data.get(name)
    if isinstance(value, str) and value in ("nan", "inf", "-inf"):
        return float(value)
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain else math.nan  # type: ignore[arg-type]


def text(data: Mapping[str, Any], name: str) -> str:
    """A text; empty if it is missing or something else."""
    value = data.get(name)
    return value if isinstance(value, str) else ""


def part(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object; empty if it is missing or something else."""
    value = data.get(name)
    return value if isinstance(value, dict) else {}


def rows(data: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """A list of objects, each at its own place; an entry that is something else is empty."""
    value = data.get(name)
    found = value if isinstance(value, list) else []
    return [one if isinstance(one, dict) else {} for one in found]


def texts(data: Mapping[str, Any], name: str) -> list[str]:
    """A list of texts, without whatever else stands in it."""
    value = data.get(name)
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def by_paper(found: Mapping[str, Any]) -> bool:
    """True for the paper's protocol: rho ranks prompts there, and no gate tests a surrogate."""
    return bool(part(found, "paper"))


def search_json(found: Mapping[str, Any], *, redact: bool) -> dict[str, Any]:
    """A search for report.json, without where it was made.

    Args:
        found: The content of search.json.
        redact: True leaves out the prompts' texts.
    """
    kept = {name: value for name, value in found.items() if name != "run"}
    bundles = texts(kept, "counterexamples")
    kept["counterexamples"] = [f"counterexamples/{PurePath(path).name}" for path in bundles]
    return _without_text(kept) if redact else kept


def _without_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_text(one) for name, one in value.items() if name != "text"}
    return [_without_text(one) for one in value] if isinstance(value, list) else value
