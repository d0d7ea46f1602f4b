"""The form of an answer: one schema that is sent with a request and enforced on its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ROW: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "parents": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["text", "parents"],
    "additionalProperties": False,
}
ANSWER: dict[str, Any] = {
    "type": "object",
    "properties": {"candidates": {"type": "array", "items": ROW}},
    "required": ["candidates"],
    "additionalProperties": False,
}

_TYPES = {"object": dict, "array": list, "string": str, "integer": int}


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """True if a value has the form that a schema describes, in the words used above."""
    if not isinstance(value, _TYPES[schema["type"]]) or isinstance(value, bool):
        return False
    if isinstance(value, list):
        return "items" not in schema or all(fits(item, schema["items"]) for item in value)
    if isinstance(value, dict):
        known = schema["properties"]
        return (
            set(schema["required"]) <= set(value) <= set(known)
            and all(fits(value[name], known[name]) for name in value)
        )  # fmt: skip
    return True
