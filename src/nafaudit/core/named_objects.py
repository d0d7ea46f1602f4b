"""Objects that are known by a name while a call lasts.

Settings hold names. A mechanism, a decoder or a model that was given in Python as an object gets a
name, the settings hold that name, and every loader looks here before it looks elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

OBJECT_PREFIX = "object:"
"""Start of the name of an object that no file can make again."""

# Of the calling thread, so that two audits at once do not see each other's objects.
_BY_NAME: ContextVar[Mapping[str, Any]] = ContextVar("objects", default={})  # noqa: B039  constant


@contextmanager
def naming(objects: Mapping[str, Any]) -> Iterator[None]:
    """Makes objects known by their names until the context ends."""
    token = _BY_NAME.set({**_BY_NAME.get(), **objects})
    try:
        yield
    finally:
        _BY_NAME.reset(token)


def object_named(name: object) -> Any | None:
    """Returns the object that has a name; None if there is none."""
    return _BY_NAME.get().get(str(name))
