"""Errors that a user can cause or meet, each with its exit status."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable


class NafauditError(Exception):
    """Base of every error raised on purpose; `exit_status` is what the command line returns."""

    exit_status = 70


class InputError(NafauditError, ValueError):
    """Bad usage or bad input: the message says what was given, what is allowed, what to do."""

    exit_status = 2


class UnavailableError(InputError):
    """A checkpoint or device that is not here; what was asked may be right elsewhere."""


class StoreError(NafauditError):
    """The run directory cannot be read or written as it must be; nothing recorded is lost."""

    exit_status = 2


class LawError(NafauditError, ValueError):
    """A model or a mechanism returned something that is not a probability law, or crashed."""

    exit_status = 2


class WorkerError(NafauditError):
    """The processes that decode keep ending before they answer; what was finished is recorded."""

    exit_status = 2


def nearest(name: str, known: Iterable[str]) -> str:
    """Ends a sentence on an unknown name: with the closest known one, or with a full stop."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else "."


def reject_unknown(given: Iterable[str], known: Collection[str], where: str = "") -> None:
    """Raises for a name that is not known, with the nearest that is.

    Args:
        given: Names.
        known: Those that are allowed.
        where: The file that they come from; empty if they were given in Python.
    """
    for key in given:
        if key not in known:
            what = f"{where}: unknown key" if where else "unknown option"
            raise InputError(
                f"{what} {key!r}{nearest(key, known)} Allowed: {', '.join(sorted(known))}."
            )
