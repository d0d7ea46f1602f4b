"""A Ray worker: one process that holds a pair on its own devices and answers with plain data.

What goes wrong in it is an answer too, so that the driver can say it as a local run would.
`nafaudit.audit.fleet` is the other end.
"""

from __future__ import annotations

import contextlib
import os
import socket
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nafaudit.core import errors
from nafaudit.core.numerics import ConstantRows

if TYPE_CHECKING:
    from nafaudit.audit.prepare import Order
    from nafaudit.audit.sources import Engine
    from nafaudit.engine.prompts import PromptRequest
    from nafaudit.workload import TokenizedPrompt


@dataclass(frozen=True)
class Trouble:
    """An exception as data: the name of one of our errors, or none and a traceback."""

    kind: str
    text: str

    def error(self) -> Exception:
        """The exception that a local run would have raised."""
        if not self.kind:
            return RuntimeError(f"a worker failed:\n{self.text}")
        made: Exception = getattr(errors, self.kind)(self.text)
        return made


@dataclass(frozen=True)
class Answer:
    """What a worker has to say: results, and what ended them early if something did."""

    content: list[Any]
    trouble: Trouble | None = None


@dataclass(frozen=True)
class Hello:
    """What a worker is.

    Attributes:
        node: Address of its node, and what Ray calls it.
        facts: For the session's line: node, process, processor, versions and probe.
        mechanism: What it audits, with the hash of a plug-in's source.
        fingerprint: Of its pair.
        batch_free: True if its records do not depend on their batch.
        digest: Equal for workers that compute the same bits.
        constant: Rows of its products, where their number matters.
        why: Why that is so.
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
    """Built by Ray; `start` loads the models.

    Args:
        order: What to decode with.
        environment: Variables that the driver has set and that change what is loaded.
        directory: Where the driver runs: plug-ins are found from there.
        host: The driver's machine; on another one, errors say so.
    """

    def __init__(
        self, order: Order, environment: Mapping[str, str], directory: str, host: str
    ) -> None:
        os.environ.update(environment)
        with contextlib.suppress(OSError):  # another machine need not have it
            os.chdir(directory)
        self._order, self._host = order, host
        self._engine: Engine | None = None

    def start(self, depends: str = "") -> Answer:
        """Loads the pair and probes the machine; says what it is.

        Args:
            depends: Why rows must be constant, if another worker found that they must.
        """
        answer, here = _answer(lambda: [self._hello(depends)]), socket.gethostname()
        if answer.trouble is None or here == self._host:
            return answer
        said = Trouble(answer.trouble.kind, f"the worker on {here}: {answer.trouble.text}")
        return Answer([], said)

    def vocabulary(self, _: object) -> Answer:
        """What token ids stand for."""
        return _answer(lambda: [self._loaded.vocabulary()])

    def score(self, prompts: Sequence[TokenizedPrompt]) -> Answer:
        """Surprisals of the prompts' references."""
        return _answer(lambda: self._loaded.score(prompts))

    def decode(self, requests: Sequence[PromptRequest]) -> Answer:
        """Decodes a unit of work; what ended before an error is in the answer."""
        return _answer(lambda: self._loaded.decode(requests))

    @property
    def _loaded(self) -> Engine:
        assert self._engine is not None, "start comes first"
        return self._engine

    def _hello(self, depends: str) -> Hello:
        for path in self._order.checkpoints:
            if Path(path).is_absolute() and not Path(path).is_dir():
                raise errors.InputError(
                    f"there is no {path}. Put the checkpoint where every node finds it under this "
                    "path (a shared disk, or a copy), or give a hub id."
                )
        from nafaudit.audit.prepare import load, ordered_mechanism
        from nafaudit.audit.recording import machine_facts
        from nafaudit.audit.sources import Engine

        mechanism = ordered_mechanism(self._order)
        pair = self._engine.pair if self._engine else load(self._order)
        engine = self._engine = Engine(self._order, mechanism, pair, depends)
        seen = engine.look()
        import ray

        node = ray.get_runtime_context().get_node_id()
        place = f"{ray.util.get_node_ip_address()} ({node[:8]})"
        where = {"node": place, "host": socket.gethostname(), "pid": os.getpid()}
        return Hello(
            place,
            where | machine_facts() | seen.facts,
            mechanism.name,
            engine.fingerprint,
            seen.batch_free,
            seen.facts["probe"]["digest"],
            engine.constant,
            engine.settled.numerics.why,
        )


def _answer(work: Callable[[], Iterable[Any]]) -> Answer:
    """Does the work; an exception becomes data, because Ray would wrap it in its own words."""
    content: list[Any] = []
    try:
        for item in work():
            content.append(item)
    except errors.NafauditError as error:
        return Answer(content, Trouble(type(error).__name__, str(error)))
    except (Exception, SystemExit):
        return Answer(content, Trouble("", traceback.format_exc()))
    return Answer(content)
