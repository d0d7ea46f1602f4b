"""Runs an audit: a workload, decoded under every budget and both baselines, and recorded.

settings -> prompts -> executor -> what is missing -> records: this file is that line, in order.

A run may also grow: a search or an attack asks for prompts that follow from its own records. Both
kinds decode what is asked for and not yet recorded, so the same command resumes after a kill.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from nafaudit.core.design import Design, Extent, Identity
from nafaudit.core.draws import row_stream
from nafaudit.core.finding import MIN_TRAJECTORIES
from nafaudit.core.ledger import is_baseline
from nafaudit.core.progress import OnProgress
from nafaudit.core.promise import judged_by
from nafaudit.core.settings import RunSettings, VerifySettings
from nafaudit.core.text import counted
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.engine.prompts import PromptRequest, RowRequest
from nafaudit.measures.context import RunContext
from nafaudit.runner.blackbox import command_of, launch_of, session_of
from nafaudit.runner.cluster import connected
from nafaudit.runner.executors import BlackBoxExecutor, EngineExecutor, Executor, identity_of
from nafaudit.runner.fleet import RayExecutor
from nafaudit.runner.pairs import SOUND, AuditProtocol
from nafaudit.runner.recording import (
    Reporter,
    record_parts,
    record_passages,
    session_facts,
)
from nafaudit.runner.workbench import RunInputs, Workbench, load_recorded, read_inputs
from nafaudit.store.artifacts import Verification, save_verification
from nafaudit.store.run import Made, Run, RunWriter, open_for_writing
from nafaudit.workload import PromptSource, TokenizedPrompt, protected_prompts, workload_hash
from nafaudit.workload.prompts import batch_leaders

Prompts = Mapping[str, TokenizedPrompt]


def requests_left(
    identity: Identity,
    extent: Extent,
    prompts: Prompts,
    recorded: set[Key],
    leaders: Mapping[str, str] | None = None,
) -> list[PromptRequest]:
    """Returns what an extent asks for and is not yet recorded, prompt by prompt.

    Args:
        identity: Identity of the run; it decides the draws.
        extent: What is asked for.
        prompts: The extent's prompts, by id.
        recorded: What the run has.
        leaders: Prompts whose draws others share, by the id of these; none if None.
    """
    requests = []
    for name in extent.prompts:
        rows = []
        leader = (leaders or {}).get(name, name)
        for index in extent.numbers or range(extent.trajectories):
            stream = row_stream(identity.protocol, identity.seed, identity.purpose, leader, index)
            rows += [
                RowRequest(k, index, stream)
                for k in extent.budgets
                if Key(name, identity.mechanism, k, index) not in recorded
            ]
        requests.append(PromptRequest(name, prompts[name].tokens, tuple(rows)))
    return requests


class OpenRun:
    """A run directory that is open for writing; made by `run_for_writing`."""

    def __init__(self, writer: RunWriter, identity: Identity, executor: Executor) -> None:
        self._writer, self._executor = writer, executor
        self._recorded = writer.run.keys()
        self.identity = identity
        # Of the whole workload, so that a limit changes no draw.
        self._leaders = batch_leaders(writer.run.prompts()) if identity.coupled else {}

    @property
    def run(self) -> Run:
        """Returns the run for reading."""
        return self._writer.run

    def requests_left(self, extents: Sequence[Extent], prompts: Prompts) -> list[PromptRequest]:
        """Returns what some extents ask for and is not yet recorded."""
        return [
            request
            for extent in extents
            for request in requests_left(
                self.identity, extent, prompts, self._recorded, self._leaders
            )
        ]

    def decode(
        self,
        requests: Sequence[PromptRequest],
        on_trajectory: Callable[[Trajectory], None],
        on_step: Callable[[int], None] = lambda rows: None,
    ) -> None:
        """Decodes requests; when it returns, all are on disk.

        Args:
            requests: What is wanted.
            on_trajectory: Called as trajectories end.
            on_step: Called after each step with the number of rows that have written a token.
        """

        def recorded(trajectory: Trajectory) -> None:
            self._recorded.add(trajectory.key)
            on_trajectory(trajectory)

        decoded = self._executor.decode(requests, self._writer.note_fault, on_step)
        record_parts(map(self._writer.keep_shown, decoded), self._writer, recorded)

    def fill(
        self,
        extents: Sequence[Extent],
        prompts: Prompts,
        on_trajectory: Callable[[Trajectory], None],
    ) -> None:
        """Adds extents to the design and decodes what is missing of them.

        Args:
            extents: What is wanted.
            prompts: Their prompts, by id.
            on_trajectory: Called as trajectories end.
        """
        for extent in extents:
            self._writer.widen(extent, [prompts[name] for name in extent.prompts])
        requests = self.requests_left(extents, prompts)
        if any(request.rows for request in requests):
            self.decode(requests, on_trajectory)


@contextmanager
def run_for_writing(
    executor: Executor,
    path: Path,
    design: Design,
    prompts: Sequence[TokenizedPrompt],
    sources: Mapping[str, PromptSource] | None = None,
) -> Iterator[OpenRun]:
    """Creates a run directory, or resumes it.

    Args:
        executor: What decodes.
        path: The directory.
        design: What decides its records, and what is wanted first.
        prompts: All prompts that are known at the start.
        sources: What each prompt was made of, by its id.
    """
    spec, probe = executor.spec, executor.probe
    made = Made(probe.digest, spec.settings.mixed)
    with open_for_writing(path, design, prompts, executor.vocabulary, sources, made) as writer:
        facts = session_facts(spec.settings, spec.checkpoints, spec.shape["batch"])
        writer.note_session(facts | probe.facts | dict(executor.facts))
        yield OpenRun(writer, design.identity, executor)


@dataclass(frozen=True)
class RunResult:
    """A finished run.

    Attributes:
        run: Its directory.
        batch_free: True if records do not depend on their batch.
        remarks: What else was noticed of the machines; empty texts count for nothing.
    """

    run: Run
    batch_free: bool
    remarks: tuple[str, ...] = ()


def run(
    settings: RunSettings,
    on_progress: OnProgress = lambda progress: None,
    protocol: AuditProtocol = SOUND,
    on_remark: Callable[[str], None] = lambda text: None,
) -> RunResult:
    """Runs, or resumes, the audit that the settings describe.

    Args:
        settings: What to run; checked before any model loads.
        on_progress: Called as trajectories are recorded.
        protocol: What the settings' protocol has of its own.
        on_remark: Called before anything is decoded with what a user may want to change first.
    """
    if settings.decoder is not None:
        command_of(settings)  # a wrong name is refused before a model loads
    inputs = read_inputs(settings, protocol)
    with ExitStack() as stack:
        executor = _executor(inputs, stack)
        batch_free = executor.probe.batch_free
        identity = identity_of(executor, workload_hash(inputs.tokenized))
        prompts = {item.prompt.id: item for item in inputs.chosen}
        extent = Extent(settings.budgets, settings.trajectories, tuple(prompts))
        path = Path(settings.out) if settings.out else Path("runs") / f"run-{identity.hash[:10]}"
        with run_for_writing(
            executor, path, Design(identity, extent), inputs.tokenized, inputs.workload.sources
        ) as opened:
            protected = protected_prompts(inputs.chosen)
            record_passages(path, executor.score, settings.decoding, protected)
            if remark := _too_few(opened.run, settings, prompts):
                on_remark(remark)
            requests = opened.requests_left([extent], prompts)
            resumed = extent.size - sum(len(request.rows) for request in requests)
            context = RunContext(inputs.mechanism.ledger)
            reporter = Reporter(on_progress, context, resumed, extent.size, settings.max_new_tokens)
            opened.decode(requests, reporter.on_trajectory, reporter.on_step)
        if settings.decoder is not None:
            _verify(opened.run, settings, inputs.spec.checkpoints)
        return RunResult(opened.run, batch_free, (opened.run.mixed, *executor.remarks))


def _too_few(run: Run, settings: RunSettings, prompts: Prompts) -> str:
    """Says that a budget will have too few trajectories for a verdict; empty if it will not."""
    count, each = len(prompts), settings.trajectories
    budgets = [k for k in settings.budgets if not is_baseline(k)]
    # A run that is continued has others already.
    recorded = run.keys()
    beside = Counter(k for prompt, _, k, n in recorded if prompt not in prompts or n >= each)
    if not budgets or count * each + min(beside[k] for k in budgets) >= MIN_TRAJECTORIES:
        return ""
    return (
        f"a verdict needs {MIN_TRAJECTORIES} trajectories of a budget; {counted(count, 'prompt')} "
        f"with {each} each are {count * each}, so that WITHIN cannot come of it. Stop, and add "
        f"--trajectories {math.ceil(MIN_TRAJECTORIES / count)}, or give more prompts."
    )


def _executor(inputs: RunInputs, stack: ExitStack) -> Executor:
    """Starts what decodes a run: workers of a cluster, a black box, or our own engine."""
    spec = inputs.spec
    settings = spec.settings
    if settings.ray is not None:
        rows = len(inputs.chosen) * len(settings.budgets) * settings.trajectories
        ray, workers = stack.enter_context(connected(settings, rows))
        executor = RayExecutor(ray, spec, inputs.mechanism, workers)
        return stack.enter_context(closing(executor))
    workbench = Workbench.load(spec, inputs.mechanism)
    if settings.decoder is None:
        return EngineExecutor(workbench)
    launch = launch_of(settings, workbench.pair, spec.checkpoints, spec.width)
    return BlackBoxExecutor(workbench, stack.enter_context(session_of(launch)))


def _verify(run: Run, settings: RunSettings, checkpoints: tuple[str, str]) -> None:
    """Recomputes everything that a black box claims: the verdicts rest on that."""
    safe, risky = checkpoints
    options = VerifySettings(
        safe=safe,
        risky=risky,
        device=settings.device,
        remote_code=settings.remote_code,
        allow_pickle_weights=settings.allow_pickle_weights,
        mechanism=settings.mechanism,
    )
    save_verification(run, verify_run(run, options))


def verify_run(
    run: Run,
    options: VerifySettings,
    on_progress: OnProgress = lambda progress: None,
) -> Verification:
    """Loads the promise and the models of a run, and verifies it.

    Args:
        run: Whose records to check.
        options: How much, and where the models are.
        on_progress: Called as trajectories are replayed.
    """
    promise = judged_by(run.design["identity"], options.promise)
    # Here, because a run of our own engine needs none of it.
    from nafaudit.auditor.verify import check_integrity, verify

    check_integrity(run)
    found = verify(run, *load_recorded(run, options), options, on_progress)
    return replace(found, promise=promise)
