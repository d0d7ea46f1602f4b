"""Stage 1: a fixed workload, decoded under every budget and both baselines, and judged.

design -> workload -> plan -> engine -> store -> checks: this file is that line, in order.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers

from nafaudit import __version__
from nafaudit.audit.blackbox import Session
from nafaudit.audit.decoder import BlackBoxDecoder, command_of, launch_of
from nafaudit.audit.pairs import checkpoints_of, limit_of, workload_of
from nafaudit.audit.passages import record_passages
from nafaudit.audit.verify import VerifyOptions, verify_run
from nafaudit.checks import ArmResult, Facts, judge_run
from nafaudit.checks.utilisation import Utilisation
from nafaudit.core.design import Design, Extent, Identity
from nafaudit.core.errors import InputError, StoreError
from nafaudit.core.fault import Fault
from nafaudit.core.settings import Settings
from nafaudit.core.streams import row_stream
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.engine.decode import Decoder, PromptRequest, RowRequest
from nafaudit.engine.probe import probe
from nafaudit.engine.sequences import SequenceDecoder
from nafaudit.mechanisms.protocols import Mechanism
from nafaudit.mechanisms.registry import SequenceMechanism
from nafaudit.mechanisms.registry import mechanism as named_mechanism
from nafaudit.models.pair import Pair, context_of, load_pair, load_tokenizer
from nafaudit.report.verification import verification_json
from nafaudit.store.files import interrupts_deferred
from nafaudit.store.run import Run, RunWriter, open_for_writing
from nafaudit.store.truth import write_truth
from nafaudit.store.verification import write_verification
from nafaudit.workload import TokenizedPrompt, Workload, protected_prompts, workload_hash

# A part is closed after so many trajectories, or when it is this old: what a kill can cost. Young
# runs close parts often, long ones do not drown in files.
_PART_ROWS = 256
_PART_SECONDS = (2.0, 30.0)
_PART_SHARE = 0.05
# Positions per row are rounded up, so that the cache has an even shape.
_WIDTH_STEP = 64


@dataclass(frozen=True)
class Progress:
    """Where a run is.

    Attributes:
        done: Trajectories that are finished, those of earlier sessions included.
        total: All that are asked for.
        resumed: Those of earlier sessions.
        under_way: What is written of unfinished ones, in trajectories of full length.
        tokens: Written in this session, unfinished trajectories included.
        seconds: Since this session began to decode.
        worst_utilisation: Largest spend over budget of this session; -inf before the first.
    """

    done: int
    total: int
    resumed: int
    under_way: float
    tokens: int
    seconds: float
    worst_utilisation: float


@dataclass(frozen=True)
class Outcome:
    """A finished stage 1."""

    run: Run
    batch_free: bool

    @cached_property
    def arms(self) -> list[ArmResult]:
        """Every check of every arm, from the records."""
        return judge_run(self.run)


@dataclass(frozen=True)
class Prepared:
    """What a run decodes with.

    Attributes:
        workload: All prompts that the run could have.
        tokenized: The same in token ids.
        chosen: Those that a limit leaves.
        mechanism: What is audited.
        pair: The models.
        width: Positions per row.
    """

    workload: Workload
    tokenized: list[TokenizedPrompt]
    chosen: list[TokenizedPrompt]
    mechanism: Mechanism
    pair: Pair
    width: int


def prepare(settings: Settings) -> Prepared:
    """Reads the prompts and loads the models; whatever is wrong is said before a model loads."""
    workload = workload_of(settings)
    mechanism = mechanism_of(settings)
    safe, risky = checkpoints_of(settings)
    # The paper says that prompts are split by the risky model's tokenizer; its code does not.
    tokenizer = load_tokenizer(risky if settings.variant == "text" else safe)
    tokenized = [
        TokenizedPrompt(p, tuple(tokenizer(p.text)["input_ids"])) for p in workload.prompts
    ]
    width = _width(workload, tokenized, settings.max_new_tokens, context_of(safe, risky))
    torch.set_num_threads(settings.threads)
    pair = load_pair(
        safe,
        risky,
        dtype=settings.dtype,
        device=settings.device,
        stop_ids=stop_ids_of(settings, tokenizer),
    )
    limit = limit_of(settings)
    chosen = tokenized[:limit] if limit else tokenized
    return Prepared(workload, tokenized, chosen, mechanism, pair, width)


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
    ready = prepare(settings)
    pair, mechanism, width, tokenized = ready.pair, ready.mechanism, ready.width, ready.tokenized
    source = _source(settings, pair, mechanism, width, stack)
    chosen = ready.chosen
    design = Design(
        Identity(
            pair=pair.fingerprint,
            mechanism=source.name,
            ledger=mechanism.ledger.spec,
            decoding=settings.decoding,
            workload=workload_hash(tokenized),
            width=width,
            seed=settings.seed,
            protocol="paper" if settings.protocol == "paper" else "sound",
            promise=mechanism.name if settings.decoder else "",
        ),
        Extent(settings.budgets, settings.trajectories, tuple(p.prompt.id for p in chosen)),
    )
    vocabulary = vocabulary_table(pair)
    path = Path(settings.out) if settings.out else Path("runs") / f"run-{design.identity.hash[:10]}"
    seen = probe(pair, mechanism, settings.decoding, width=width, batch=settings.batch)
    with open_for_writing(path, design, tokenized, vocabulary, ready.workload.sources) as writer:
        writer.note_session(session_facts(settings, asdict(seen), checkpoints_of(settings)))
        record_passages(path, pair, settings.decoding, protected_prompts(chosen))
        recorded = writer.run.keys()
        requests = _plan(design, chosen, recorded)
        total = sum(len(request.rows) for request in requests)
        resumed = design.extent.size - total
        running = Utilisation(Facts(mechanism.ledger))
        reporter = _Reporter(report, running, resumed, total + resumed, settings.max_new_tokens)
        if isinstance(source, _Engine) and isinstance(source.decoder, Decoder):
            source.decoder.watch = reporter.step
        record_parts(source.decode(requests, writer.note_fault), writer, reporter.see)
    if settings.decoder is not None:
        _verify(writer.run, settings)
    return Outcome(writer.run, seen.batch_free)


def _verify(run: Run, settings: Settings) -> None:
    """Recomputes everything a black box claims: the verdicts rest on that."""
    safe, risky = checkpoints_of(settings)
    found = verify_run(run, VerifyOptions(safe=safe, risky=risky, device=settings.device))
    data = verification_json(found, str(run.path), run.design["hash"])
    if found.truth:
        data["replayed_sha256"] = write_truth(run, found.truth)
    write_verification(run, data)


def mechanism_of(settings: Settings) -> Mechanism:
    """What is audited, as the settings name it."""
    mechanism = named_mechanism(settings.mechanism, settings.debt_rule)
    if not isinstance(mechanism, SequenceMechanism):
        return mechanism
    if settings.decoder is not None:
        raise InputError(
            f"a decoder is held to the law of every step, which {settings.mechanism} does not "
            "have; leave out --mechanism, or name a step-level one."
        )
    return mechanism.of_length(settings.max_new_tokens)


def vocabulary_table(pair: Pair) -> dict[str, Any]:
    """What token ids stand for, as a run keeps it."""
    return {
        # Bytes, written as Latin-1: a token may be half a character.
        "pieces": [p if p is None else p.decode("latin-1") for p in pair.vocabulary.pieces],
        "special": sorted(pair.vocabulary.special),
        "stops": sorted(pair.vocabulary.stops),
    }


class _Source(Protocol):
    """Where trajectories come from: our engine, or somebody's decoder."""

    @property
    def name(self) -> str:
        """Under which its records are kept."""
        ...

    def decode(
        self, requests: Iterable[PromptRequest], note: Callable[[Fault], None]
    ) -> Iterator[Trajectory]:
        """Yields trajectories as they end; notes what went wrong on the way."""
        ...


@dataclass(frozen=True)
class _Engine:
    """Our own decoder, whose faults are ours."""

    decoder: Decoder | SequenceDecoder

    @property
    def name(self) -> str:
        return self.decoder.mechanism.name

    def decode(
        self, requests: Iterable[PromptRequest], note: Callable[[Fault], None]
    ) -> Iterator[Trajectory]:
        return self.decoder.decode(requests)


def _source(
    settings: Settings, pair: Pair, mechanism: Mechanism, width: int, stack: ExitStack
) -> _Source:
    if settings.decoder is None:
        shape = {"width": width, "batch": settings.batch}
        if isinstance(mechanism, SequenceMechanism):
            return _Engine(SequenceDecoder(pair, mechanism, settings.decoding, **shape))
        return _Engine(Decoder(pair, mechanism, settings.decoding, **shape))
    launch = launch_of(settings, pair, checkpoints_of(settings), width)
    session = stack.enter_context(Session(launch))
    name = f"{settings.decoder}@{session.start()['source']}"
    return BlackBoxDecoder(session, name, settings.max_new_tokens, settings.batch)


def stop_ids_of(settings: Settings, tokenizer: Any) -> list[int] | None:
    """The paper's decoder ends a row at the tokenizer's own end of text and nowhere else."""
    if settings.protocol != "paper" or tokenizer.eos_token_id is None:
        return None
    return [int(tokenizer.eos_token_id)]


def _width(workload: Workload, prompts: Sequence[TokenizedPrompt], new: int, context: int) -> int:
    """Positions per row: the longest prompt of the whole workload and T new tokens."""
    where = {name: source.where for name, source in workload.sources.items()}
    if empty := [p.prompt.id for p in prompts if not p.tokens]:
        raise InputError(f"{where[empty[0]]}: prompt {empty[0]!r} has no tokens; leave it out.")
    longest = max(prompts, key=lambda p: len(p.tokens))
    needed = len(longest.tokens) + new
    if needed > context:
        raise InputError(
            f"{where[longest.prompt.id]}: prompt {longest.prompt.id!r} has "
            f"{len(longest.tokens)} tokens; with {new} new ones "
            f"it does not fit the pair's context of {context}. Lower --max-new-tokens or leave "
            "the prompt out."
        )
    return min(-(-needed // _WIDTH_STEP) * _WIDTH_STEP, context)


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


class _Reporter:
    """Keeps the running numbers of a progress line."""

    def __init__(
        self,
        report: Callable[[Progress], None],
        utilisation: Utilisation,
        resumed: int,
        total: int,
        longest: int,
    ) -> None:
        self._report = report
        self._longest = longest
        self._resumed = resumed
        self._total = total
        self._done = resumed
        self._stepped = 0
        self._finished = 0
        self._utilisation = utilisation
        self._start = time.monotonic()
        self._tell()

    def step(self, rows: int) -> None:
        """Every active row has written one token."""
        self._stepped += rows
        self._tell()

    def see(self, trajectory: Trajectory) -> None:
        """A trajectory has ended."""
        self._done += 1
        self._finished += len(trajectory)
        self._utilisation.see(trajectory)
        self._tell()

    def _tell(self) -> None:
        self._report(
            Progress(
                self._done,
                self._total,
                self._resumed,
                # Somebody's decoder does not tell its steps.
                max(0, self._stepped - self._finished) / self._longest,
                max(self._stepped, self._finished),
                time.monotonic() - self._start,
                self._utilisation.worst.value,
            )
        )


def record_parts(
    trajectories: Iterator[Trajectory], writer: RunWriter, see: Callable[[Trajectory], None]
) -> None:
    """Writes parts as trajectories end; whatever goes wrong, what has ended is recorded."""
    buffer: list[Trajectory] = []
    start = since = time.monotonic()

    def is_old() -> bool:
        now = time.monotonic()
        least, most = _PART_SECONDS
        return now - since > min(most, max(least, _PART_SHARE * (now - start)))

    def close_part() -> None:
        nonlocal since
        with interrupts_deferred():
            writer.append(buffer)
            buffer.clear()
        since = time.monotonic()

    try:
        for trajectory in trajectories:
            buffer.append(trajectory)
            see(trajectory)
            if len(buffer) >= _PART_ROWS or is_old():
                close_part()
    except StoreError:
        raise
    except BaseException:
        close_part()
        raise
    close_part()


def session_facts(
    settings: Settings, probe: dict[str, Any], checkpoints: tuple[str, str]
) -> dict[str, Any]:
    """What a session ran on."""
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "nafaudit": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "device": settings.device,
        "threads": settings.threads,
        "batch": settings.batch,
        "pair": settings.pair if settings.safe is None else None,
        "safe": settings.safe,
        "risky": settings.risky,
        "prefix_n": settings.debt_rule.n,
        "variant": settings.variant,
        "delta": settings.delta,
        "probe": probe,
        # Where `nafaudit verify` looks first; what it finds there must have the design's hashes.
        "checkpoints": [
            str(Path(path).resolve()) if Path(path).is_dir() else path for path in checkpoints
        ],
    }


def _processor() -> str:
    """The CPU's own name: bit-identity is promised for one kind of CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
