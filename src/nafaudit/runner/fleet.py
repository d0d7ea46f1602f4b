"""A run on Ray: units of work, and the driver that hands them out.

A unit that was handed to a worker that died is handed to another one. An answer is taken only
from the worker that holds the unit, and once, so that nothing is lost or counted twice.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nafaudit import __version__
from nafaudit.core.design import Decoding
from nafaudit.core.errors import InputError, UnavailableError, WorkerError
from nafaudit.core.finding import Fault
from nafaudit.core.numerics import VARIABLE, ConstantRows
from nafaudit.core.passage import ScoredPassage
from nafaudit.core.processes import TRIES, prompt_names
from nafaudit.core.settings import USUAL_BATCH
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.engine.prompts import PromptRequest
from nafaudit.protocols import Mechanism
from nafaudit.runner.cluster import Worker, WorkerAnswer, WorkerInfo, gpus_of
from nafaudit.runner.executors import deaths_remark
from nafaudit.runner.workbench import ProbeResult, WorkbenchSpec
from nafaudit.workload import TokenizedPrompt

# Batches in a unit: its last rows leave slots empty, so that a unit should have several.
_BATCHES = 4
# Units a worker has at least, if there are rows enough: the last ones end at about one time.
_SHARES = 4

Unit = tuple[PromptRequest, ...]


def cut(requests: Sequence[PromptRequest], workers: int, batch: int) -> list[Unit]:
    """Returns units that together ask for every row once, in the order of the requests.

    Args:
        requests: What is wanted.
        workers: How many share it.
        batch: Rows that a worker decodes together.
    """
    rows = sum(len(request.rows) for request in requests)
    size = min(_BATCHES * batch, max(1, rows // (_SHARES * workers)))
    units: list[Unit] = []
    unit: list[PromptRequest] = []
    room = size
    for request in requests:
        left = request.rows
        while left:
            # A prompt is read once a unit, so it is divided only if it fills one by itself.
            taken = left if len(left) <= room else left[: room if len(left) > size else 0]
            if taken:
                unit.append(replace(request, rows=taken))
                left, room = left[len(taken) :], room - len(taken)
            if not taken or not room:
                units.append(tuple(unit))
                unit, room = [], size
    if unit:
        units.append(tuple(unit))
    return units


# Seconds to wait for a first worker at most; for the others, once more what it took.
_PATIENCE = 600.0
_WAIT = 1.0
# Variables that change how checkpoints are found or read, and how products are made.
_VARIABLES = ("HF_HUB_OFFLINE", "HF_HOME", "HF_HUB_CACHE", "TOKENIZERS_PARALLELISM", VARIABLE)


@dataclass(eq=False)
class _Job:
    """A piece of work for any worker: a method, its argument, and the prompts in words."""

    method: str
    argument: Any
    about: str
    tries: int = 0


@dataclass(eq=False)
class _Held:
    """A worker, and what it is doing: starting (no job), a job, or nothing (no answer due)."""

    actor: Any
    due: Any
    job: _Job | None = None
    info: WorkerInfo | None = None


class RayExecutor:
    """Workers of a Ray cluster that decode for a run; an `Executor`.

    Args:
        ray: Ray, connected.
        spec: What each worker loads.
        mechanism: What is audited.
        workers: Number of processes to start.
    """

    def __init__(self, ray: Any, spec: WorkbenchSpec, mechanism: Mechanism, workers: int) -> None:
        self._ray = ray
        # As another process can read it: local checkpoints with their whole path.
        safe, risky = (
            str(Path(path).resolve()) if Path(path).is_dir() else path for path in spec.checkpoints
        )
        batch = spec.settings.batch or USUAL_BATCH
        self._portable = replace(spec, checkpoints=(safe, risky), batch=batch)
        self.spec, self.mechanism = spec, mechanism
        self.decoding: Decoding = spec.settings.decoding
        self._size = workers
        self._workers: list[_Held] = []
        self._first: WorkerInfo | None = None
        self._depends = ""
        # Of the workers that the session's line will name; none until the run begins.
        self._digests: frozenset[str] = frozenset()
        self._early_deaths = 0
        self._remarks: dict[str, None] = {}
        self._deaths = 0
        for _ in range(workers):
            self._start()
        self._wait_ready()
        self._digests = frozenset(one.info.digest for one in self._workers if one.info)

    @property
    def name(self) -> str:
        """The mechanism's own name."""
        return self.mechanism.name

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """Returns the fingerprint of the pair, which is the same for all workers."""
        return self._reference.fingerprint

    @property
    def constant(self) -> ConstantRows | None:
        """Returns the rows of every product, which are the same for all workers."""
        return self._reference.constant

    @property
    def probe(self) -> ProbeResult:
        """Returns what the workers' own probes found, together."""
        infos = [worker.info for worker in self._workers if worker.info]
        batch_free = all(info.batch_free for info in infos)
        facts = self._reference.facts
        found = {
            "probe": {**facts["probe"], "batch_free": batch_free},
            "arithmetic": facts["arithmetic"],
            "ray": {"address": self.spec.settings.ray, "version": self._ray.__version__},
            "workers": [dict(info.facts) for info in infos],
        }
        return ProbeResult(batch_free, found)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Returns what the user should know of the workers."""
        if not self._deaths:
            return tuple(self._remarks)
        return (*self._remarks, deaths_remark(self._deaths))

    @property
    def facts(self) -> Mapping[str, Any]:
        """Returns nothing beyond the design."""
        return {}

    @property
    def vocabulary(self) -> dict[str, Any]:
        """Returns what token ids stand for."""
        return next(dict(table) for _, table in self._spread([_Job("vocabulary", None, "")]))

    def score(self, prompts: Sequence[TokenizedPrompt]) -> list[ScoredPassage]:
        """Returns surprisals of the prompts' references, in their order."""
        size = max(1, len(prompts) // (2 * self._size))
        parts = [prompts[i : i + size] for i in range(0, len(prompts), size)]
        jobs = [_Job("score", part, prompt_names(p.prompt.id for p in part)) for part in parts]
        scored = {passage.id: passage for _, passage in self._spread(jobs)}
        return [scored[p.prompt.id] for p in prompts if p.prompt.id in scored]

    def decode(
        self,
        requests: Sequence[PromptRequest],
        on_fault: Callable[[Fault], None],
        on_step: Callable[[int], None],
    ) -> Iterator[Trajectory]:
        """Yields trajectories as units are answered."""
        jobs = [
            _Job("decode", unit, prompt_names(request.prompt for request in unit))
            for unit in cut(requests, self._size, self._portable.batch)
        ]
        wanted = {
            Key(request.prompt, self.name, row.k, row.trajectory)
            for request in requests
            for row in request.rows
        }
        for _, trajectory in self._spread(jobs):
            wanted.remove(trajectory.key)  # a KeyError here would be a fault of ours
            yield trajectory
        if wanted:
            raise RuntimeError(f"{len(wanted)} trajectories were never answered: {wanted.pop()}")

    def close(self) -> None:
        """Ends the workers; on a cluster that stays, nothing of this run does."""
        for worker in self._workers:
            self._ray.kill(worker.actor)
        self._workers.clear()

    @property
    def _reference(self) -> WorkerInfo:
        assert self._first is not None
        return self._first

    def _start(self) -> None:
        """Starts one worker."""
        settings = self.spec.settings
        variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
        actor = (
            self._ray.remote(Worker)
            .options(
                num_cpus=settings.threads,
                num_gpus=gpus_of(settings.device),
                max_restarts=0,
                scheduling_strategy="SPREAD",
            )
            .remote(self._portable, variables, str(Path.cwd()), socket.gethostname())
        )
        self._workers.append(_Held(actor, actor.start.remote(self._depends)))

    def _wait_ready(self) -> None:
        """Waits for the workers: up to `_PATIENCE` for the first, then a time in proportion."""
        start, limit = time.monotonic(), _PATIENCE
        while any(worker.due is not None for worker in self._workers):
            self._next()
            passed = time.monotonic() - start
            ready = sum(worker.info is not None for worker in self._workers)
            if ready == 1:
                limit = min(limit, 2 * passed + 30)
            if passed > limit and ready:
                self._remark(f"{ready} of {self._size} workers were ready in {passed:.0f} s; "
                             "the run began with these.")  # fmt: skip
                return

    def _spread(self, jobs: Iterable[_Job]) -> Iterator[tuple[_Job, Any]]:
        """Does jobs on free workers; yields what they return, piece by piece."""
        waiting = deque(jobs)
        holding = 0
        while waiting or holding:
            for worker in self._workers:
                if waiting and worker.due is None:
                    worker.job = waiting.popleft()
                    worker.due = getattr(worker.actor, worker.job.method).remote(
                        worker.job.argument
                    )
                    holding += 1
            done = self._next()
            if done is None:
                continue
            job, answer = done
            holding -= 1
            if answer is None:
                waiting.appendleft(job)
                continue
            for piece in answer.content:
                yield job, piece
            if answer.error is not None:
                raise answer.error.exception()

    def _next(self) -> tuple[_Job, WorkerAnswer | None] | None:
        """Waits a moment for any worker; returns a job with its answer, or without if it died."""
        due = {worker.due: worker for worker in self._workers if worker.due is not None}
        started = time.monotonic()
        ready: list[Any] = []
        while not ready:
            ready, _ = self._ray.wait(list(due), num_returns=1, timeout=_WAIT)
            if any(worker.info for worker in self._workers):
                break
            if time.monotonic() - started > _PATIENCE:
                raise UnavailableError(
                    f"no worker was ready within {_PATIENCE:.0f} s. `ray status` says what the "
                    "cluster has free; what was finished is recorded."
                )
        if not ready:
            return None
        worker = due[ready[0]]
        job, worker.due, worker.job = worker.job, None, None
        try:
            answer: WorkerAnswer = self._ray.get(ready[0])
        except self._ray.exceptions.RayTaskError:
            raise  # our own methods always answer, so this is a fault of ours
        except self._ray.exceptions.RayError as error:
            self._on_death(worker, job, error)
            return None if job is None else (job, None)
        if job is not None:
            return job, answer
        self._admit(worker, answer)
        return None

    def _admit(self, worker: _Held, answer: WorkerAnswer) -> None:
        """Admits a worker if it decodes what the run decodes."""
        if answer.error is not None:
            raise answer.error.exception()
        info: WorkerInfo = answer.content[0]
        self._early_deaths = 0
        if not self._agrees(worker, info):
            return
        self._first = first = self._first or info
        where = f"the worker on node {info.node}"
        if info.facts["nafaudit"] != __version__:
            raise InputError(
                f"{where} has nafaudit {info.facts['nafaudit']}, this process has {__version__}; "
                "install the same on every node."
            )
        if info.mechanism != self.name:
            raise InputError(
                f"{where} finds another source of the mechanism ({info.mechanism}) than this "
                f"process ({self.name}); put the same file on every node."
            )
        if keys := [k for k, v in first.fingerprint.items() if info.fingerprint.get(k) != v]:
            raise InputError(
                f"{where} finds another pair than the one on {first.node}; they differ in "
                f"{', '.join(keys)}. Put the same checkpoints on every node."
            )
        if info.digest != first.digest:
            one, other = (f"{h.facts['processor']}, {h.node}" for h in (first, info))
            self._remark(
                f"workers compute different last bits ({one}; {other}): a repeated run may differ "
                "in rare tokens. Use nodes of one kind where bits must repeat."
            )
        worker.info = info

    def _agrees(self, worker: _Held, info: WorkerInfo) -> bool:
        """True if a worker computes with the rows that all others have; asks it to if it can.

        Where one machine must have constant rows, all have them. Once the run has begun, a machine
        that cannot do without them is left out of a run that does, and so is one whose last bits
        are those of no worker that the session names.
        """
        if info.constant and not self._depends:
            if self._digests:
                return self._leave_out(worker, info, info.why)
            self._depends = f"on node {info.node} {info.why}"
            self._first = None
            for other in self._workers:
                if other is not worker and other.info is not None:
                    other.info, other.due = None, other.actor.start.remote(self._depends)
        if self._depends and not info.constant:
            worker.due = worker.actor.start.remote(self._depends)
            return False
        if self._digests and info.digest not in self._digests:
            return self._leave_out(worker, info, "it computes other last bits than this run's")
        if info.constant:
            self._remark(f"{info.why}; so every product has a constant number of rows, slower.")
        return True

    def _leave_out(self, worker: _Held, info: WorkerInfo, why: str) -> bool:
        """Does without a worker that came after the run began, and says why; returns False."""
        self._remark(f"the worker on node {info.node} was left out: {why}.")
        self._workers.remove(worker)
        self._ray.kill(worker.actor)
        if not self._workers:
            raise WorkerError(
                f"no worker is left for this run: {why}. What was finished is recorded."
            )
        return False

    def _on_death(self, worker: _Held, job: _Job | None, error: Exception) -> None:
        """Forgets a dead worker and starts another one, unless that has been done often enough."""
        self._workers.remove(worker)
        # One that cannot be reached may live; it must not be waited for, nor hold a GPU.
        self._ray.kill(worker.actor)
        why = _reason(error)
        if job is None:
            self._early_deaths += 1
            if self._early_deaths >= TRIES:
                raise WorkerError(
                    f"workers end while they load the models ({TRIES} times in a row; the last "
                    f"one: {why}). Each holds the whole pair: lower --workers, or see that every "
                    "node has nafaudit[ray] and enough memory."
                )
        else:
            self._deaths += 1
            job.tries += 1
            if job.tries >= TRIES:
                raise WorkerError(
                    f"{job.about} ended their worker {TRIES} times (the last time: {why}). What "
                    "was finished is recorded. Lower --batch if memory is short; without --ray "
                    "the same command decodes them in this process."
                )
        self._start()

    def _remark(self, text: str) -> None:
        self._remarks[text] = None


def _reason(error: Exception) -> str:
    """Returns Ray's account of a death, in a few words."""
    text = str(error)
    if "failed to import" in text or "ModuleNotFoundError" in text:
        return "it could not import nafaudit"
    if type(error).__name__ == "OutOfMemoryError":
        return "Ray ended it for want of memory"
    if "node" in text.lower() and ("died" in text or "dead" in text):
        return "its node is gone, or it was killed or ran out of memory"
    return "killed, out of memory, or crashed"
