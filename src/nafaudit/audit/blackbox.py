"""Somebody's decoder at the other end of a pipe: asked with a time limit, believed in nothing.

Whatever it does instead of answering is a `DecoderError` with a name from `core.finding`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nafaudit.core.errors import InputError
from nafaudit.mechanisms.doors import Request

# Loading checkpoints may take minutes; a decoder that never gets ready is not worth more.
START_SECONDS = 600.0
_EXIT_SECONDS = 10.0
_TAIL = 400
# What the usual libraries read their number of threads from.
_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


class DecoderError(Exception):
    """The decoder did something else than answer.

    Attributes:
        name: One of `core.finding.FAULTS`.
    """

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


@dataclass(frozen=True)
class Launch:
    """How to start a worker.

    Attributes:
        command: The program, which speaks the lines of `nafaudit.audit.worker`.
        hello: What it is told first.
        timeout: Seconds that an answer may take.
    """

    command: tuple[str, ...]
    hello: Mapping[str, Any]
    timeout: float


def worker_command(python: str | None = None) -> tuple[str, ...]:
    """The program that builds a decoder of anybody's behind the door."""
    return (python or sys.executable, "-m", "nafaudit.audit.worker")


class Session:
    """A decoder in its own process; started again after it died.

    Use it as a context manager: leaving it ends the process, and only that one.
    """

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.ready: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the session

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        self._errors.close()

    def start(self) -> dict[str, Any]:
        """Starts the process and waits until its decoder is built.

        Raises:
            InputError: It cannot be built; the message says why.
        """
        self._kill()
        try:
            self._process = subprocess.Popen(
                self.launch.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
                env=_environment(self.launch.hello.get("threads", 1)),
            )
        except OSError as error:
            raise InputError(
                f"cannot start {self.launch.command[0]!r}: {error.strerror}. Give the path of a "
                "Python interpreter as --decoder-python."
            ) from error
        self._lines = queue.Queue()
        threading.Thread(
            target=_pump, args=(self._process.stdout, self._lines), daemon=True
        ).start()
        try:
            answer = self._ask(self.launch.hello, START_SECONDS)
        except DecoderError as fault:
            raise InputError(
                f"decoder {self.launch.hello['decoder']!r} could not be started: {fault}"
            ) from fault
        if "ready" not in answer:
            raise InputError(str(answer.get("fault", {}).get("text", "it gave no reason")))
        self.ready = dict(answer["ready"])
        return self.ready

    def ask(self, requests: Sequence[Request]) -> list[Any]:
        """Returns the raw outputs of some requests, one each.

        Raises:
            DecoderError: There are none; the process is started again when it is next asked.
        """
        if self._process is None:
            self.start()
        answer = self._ask({"requests": [asdict(r) for r in requests]}, self.launch.timeout)
        if "fault" in answer:
            raise DecoderError(str(answer["fault"]["name"]), str(answer["fault"]["text"]))
        outputs = answer.get("outputs")
        if not isinstance(outputs, list) or len(outputs) != len(requests):
            got = len(outputs) if isinstance(outputs, list) else "no"
            raise DecoderError("count", f"{got} outputs for {len(requests)} requests")
        return outputs

    def close(self) -> None:
        """Asks the process to end.

        Raises:
            DecoderError: It does not, or not cleanly.
        """
        process = self._process
        if process is None or process.stdin is None:
            return
        with contextlib.suppress(OSError):
            process.stdin.close()
        status = self._end(_EXIT_SECONDS)
        if status is None:
            text = f"it still ran {_EXIT_SECONDS:g} s after it was told to end"
            raise DecoderError("exit", text)
        if status:
            raise DecoderError("exit", f"it ended with {_status(status)}{self._said()}")

    def _ask(self, message: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        process = self._process
        assert process is not None and process.stdin is not None
        self._expect_silence()
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
            line = self._lines.get(timeout=None if math.isinf(seconds) else seconds)
        except OSError:
            line = None
        except queue.Empty:
            self._kill()
            raise DecoderError("hang", f"no answer within {seconds:g} s") from None
        if line is None:
            status = self._end(_EXIT_SECONDS)
            how = "a closed pipe" if status is None else _status(status)
            raise DecoderError("died", f"it ended with {how}{self._said()}")
        try:
            answer = json.loads(line)
            if isinstance(answer, dict):
                return answer
        except ValueError:
            pass
        self._kill()
        raise DecoderError("garbled", f"not a JSON object: {line[:80]!r}")

    def _expect_silence(self) -> None:
        """An answer that nobody asked for would pass for that to the next question."""
        with contextlib.suppress(queue.Empty):
            if (line := self._lines.get_nowait()) is not None:
                self._kill()
                raise DecoderError("garbled", f"a line that nobody asked for: {line[:80]!r}")
            self._lines.put(None)

    def _said(self) -> str:
        """The end of what it wrote to standard error."""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _TAIL))
        text = self._errors.read().decode("utf-8", "replace")
        self._errors.seek(0, os.SEEK_END)
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return f"; its last words: {lines[-1]}" if lines else ""

    def _end(self, seconds: float) -> int | None:
        """Waits for its end; returns its status, or None if it had to be killed."""
        process = self._process
        deadline = time.monotonic() + seconds
        while process is not None and time.monotonic() < deadline:
            # Not waited for yet: its number must stay its own until its group is ended too.
            options = os.WEXITED | os.WNOWAIT | os.WNOHANG
            if os.waitid(os.P_PID, process.pid, options) is not None:
                self._kill()
                return int(process.returncode)
            time.sleep(0.02)
        self._kill()
        return None

    def _kill(self) -> None:
        """Ends the process and whatever it started; it has a process group of its own."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _environment(threads: int) -> dict[str, str]:
    """The environment of a worker: as many threads as our own models have, unless the user said.

    A library of theirs would otherwise take every core, beside ours and other workers.
    """
    if any(name in os.environ for name in _THREADS):
        return dict(os.environ)
    return {name: str(threads) for name in _THREADS} | dict(os.environ)


def _pump(source: Any, lines: queue.Queue[bytes | None]) -> None:
    """Reads lines until there are none, so that waiting for one can have a limit."""
    with contextlib.suppress(ValueError, OSError):
        for line in source:
            lines.put(line)
    lines.put(None)


def _status(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
