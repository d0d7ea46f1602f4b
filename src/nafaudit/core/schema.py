"""JSON Schemas of results, from the same declarations that `core.text.plain` writes.

A number that is not finite is one of the strings "nan", "inf" and "-inf", so that a schema allows
a number or these strings wherever a result has a float.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

DIALECT = "https://json-schema.org/draft/2020-12/schema"
NUMBER = {
    "description": "A number; JSON has no NaN and no infinity, which are these strings.",
    "anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}],
}
_PLAIN: dict[Any, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"$ref": "#/$defs/number"},
    str: {"type": "string"},
    Path: {"type": "string"},
    type(None): {"type": "null"},
}


def with_members(**kinds: Any) -> tuple[tuple[str, Any], ...]:
    """Returns further members of an object, as `schema_of` reads them from `Annotated`."""
    return tuple(kinds.items())


def schema_of(kind: Any, title: str, *, strict: bool = False) -> dict[str, Any]:
    """Returns the JSON Schema of what `plain` makes of a type.

    Args:
        kind: A dataclass, a TypedDict, or what stands in them. `Annotated[kind,
            with_members(name=type)]` is an object with further members.
        title: What the JSON is.
        strict: Allow no members that are not declared; a later version may add some.
    """
    named: dict[str, Any] = {"number": NUMBER}
    found = _Writer(named, strict).of(kind)
    return {"$schema": DIALECT, "title": title, **found, "$defs": named}


@dataclasses.dataclass(frozen=True)
class _Writer:
    """Writes schemas; that of a type with a name is written once, into `named` (`$defs`)."""

    named: dict[str, Any]
    strict: bool

    def of(self, kind: Any) -> dict[str, Any]:
        if kind in _PLAIN:
            return _PLAIN[kind]
        origin, parts = get_origin(kind), get_args(kind)
        if kind is Any or kind is object:
            return {}
        if origin is Annotated:
            return self._object(*self._members(parts[0]), more=dict(parts[1]))
        if origin in (Required, NotRequired):
            return self.of(parts[0])
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.of(part) for part in parts]}
        if origin is Literal:
            return {"enum": list(parts)}
        if isinstance(kind, type) and issubclass(kind, Enum):
            return {"enum": [str(member) for member in kind]}
        if (
            is_typeddict(kind) or dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")
        ) and isinstance(kind, type):
            if kind.__name__ not in self.named:
                self.named[kind.__name__] = {}  # a member may be of this very type
                self.named[kind.__name__] = self._object(*self._members(kind))
            return {"$ref": f"#/$defs/{kind.__name__}"}
        base = origin or kind
        if isinstance(base, type) and issubclass(base, Mapping):
            value = self.of(parts[1]) if len(parts) == 2 else {}
            return {"type": "object", "additionalProperties": value}
        if base is tuple and parts and parts[-1] is not ...:
            return {
                "type": "array",
                "prefixItems": [self.of(part) for part in parts],
                "items": False,
            }
        plain_list = isinstance(base, type) and issubclass(base, (list, tuple, set, frozenset))
        if plain_list or getattr(base, "__module__", "") == "collections.abc":
            return {"type": "array", "items": self.of(parts[0]) if parts else {}}
        raise TypeError(f"values of type {kind!r} have no JSON Schema.")

    def _members(self, kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
        """Returns the types of an object's members, and the names of those that may be absent.

        The member `*` stands for all others.
        """
        if is_typeddict(kind):
            hints = get_type_hints(kind, include_extras=True)
            return hints, frozenset(kind.__optional_keys__)
        if not dataclasses.is_dataclass(kind):
            return get_type_hints(kind, include_extras=True), frozenset()
        hints = get_type_hints(kind, include_extras=True)
        metadata_by_field = {one.name: one.metadata for one in dataclasses.fields(kind)}
        found: dict[str, Any] = {}
        optional: set[str] = set()
        names = (*metadata_by_field, *getattr(kind, "json_properties", ()))
        for name in getattr(kind, "json_order", names):
            metadata: Mapping[str, Any] = metadata_by_field.get(name, {})
            if name in hints:
                part = hints[name]
            else:
                getter = getattr(kind, name)
                getter = getattr(getter, "fget", None) or getter.func
                part = get_type_hints(getter)["return"]
            key = metadata.get("json", name)
            if key is ... and issubclass(get_origin(part) or part, Mapping):
                found["*"] = get_args(part)[1]
            elif key is ...:
                inner, missing = self._members(part)
                found |= inner
                optional |= missing
            elif key is not None:
                found[key] = part
                if metadata.get("optional") or getattr(kind, "json_partial", False):
                    optional.add(key)
        return found, frozenset(optional)

    def _object(
        self,
        members: Mapping[str, Any],
        optional: frozenset[str],
        more: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        every = {**members, **(more or {})}
        others = every.pop("*", None)
        required = [
            name
            for name, kind in every.items()
            if name not in optional and get_origin(kind) is not NotRequired
        ]
        found = {
            "type": "object",
            "properties": {name: self.of(kind) for name, kind in every.items()},
            "required": required,
        }
        if others is not None:
            return found | {"additionalProperties": self.of(others)}
        return found | ({"additionalProperties": False} if self.strict else {})
