"""Anybody's decoder in the place of our engine: requests in, records and faults out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from nafaudit.audit.blackbox import DecoderError, Launch, Session, worker_command
from nafaudit.audit.official import NAME as OFFICIAL
from nafaudit.audit.official import official_command
from nafaudit.audit.outputs import read_output
from nafaudit.core.errors import InputError, nearest
from nafaudit.core.finding import Fault
from nafaudit.core.settings import Settings
from nafaudit.core.trajectory import Key, Trajectory, budget_text
from nafaudit.engine.prompts import PromptRequest, RowRequest
from nafaudit.mechanisms.cards import parse
from nafaudit.mechanisms.doors import Request
from nafaudit.models.pair import Pair

# After so many deaths and hangs a decoder is not asked again.
PATIENCE = 3
# A decoder takes its seed as a number that every language can hold.
_SEED_BITS = (1 << 63) - 1


def command_of(settings: Settings, *, rules: bool = False) -> tuple[str, ...]:
    """The program that answers for the decoder that the settings name; starts nothing."""
    spec = settings.decoder or ""
    if parse(spec) is not None and not rules:
        raise InputError(
            f"{spec} is a mechanism of our own engine, not a decoder; use --mechanism {spec}."
        )
    if spec == OFFICIAL:
        return official_command(settings.decoder_python)
    if ":" in spec or (rules and parse(spec) is not None):
        return worker_command(settings.decoder_python)
    raise InputError(
        f"unknown decoder {spec!r}{nearest(spec, [OFFICIAL])} Known: {OFFICIAL}; your own is "
        "package.module:Class or file.py:Class."
    )


def launch_of(
    settings: Settings,
    pair: Pair,
    checkpoints: tuple[str, str],
    width: int,
    *,
    rules: bool = False,
) -> Launch:
    """How the decoder that the settings name is started.

    Args:
        settings: Which decoder.
        pair: The models.
        checkpoints: Where they are.
        width: Positions per row.
        rules: True if a step-level rule will do, ours or anybody's.
    """
    hello = {
        "rules": rules,
        "decoder": settings.decoder,
        "checkpoints": list(checkpoints),
        "dtype": settings.dtype,
        "device": settings.device,
        "remote_code": list(settings.remote_code),
        "pickle": settings.allow_pickle_weights,
        "threads": settings.threads,
        "decoding": asdict(settings.decoding),
        "debt": asdict(settings.debt_rule),
        "size": len(pair.vocabulary),
        "stops": sorted(pair.vocabulary.stops),
        "special": sorted(pair.vocabulary.special),
        "width": width,
        "batch": settings.batch,
    }
    return Launch(command_of(settings, rules=rules), hello, settings.decoder_timeout)


@dataclass(frozen=True)
class _Wanted:
    place: bytes
    key: Key
    request: Request


def _place(prompt: str, row: RowRequest) -> bytes:
    """Where a row stands among others: by its draws and its key, whatever else is asked for."""
    parts = [row.stream.key, prompt, budget_text(row.k), row.trajectory]
    return hashlib.sha256(json.dumps(parts).encode("ascii")).digest()


class BlackBoxDecoder:
    """A decoder of somebody's, asked in batches.

    Args:
        session: Where it runs.
        name: Under which its records are kept.
        max_new_tokens: Length limit.
        batch: Outputs that are asked for together.
    """

    def __init__(self, session: Session, name: str, max_new_tokens: int, batch: int) -> None:
        self.session, self.name = session, name
        self._most, self._batch = max_new_tokens, batch
        hello = session.launch.hello
        self._size, self._stops = hello["size"], frozenset(hello["stops"])
        self._broken = 0

    def decode(
        self, requests: Iterable[PromptRequest], note: Callable[[Fault], None]
    ) -> Iterator[Trajectory]:
        """Yields what could be recorded; notes every fault as it is seen."""
        wanted = iter(self._wanted(requests))
        while batch := list(islice(wanted, self._batch)):
            yield from self._ask(batch, note)
        if self._broken >= PATIENCE:
            note(Fault("died", f"given up after {PATIENCE} hangs or deaths"))
            return
        try:
            self.session.close()
        except DecoderError as fault:
            note(Fault(fault.name, str(fault)))

    def _wanted(self, requests: Iterable[PromptRequest]) -> list[_Wanted]:
        """Every row that is asked for, in an order that mixes prompts, budgets and numbers."""
        found = [
            _Wanted(
                _place(prompt.prompt, row),
                Key(prompt.prompt, self.name, row.k, row.trajectory),
                Request(prompt.tokens, row.k, row.stream.key & _SEED_BITS, self._most),
            )
            for prompt in requests
            for row in prompt.rows
        ]
        return sorted(found, key=lambda one: one.place)

    def _ask(self, batch: Sequence[_Wanted], note: Callable[[Fault], None]) -> list[Trajectory]:
        if self._broken >= PATIENCE:
            for one in batch:
                note(Fault("died", "not asked: given up", one.key, lost=True))
            return []
        try:
            outputs = self.session.ask([one.request for one in batch])
        except DecoderError as fault:
            self._broken += fault.name in ("hang", "died", "garbled")
            return self._one_by_one(batch, fault, note)
        except InputError as error:  # it died, and cannot be started again
            self._broken = PATIENCE
            return self._one_by_one(batch, DecoderError("died", str(error)), note)
        return self._read(batch, outputs, note)

    def _one_by_one(
        self, batch: Sequence[_Wanted], fault: DecoderError, note: Callable[[Fault], None]
    ) -> list[Trajectory]:
        """Finds out which request of a batch is to blame, as long as there is patience."""
        if len(batch) == 1 or self._broken >= PATIENCE:
            for one in batch:
                note(Fault(fault.name, str(fault), one.key, lost=True))
            return []
        lost: list[Fault] = []
        found: list[Trajectory] = []
        for one in batch:
            found += self._ask([one], lost.append)
        for alone in lost:
            note(alone)
        if not any(alone.lost for alone in lost):
            note(Fault(fault.name, f"in a batch of {len(batch)}, never alone: {fault}"))
        return found

    def _read(
        self, batch: Sequence[_Wanted], outputs: Sequence[Any], note: Callable[[Fault], None]
    ) -> list[Trajectory]:
        found = []
        for one, raw in zip(batch, outputs, strict=True):
            reading = read_output(raw, one.key, one.request, self._size, self._stops)
            for fault in reading.faults:
                note(fault)
            if reading.trajectory is not None:
                found.append(reading.trajectory)
        return found
