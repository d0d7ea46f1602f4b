"""A recorder that can be stopped, and so killed, at every single step of writing a run.

`main` is for a child. Without a moment it records all of its work and prints the moments it went
through, in order. With one, it stops itself (SIGSTOP) there, holding whatever it holds; the parent
then kills it. `record` is "the same command": it plans what is not yet recorded and records it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from nafaudit.core.design import Decoding, Design, Extent, Identity
from nafaudit.core.errors import NafauditError
from nafaudit.core.trajectory import Key, Shown, Trajectory
from nafaudit.store.run import open_for_writing
from nafaudit.workload import Prompt, TokenizedPrompt
from tests.records import trajectory

IDS = tuple(f"p{i}" for i in range(6))
BUDGETS = (1.0, 3.0)
PROMPTS = [TokenizedPrompt(Prompt(name, f"text of {name}"), (0, 5)) for name in IDS]
VOCABULARY = {"tokens": ["a", "b"], "stops": [1]}
DESIGN = Design(
    Identity({"safe": "a"}, "anchored", "banking", Decoding(), "hash", 256, 0),
    Extent(BUDGETS, 1, IDS),
)
PART = 3
SHOWING = 2


def work() -> list[Trajectory]:
    """All that the design asks for; a pure function, like decoding. The last ones show laws."""
    rng = random.Random(4)
    found = [
        trajectory(
            Key(name, "anchored", k, 0),
            [rng.random() * k for _ in range(rng.randrange(1, 9))],
            debt=rng.random(),
            stopped=rng.random() < 0.5,
        )
        for name in IDS
        for k in BUDGETS
    ]
    return [*found[:-SHOWING], *(replace(one, shown=shown(one)) for one in found[-SHOWING:])]


def shown(record: Trajectory) -> Shown:
    """What a record shows: a law of two tokens for each step."""
    shares = np.linspace(0.1, 0.9, len(record))
    return Shown(np.log(np.stack([shares, 1 - shares], axis=1)).astype(np.float32), "arithmetic")


def record(path: Path) -> None:
    """Records what is asked for and not yet recorded."""
    with open_for_writing(path, DESIGN, PROMPTS, VOCABULARY) as writer:
        writer.note_session({"nafaudit": "test"})
        recorded = writer.run.keys()
        missing = [one for one in work() if one.key not in recorded]
        for start in range(0, len(missing), PART):
            writer.append(missing[start : start + PART])


class _Stream:
    """A file whose writes come in two halves, with a moment in between."""

    def __init__(self, stream: Any, name: str, reach: Callable[[str], None]) -> None:
        self._stream, self._name, self._reach = stream, name, reach

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *details: object) -> None:
        self._stream.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, content: bytes) -> int:
        self._reach(f"{self._name} opened")
        half = len(content) // 2
        self._stream.write(content[:half])
        self._stream.flush()
        self._reach(f"{self._name} half written")
        self._stream.write(content[half:])
        self._stream.flush()
        self._reach(f"{self._name} written")
        return len(content)


def watch(reach: Callable[[str], None]) -> None:
    """Calls `reach` at every moment of writing, from now on."""
    real_open, real_mkdir = Path.open, Path.mkdir
    real_sync, real_truncate = os.fsync, os.truncate

    def opened(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        stream = real_open(self, mode, *args, **kwargs)
        return _Stream(stream, _name(self), reach) if mode in ("wb", "ab") else stream

    def renaming(real: Callable[[Path, Path], Path]) -> Callable[[Path, Path], Path]:
        def renamed(self: Path, target: Path) -> Path:
            moved = real(self, target)
            reach(f"{_name(target)} renamed")
            return moved

        return renamed

    def made(self: Path, *args: Any, **kwargs: Any) -> None:
        real_mkdir(self, *args, **kwargs)
        reach("directory made")

    def synced(handle: int) -> None:
        real_sync(handle)
        reach(f"{_name(Path(f'/proc/self/fd/{handle}').readlink())} synced")

    def truncated(path: Path, length: int) -> None:
        real_truncate(path, length)
        reach(f"{_name(path)} cut back")

    for place, name, hook in (
        (Path, "open", opened),
        (Path, "rename", renaming(Path.rename)),
        (Path, "replace", renaming(Path.replace)),
        (Path, "mkdir", made),
        (os, "fsync", synced),
        (os, "truncate", truncated),
    ):
        mock.patch.object(place, name, hook).start()


def _name(path: Path) -> str:
    """What a file is to the store, whatever its number or temporary name."""
    if path.is_dir():
        return "directory"
    name = path.name.lstrip(".")
    return "part" if ".parquet" in name else ".".join(name.split(".")[:2])


def main(path: Path, stop_at: int | None = None) -> None:
    """Records, and stops at the given moment."""
    passed: list[str] = []

    def reach(moment: str) -> None:
        passed.append(moment)
        if len(passed) - 1 == stop_at:
            os.kill(os.getpid(), signal.SIGSTOP)

    watch(reach)
    try:
        record(path)
    except NafauditError as error:
        sys.stderr.write(str(error))
        sys.exit(error.exit_status)
    sys.stdout.write(json.dumps(passed))
