"""Executors decode what a run asks for: our engine, a black box, or workers of a cluster.

A run knows them as `Executor`. `nafaudit.runner.fleet` has the one that spreads requests over a
Ray cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from nafaudit.core.design import Decoding, Identity, recorded_layout
from nafaudit.core.finding import Fault
from nafaudit.core.numerics import ConstantRows
from nafaudit.core.passage import ScoredPassage
from nafaudit.core.processes import Crew, prompt_names, workers_of
from nafaudit.core.settings import USUAL_BATCH
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.engine.decode import Decoder
from nafaudit.engine.prompts import PromptRequest
from nafaudit.engine.world import SequenceDecoder
from nafaudit.engine.write import Guessed
from nafaudit.protocols import DECODER_TYPES, Mechanism
from nafaudit.runner.blackbox import BlackBoxDecoder, Session
from nafaudit.runner.recording import score_passages
from nafaudit.runner.workbench import (
    ProbeResult,
    Workbench,
    WorkbenchSpec,
    paying_workers,
    row_bytes,
)
from nafaudit.workload import TokenizedPrompt

# Memory of a worker beside its rows: shared pages that it copies by writing, a pass over prompts.
_WORKER_BYTES = 160 << 20
# Rows of a worker's batch, at least.
_LEAST_BATCH = 8
# Seconds after which a worker says how many tokens it has written.
_SAID_SECONDS = 0.5


class Executor(Protocol):
    """Something that decodes requests, in this process or in others."""

    @property
    def spec(self) -> WorkbenchSpec:
        """Settings and checkpoints."""
        ...

    @property
    def mechanism(self) -> Mechanism:
        """What is audited."""
        ...

    @property
    def decoding(self) -> Decoding:
        """Warps and length limit."""
        ...

    @property
    def name(self) -> str:
        """Name under which its records are kept."""
        ...

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """Fingerprint of its pair, for a design."""
        ...

    @property
    def constant(self) -> ConstantRows | None:
        """Rows of every product, where their number matters."""
        ...

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks on the machines that the user should see."""
        ...

    @property
    def vocabulary(self) -> dict[str, Any]:
        """Meaning of token ids, as a run keeps it."""
        ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """What a session's line says of the decoder."""
        ...

    @property
    def probe(self) -> ProbeResult:
        """Result of the probe of the machine before the run."""
        ...

    def score(self, prompts: Sequence[TokenizedPrompt]) -> list[ScoredPassage]:
        """Returns surprisals of the prompts' references under the safe model."""
        ...

    def decode(
        self,
        requests: Sequence[PromptRequest],
        on_fault: Callable[[Fault], None],
        on_step: Callable[[int], None],
    ) -> Iterator[Trajectory]:
        """Yields trajectories as they end.

        Args:
            requests: What is wanted.
            on_fault: Called with what went wrong on the way.
            on_step: Called after each step with the number of rows that have written a token, if
                that is known.
        """
        ...


def identity_of(executor: Executor, workload: str, purpose: str = "audit") -> Identity:
    """Returns what decides the records of a run.

    Args:
        executor: What decodes it.
        workload: Hash of its prompts.
        purpose: What its draws are for.
    """
    spec, mechanism = executor.spec, executor.mechanism
    settings = spec.settings
    return Identity(
        pair=executor.fingerprint,
        mechanism=executor.name,
        ledger=mechanism.ledger.spec,
        decoding=executor.decoding,
        workload=workload,
        width=spec.width,
        seed=settings.seed,
        purpose=purpose,
        protocol="paper" if settings.protocol == "paper" else "sound",
        promise=mechanism.name if settings.decoder else "",
        currency=mechanism.currency,
        chat=spec.chat,
        constant_rows=executor.constant,
        coupled=settings.coupled,
        held_to=settings.held_to(mechanism.name),
        layout=recorded_layout(boxed=settings.decoder is not None),
    )


class LocalExecutor:
    """The common part of executors whose models are in this process.

    Args:
        workbench: Models and mechanism.
    """

    def __init__(self, workbench: Workbench) -> None:
        self.workbench = workbench
        self.spec, self.mechanism = workbench.spec, workbench.mechanism
        self.decoding, self.pair = workbench.decoding, workbench.pair
        self.fingerprint: Mapping[str, Any] = workbench.pair.fingerprint
        self.constant = workbench.settled.numerics.constant

    @property
    def probe(self) -> ProbeResult:
        """Result of the probe of this machine before the run."""
        return self.workbench.probe

    @property
    def vocabulary(self) -> dict[str, Any]:
        """Meaning of token ids, as a run keeps it."""
        return self.workbench.vocabulary

    @property
    def facts(self) -> Mapping[str, Any]:
        """Nothing beyond the design."""
        return {}

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks on this machine that the user should see."""
        remark = self.workbench.settled.numerics.remark
        return (remark,) if remark else ()

    def score(self, prompts: Sequence[TokenizedPrompt]) -> list[ScoredPassage]:
        """Returns surprisals of the prompts' references under the safe model."""
        return score_passages(self.pair, self.decoding, prompts)


def deaths_remark(deaths: int) -> str:
    """Says that workers died on the way."""
    died = f"{deaths} worker{'s' * (deaths > 1)} died on the way"
    return f"{died}; what they held was decoded again."


class EngineExecutor(LocalExecutor):
    """Our own decoder: in this process, or in forks of it where there are rows enough."""

    def __init__(self, workbench: Workbench) -> None:
        super().__init__(workbench)
        self._deaths = 0
        self._worker_spec = self.spec
        self._guessed = Guessed()
        self._decoder: Decoder | SequenceDecoder | None = None
        self._room = 0

    def _decoder_of(self, batch: int) -> Decoder | SequenceDecoder:
        """Returns a decoder with room for some rows, and lets go of one with another room."""
        if self._decoder is None or self._room != batch:
            if isinstance(self._decoder, Decoder):
                self._guessed = self._guessed.plus(self._decoder.guessed)
            self._decoder = None  # its memory is free before the next one takes some
            spec = replace(self.spec, batch=batch)
            self._decoder, self._room = replace(self.workbench, spec=spec).decoder(), batch
        return self._decoder

    @property
    def name(self) -> str:
        """The mechanism's own name."""
        return self.mechanism.name

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks on the machine, on workers that died, and on speculation if there was any."""
        found = super().remarks
        if self._deaths:
            found = (*found, deaths_remark(self._deaths))
        guessed = self._guessed
        if isinstance(self._decoder, Decoder):
            guessed = guessed.plus(self._decoder.guessed)
        if not guessed.asked:
            return found
        share = guessed.stood / guessed.asked
        return (
            *found,
            f"{share:.0%} of {guessed.asked:,} tokens that the safe model guessed stood.",
        )

    def decode(
        self,
        requests: Iterable[PromptRequest],
        on_fault: Callable[[Fault], None] = lambda fault: None,
        on_step: Callable[[int], None] = lambda rows: None,
    ) -> Iterator[Trajectory]:
        """Yields trajectories in the order in which they end."""
        wanted = list(requests)
        rows = sum(len(request.rows) for request in wanted)
        workers = self._workers(rows)
        if workers > 1:
            return self._decode_forked(wanted, workers, on_step)
        # No more room than rows, or than an even part of them: it takes memory, and a batch that is
        # nearly empty costs as many steps as a full one.
        parts = max(1, -(-rows // self.spec.shape["batch"]))
        decoder = self._decoder_of(max(1, -(-rows // parts)))
        if isinstance(decoder, Decoder):
            decoder.on_step = on_step
        return decoder.decode(wanted)

    def _workers(self, rows: int) -> int:
        """Returns how many processes decode some rows, no more than the memory has room for.

        Raises:
            InputError: The user asked for more than that.
        """
        settings, spec = self.spec.settings, self.spec
        workers = paying_workers(settings, rows)
        if workers == 1:
            return 1
        each = _WORKER_BYTES + spec.shape["batch"] * row_bytes(self.pair, spec.width)
        return workers_of(None if settings.workers is None else workers, workers, each)

    def _decode_forked(
        self, requests: Sequence[PromptRequest], workers: int, on_step: Callable[[int], None]
    ) -> Iterator[Trajectory]:
        """Decodes in forks of this process, each of which takes prompts as its rows end."""
        rows = sum(len(request.rows) for request in requests)
        most = max(_LEAST_BATCH, -(-rows // (4 * workers)))
        # A prompt with many rows is divided among workers; each reads it.
        units = [
            replace(request, rows=request.rows[start : start + most])
            for request in requests
            for start in range(0, len(request.rows), most)
        ]
        # No worker may draw all rows before another one has started.
        batch = max(_LEAST_BATCH, min(self.spec.shape["batch"], rows // (2 * workers)))
        self._worker_spec = replace(self.spec, batch=batch)
        crew = Crew(workers, self._serve, _left, lambda held: prompt_names(u.prompt for u in held))
        try:
            for number, found in crew.results(units):
                if number is not None:
                    yield found
                elif isinstance(found, Guessed):
                    self._guessed = self._guessed.plus(found)
                else:
                    on_step(found)
        finally:
            self._deaths += crew.deaths

    def _serve(
        self, drawn: Iterator[tuple[int, PromptRequest]], say: Callable[[Any], None]
    ) -> Iterator[tuple[int, Trajectory]]:
        """Decodes what a worker draws; now and then says how many tokens were written."""
        torch.set_num_threads(1)
        numbers: dict[Key, int] = {}
        stepped = 0
        said = time.monotonic()

        def asked() -> Iterator[PromptRequest]:
            for number, unit in drawn:
                for row in unit.rows:
                    numbers[Key(unit.prompt, self.name, row.k, row.trajectory)] = number
                yield unit

        def on_step(rows: int) -> None:
            nonlocal stepped, said
            stepped += rows
            if time.monotonic() - said > _SAID_SECONDS:
                say(stepped)
                stepped, said = 0, time.monotonic()

        decoder = replace(self.workbench, spec=self._worker_spec).decoder()
        if isinstance(decoder, Decoder):
            decoder.on_step = on_step
        for trajectory in decoder.decode(asked()):
            yield numbers[trajectory.key], trajectory
        say(stepped)
        if isinstance(decoder, Decoder):
            say(decoder.guessed)


def _left(request: PromptRequest, trajectory: Trajectory) -> PromptRequest | None:
    """Returns the request without the row of one trajectory; None if no row is left."""
    key = trajectory.key
    rows = tuple(r for r in request.rows if (r.k, r.trajectory) != (key.k, key.trajectory))
    return replace(request, rows=rows) if rows else None


class BlackBoxExecutor(LocalExecutor):
    """A user's decoder in a process of its own; the pair here is for checking it.

    Args:
        workbench: Models, and the mechanism that the decoder promises.
        session: The decoder's process.
    """

    def __init__(self, workbench: Workbench, session: Session) -> None:
        super().__init__(workbench)
        settings, numerics = workbench.spec.settings, workbench.settled.numerics
        if numerics.constant:
            # The decoder's process takes its arithmetic from the design, and does not probe.
            hello = {**session.launch.hello, "depends": numerics.why}
            session.launch = replace(session.launch, hello=hello)
        ready = session.start()
        name = f"{settings.decoder}@{ready['source']}"
        self._dtype = ready.get("dtype")
        batch = settings.batch or USUAL_BATCH
        self._box = BlackBoxDecoder(session, name, settings.max_new_tokens, batch)

    @property
    def name(self) -> str:
        """Name of the decoder, and the hash of its source."""
        return self._box.name

    @property
    def facts(self) -> Mapping[str, Any]:
        """The floating-point type in which it says that it computes, if it does."""
        return {"decoder_dtype": self._dtype} if self._dtype in DECODER_TYPES else {}

    def decode(
        self,
        requests: Iterable[PromptRequest],
        on_fault: Callable[[Fault], None],
        on_step: Callable[[int], None],
    ) -> Iterator[Trajectory]:
        """Yields those of its outputs that could be read as records."""
        return self._box.decode(requests, on_fault)
