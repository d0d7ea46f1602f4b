"""The journal of a proposer: what a model said cannot be had again, so it is on disk before use.

One line per attempt, appended and synced, each with its own SHA-256. A search that was killed reads
the lines back in the place of asking again, and so goes the way it went.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nafaudit.core.errors import StoreError
from nafaudit.search.instruct.chat import Answer
from nafaudit.store.files import append_line, cut_torn_tail, whole_lines

FILE = "answers.jsonl"


def digest_of(data: Any) -> str:
    """SHA-256 of plain data."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


class Answers:
    """Every attempt of every call, by the call's digest; to be opened by whoever holds the run.

    Args:
        path: The file; it need not exist.

    Raises:
        StoreError: A line is not what was written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._said: dict[str, list[Answer]] = {}
        cut_torn_tail(path)
        for number, line in enumerate(whole_lines(path), start=1):
            call, answer = _read(line, f"{path}:{number}")
            self._said.setdefault(call, []).append(answer)

    def __len__(self) -> int:
        return sum(map(len, self._said.values()))

    def of(self, call: str) -> list[Answer]:
        """What was said to a call so far, attempt by attempt."""
        return list(self._said.get(call, ()))

    def add(self, call: str, answer: Answer) -> None:
        """Writes an attempt down; when this returns it is on disk."""
        entry = {"call": call, **asdict(answer)}
        # Escaped: a model may write halves of surrogate pairs, which no encoder can.
        append_line(self._path, json.dumps(entry | {"sha256": digest_of(entry)}))
        self._said.setdefault(call, []).append(answer)


def _read(line: bytes, where: str) -> tuple[str, Answer]:
    try:
        entry = json.loads(line)
        if entry.pop("sha256") != digest_of(entry):
            raise ValueError("its SHA-256 differs")
        return entry.pop("call"), Answer(**entry)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"{where} is not what was written ({error}): it was damaged or edited. Restore it, or "
            "start a new search with another --out."
        ) from error
