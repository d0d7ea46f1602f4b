"""Decodes prompts under a budget: many rows at once, each as if it were alone.

One step of every active row: two laws, the served law, the noise, the token, the payment.
Finished rows leave, waiting rows enter. A prompt is read once, whatever the number of its
trajectories and budgets, together with those that follow it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nafaudit.core.debt import prefix_debt
from nafaudit.core.design import Decoding
from nafaudit.core.draws import Stream
from nafaudit.core.errors import InputError, LawError
from nafaudit.core.ledger import Banking, is_baseline
from nafaudit.core.trajectory import Key, Trajectory, theta_as_recorded
from nafaudit.engine.attention import check_attention
from nafaudit.engine.device_draws import DeviceDraws, Draw
from nafaudit.engine.row import Known, Row, Step
from nafaudit.engine.rows import Prefilled, RowModel
from nafaudit.engine.sample import Draws, draw, draws
from nafaudit.engine.together import law_or_flat, sent, table_of_step
from nafaudit.mechanisms.anchored import Anchored
from nafaudit.mechanisms.laws import NEG_INF, log_law, log_probabilities, warp
from nafaudit.mechanisms.protocols import Mechanism, Rule, booked
from nafaudit.models.pair import Pair

# Laws are padded to a multiple of this many lanes, so that a row starts at the same offset
# within a vector register whatever its place in the batch.
_LANES = 64
# On a CPU, laws are worked on in pieces of this many numbers, to stay in the cache.
_PIECE = 1 << 16


# With an allowance of 0 and of inf this rule serves the safe and the risky law unchanged.
_BASELINE_RULE = Anchored()
_BASELINE_LEDGER = Banking()


@dataclass
class Guessed:
    """How speculation went: guesses that the served law was asked about, and those that stood."""

    asked: int = 0
    stood: int = 0

    def see(self, guess: int | None, token: int) -> None:
        """Counts one written token, if it was guessed at."""
        if guess is not None:
            self.asked += 1
            self.stood += guess == token


class RowRequest(NamedTuple):
    """One trajectory to decode: its budget, its number, and the key of its draws."""

    k: float
    trajectory: int
    stream: Stream


@dataclass(frozen=True)
class PromptRequest:
    """A prompt and all the trajectories that are wanted of it."""

    prompt: str
    tokens: tuple[int, ...]
    rows: tuple[RowRequest, ...]


@dataclass(frozen=True)
class _Prompt:
    """A prompt, read by both models."""

    request: PromptRequest
    debt: float
    safe: Prefilled
    risky: Prefilled


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
        together: Both models step at once, on a thread each; changes speed, never results.
        rows_together: Laws of all rows are worked on at once, where they are; None for wherever
            that is not a CPU.
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
        together: bool = False,
        rows_together: bool | None = None,
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
        self.pair = pair
        self.mechanism = mechanism
        self.decoding = decoding
        self.width = width
        self.batch = batch
        self.speculate = speculate
        self.guessed = Guessed()
        self._thread = _second_thread() if together else None
        self._made: dict[tuple[int, int], Draws] = {}
        # Told after every step how many rows have written a token; for progress, and free to raise.
        self.watch: Callable[[int], None] = lambda rows: None
        self.device = pair.risky.device
        if rows_together is None:
            rows_together = self.device.type != "cpu"
        self._noise = (
            DeviceDraws(len(pair.vocabulary), batch, self.device) if rows_together else None
        )
        self._safe = RowModel(pair.safe, batch, width)
        self._risky = RowModel(pair.risky, batch, width)
        known = torch.tensor([token is not None for token in pair.vocabulary.tokens])
        lanes = -(-len(known) // _LANES) * _LANES
        self._forbidden = torch.ones(lanes, dtype=torch.bool, device=self.device)
        self._forbidden[: len(known)] = ~known.to(self.device)
        self._all_known = bool(known.all()) and lanes == len(known)

    @torch.inference_mode()
    def decode(self, requests: Iterable[PromptRequest]) -> Iterator[Trajectory]:
        """Yields every requested trajectory, in the order in which they end."""
        waiting = self._waiting(requests)
        rows: list[Row] = []
        while True:
            while len(rows) < self.batch and (entering := next(waiting, None)) is not None:
                row, prompt = entering
                self._safe.admit(len(rows), prompt.safe)
                self._risky.admit(len(rows), prompt.risky)
                row.ahead = [
                    Known(self._cut(prompt.safe.logits), self._cut(prompt.risky.logits), None)
                ]
                rows.append(row)
            if not rows:
                return
            ready = [row for row in rows if row.ahead]
            self._write_tokens(ready)
            self.watch(len(ready))
            wrote = set(map(id, ready))
            for slot in reversed(range(len(rows))):
                if id(rows[slot]) not in wrote:
                    continue
                stopped = rows[slot].prefix[-1] in self.pair.vocabulary.stops
                if stopped or rows[slot].step == self.decoding.max_new_tokens:
                    yield rows[slot].trajectory(stopped)
                    self._leave(rows, slot)
            if not any(row.ahead for row in rows):
                self._made.clear()
                if self._noise:
                    self._noise.keep(Draw(row.stream, row.step) for row in rows)
                if rows:
                    self._read_on(rows)

    def _read_on(self, rows: list[Row]) -> None:
        """Both models read what was written last, and perhaps a guess at what comes."""
        tokens = [row.prefix[-1] for row in rows]
        positions = [len(row.prefix) - 1 for row in rows]
        if self.speculate:
            ahead = self._speculated(rows, tokens, positions)
        else:
            safe, risky = self._step(tokens, positions)
            ahead = [
                [Known(*both, None)] for both in zip(self._cut(safe), self._cut(risky), strict=True)
            ]
        for row, known in zip(rows, ahead, strict=True):
            row.ahead = known

    def _step(self, tokens: list[int], positions: list[int]) -> tuple[Tensor, Tensor]:
        if self._thread is None:
            return self._safe.step(tokens, positions), self._risky.step(tokens, positions)
        safe = self._thread.submit(_inferring, self._safe.step, tokens, positions)
        risky = self._risky.step(tokens, positions)
        return safe.result(), risky

    def _speculated(
        self, rows: list[Row], tokens: list[int], positions: list[int]
    ) -> list[list[Known]]:
        """The safe model writes on by itself; the risky model reads all of that at once.

        Guesses take the draws that the served law will meet, so that a guess stands if and only if
        that law gives the same token. Positions past the last one are never attended to.
        """
        fed, at, safe = [tokens], [positions], []
        prefixes = [list(row.prefix) for row in rows]
        for ahead in range(self.speculate + 1):
            safe.append(self._cut(self._safe.step(fed[-1], at[-1])))
            if ahead < self.speculate:
                fed.append(self._guesses(rows, safe[-1], prefixes, ahead))
                at.append([min(position + 1, self.width - 1) for position in at[-1]])
        risky = self._cut(
            self._risky.steps(list(zip(*fed, strict=True)), list(zip(*at, strict=True)))
        )
        guesses: list[Any] = [*fed[1:], [None] * len(rows)]
        return [
            [
                Known(safe[ahead][slot], risky[slot, ahead], guesses[ahead][slot])
                for ahead in range(self.speculate + 1)
            ]
            for slot in range(len(rows))
        ]

    def _guesses(
        self, rows: list[Row], logits: Tensor, prefixes: list[list[int]], ahead: int
    ) -> list[int]:
        size = len(self.pair.vocabulary)
        logits = warp(logits, self._seen(prefixes), self.decoding)
        if self._noise:
            # What is no law here raises when its step is written.
            noise = self._noise.noise([Draw(row.stream, row.step + ahead) for row in rows])
            found = (law_or_flat(logits)[0][:, :size] + noise).argmax(dim=-1).cpu().tolist()
        else:
            found = [
                draw(law, self._draws(row.stream, row.step + ahead))
                for row, law in zip(rows, log_law(logits)[:, :size], strict=True)
            ]
        for prefix, token in zip(prefixes, found, strict=True):
            prefix.append(token)
        return found

    def debt(self, tokens: Sequence[int]) -> float:
        """Returns the prefix debt of a prompt; it depends on nothing but the prompt."""
        return self._read([PromptRequest("", tuple(tokens), ())])[0].debt

    def _waiting(self, requests: Iterable[PromptRequest]) -> Iterator[tuple[Row, _Prompt]]:
        for group in self._groups(request for request in requests if request.rows):
            for prompt in self._read(group):
                for wanted in prompt.request.rows:
                    yield self._row(prompt, wanted), prompt

    def _row(self, prompt: _Prompt, wanted: RowRequest) -> Row:
        key = Key(prompt.request.prompt, self.mechanism.name, wanted.k, wanted.trajectory)
        ledger = _BASELINE_LEDGER if is_baseline(wanted.k) else self.mechanism.ledger
        account = ledger.open(wanted.k, prompt.debt)
        return Row(key, wanted.stream, prompt.debt, account, list(prompt.request.tokens))

    def _groups(self, requests: Iterable[PromptRequest]) -> Iterator[list[PromptRequest]]:
        """Prompts that follow each other and are read in one pass."""
        group: list[PromptRequest] = []
        for request in requests:
            self._check(request)
            longest = max(len(r.tokens) for r in (*group, request))
            fits = all(m.fits(len(group) + 1, longest) for m in (self._safe, self._risky))
            if group and (len(group) == self.batch or not fits):
                yield group
                group = []
            group.append(request)
        if group:
            yield group

    def _check(self, request: PromptRequest) -> None:
        if not request.tokens:
            raise InputError(f"prompt {request.prompt!r} has no tokens; leave it out.")
        if len(request.tokens) + self.decoding.max_new_tokens > self.width:
            raise InputError(
                f"prompt {request.prompt!r} has {len(request.tokens)} tokens; with "
                f"{self.decoding.max_new_tokens} new ones it does not fit the run's "
                f"{self.width} positions."
            )

    @torch.inference_mode()
    def _read(self, requests: list[PromptRequest]) -> list[_Prompt]:
        """Both models read some prompts together."""
        prompts = [request.tokens for request in requests]
        safe, risky = (self._read_by(model, prompts) for model in (self._safe, self._risky))
        read = []
        for request, (safe_logp, safe_read), (risky_logp, risky_read) in zip(
            requests, safe, risky, strict=True
        ):
            with np.errstate(invalid="ignore"):
                ratios = risky_logp - safe_logp
            special = self.pair.vocabulary.special
            counted = np.array([t not in special for t in request.tokens[1:]], bool)
            debt = prefix_debt(ratios, counted, self.mechanism.debt)
            read.append(_Prompt(request, debt, safe_read, risky_read))
        return read

    def _read_by(
        self, model: RowModel, prompts: Sequence[Sequence[int]]
    ) -> list[tuple[NDArray[np.float64], Prefilled]]:
        """Reads prompts with one model; returns log p(x_i | x_<i) for i = 1 .. L-1 of each too."""
        logp: list[list[Tensor]] = [[] for _ in prompts]

        def visit(number: int, start: int, logits: Tensor) -> None:
            tokens = prompts[number]
            following = torch.tensor(tokens[start + 1 : start + 1 + len(logits)], dtype=torch.long)
            if not len(following):
                return
            scored = self._cut(logits[: len(following)])
            seen = self._seen([tokens[: start + i + 1] for i in range(len(following))])
            scored = warp(scored, seen, self.decoding)
            at = following.to(self.device, non_blocking=True)
            logp[number].append(log_probabilities(scored, at))

        read = model.read(prompts, visit)
        scores = [torch.cat(found).cpu().numpy() if found else np.empty(0) for found in logp]
        return list(zip(scores, read, strict=True))

    def _write_tokens(self, rows: list[Row]) -> None:
        """One step of every row: serve, sample, pay, record."""
        if self._noise:
            self._write_at_once(rows, self._noise)
            return
        size = max(1, _PIECE // len(self._forbidden))
        for rule, chosen in self._by_rule(rows):
            for start in range(0, len(chosen), size):
                self._write_piece(rule, chosen[start : start + size])

    def _by_rule(self, rows: list[Row]) -> list[tuple[Rule, list[Row]]]:
        """A baseline is a model alone, whatever rule is audited."""
        alone = [row for row in rows if is_baseline(row.key.k)]
        mixed = [row for row in rows if not is_baseline(row.key.k)]
        return [(_BASELINE_RULE, alone), (self.mechanism.rule, mixed)]

    def _write_at_once(self, rows: list[Row], noise: DeviceDraws) -> None:
        """The same on a device: all rows at once, and one transfer for what the host must know."""
        rule = self.mechanism.rule
        groups = [(rule, rows)] if isinstance(rule, Anchored) else self._by_rule(rows)
        tables, asked, logits = [], [], []
        for rule, chosen in groups:
            if chosen:
                made = noise.noise([Draw(row.stream, row.step) for row in chosen])
                allowed = [row.account.allowance() for row in chosen]
                asked += [(rule, row, limit) for row, limit in zip(chosen, allowed, strict=True)]
                logits.append(self._warped(chosen))
                prefixes = [row.prefix for row in chosen]
                allowance = sent(allowed, self.device)
                tables.append(table_of_step(rule, prefixes, logits[-1], allowance, made))
        values = torch.cat(tables).cpu().tolist()
        if any(no_law for no_law, *_ in values):
            for one in itertools.chain(*logits):
                log_law(one)  # says what is wrong
        for (rule, row, limit), (_, *columns) in zip(asked, values, strict=True):
            self._record(rule, row, limit, columns)

    def _write_piece(self, rule: Rule, rows: list[Row]) -> None:
        safe, risky = map(log_law, self._warped(rows))
        prefixes = [row.prefix for row in rows]
        allowed = [row.account.allowance() for row in rows]
        allowance = torch.tensor(allowed, dtype=torch.float64, device=self.device)
        served = rule.serve(prefixes, safe, risky, allowance)
        size = len(self.pair.vocabulary)
        charges, thetas = served.charge.tolist(), served.theta.tolist()
        laws = [law.numpy() for law in (served.law, safe, risky)]
        for place, (row, limit) in enumerate(zip(rows, allowed, strict=True)):
            token = draw(served.law[place, :size], self._draws(row.stream, row.step))
            drawn = [float(law[place, token]) for law in laws]
            self._record(rule, row, limit, (token, charges[place], thetas[place], *drawn))

    def _record(self, rule: Rule, row: Row, limit: float, columns: Sequence[float]) -> None:
        picked, charge, theta, *logp = columns
        if math.isnan(charge) or math.isnan(logp[0]) or logp[0] == NEG_INF:
            raise LawError(
                f"mechanism {self.mechanism.name} served prompt {row.key.prompt!r} a law "
                f"that is not one at step {row.step}: charge {charge}, log p {logp[0]}."
            )
        self.guessed.see(row.ahead[0].guess, int(picked))
        paid = booked(rule, charge, logp[0] - logp[1])
        row.write(Step(int(picked), limit, paid, theta_as_recorded(theta), *logp))

    def _warped(self, rows: list[Row]) -> tuple[Tensor, Tensor]:
        """What both models say of each row's next token."""
        seen = self._seen([row.prefix for row in rows])
        safe = _together([row.ahead[0].safe for row in rows])
        risky = _together([row.ahead[0].risky for row in rows])
        return warp(safe, seen, self.decoding), warp(risky, seen, self.decoding)

    def _draws(self, stream: Stream, step: int) -> Draws:
        """A stream's draws; budgets that share it share the work, and so do guesses."""
        where = (stream.key, step)
        if where not in self._made:
            self._made[where] = draws(stream, step, len(self.pair.vocabulary))
        return self._made[where]

    def _leave(self, rows: list[Row], slot: int) -> None:
        """Takes a finished row out; the last row takes its slot."""
        last = len(rows) - 1
        if slot != last:
            self._safe.move(last, slot)
            self._risky.move(last, slot)
            rows[slot] = rows[last]
        rows.pop()

    def _seen(self, prefixes: Sequence[Sequence[int]]) -> Tensor | None:
        if self.decoding.repetition_penalty == 1.0:
            return None
        seen = torch.zeros(len(prefixes), len(self._forbidden), dtype=torch.bool)
        for row, prefix in enumerate(prefixes):
            seen[row, list(prefix)] = True
        return seen.to(self.device, non_blocking=True)

    def _cut(self, logits: Tensor) -> Tensor:
        """Logits over the tokenizer's ids, padded to whole lanes; other rows are forbidden."""
        lanes = len(self._forbidden)
        logits = logits[..., : len(self.pair.vocabulary)].to(self.device)
        if self._all_known:
            return logits
        padded = torch.nn.functional.pad(logits, (0, lanes - logits.shape[-1]))
        return padded.masked_fill_(self._forbidden, NEG_INF)


def _second_thread() -> ThreadPoolExecutor:
    """A thread whose products run on one core, like those of the first."""
    return ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,))


def _inferring(work: Callable[..., Tensor], *given: list[int]) -> Tensor:
    # Inference mode belongs to a thread.
    with torch.inference_mode():
        return work(*given)


def _together(rows: list[Tensor]) -> Tensor:
    return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(rows)
