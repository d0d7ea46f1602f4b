"""Replays trajectories: from laws and tokens to every number that a sound decoder would log.

Laws come in as plain tensors, so the same code replays a run of checkpoints, a lab run and a
toy world that fits on paper. Of the decoder only the tokens are trusted: its debt,
allowances, weights and charges are claims, held against the result by `nafaudit.auditor.claims`.

The allowance of a step depends on every charge before it. Steps are still worked on together:
the charges of a block are guessed (all of the risky law, or all of the allowance), the block is
served, and the shadow account says how far the guess was right. What follows a wrong guess is
served again. The result is that of one step after the other, whatever the rule.

`replay_texts` replays what a pair of checkpoints wrote, many texts from one pass. Trajectories of
different budgets often begin with the same tokens and share their draws: a law, what it costs and
the noise of a step are computed once for all of them (`_Block`, `_Words`).
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nafaudit.auditor.shadow import (
    Mixing,
    ShadowAnchored,
    ShadowOrder,
    Tried,
    shadow_account,
    shadow_debt,
    shadow_of,
)
from nafaudit.auditor.teacher_forcing import ForcedText, Piece, Reader, prompt_logp
from nafaudit.core.draws import Stream, uniforms
from nafaudit.core.errors import LawError
from nafaudit.core.ledger import Banking, Payment, is_baseline, recorded_gap
from nafaudit.core.trajectory import (
    STEP_TYPES,
    WEIGHT_SLACK,
    Key,
    Replayed,
    Steps,
    Trajectory,
    theta_as_recorded,
)
from nafaudit.protocols import Mechanism, Served, World, booked

# Laws are worked on in pieces of this many numbers, to stay in a processor's cache.
_PIECE = 1 << 16
# Allowances that agree to this are the same; the noise of a forward pass is far larger.
_SAME = 1e-9
# Random words that are kept for other trajectories of the same draws: 32 MB.
_KEPT_WORDS = 1 << 22
# Where a 64-bit word has its upper half.
_UPPER = 1 if sys.byteorder == "little" else 0


@dataclass(frozen=True)
class ReplayTask:
    """One trajectory to replay: what a decoder wrote, and what is claimed of it.

    Attributes:
        key: Which one; its budget is the one that was promised.
        prompt: Token ids of the prompt.
        tokens: Token ids that were written; at least one.
        stopped: True if the last token is a stop token.
        stream: Key of the draws, if they are ours.
        theta: Claimed weights, to be charged truly; None if nothing is claimed.
        debt: Recomputed prefix debt (`debt_of_laws`); NaN until it is.
        other_debt: The debt counted in the other laws, if there are any.
    """

    key: Key
    prompt: tuple[int, ...]
    tokens: NDArray[np.int32]
    stopped: bool = False
    stream: Stream | None = None
    theta: NDArray[np.floating] | None = None
    debt: float = math.nan
    other_debt: float | None = None


@dataclass(frozen=True, eq=False)
class ReplayWithLaws:
    """A second record, with the laws that it rests on [steps, vocabulary].

    Attributes:
        replayed: The record.
        law: What a sound decoder serves at every step.
        safe: The safe model's law.
        risky: The risky model's law.
    """

    replayed: Replayed
    law: Tensor
    safe: Tensor
    risky: Tensor


@dataclass
class _Columns:
    """The numbers of the steps replayed so far."""

    allowance: list[float] = field(default_factory=list)
    charge: list[float] = field(default_factory=list)
    theta: list[float] = field(default_factory=list)
    served: list[float] = field(default_factory=list)
    safe: list[float] = field(default_factory=list)
    risky: list[float] = field(default_factory=list)
    implied: list[float] = field(default_factory=list)
    shortfall: list[float] = field(default_factory=list)
    expected: list[int] = field(default_factory=list)


class Replayer:
    """Replays one trajectory, fed its laws in order, in blocks of any size."""

    def __init__(self, mechanism: Mechanism, task: ReplayTask) -> None:
        self.task = task
        alone = is_baseline(task.key.k)
        # A baseline is a model alone, whatever rule is audited.
        self._rule = ShadowAnchored() if alone else shadow_of(mechanism)
        self._ledger = Banking() if alone else mechanism.ledger
        self._account = shadow_account(self._ledger, task.key.k, task.debt)
        self._columns = _Columns()
        self._reach = len(task.tokens) or 1

    @property
    def step(self) -> int:
        """How many steps are replayed."""
        return len(self._columns.charge)

    def feed(self, safe: Tensor, risky: Tensor, words: _Words | None = None) -> list[Served]:
        """Replays the next steps.

        Args:
            safe: Log-laws of the safe model [steps, vocabulary], float64, warped.
            risky: Log-laws of the risky model, likewise.
            words: What noise was drawn for others, if their draws may be the same.

        Returns:
            What a sound decoder serves, in order, for tests of the tokens against it.
        """
        if self.step + len(safe) > len(self.task.tokens):
            raise ValueError(
                f"{self.step + len(safe)} laws for the {len(self.task.tokens)} tokens of "
                f"{tuple(self.task.key)}."
            )
        size = max(1, _PIECE // safe.shape[-1])
        served: list[Served] = []
        for start in range(0, len(safe), size):
            block = _Block(safe[start : start + size], risky[start : start + size], words)
            served += self.feed_block(block)
        return served

    def result(self) -> Replayed:
        """Returns the second record, once every step was fed."""
        task, columns = self.task, self._columns
        if self.step != len(task.tokens):
            raise ValueError(f"{self.step} of {len(task.tokens)} steps were replayed.")
        values = {
            name: np.array(getattr(columns, name), STEP_TYPES[name])
            for name in STEP_TYPES
            if name != "token"
        }
        steps = Steps(token=task.tokens.astype(np.int32), **values)
        k, other, tokens = task.key.k, task.other_debt, steps.token
        return Replayed(
            Trajectory(task.key, task.debt, task.stopped, steps),
            granted=self._ledger.accrued(k, task.debt, tokens),
            implied=np.array(columns.implied, np.float64),
            shortfall=np.array(columns.shortfall, np.float64),
            expected=np.array(columns.expected, np.int32),
            other_debt=other,
            granted_otherwise=None if other is None else self._ledger.accrued(k, other, tokens),
        )

    def feed_block(self, block: _Block) -> list[Served]:
        """Replays the next steps, few enough to be worked on together."""
        safe, risky = block.safe, block.risky
        pricing = self._rule if isinstance(self._rule, Mixing) else ShadowAnchored()
        costs = block.cost(pricing)
        tried = self._try(safe, risky, costs)
        logp = [self._at_tokens(self.step, law).tolist() for law in (safe, risky)]
        prices = costs.tolist()
        served: list[Served] = []
        start = 0
        while start < len(safe):
            part = slice(start, min(len(safe), start + self._reach))
            guessed = self._guess(prices[part], *(column[part] for column in logp))
            weights = None if tried is None else Tried(*(values[part] for values in tried))
            made = self._serve(safe[part], risky[part], costs[part], guessed, weights)
            right = self._book(made, guessed, *(column[part] for column in logp))
            done = Served(*(tensor[:right] for tensor in made))
            self._draw(done.law, block.words)
            served.append(done)
            self._reach = 2 * self._reach if right == len(guessed) else max(1, right // 2)
            start += right
        return served

    def _serve(
        self,
        safe: Tensor,
        risky: Tensor,
        costs: Tensor,
        allowed: list[float],
        tried: Tried | None,
    ) -> Served:
        allowance = torch.tensor(allowed, dtype=torch.float64, device=safe.device)
        if isinstance(self._rule, ShadowAnchored):
            return self._rule.serve_at_cost(safe, risky, allowance, costs, tried)
        if isinstance(self._rule, Mixing):
            return self._rule.serve_at_cost(safe, risky, allowance, costs)
        written = (*self.task.prompt, *self.task.tokens.tolist())
        at = len(self.task.prompt) + self.step
        prefixes = [written[: at + i] for i in range(len(allowed))]
        return self._rule.serve(prefixes, safe, risky, allowance)

    def _guess(
        self, costs: Sequence[float], safe: Sequence[float], risky: Sequence[float]
    ) -> list[float]:
        """Guesses the allowances of the next steps: each spends all it needs or all it may."""
        account = copy.deepcopy(self._account)
        guessed = []
        tokens = self.task.tokens[self.step :].tolist()
        for token, cost, anchor, other in zip(tokens, costs, safe, risky, strict=False):
            guessed.append(account.allowance())
            spent = booked(self._rule, min(cost, guessed[-1]), other - anchor)
            account.pay(Payment(spent, spent, token, recorded_gap(other, anchor)))
        return guessed

    def _book(
        self, made: Served, guessed: list[float], safe: list[float], risky: list[float]
    ) -> int:
        """Pays for the steps whose allowance was guessed right; returns how many."""
        first, task = self.step, self.task
        law = self._at_tokens(first, made.law)
        rows = zip(*(x.tolist() for x in (made.charge, made.theta, law)), safe, risky, strict=True)
        columns = self._columns
        for step, (charge, theta, served, anchor, other) in enumerate(rows):
            allowance = self._account.allowance()
            if step and not math.isclose(allowance, guessed[step], rel_tol=_SAME, abs_tol=_SAME):
                return step
            if math.isnan(charge) or math.isnan(served):
                raise LawError(f"replaying {tuple(task.key)}: step {first + step} has no law.")
            paid = booked(self._rule, charge, served - anchor)
            columns.allowance.append(allowance)
            columns.charge.append(paid)
            columns.theta.append(theta if math.isnan(theta) else theta_as_recorded(theta))
            columns.served.append(served)
            columns.safe.append(anchor)
            columns.risky.append(other)
            token = int(task.tokens[first + step])
            gap = recorded_gap(other, anchor)
            self._account.pay(Payment(paid, served - anchor, token, gap))
        return len(guessed)

    def _try(self, safe: Tensor, risky: Tensor, costs: Tensor) -> Tried | None:
        """Charges the claimed weights truly, and returns what that says of the curve."""
        claimed, first = self.task.theta, len(self._columns.implied)
        if claimed is None or not isinstance(self._rule, Mixing):
            self._columns.implied += [math.nan] * len(safe)
            return None
        wanted = np.asarray(claimed[first : first + len(safe)], np.float64)
        given = torch.from_numpy(wanted.copy()).to(safe.device)
        theta = given.clamp(0, 1)
        tried = None
        if isinstance(self._rule, ShadowOrder) and self._rule.realised:
            law = self._rule.law_at(safe, risky, theta.nan_to_num(0.0))
            charge = self._at_tokens(first, law) - self._at_tokens(first, safe)
        elif isinstance(self._rule, ShadowAnchored):
            tried = self._rule.try_weights(safe, risky, theta, costs)
            charge = tried.charge
        else:
            charge = self._rule.charge_at(safe, risky, theta, costs)
        valid = (given - theta).abs() <= WEIGHT_SLACK  # NaN is not
        self._columns.implied += torch.where(valid, charge, math.nan).tolist()
        return tried

    def _at_tokens(self, first: int, law: Tensor) -> Tensor:
        """Takes log-probabilities of the tokens from a step on."""
        tokens = self.task.tokens[first : first + len(law)].astype(np.int64)
        at = torch.from_numpy(tokens).to(law.device).unsqueeze(-1)
        return law.gather(-1, at).squeeze(-1)

    def _draw(self, law: Tensor, words: _Words | None) -> None:
        columns, stream = self._columns, self.task.stream
        first = len(columns.expected)
        if stream is None:
            best, gaps = np.full(len(law), -1), np.full(len(law), math.nan)
        else:
            tokens = self.task.tokens[first : first + len(law)]
            best, gaps = perturbed_best(law.cpu().numpy(), stream, first, tokens, words)
        columns.expected += best.tolist()
        columns.shortfall += gaps.tolist()


class _Block:
    """Laws of consecutive steps, and what several trajectories ask of them.

    Args:
        safe: Log-laws of the safe model [steps, vocabulary], float64, warped.
        risky: Log-laws of the risky model, likewise.
        words: What noise was drawn for others, if any.
    """

    def __init__(self, safe: Tensor, risky: Tensor, words: _Words | None = None) -> None:
        self.safe, self.risky, self.words = safe, risky, words
        self._costs: dict[Mixing, Tensor] = {}

    def cost(self, pricing: Mixing) -> Tensor:
        """Computes what the risky laws cost."""
        if pricing not in self._costs:
            self._costs[pricing] = pricing.cost(self.safe, self.risky)
        return self._costs[pricing]

    def part(self, first: int, last: int) -> _Block:
        """Returns the laws of some of the steps."""
        if (first, last) == (0, len(self.safe)):
            return self
        found = _Block(self.safe[first:last], self.risky[first:last], self.words)
        found._costs = {one: costs[first:last] for one, costs in self._costs.items()}
        return found


class _Words:
    """Raw noise, kept for a while: trajectories of all budgets share their draws."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Stream, int], NDArray[np.uint64]] = {}
        self._numbers = 0

    def of(self, stream: Stream, first: int, steps: int, lanes: int) -> NDArray[np.uint64]:
        """Returns the words of consecutive steps [steps, lanes]."""
        found = self._kept.get((stream, first))
        if found is None or len(found) < steps:
            found = _noise_words(stream, first, steps, lanes)
            self._kept[stream, first] = found
            self._numbers += found.size
            while self._numbers > _KEPT_WORDS:  # the oldest go first
                self._numbers -= self._kept.pop(next(iter(self._kept))).size
        return found[:steps]


def perturbed_best(
    laws: NDArray[np.float64],
    stream: Stream,
    first: int,
    tokens: NDArray[np.int32],
    words: _Words | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Finds the tokens that laws and noise imply, and by how much the given ones miss their score.

    The score log p - log E with E = -log u is largest where p / E is. As E >= 1 - u, only tokens
    with p / (1 - u) at least the given one's p / E can beat it; the logarithm is taken for those.

    Args:
        laws: Log-laws of consecutive steps [steps, vocabulary].
        stream: Key of the draws.
        first: Number of the first step.
        tokens: The tokens that were written.
        words: What noise was drawn for others, if any.
    """
    rows = np.arange(len(laws))
    raw = (words or _Words()).of(stream, first, *laws.shape)
    own = np.log(-np.log(uniforms(raw[rows, tokens])))
    with np.errstate(divide="ignore", under="ignore"):
        score = laws[rows, tokens] - own
        bound = (np.exp(score) * (1 - 1e-4) * 2.0**-31).astype(np.float32)
        # Single precision will do to find the candidates, and so do the words' upper halves: those
        # of ~raw without their last bit are 1 - u in units of 2^-31, or a little less.
        mass = np.exp(laws.astype(np.float32))
        least = (~raw.view(np.uint32)[:, _UPPER::2] >> np.uint32(1)).view(np.int32)
        reach = least.astype(np.float32)
        reach *= bound[:, None]
        where, rival = np.divmod(np.flatnonzero(mass >= reach), laws.shape[1])
        scores = laws[where, rival] - np.log(-np.log(uniforms(raw[where, rival])))
    order = np.lexsort((scores, where))
    last = np.flatnonzero(np.diff(where[order], append=len(laws)))
    best = order[last]
    gaps = np.maximum(scores[best] - np.where(np.isneginf(score), -np.inf, score), 0.0)
    return rival[best], gaps


def _noise_words(stream: Stream, first: int, steps: int, lanes: int) -> NDArray[np.uint64]:
    """Draws `words` of consecutive steps, from one generator that is moved from step to step."""
    generator = np.random.Philox(
        key=np.array(stream.words, dtype=np.uint64),
        counter=np.array([0, first, 0, 0], dtype=np.uint64),
    )
    raw = np.empty((steps, lanes), np.uint64)
    blocks = -(-lanes // 4)
    for row in raw:
        row[:] = generator.random_raw(lanes)
        generator.advance((1 << 64) - blocks)
    return raw


def replay(mechanism: Mechanism, task: ReplayTask, safe: Tensor, risky: Tensor) -> Replayed:
    """Replays one trajectory from all of its laws [tokens, vocabulary]."""
    replayer = Replayer(mechanism, task)
    replayer.feed(safe, risky)
    return replayer.result()


def debt_of_laws(
    mechanism: Mechanism,
    prompt: Sequence[int],
    special: frozenset[int],
    safe: NDArray[np.float64],
    risky: NDArray[np.float64],
) -> float:
    """Computes the prefix debt from log p(x_i | x_<i) of prompt tokens 1 .. L-1."""
    gains = []
    for token, anchor, other in zip(prompt[1:], safe.tolist(), risky.tolist(), strict=True):
        gain = other - anchor
        if token not in special and math.isnan(gain):
            raise LawError("a prompt token has no probability in either law; its debt is unknown.")
        gains.append(0.0 if token in special else gain)
    return shadow_debt(gains, mechanism.debt)


def debt_along(
    world: World, mechanism: Mechanism, prompt: Sequence[int], safe: Tensor, risky: Tensor
) -> float:
    """Computes the prefix debt from the laws along a text that begins with the prompt.

    Args:
        world: The two models, asked again where the debt is counted in their own laws.
        mechanism: The promise.
        prompt: Token ids.
        safe: Log-laws of the safe model after each prefix of the text.
        risky: Log-laws of the risky model, likewise.
    """
    if mechanism.debt.raw and len(prompt) > 1:
        own = world.prefix_laws(prompt[:-1], raw=True)
        safe, risky = (torch.from_numpy(np.array(law, np.float64)) for law in own)
    following = torch.tensor(prompt[1:], dtype=torch.long).unsqueeze(-1)
    laws = (law[: len(prompt) - 1] for law in (safe, risky))
    logp = [law.gather(-1, following).squeeze(-1).numpy() for law in laws]
    return debt_of_laws(mechanism, prompt, world.special, *logp)


def replay_in(world: World, mechanism: Mechanism, task: ReplayTask) -> ReplayWithLaws:
    """Replays what was written in a world that has no checkpoints.

    Args:
        world: The two models; they decide the debt, and whether the last token stops.
        mechanism: The promise.
        task: What was written.
    """
    prompt, tokens = task.prompt, task.tokens.tolist()
    laws = world.prefix_laws((*prompt, *tokens[:-1]))
    safe, risky = (torch.from_numpy(np.array(law, np.float64)) for law in laws)
    at = len(prompt) - 1
    debt = debt_along(world, mechanism, prompt, safe, risky)
    replayer = Replayer(mechanism, replace(task, stopped=tokens[-1] in world.stops, debt=debt))
    served = replayer.feed(safe[at:], risky[at:])
    law = torch.cat([block.law for block in served])
    return ReplayWithLaws(replayer.result(), law, safe[at:], risky[at:])


class OnSteps(Protocol):
    """Takes every replayed step while its laws are in memory."""

    def __call__(
        self, task: ReplayTask, first: int, served: Served, safe: Tensor, risky: Tensor
    ) -> None:
        """Takes the steps of a trajectory from `first` on: what is served, both models' laws."""
        ...


def replay_texts(
    reader: Reader,
    mechanism: Mechanism,
    written: Sequence[ReplayTask],
    on_steps: OnSteps | None = None,
) -> Iterator[Replayed]:
    """Yields a second record of every trajectory, in an order of our own.

    Args:
        reader: The pair and its warps.
        mechanism: The promise: rule, ledger and debt.
        written: What to replay.
        on_steps: Called with every step while its laws are in memory.
    """
    groups: dict[ForcedText, list[ReplayTask]] = {}
    for one in written:
        text = ForcedText(one.prompt, tuple(one.tokens.tolist()))
        groups.setdefault(text, []).append(one)
    texts = list(groups)
    promised, special = mechanism.debt.raw, reader.pair.vocabulary.special
    # Without warps, or without a debt, both counts of a debt are one.
    two = reader.decoding.warps and mechanism.debt.n > 0
    counts = (promised, not promised) if two else (promised,)
    debts = {text.prompt: _Debts(mechanism, text.prompt, special, counts) for text in texts}
    replayers: dict[int, list[Replayer]] = {}
    words = _Words()
    for piece in reader.read(texts):
        for prompt in dict.fromkeys(texts[number].prompt for number in piece.texts):
            debts[prompt].take(piece)
        # The law at one position before the end of a prompt is of the first written token.
        offsets = {number: len(texts[number].prompt) - 1 for number in piece.texts}
        at, rows = max(piece.start, min(offsets.values())), 1
        while at < piece.stop:
            safe, risky = piece.laws(at, min(piece.stop, at + rows))
            rows = max(1, _PIECE // safe.shape[-1])
            block = _Block(safe, risky, words)
            for number in piece.texts:
                text, offset = texts[number], offsets[number]
                first, last = max(at, offset), min(at + len(safe), len(text.tokens) - 1)
                if last <= first:
                    continue
                if number not in replayers:
                    owed = debts[text.prompt].found
                    both = {"debt": owed[promised], "other_debt": owed.get(not promised)}
                    made = (replace(task, **both) for task in groups[text])
                    replayers[number] = [Replayer(mechanism, task) for task in made]
                part = block.part(first - at, last - at)
                for replayer in replayers[number]:
                    served = replayer.feed_block(part)
                    if on_steps is not None:
                        whole = Served(*(torch.cat(blocks) for blocks in zip(*served, strict=True)))
                        on_steps(replayer.task, first - offset, whole, part.safe, part.risky)
                if last == len(text.tokens) - 1:
                    yield from (replayer.result() for replayer in replayers.pop(number))
            at += len(safe)


class _Debts:
    """The debts of one prompt, by whether they are counted in the raw laws, as its laws come in."""

    def __init__(
        self,
        mechanism: Mechanism,
        prompt: tuple[int, ...],
        special: frozenset[int],
        counts: Sequence[bool],
    ) -> None:
        self.found: dict[bool, float] = {}
        self._mechanism, self._prompt, self._special = mechanism, prompt, special
        self._logp: dict[bool, list[tuple[NDArray[np.float64], ...]]] = {raw: [] for raw in counts}
        self._taken = 0

    def take(self, piece: Piece) -> None:
        """Takes laws of consecutive positions; others of the same positions may have come first."""
        if self.found or piece.start != self._taken:
            return
        self._taken = piece.stop
        for raw, parts in self._logp.items():
            parts.append(prompt_logp(piece, self._prompt, raw=raw))
            if piece.stop >= len(self._prompt) - 1:
                logp = [np.concatenate(column) for column in zip(*parts, strict=True)]
                self.found[raw] = debt_of_laws(self._mechanism, self._prompt, self._special, *logp)
