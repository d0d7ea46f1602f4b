"""Where a run's trajectories come from: our engine in this process, or somebody's decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from nafaudit.audit.blackbox import Session
from nafaudit.audit.decoder import BlackBoxDecoder
from nafaudit.audit.growing import engine_of
from nafaudit.audit.passages import score_passages
from nafaudit.audit.prepare import Order, vocabulary_table
from nafaudit.core.finding import Fault
from nafaudit.core.numerics import ConstantRows
from nafaudit.core.passage import ScoredPassage
from nafaudit.core.trajectory import Trajectory
from nafaudit.engine.decode import Decoder
from nafaudit.engine.probe import Settled, settle
from nafaudit.engine.prompts import PromptRequest
from nafaudit.mechanisms.protocols import Mechanism
from nafaudit.models.pair import Pair
from nafaudit.workload import TokenizedPrompt


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
