"""Black boxes: a user's decoder in a process of its own, and the published one.

A decoder is asked with a time limit, and none of its answers is trusted. What it does instead of
answering is a `DecoderError` with a name from `core.finding`. The published decoder of the
mechanism's authors (`--decoder anchoreddecode`) needs a Transformers of its own, so it runs in its
own environment, through a program that imports nothing of ours (`official_worker.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from nafaudit.core.draws import request_seed
from nafaudit.core.errors import InputError, nearest
from nafaudit.core.finding import Fault
from nafaudit.core.named_objects import OBJECT_PREFIX, object_named
from nafaudit.core.settings import USUAL_BATCH, RunSettings
from nafaudit.core.trajectory import Key, Trajectory, budget_text
from nafaudit.engine.prompts import PromptRequest
from nafaudit.mechanisms.cards import parse
from nafaudit.models.pair import Pair
from nafaudit.protocols import Request
from nafaudit.runner.outputs import read_output

# Loading checkpoints may take minutes; a decoder that is not ready by then is given up.
START_SECONDS = 600.0
_EXIT_SECONDS = 10.0
_TAIL = 400
# Variables from which the usual libraries read their number of threads.
_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


class DecoderError(Exception):
    """An error of a decoder that did something else than answer.

    Attributes:
        name: One of `core.finding.FAULTS`.
    """

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


@dataclass(frozen=True)
class Launch:
    """The start of a worker: its program, its first line, its time limit.

    Attributes:
        command: The program, which speaks the lines of `nafaudit.runner.worker`.
        hello: The first line that it gets, which says what to build.
        timeout: Seconds that an answer may take.
    """

    command: tuple[str, ...]
    hello: Mapping[str, Any]
    timeout: float


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
                # As many threads as our own models have, unless the user set them: a library
                # would otherwise take every core, beside ours and other workers.
                env=(
                    dict(os.environ)
                    if any(name in os.environ for name in _THREADS)
                    else dict.fromkeys(_THREADS, str(self.launch.hello.get("threads", 1)))
                    | dict(os.environ)
                ),
            )
        except OSError as error:
            raise InputError(
                f"cannot start {self.launch.command[0]!r}: {error.strerror}. Give the path of a "
                "Python interpreter as --decoder-python."
            ) from error
        self._lines = queue.Queue()
        source, lines = self._process.stdout, self._lines
        assert source is not None

        def pump() -> None:
            """Reads lines until there are none, so that waiting for one can have a limit."""
            with contextlib.suppress(ValueError, OSError):
                for line in source:
                    lines.put(line)
            lines.put(None)

        threading.Thread(target=pump, daemon=True).start()
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
        return self._outputs(answer, len(requests))

    @staticmethod
    def _outputs(answer: Mapping[str, Any], count: int) -> list[Any]:
        """Returns the outputs of an answer, if it has one per request."""
        if "fault" in answer:
            raise DecoderError(str(answer["fault"]["name"]), str(answer["fault"]["text"]))
        outputs = answer.get("outputs")
        if not isinstance(outputs, list) or len(outputs) != count:
            got = len(outputs) if isinstance(outputs, list) else "no"
            raise DecoderError("count", f"{got} outputs for {count} requests")
        return outputs

    def close(self) -> None:
        """Asks the process to end.

        Raises:
            DecoderError: It does not end, or not cleanly.
        """
        process = self._process
        if process is None or process.stdin is None:
            return
        with contextlib.suppress(OSError):
            process.stdin.close()
        status = self._end(_EXIT_SECONDS)
        if status is None:
            text = f"it still ran {_EXIT_SECONDS:g} s after its input was closed"
            raise DecoderError("exit", text)
        if status:
            raise DecoderError("exit", f"it ended with {_status(status)}{self._last_error_line()}")

    def _ask(self, message: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        process = self._process
        assert process is not None and process.stdin is not None
        with contextlib.suppress(queue.Empty):
            # A line that came unasked would pass for the answer to the next question.
            if (line := self._lines.get_nowait()) is not None:
                self._kill()
                raise DecoderError("garbled", f"a line without a request: {line[:80]!r}")
            self._lines.put(None)
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
            raise DecoderError("died", f"it ended with {how}{self._last_error_line()}")
        try:
            answer = json.loads(line)
            if isinstance(answer, dict):
                return answer
        except ValueError:
            pass
        self._kill()
        raise DecoderError("garbled", f"not a JSON object: {line[:80]!r}")

    def _last_error_line(self) -> str:
        """Returns the last line that it wrote to standard error, as part of a sentence."""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _TAIL))
        text = self._errors.read().decode("utf-8", "replace")
        self._errors.seek(0, os.SEEK_END)
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return f"; its last error line: {lines[-1]}" if lines else ""

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
        """Ends the process and all that it started; it has a process group of its own."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:  # Windows, where what it started is not ended with it
                process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class HereSession(Session):
    """A decoder in this process, as its class or its models are known nowhere else."""

    def start(self) -> dict[str, Any]:
        """Builds the decoder.

        Raises:
            InputError: It cannot be built; the message says why.
        """
        from nafaudit.mechanisms.plugins import source_hash
        from nafaudit.runner.worker import built, declared_type

        kind, plugin, self._decoder = built(dict(self.launch.hello))
        dtype = declared_type(self._decoder)
        self.ready = {"source": source_hash(plugin), "kind": kind, "dtype": dtype}
        return self.ready

    def ask(self, requests: Sequence[Request]) -> list[Any]:
        """Returns the raw outputs of some requests, one each, as JSON would carry them.

        Raises:
            DecoderError: There are none.
        """
        from nafaudit.runner.worker import answer

        said = json.loads(json.dumps(answer(self._decoder, [asdict(r) for r in requests])))
        return self._outputs(said, len(requests))

    def close(self) -> None:
        """Does nothing: there is no process to end."""


def session_of(launch: Launch) -> Session:
    """Returns a decoder's session: a process of its own, unless it is known only in this one."""
    hello = launch.hello
    here = object_named(hello["decoder"]) is not None
    here = here or any(str(path).startswith(OBJECT_PREFIX) for path in hello["checkpoints"])
    return HereSession(launch) if here else Session(launch)


def _status(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"


OFFICIAL = "anchoreddecode"
HOW_TO_BUILD = (
    "python3 -m venv official && official/bin/pip install "
    "'anchoreddecode==0.1.0' 'transformers==4.57.6' 'torch==2.13.0'"
)


def command_of(settings: RunSettings, *, rules: bool = False) -> tuple[str, ...]:
    """Returns the program that answers for the decoder that the settings name; starts nothing.

    Args:
        settings: Which decoder, and which interpreter runs it.
        rules: True if a step-level rule will do, ours or a plug-in's.

    Raises:
        InputError: There is no such decoder, or no interpreter that has it.
    """
    spec, python = settings.decoder or "", settings.decoder_python
    if parse(spec) is not None and not rules:
        raise InputError(
            f"{spec} is a mechanism of our own engine, not a decoder; use --mechanism {spec}."
        )
    if spec == OFFICIAL:
        if python is None or shutil.which(python) is None:
            what = "no --decoder-python was given" if python is None else f"there is no {python!r}"
            raise InputError(
                f"decoder {OFFICIAL} needs Transformers 4.57, so it runs in an environment of its "
                f"own, and {what}. Build one:\n  {HOW_TO_BUILD}\nand name its interpreter: "
                "--decoder-python official/bin/python"
            )
        # Isolated: neither our modules nor the user's directory may shadow what it imports.
        return (python, "-I", str(Path(__file__).with_name("official_worker.py")))
    if ":" in spec or (rules and parse(spec) is not None):
        return (python or sys.executable, "-m", "nafaudit.runner.worker")
    raise InputError(
        f"unknown decoder {spec!r}{nearest(spec, [OFFICIAL])} Known: {OFFICIAL}; your own is "
        "package.module:Class or file.py:Class."
    )


def launch_of(
    settings: RunSettings,
    pair: Pair,
    checkpoints: tuple[str, str],
    width: int,
    *,
    rules: bool = False,
) -> Launch:
    """Returns how to start the decoder that the settings name.

    Args:
        settings: Which decoder.
        pair: The models.
        checkpoints: Where they are.
        width: Positions per row.
        rules: True if a step-level rule will do, ours or a plug-in's.
    """
    hello = {
        "rules": rules,
        "decoder": settings.decoder,
        "checkpoints": list(checkpoints),
        "dtype": settings.dtype,
        "device": settings.device,
        "remote_code": list(settings.remote_code),
        "pickle": settings.allow_pickle_weights,
        "threads": settings.threads,
        "decoding": asdict(settings.decoding),
        "debt": asdict(settings.debt_rule),
        "size": len(pair.vocabulary),
        "stops": sorted(pair.vocabulary.stops),
        "special": sorted(pair.vocabulary.special),
        "width": width,
        "batch": settings.batch or USUAL_BATCH,
    }
    return Launch(command_of(settings, rules=rules), hello, settings.decoder_timeout)


# A decoder that hangs or crashes this many times is not asked again.
MOST_FAILURES = 3


class _Asked(NamedTuple):
    """One row for a black box: its place in the order of requests, its key, the request."""

    place: bytes
    key: Key
    request: Request


class BlackBoxDecoder:
    """A black box, asked in batches.

    Args:
        session: Its process.
        name: Name under which its records are kept.
        max_new_tokens: Length limit.
        batch: Outputs that are asked for together.
    """

    def __init__(self, session: Session, name: str, max_new_tokens: int, batch: int) -> None:
        self.session, self.name = session, name
        self._most, self._batch = max_new_tokens, batch
        hello = session.launch.hello
        self._size, self._stops = hello["size"], frozenset(hello["stops"])
        self._broken = 0

    def decode(
        self, requests: Iterable[PromptRequest], on_fault: Callable[[Fault], None]
    ) -> Iterator[Trajectory]:
        """Yields what could be recorded, in an order that mixes prompts, budgets and numbers.

        A row's place in that order follows from its draws and its key, whatever else is asked for.

        Args:
            requests: What is wanted.
            on_fault: Called with every fault as it is seen.
        """
        rows = []
        for prompt in requests:
            for row in prompt.rows:
                parts = [row.stream.key, prompt.prompt, budget_text(row.k), row.trajectory]
                place = hashlib.sha256(json.dumps(parts).encode("ascii")).digest()
                seed = request_seed(row.stream, budget_text(row.k))
                request = Request(prompt.tokens, row.k, seed, self._most)
                key = Key(prompt.prompt, self.name, row.k, row.trajectory)
                rows.append(_Asked(place, key, request))
        ordered = iter(sorted(rows, key=lambda one: one.place))
        while batch := list(islice(ordered, self._batch)):
            yield from self._ask(batch, on_fault)
        if self._broken >= MOST_FAILURES:
            on_fault(Fault("given-up", f"after {MOST_FAILURES} hangs or crashes"))
            return
        try:
            self.session.close()
        except DecoderError as fault:
            on_fault(Fault(fault.name, str(fault)))

    def _ask(self, batch: Sequence[_Asked], on_fault: Callable[[Fault], None]) -> list[Trajectory]:
        """Asks for a batch; if that fails, for its rows one by one, up to `MOST_FAILURES`.

        One by one shows which request of a batch is to blame.
        """
        if self._broken >= MOST_FAILURES:
            for one in batch:
                on_fault(Fault("given-up", "not asked for", one.key, lost=True))
            return []
        found: list[Trajectory] = []
        try:
            outputs = self.session.ask([one.request for one in batch])
        except DecoderError as error:
            fault = error
            self._broken += fault.name in ("hang", "died", "garbled")
        except InputError as error:  # it died, and cannot be started again
            fault = DecoderError("died", str(error))
            self._broken = MOST_FAILURES
        else:
            for one, raw in zip(batch, outputs, strict=True):
                read = read_output(raw, one.key, one.request, self._size, self._stops)
                for flaw in read.faults:
                    on_fault(flaw)
                if read.trajectory is not None:
                    found.append(read.trajectory)
            return found
        if len(batch) == 1 or self._broken >= MOST_FAILURES:
            for one in batch:
                on_fault(Fault(fault.name, str(fault), one.key, lost=True))
            return []
        alone: list[Fault] = []
        for one in batch:
            found += self._ask([one], alone.append)
        for flaw in alone:
            on_fault(flaw)
        if not any(flaw.lost for flaw in alone):
            on_fault(Fault(fault.name, f"in a batch of {len(batch)}, never alone: {fault}"))
        return found
