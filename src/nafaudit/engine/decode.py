"""Decodes prompts under a budget: many rows at once, each as if it were alone.

Prompts are read (`prompts.py`), each once for all its trajectories and budgets; then, step by step,
every active row writes a token (`write.py`) and both models read it. Finished rows leave, waiting
rows enter.

Rows of a prompt that have written the same tokens so far stand in one slot: the models read these
once for all of them. Budgets share their draws, so their rows part late, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from nafaudit.core.design import Decoding
from nafaudit.core.errors import InputError
from nafaudit.core.ledger import Banking, is_baseline
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.engine.lanes import Lanes
from nafaudit.engine.prompts import PrefilledPrompt, PromptReader, PromptRequest
from nafaudit.engine.proof import Numerics, numerics_of
from nafaudit.engine.rows import RowModel, check_attention
from nafaudit.engine.write import DecodingRow, Guessed, RowLogits, StepWriter
from nafaudit.models.pair import Pair
from nafaudit.protocols import Mechanism

_BASELINE_LEDGER = Banking()


class Decoder:
    """A pair and a mechanism, ready to decode.

    Args:
        pair: The two models.
        mechanism: What is audited.
        decoding: Warps and length limit.
        width: Positions per row, as the design fixes them.
        batch: Rows decoded together; changes speed, never results.
        speculate: Tokens that the safe model guesses ahead for one reading of the risky one;
            changes speed, never results.
        threaded: Both models step at once, on a thread each; changes speed, never results.
        batched: Laws of all rows are worked on at once, where they are; None for wherever
            that is not a CPU.
        shared: Rows of equal tokens share a slot; changes speed, never results.
        numerics: By which arithmetic; found out if None.
    """

    def __init__(
        self,
        pair: Pair,
        mechanism: Mechanism,
        decoding: Decoding,
        *,
        width: int,
        batch: int,
        speculate: int = 0,
        threaded: bool = False,
        batched: bool | None = None,
        shared: bool = True,
        numerics: Numerics | None = None,
    ) -> None:
        if speculate:
            check_attention("risky", pair.risky)
        if batch < 1:
            raise InputError(f"batch must be at least 1, got {batch}.")
        if width > pair.context:
            raise InputError(
                f"rows of {width} positions do not fit the pair's context of {pair.context}; "
                "lower --max-new-tokens or leave out the longest prompts."
            )
        models = (pair.safe, pair.risky)
        self.numerics = how = numerics or numerics_of(models, width, batch=batch)
        if speculate and how.constant:
            raise InputError(
                f"speculate = {speculate} is refused: {how.why}, and guesses would be read with "
                "another number. Leave out --speculate."
            )
        self.pair = pair
        self.mechanism = mechanism
        self.decoding = decoding
        self.width = width
        self.batch = batch
        self.speculate = speculate
        # Guesses are made with a row's own draws, so that rows which guess do not share.
        self._shared = shared and not speculate
        # A thread whose products run on one core, like those of the first.
        one_core: Any = {"initializer": torch.set_num_threads, "initargs": (1,)}
        self._thread = ThreadPoolExecutor(1, **one_core) if threaded else None
        # Called after every step with the number of rows that have written a token; it may raise.
        self.on_step: Callable[[int], None] = lambda rows: None
        self.device = pair.risky.device
        self._safe, self._risky = (
            RowModel(model, batch, width, how.constant, common=how.common) for model in models
        )
        self._lanes = Lanes(pair.vocabulary, decoding, self.device)
        self._writer = StepWriter(mechanism, self._lanes, batch, self.device, batched)
        self._reader = PromptReader(
            self._safe, self._risky, self._lanes, pair.vocabulary.special, mechanism.debt
        )

    @property
    def guessed(self) -> Guessed:
        """The counts of speculation so far."""
        return self._writer.guessed

    @torch.inference_mode()
    def decode(self, requests: Iterable[PromptRequest]) -> Iterator[Trajectory]:
        """Yields every requested trajectory, in the order in which they end."""
        slots: list[list[DecodingRow]] = []
        room = self.batch
        waiting = self._opened_rows(requests, lambda: room)
        while True:
            last: PrefilledPrompt | None = None
            while room and (entering := next(waiting, None)) is not None:
                row, prompt = entering
                if not self._shared or prompt is not last:
                    self._safe.admit(len(slots), prompt.safe)
                    self._risky.admit(len(slots), prompt.risky)
                    safe, risky = map(self._lanes.cut, (prompt.safe.logits, prompt.risky.logits))
                    known = RowLogits(safe, risky, None)
                    slots.append([])
                    last = prompt
                row.ahead = [known]
                slots[-1].append(row)
                room -= 1
            if not slots:
                return
            ready = [row for rows in slots for row in rows if row.ahead]
            self._writer.write(ready)
            self.on_step(len(ready))
            wrote = set(map(id, ready))
            for slot in reversed(range(len(slots))):
                going: dict[int, list[DecodingRow]] = {}
                for row in slots[slot]:
                    stopped = row.prefix[-1] in self.pair.vocabulary.stops
                    over = stopped or row.step == self.decoding.max_new_tokens
                    if over and id(row) in wrote:
                        room += 1
                        yield row.trajectory(stopped)
                    else:
                        going.setdefault(row.prefix[-1], []).append(row)
                self._part(slots, slot, list(going.values()))
            rows = [row for rows in slots for row in rows]
            if not any(row.ahead for row in rows):
                self._writer.forget(rows)
                if slots:
                    self._read_on(slots)

    def _read_on(self, slots: list[list[DecodingRow]]) -> None:
        """Lets both models read the last tokens, and perhaps a guess at those to come."""
        first = [rows[0] for rows in slots]
        tokens = [row.prefix[-1] for row in first]
        positions = [len(row.prefix) - 1 for row in first]
        if self.speculate:
            ahead = self._speculated(first, tokens, positions)
        else:
            logits = map(self._lanes.cut, self._step(tokens, positions))
            ahead = [[RowLogits(safe, risky, None)] for safe, risky in zip(*logits, strict=True)]
        for rows, known in zip(slots, ahead, strict=True):
            for row in rows:
                row.ahead = list(known)

    def _step(self, tokens: list[int], positions: list[int]) -> tuple[Tensor, Tensor]:
        if self._thread is None:
            return self._safe.step(tokens, positions), self._risky.step(tokens, positions)
        safe = self._thread.submit(_inferring, self._safe.step, tokens, positions)
        risky = self._risky.step(tokens, positions)
        return safe.result(), risky

    def _speculated(
        self, rows: list[DecodingRow], tokens: list[int], positions: list[int]
    ) -> list[list[RowLogits]]:
        """Lets the safe model write ahead alone, and the risky model read all of it in one pass.

        Guesses take the draws that the served law will meet, so that a guess stands if and only if
        that law gives the same token. Positions past the last one are never attended to.
        """
        fed, at, safe = [tokens], [positions], []
        prefixes = [list(row.prefix) for row in rows]
        for ahead in range(self.speculate + 1):
            safe.append(self._lanes.cut(self._safe.step(fed[-1], at[-1])))
            if ahead < self.speculate:
                fed.append(self._writer.guess(rows, safe[-1], prefixes, ahead))
                for prefix, token in zip(prefixes, fed[-1], strict=True):
                    prefix.append(token)
                at.append([min(position + 1, self.width - 1) for position in at[-1]])
        risky = self._lanes.cut(
            self._risky.steps(list(zip(*fed, strict=True)), list(zip(*at, strict=True)))
        )
        guesses: list[Any] = [*fed[1:], [None] * len(rows)]
        return [
            [
                RowLogits(safe[ahead][slot], risky[slot, ahead], guesses[ahead][slot])
                for ahead in range(self.speculate + 1)
            ]
            for slot in range(len(rows))
        ]

    def debt(self, tokens: Sequence[int]) -> float:
        """Returns the prefix debt of a prompt; it depends on nothing but the prompt."""
        return self._reader.read([self._checked(PromptRequest("", tuple(tokens), ()))])[0].debt

    def _opened_rows(
        self, requests: Iterable[PromptRequest], room: Callable[[], int]
    ) -> Iterator[tuple[DecodingRow, PrefilledPrompt]]:
        """Reads prompts, a group at a time, and yields their rows, each with an open account.

        A group has as many rows as there is room for, or half a batch: what is drawn from
        `requests` and has to wait here could be decoded by another process.
        """
        wanted = (self._checked(request) for request in requests if request.rows)
        for group in self._reader.groups(wanted, lambda: max(room(), self.batch // 2)):
            for prompt in self._reader.read(group):
                asked = prompt.request
                for row in asked.rows:
                    key = Key(asked.prompt, self.mechanism.name, row.k, row.trajectory)
                    ledger = _BASELINE_LEDGER if is_baseline(row.k) else self.mechanism.ledger
                    account = ledger.open(row.k, prompt.debt)
                    tokens = list(asked.tokens)
                    yield DecodingRow(key, row.stream, prompt.debt, account, tokens), prompt

    def _checked(self, request: PromptRequest) -> PromptRequest:
        if not request.tokens:
            raise InputError(f"prompt {request.prompt!r} has no tokens; leave it out.")
        if len(request.tokens) + self.decoding.max_new_tokens > self.width:
            raise InputError(
                f"prompt {request.prompt!r} has {len(request.tokens)} tokens; with "
                f"{self.decoding.max_new_tokens} new ones it does not fit the run's "
                f"{self.width} positions."
            )
        return request

    def _part(
        self, slots: list[list[DecodingRow]], slot: int, going: list[list[DecodingRow]]
    ) -> None:
        """Gives rows that wrote different tokens slots of their own; frees a slot without rows."""
        for rows in going[1:]:
            self._move(slot, len(slots))
            slots.append(rows)
        if going:
            slots[slot] = going[0]
            return
        last = len(slots) - 1
        if slot != last:
            self._move(last, slot)
            slots[slot] = slots[last]
        slots.pop()

    def _move(self, source: int, target: int) -> None:
        self._safe.move(source, target)
        self._risky.move(source, target)


def _inferring(work: Callable[..., Tensor], *given: list[int]) -> Tensor:
    # Inference mode belongs to a thread.
    with torch.inference_mode():
        return work(*given)
