"""The processes that are timed against each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).parents[1]


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
            cwd=HERE,
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
    return Worker([python, "-I", str(HERE / "benchmarks" / "peer_side.py")])
