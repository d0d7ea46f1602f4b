"""The processes that are timed against each other, and how their times become ratios."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Self

_HERE = Path(__file__).parent


class Worker:
    """A side in a process of its own."""

    def __init__(self, command: list[str]) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            cwd=_HERE.parent,
        )

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """One request, one answer.

        Raises:
            RuntimeError: The other side failed, or ended.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(json.dumps({"do": do} | request) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


def own() -> Worker:
    """Our engine, and the limit."""
    return Worker([sys.executable, "-m", "benchmarks.own_side"])


def peer(python: str | None) -> Worker | None:
    """The published decoder in its own environment; None without one."""
    if python is None:
        return None
    # Isolated: nothing of ours may shadow what it imports.
    return Worker([python, "-I", str(_HERE / "peer_side.py")])


class Ratio(NamedTuple):
    """How many times more one side costs than another."""

    middle: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.middle:.2f} ({self.least:.2f}-{self.most:.2f})"


def ratio(costs: list[float], base: list[float]) -> Ratio:
    """Ratio of medians, with the range over the rounds."""
    each = [a / b for a, b in zip(costs, base, strict=True)]
    return Ratio(median(costs) / median(base), min(each), max(each))
