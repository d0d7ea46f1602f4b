"""Executors decode what a run asks for: our engine, a black box, or workers of a cluster.

A run knows them as `Executor`. `nafaudit.runner.fleet` has the one that spreads requests over a
Ray cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

from nafaudit.core.design import Decoding, Identity
from nafaudit.core.finding import Fault
from nafaudit.core.numerics import ConstantRows
from nafaudit.core.passage import ScoredPassage
from nafaudit.core.trajectory import Trajectory
from nafaudit.engine.decode import Decoder
from nafaudit.engine.prompts import PromptRequest
from nafaudit.engine.world import SequenceDecoder
from nafaudit.protocols import Mechanism
from nafaudit.runner.blackbox import BlackBoxDecoder, Session
from nafaudit.runner.recording import score_passages
from nafaudit.runner.workbench import ProbeResult, Workbench, WorkbenchSpec
from nafaudit.workload import TokenizedPrompt


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
    def remarks(self) -> tuple[str, ...]:
        """Remarks on this machine that the user should see."""
        remark = self.workbench.settled.numerics.remark
        return (remark,) if remark else ()

    def score(self, prompts: Sequence[TokenizedPrompt]) -> list[ScoredPassage]:
        """Returns surprisals of the prompts' references under the safe model."""
        return score_passages(self.pair, self.decoding, prompts)


class EngineExecutor(LocalExecutor):
    """Our own decoder in this process."""

    @cached_property
    def _decoder(self) -> Decoder | SequenceDecoder:
        """Builds the decoder when something is decoded: it takes memory for its rows."""
        return self.workbench.decoder()

    @property
    def name(self) -> str:
        """The mechanism's own name."""
        return self.mechanism.name

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks on the machine, and on speculation if there was any."""
        found = super().remarks
        decoder = self.__dict__.get("_decoder")
        if not (isinstance(decoder, Decoder) and decoder.guessed.asked):
            return found
        share = decoder.guessed.stood / decoder.guessed.asked
        guesses = f"of {decoder.guessed.asked:,} guesses of the safe model, {share:.0%} stood."
        return (*found, guesses)

    def decode(
        self,
        requests: Iterable[PromptRequest],
        on_fault: Callable[[Fault], None] = lambda fault: None,
        on_step: Callable[[int], None] = lambda rows: None,
    ) -> Iterator[Trajectory]:
        """Yields trajectories in the order in which they end."""
        if isinstance(self._decoder, Decoder):
            self._decoder.on_step = on_step
        return self._decoder.decode(requests)


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
            # The decoder's world computes as the design says, not as its own probe would.
            hello = {**session.launch.hello, "depends": numerics.why}
            session.launch = replace(session.launch, hello=hello)
        name = f"{settings.decoder}@{session.start()['source']}"
        self._box = BlackBoxDecoder(session, name, settings.max_new_tokens, settings.batch)

    @property
    def name(self) -> str:
        """Name of the decoder, and the hash of its source."""
        return self._box.name

    def decode(
        self,
        requests: Iterable[PromptRequest],
        on_fault: Callable[[Fault], None],
        on_step: Callable[[int], None],
    ) -> Iterator[Trajectory]:
        """Yields those of its outputs that could be read as records."""
        return self._box.decode(requests, on_fault)
