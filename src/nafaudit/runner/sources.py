"""Where trajectories come from: our engine, a black box, a run that grows.

A run that grows: its later prompts follow from its own records, so nobody knew them at first.

It adds nothing to the engine of stage 1. What is asked for and not yet recorded is decoded; so
whoever asks as a function of the records can be killed, and asks the same again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from nafaudit.core.design import Decoding, Design, Extent, Identity
from nafaudit.core.draws import row_stream
from nafaudit.core.finding import Fault
from nafaudit.core.numerics import ConstantRows
from nafaudit.core.passage import ScoredPassage
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.engine.decode import Decoder
from nafaudit.engine.probe import Settled, settle
from nafaudit.engine.prompts import PromptRequest, RowRequest
from nafaudit.engine.proof import Numerics
from nafaudit.engine.world import SequenceDecoder
from nafaudit.mechanisms.registry import SequenceMechanism
from nafaudit.models.pair import Pair
from nafaudit.protocols import Mechanism
from nafaudit.runner.blackbox import BlackBoxDecoder, Session
from nafaudit.runner.prepare import Order, vocabulary_table
from nafaudit.runner.recording import record_parts, score_passages
from nafaudit.store.run import Made, Run, RunWriter, open_for_writing
from nafaudit.workload import TokenizedPrompt


@dataclass(frozen=True)
class Want:
    """Trajectories that are wanted of each prompt, under each budget.

    Attributes:
        items: Of which prompts.
        trajectories: How many, those of earlier wants included.
        budgets: Under which budgets.
        numbers: Which ones; the first so many if empty.
    """

    items: tuple[TokenizedPrompt, ...]
    trajectories: int
    budgets: tuple[float, ...]
    numbers: tuple[int, ...] = ()

    @property
    def extent(self) -> Extent:
        """The same as a design has it."""
        ids = tuple(item.prompt.id for item in self.items)
        return Extent(self.budgets, self.trajectories, ids, self.numbers)


def engine_of(
    pair: Pair,
    mechanism: Mechanism,
    decoding: Decoding,
    *,
    width: int,
    batch: int,
    speculate: int = 0,
    together: bool = False,
    numerics: Numerics | None = None,
) -> Decoder | SequenceDecoder:
    """Our own decoder, of steps or of whole outputs as the mechanism asks."""
    if isinstance(mechanism, SequenceMechanism):
        shape: Any = {"width": width, "batch": batch, "numerics": numerics}
        return SequenceDecoder(pair, mechanism, decoding, **shape)
    return Decoder(
        pair,
        mechanism,
        decoding,
        width=width,
        batch=batch,
        speculate=speculate,
        together=together,
        numerics=numerics,
    )


class GrowingRun:
    """A run directory, open for whatever is wanted next; made by `open_growing`."""

    def __init__(
        self, writer: RunWriter, identity: Identity, decoder: Decoder | SequenceDecoder
    ) -> None:
        self._writer = writer
        self._decoder = decoder
        self._recorded = writer.run.keys()
        self.identity = identity

    @property
    def run(self) -> Run:
        """The same, for reading."""
        return self._writer.run

    def missing(self, wants: Sequence[Want]) -> list[PromptRequest]:
        """What is wanted and not yet recorded."""
        return [self._request(item, want) for want in wants for item in want.items]

    def fill(self, wants: Sequence[Want], see: Callable[[Trajectory], None]) -> None:
        """Records what is missing; when it returns, all that is wanted is on disk.

        Args:
            wants: What is wanted.
            see: Called as trajectories end.
        """
        for want in wants:
            self._writer.widen(want.extent, want.items)
        requests = self.missing(wants)

        def recorded(trajectory: Trajectory) -> None:
            self._recorded.add(trajectory.key)
            see(trajectory)

        if any(request.rows for request in requests):
            record_parts(self._decoder.decode(requests), self._writer, recorded)

    def _request(self, item: TokenizedPrompt, want: Want) -> PromptRequest:
        identity, name = self.identity, item.prompt.id
        rows = tuple(
            RowRequest(
                k,
                index,
                row_stream(identity.protocol, identity.seed, identity.purpose, name, index),
            )
            for index in want.numbers or range(want.trajectories)
            for k in want.budgets
            if Key(name, identity.mechanism, k, index) not in self._recorded
        )
        return PromptRequest(name, item.tokens, rows)


@contextmanager
def open_growing(
    path: Path,
    identity: Identity,
    first: Want,
    decoder: Decoder | SequenceDecoder,
    vocabulary: Mapping[str, Any],
    session: Mapping[str, Any],
    *,
    mixed: bool = False,
) -> Iterator[GrowingRun]:
    """Creates or resumes such a run.

    Args:
        path: The directory.
        identity: What decides its records.
        first: What is wanted first.
        decoder: What decodes.
        vocabulary: What token ids stand for.
        session: What this session runs on.
        mixed: True if earlier sessions may have computed other bits.
    """
    design = Design(identity, first.extent)
    made = Made(session["probe"]["digest"], mixed)
    with open_for_writing(path, design, first.items, vocabulary, made=made) as writer:
        writer.note_session(session)
        yield GrowingRun(writer, identity, decoder)


@dataclass(frozen=True)
class Seen:
    """What a source was seen to do before a run.

    Attributes:
        batch_free: True if records do not depend on their batch.
        facts: For the session's line.
    """

    batch_free: bool
    facts: dict[str, Any]


class Source(Protocol):
    """Decodes what a run asks for, wherever that is."""

    @property
    def name(self) -> str:
        """Under which its records are kept."""
        ...

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """What identifies its pair in a design."""
        ...

    @property
    def constant(self) -> ConstantRows | None:
        """Rows of every product, where their number matters."""
        ...

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the user should know of the machines by now."""
        ...

    def vocabulary(self) -> dict[str, Any]:
        """What token ids stand for, as a run keeps it."""
        ...

    def look(self) -> Seen:
        """Probes the machine."""
        ...

    def score(self, prompts: Sequence[TokenizedPrompt]) -> list[ScoredPassage]:
        """Surprisals of the prompts' references under the safe model."""
        ...

    def decode(
        self,
        requests: Sequence[PromptRequest],
        note: Callable[[Fault], None],
        step: Callable[[int], None],
    ) -> Iterator[Trajectory]:
        """Yields trajectories as they end.

        Args:
            requests: What is wanted.
            note: Told what went wrong on the way.
            step: Told after each step how many rows have written a token, if the source knows.
        """
        ...


def seen_of(settled: Settled) -> Seen:
    """What was settled, for a session's line."""
    facts = {"probe": asdict(settled.probe), "arithmetic": settled.numerics.facts()}
    return Seen(settled.probe.batch_free, facts)


def _shape(order: Order) -> dict[str, Any]:
    """How the engine is to work; none of it changes a record."""
    settings = order.settings
    return {
        "width": order.width,
        "batch": settings.batch,
        "speculate": settings.speculate,
        "together": settings.together,
    }


class _Loaded:
    """What every source in this process has: a pair, its arithmetic, and a probe of both."""

    def __init__(self, order: Order, mechanism: Mechanism, pair: Pair, depends: str = "") -> None:
        self.order, self.mechanism, self.pair = order, mechanism, pair
        decoding = order.settings.decoding
        self.settled = settle(pair, mechanism, decoding, depends=depends, **_shape(order))

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        return self.pair.fingerprint

    @property
    def constant(self) -> ConstantRows | None:
        return self.settled.numerics.constant

    @property
    def remarks(self) -> tuple[str, ...]:
        remark = self.settled.numerics.remark
        return (remark,) if remark else ()

    def vocabulary(self) -> dict[str, Any]:
        return vocabulary_table(self.pair)

    def look(self) -> Seen:
        return seen_of(self.settled)

    def score(self, prompts: Sequence[TokenizedPrompt]) -> list[ScoredPassage]:
        return score_passages(self.pair, self.order.settings.decoding, prompts)


class Engine(_Loaded):
    """Our own decoder, whose faults are ours.

    Args:
        order: What to decode with.
        mechanism: What is audited.
        pair: The models.
        depends: Why rows must be constant, if another machine found that they must.
    """

    def __init__(self, order: Order, mechanism: Mechanism, pair: Pair, depends: str = "") -> None:
        super().__init__(order, mechanism, pair, depends)
        how: Any = {**_shape(order), "numerics": self.settled.numerics}
        self._decoder = engine_of(pair, mechanism, order.settings.decoding, **how)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was found of the machine, and how speculation went, if there was any."""
        found = super().remarks
        if not (isinstance(self._decoder, Decoder) and self._decoder.guessed.asked):
            return found
        guessed = self._decoder.guessed
        share = guessed.stood / guessed.asked
        return (*found, f"of {guessed.asked:,} guesses of the safe model, {share:.0%} stood.")

    @property
    def name(self) -> str:
        """The mechanism's own name."""
        return self.mechanism.name

    def decode(
        self,
        requests: Iterable[PromptRequest],
        note: Callable[[Fault], None] = lambda fault: None,
        step: Callable[[int], None] = lambda rows: None,
    ) -> Iterator[Trajectory]:
        """Yields trajectories in the order in which they end."""
        if isinstance(self._decoder, Decoder):
            self._decoder.watch = step
        return self._decoder.decode(requests)


class Boxed(_Loaded):
    """Somebody's decoder; what it does wrong is noted, and the pair is for checking it."""

    def __init__(self, order: Order, mechanism: Mechanism, pair: Pair, session: Session) -> None:
        super().__init__(order, mechanism, pair)
        settings, how = order.settings, self.settled.numerics
        if how.constant:
            # The world behind the decoder computes as the design says, whatever it sees by itself.
            hello = {**session.launch.hello, "depends": how.why}
            session.launch = replace(session.launch, hello=hello)
        name = f"{settings.decoder}@{session.start()['source']}"
        self._box = BlackBoxDecoder(session, name, settings.max_new_tokens, settings.batch)

    @property
    def name(self) -> str:
        """What the decoder is called, and the hash of its source."""
        return self._box.name

    def decode(
        self,
        requests: Iterable[PromptRequest],
        note: Callable[[Fault], None],
        step: Callable[[int], None],
    ) -> Iterator[Trajectory]:
        """Yields what is left of its outputs once they are read as records."""
        return self._box.decode(requests, note)
