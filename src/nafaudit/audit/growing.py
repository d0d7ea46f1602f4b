"""A run that grows: its later prompts follow from its own records, so nobody knew them at first.

It adds nothing to the engine of stage 1. What is asked for and not yet recorded is decoded; so
whoever asks as a function of the records can be killed, and asks the same again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nafaudit.audit.recording import record_parts
from nafaudit.core.design import Decoding, Design, Extent, Identity
from nafaudit.core.draws import row_stream
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.engine.decode import Decoder
from nafaudit.engine.prompts import PromptRequest, RowRequest
from nafaudit.engine.proof import Numerics
from nafaudit.engine.world import SequenceDecoder
from nafaudit.mechanisms.protocols import Mechanism
from nafaudit.mechanisms.registry import SequenceMechanism
from nafaudit.models.pair import Pair
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
