"""What a checkpoint is permitted beyond being numbers; by default, nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nafaudit.core.errors import InputError

_PINNED = re.compile(r"[^\s@]+/[^\s@]+@[0-9a-f]{40}")


@dataclass(frozen=True)
class Trust:
    """What the user answers for.

    Attributes:
        remote_code: Hub repositories whose own modelling code may run, each at one commit:
            `owner/name@` and its 40 hexadecimal digits.
        pickle: True if weights may be read from pickle files where there are no safetensors.
    """

    remote_code: tuple[str, ...] = ()
    pickle: bool = False

    def __post_init__(self) -> None:
        for entry in self.remote_code:
            if not _PINNED.fullmatch(entry):
                raise InputError(
                    f"remote-code must be owner/name@commit with the commit's 40 hexadecimal "
                    f"digits, got {entry!r}. A branch or a tag can change after you read the code."
                )

    def commit_of(self, repository: str) -> str | None:
        """The commit at which a repository's code may run; None if it may not."""
        pinned = dict(entry.rsplit("@", 1) for entry in self.remote_code)
        return pinned.get(repository)


NONE = Trust()
"""Safetensors and the library's own code."""
