"""The Ray cluster of a run, and the worker that it runs on each node.

A cluster of our own listens on the loopback interface only, asks for a secret, has no dashboard,
reports nothing, keeps its files in one temporary directory, and ends with this process even if
that is killed.

A worker is one process that holds a pair on its own devices. It answers with plain data, errors
included, so that the driver (`nafaudit.runner.fleet`) can report them as a local run would.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nafaudit.core import errors
from nafaudit.core.errors import InputError, UnavailableError, WorkerError
from nafaudit.core.numerics import ConstantRows
from nafaudit.core.processes import RemoteError, usable_cores
from nafaudit.core.settings import RunSettings

if TYPE_CHECKING:
    from nafaudit.engine.prompts import PromptRequest
    from nafaudit.runner.executors import EngineExecutor
    from nafaudit.runner.workbench import WorkbenchSpec
    from nafaudit.workload import TokenizedPrompt

# Trajectories are small; Ray would take a third of the memory for them.
_OBJECT_BYTES = 128 << 20
# Ray's sockets have names of at most 107 bytes, of which it needs about 70.
_LONGEST_DIRECTORY = 30
_ANSWER_SECONDS = 10.0


def gpus_of(device: str) -> int:
    """Returns how many GPUs a worker needs; it sees only those, counted from 0.

    Raises:
        InputError: The device names a GPU that a worker will not see.
    """
    if device == "auto":
        raise InputError(
            "device auto spreads one pair over all GPUs; with --ray each worker has a pair of its "
            "own. Give --device cuda, or leave out --ray."
        )
    named = [part.strip() for part in device.split(",") if part.strip().startswith("cuda")]
    numbers = {int(found[1]) for part in named if (found := re.fullmatch(r"cuda:(\d+)", part))}
    count = len({part.partition(":")[2] or "0" for part in named})
    if numbers and max(numbers) >= count:
        raise InputError(
            f"device {device!r}: with --ray a worker sees only its own GPUs, counted from 0; "
            f"give {','.join(f'cuda:{n}' for n in range(count))}."
        )
    return count


@contextmanager
def connected(settings: RunSettings, rows: int) -> Iterator[tuple[Any, int]]:
    """Connects to a cluster; yields Ray and the number of workers to start there.

    Args:
        settings: Which cluster, and what a worker needs.
        rows: Trajectories that are asked for: more workers than these would idle.

    Raises:
        InputError: Ray is not installed, or the workers do not fit.
        UnavailableError: There is no such cluster.
    """
    gpus = gpus_of(settings.device)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    local = settings.ray == "local"
    if local:
        # Read when Ray is imported: without it every server would listen to the network.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        # Ray's workers would yield to every other process; a run without Ray does not.
        os.environ.setdefault("RAY_worker_niceness", "0")
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
    except ImportError as error:
        if error.name != "ray":
            raise
        raise InputError(
            "--ray needs Ray, which is not installed; install it with "
            "pip install 'nafaudit[ray]', or leave out --ray."
        ) from None
    with _local(ray, settings, gpus) if local else _remote(ray, str(settings.ray)):
        found = ray.cluster_resources()
        fit = int(found.get("CPU", 0)) // settings.threads
        if gpus:
            fit = min(fit, int(found.get("GPU", 0)) // gpus)
        wanted = settings.workers or fit
        if not 1 <= wanted <= fit:
            raise InputError(
                f"{max(wanted, 1)} workers do not fit the cluster: each takes {settings.threads} "
                f"CPUs and {gpus} GPUs, and all nodes together have "
                f"{int(found.get('CPU', 0))} and {int(found.get('GPU', 0))}. Lower --workers."
            )
        yield ray, min(wanted, rows)


@contextmanager
def _local(ray: Any, settings: RunSettings, gpus: int) -> Iterator[None]:
    """Starts a cluster on this machine, and ends it."""
    here = tempfile.gettempdir()
    if len(here) > _LONGEST_DIRECTORY:
        here = "/tmp"
    workers = settings.workers or max(1, usable_cores() // settings.threads)
    directory = tempfile.mkdtemp(prefix="nafaudit-", dir=here)
    try:
        start: dict[str, Any] = {
            "address": "local",
            # As many as were asked for are let in; else GPUs, where they are used, set the number.
            "num_cpus": None if gpus and not settings.workers else workers * settings.threads,
            "num_gpus": None if gpus else 0,
            "include_dashboard": False,
            "object_store_memory": _OBJECT_BYTES,
            "log_to_driver": False,
            "logging_level": "ERROR",
            "_temp_dir": directory,
        }
        try:
            ray.init(**start)
        except RuntimeError:  # a busy machine may be too slow for Ray's own limits
            ray.shutdown()
            try:
                ray.init(**start)
            except RuntimeError as error:
                ray.shutdown()
                raise WorkerError(
                    f"Ray's servers did not start on this machine, twice ({_first_line(error)}). "
                    "Free some memory and cores, or leave out --ray; in a process that imported "
                    "ray before, set RAY_AUTH_MODE=token first."
                ) from error
        try:
            yield
        finally:
            ray.shutdown()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _remote(ray: Any, address: str) -> Iterator[None]:
    """Connects to a cluster that exists already, and leaves it running."""
    try:
        if address != "auto":  # Ray itself would try for minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError, OverflowError) as error:
        raise UnavailableError(
            f"no Ray cluster answers at {address!r} ({_first_line(error)}). This machine must be "
            "one of its nodes, with the same versions of Python and Ray and the cluster's "
            "RAY_AUTH_MODE and token; `ray start --address=HOST:PORT` joins it. For a cluster of "
            "this machine alone give --ray without an address."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


@dataclass(frozen=True)
class WorkerAnswer:
    """Results of a worker, and the error that ended them early, if any."""

    content: list[Any]
    error: RemoteError | None = None


@dataclass(frozen=True)
class WorkerInfo:
    """Facts about a worker.

    Attributes:
        node: Address of its node, and Ray's name of the node.
        facts: Node, process, processor, versions and probe, for the session's line.
        mechanism: The mechanism that it decodes with, and the hash of a plug-in's source.
        fingerprint: Fingerprint of its pair.
        batch_free: True if its records do not depend on their batch.
        digest: Equal for workers that compute the same bits.
        constant: Rows of its products, where their number matters.
        why: Why rows are constant.
    """

    node: str
    facts: Mapping[str, Any]
    mechanism: str
    fingerprint: Mapping[str, Any]
    batch_free: bool
    digest: str
    constant: ConstantRows | None
    why: str


class Worker:
    """A process of the cluster, built by Ray; `start` loads the models.

    Args:
        spec: What to load.
        environment: Variables that the driver has set and that change what is loaded.
        directory: Where the driver runs: plug-ins are found from there.
        host: The driver's machine; on another one, errors say so.
    """

    def __init__(
        self, spec: WorkbenchSpec, environment: Mapping[str, str], directory: str, host: str
    ) -> None:
        os.environ.update(environment)
        with contextlib.suppress(OSError):  # another machine need not have it
            os.chdir(directory)
        self._spec, self._host = spec, host
        self._executor: EngineExecutor | None = None

    def start(self, depends: str = "") -> WorkerAnswer:
        """Loads the pair and probes the machine; answers with its `WorkerInfo`.

        Args:
            depends: Why rows must be constant, if another worker found that they must.
        """
        answer, here = _answer(lambda: [self._load(depends)]), socket.gethostname()
        if answer.error is None or here == self._host:
            return answer
        error = RemoteError(answer.error.kind, f"the worker on {here}: {answer.error.text}")
        return WorkerAnswer([], error)

    def vocabulary(self, _: object) -> WorkerAnswer:
        """Answers with what token ids stand for."""
        return _answer(lambda: [self._loaded.vocabulary])

    def score(self, prompts: Sequence[TokenizedPrompt]) -> WorkerAnswer:
        """Answers with surprisals of the prompts' references."""
        return _answer(lambda: self._loaded.score(prompts))

    def decode(self, requests: Sequence[PromptRequest]) -> WorkerAnswer:
        """Decodes a unit of work; what ended before an error is in the answer."""
        return _answer(lambda: self._loaded.decode(requests))

    @property
    def _loaded(self) -> EngineExecutor:
        assert self._executor is not None, "start comes first"
        return self._executor

    def _load(self, depends: str) -> WorkerInfo:
        for path in self._spec.checkpoints:
            if Path(path).is_absolute() and not Path(path).is_dir():
                raise errors.InputError(
                    f"there is no {path}. Put the checkpoint where every node finds it under this "
                    "path (a shared disk, or a copy), or give a hub id."
                )
        from nafaudit.runner.executors import EngineExecutor
        from nafaudit.runner.recording import machine_facts
        from nafaudit.runner.workbench import Workbench

        pair = self._executor.pair if self._executor else None
        workbench = Workbench.load(self._spec, depends=depends, pair=pair)
        executor = self._executor = EngineExecutor(workbench)
        probe = executor.probe
        import ray

        node = ray.get_runtime_context().get_node_id()
        place = f"{ray.util.get_node_ip_address()} ({node[:8]})"
        where = {"node": place, "host": socket.gethostname(), "pid": os.getpid()}
        return WorkerInfo(
            place,
            where | machine_facts() | probe.facts,
            executor.name,
            executor.fingerprint,
            probe.batch_free,
            probe.digest,
            executor.constant,
            workbench.settled.numerics.why,
        )


def _answer(work: Callable[[], Iterable[Any]]) -> WorkerAnswer:
    """Does the work; an exception becomes data, because Ray would wrap it in its own words."""
    content: list[Any] = []
    try:
        for item in work():
            content.append(item)
    except (Exception, SystemExit) as error:
        return WorkerAnswer(content, RemoteError.of(error))
    return WorkerAnswer(content)
