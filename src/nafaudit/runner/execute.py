"""Stage 1: a fixed workload, decoded under every budget and both baselines, and judged.

design -> workload -> plan -> engine -> store -> checks: this file is that line, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from nafaudit.auditor.verify import VerifyOptions
from nafaudit.core.design import Design, Extent, Identity
from nafaudit.core.draws import row_stream
from nafaudit.core.settings import Settings
from nafaudit.core.trajectory import Key
from nafaudit.engine.prompts import PromptRequest, RowRequest
from nafaudit.measures.audit import AuditResult
from nafaudit.measures.context import RunContext
from nafaudit.report.verification import verification_json
from nafaudit.runner.blackbox import Session, command_of, launch_of
from nafaudit.runner.cluster import connected
from nafaudit.runner.fleet import Fleet
from nafaudit.runner.pairs import checkpoints_of
from nafaudit.runner.prepare import Asked, load, read
from nafaudit.runner.recording import (
    Progress,
    Reporter,
    record_parts,
    record_passages,
    session_facts,
)
from nafaudit.runner.sources import Boxed, Engine, Source
from nafaudit.runner.verify import verify_run
from nafaudit.store.artifacts import write_truth, write_verification
from nafaudit.store.run import Made, Run, open_for_writing
from nafaudit.workload import TokenizedPrompt, protected_prompts, workload_hash


@dataclass(frozen=True)
class Outcome:
    """A finished stage 1.

    Attributes:
        run: Its directory.
        batch_free: True if records do not depend on their batch.
        remarks: What else was noticed of the machines; empty words are none.
    """

    run: Run
    batch_free: bool
    remarks: tuple[str, ...] = ()

    @cached_property
    def result(self) -> AuditResult:
        """Every verdict and finding, from the records."""
        return AuditResult.of(self.run)


def run_stage1(settings: Settings, report: Callable[[Progress], None]) -> Outcome:
    """Runs, or resumes, the audit that the settings describe.

    Args:
        settings: What to run; checked before any model loads.
        report: Called as trajectories are recorded.
    """
    with ExitStack() as stack:
        return _run(settings, report, stack)


def _run(settings: Settings, report: Callable[[Progress], None], stack: ExitStack) -> Outcome:
    if settings.decoder is not None:
        command_of(settings)  # a wrong name is said before a model loads
    asked = read(settings)
    source = _source(asked, stack)
    mechanism, chosen = asked.mechanism, asked.chosen
    design = Design(
        Identity(
            pair=source.fingerprint,
            mechanism=source.name,
            ledger=mechanism.ledger.spec,
            decoding=settings.decoding,
            workload=workload_hash(asked.tokenized),
            width=asked.width,
            seed=settings.seed,
            protocol="paper" if settings.protocol == "paper" else "sound",
            promise=mechanism.name if settings.decoder else "",
            currency=mechanism.currency,
            chat=asked.chat,
            constant_rows=source.constant,
        ),
        Extent(settings.budgets, settings.trajectories, tuple(p.prompt.id for p in chosen)),
    )
    path = Path(settings.out) if settings.out else Path("runs") / f"run-{design.identity.hash[:10]}"
    seen, vocabulary, sources = source.look(), source.vocabulary(), asked.workload.sources
    made = Made(seen.facts["probe"]["digest"], settings.mixed)
    with open_for_writing(path, design, asked.tokenized, vocabulary, sources, made) as writer:
        writer.note_session(session_facts(settings, asked.order.checkpoints) | seen.facts)
        record_passages(path, source.score, settings.decoding, protected_prompts(chosen))
        requests = _plan(design, chosen, writer.run.keys())
        total = sum(len(request.rows) for request in requests)
        resumed = design.extent.size - total
        context = RunContext(mechanism.ledger)
        reporter = Reporter(report, context, resumed, total + resumed, settings.max_new_tokens)
        decoded = source.decode(requests, writer.note_fault, reporter.step)
        record_parts(decoded, writer, reporter.see)
    if settings.decoder is not None:
        _verify(writer.run, settings)
    return Outcome(writer.run, seen.batch_free, (writer.run.mixed, *source.remarks))


def _source(asked: Asked, stack: ExitStack) -> Source:
    order, settings = asked.order, asked.order.settings
    if settings.ray is not None:
        rows = len(asked.chosen) * len(settings.budgets) * settings.trajectories
        ray, workers = stack.enter_context(connected(settings, rows))
        return stack.enter_context(closing(Fleet(ray, asked, workers)))
    pair = load(order)
    if settings.decoder is None:
        return Engine(order, asked.mechanism, pair)
    launch = launch_of(settings, pair, order.checkpoints, order.width)
    return Boxed(order, asked.mechanism, pair, stack.enter_context(Session(launch)))


def _verify(run: Run, settings: Settings) -> None:
    """Recomputes everything a black box claims: the verdicts rest on that."""
    safe, risky = checkpoints_of(settings)
    found = verify_run(
        run,
        VerifyOptions(
            safe=safe,
            risky=risky,
            device=settings.device,
            trust=settings.trust,
            mechanism=settings.mechanism,
        ),
    )
    data = verification_json(found, str(run.path), run.design["hash"])
    if found.truth:
        data["replayed_sha256"] = write_truth(run, found.truth)
    write_verification(run, data)


def _plan(
    design: Design, prompts: Iterable[TokenizedPrompt], recorded: set[Key]
) -> list[PromptRequest]:
    """What is asked for and not yet recorded, prompt by prompt."""
    identity, extent = design.identity, design.extent
    requests = []
    for item in prompts:
        rows = []
        for index in range(extent.trajectories):
            stream = row_stream(
                identity.protocol, identity.seed, identity.purpose, item.prompt.id, index
            )
            rows += [
                RowRequest(k, index, stream)
                for k in extent.budgets
                if Key(item.prompt.id, identity.mechanism, k, index) not in recorded
            ]
        requests.append(PromptRequest(item.prompt.id, item.tokens, tuple(rows)))
    return requests
