"""Objects under a name, while a call lasts: what was given in Python instead of by its name.

Settings hold names. A mechanism, a decoder or a model that is given as an object is lent under the
name that the settings then have, and every loader asks here before it looks elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

OBJECT = "object:"
"""Start of the name of an object that no file can make again."""

# Of the calling thread, so that two audits at once do not see each other's objects.
_LENT: ContextVar[Mapping[str, Any]] = ContextVar("lent", default={})  # noqa: B039  never changed


@contextmanager
def lend(things: Mapping[str, Any]) -> Iterator[None]:
    """Makes objects known under their names until the context ends."""
    token = _LENT.set({**_LENT.get(), **things})
    try:
        yield
    finally:
        _LENT.reset(token)


def lent(name: object) -> Any | None:
    """Returns the object that was given under a name; None if there is none."""
    return _LENT.get().get(str(name))
