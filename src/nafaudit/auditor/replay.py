"""Replays trajectories: from laws and tokens to every number that a sound decoder would log.

Laws come in as plain tensors, so the same code replays a run of checkpoints, a lab run and a
toy world that fits on paper. Of the decoder only the tokens are trusted: its debt,
allowances, weights and charges are claims, held against the result by `nafaudit.auditor.claims`.

The allowance of a step depends on every charge before it. Steps are still worked on together:
the charges of a block are guessed (all of the risky law, or all of the allowance), the block is
served, and the shadow account says how far the guess was right. What follows a wrong guess is
served again. The result is that of one step after the other, whatever the rule.

`replay_texts` replays what a pair of checkpoints wrote, many texts from one pass; trajectories of
different budgets often wrote the same tokens, whose laws are computed once.
"""

from __future__ import annotations

import copy
import math
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
    shadow_account,
    shadow_debt,
    shadow_of,
)
from nafaudit.auditor.teacher_forcing import ForcedText, Reader, prompt_logp
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

    def feed(self, safe: Tensor, risky: Tensor) -> list[Served]:
        """Replays the next steps.

        Args:
            safe: Log-laws of the safe model [steps, vocabulary], float64, warped.
            risky: Log-laws of the risky model, likewise.

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
            served += self._feed(safe[start : start + size], risky[start : start + size])
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

    def _feed(self, safe: Tensor, risky: Tensor) -> list[Served]:
        pricing = self._rule if isinstance(self._rule, Mixing) else ShadowAnchored()
        costs = pricing.cost(safe, risky)
        served: list[Served] = []
        start = 0
        while start < len(safe):
            part = slice(start, min(len(safe), start + self._reach))
            logp = [self._at_tokens(self.step, law[part]).tolist() for law in (safe, risky)]
            guessed = self._guess(costs[part].tolist(), *logp)
            block = self._serve(safe[part], risky[part], costs[part], guessed)
            right = self._book(block, guessed, safe[part], risky[part])
            done = slice(start, start + right)
            self._columns.implied += self._implied(safe[done], risky[done], costs[done])
            self._draw(block.law[:right])
            served.append(Served(*(tensor[:right] for tensor in block)))
            self._reach = 2 * self._reach if right == len(guessed) else max(1, right // 2)
            start += right
        return served

    def _serve(self, safe: Tensor, risky: Tensor, costs: Tensor, allowed: list[float]) -> Served:
        allowance = torch.tensor(allowed, dtype=torch.float64, device=safe.device)
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

    def _book(self, block: Served, guessed: list[float], safe: Tensor, risky: Tensor) -> int:
        """Pays for the steps whose allowance was guessed right; returns how many."""
        first, task = self.step, self.task
        drawn = [self._at_tokens(first, law) for law in (block.law, safe, risky)]
        rows = torch.stack([block.charge, block.theta, *drawn], dim=1).tolist()
        columns = self._columns
        for step, (charge, theta, served, anchor, other) in enumerate(rows):
            allowance = self._account.allowance()
            if step and not math.isclose(allowance, guessed[step], rel_tol=_SAME, abs_tol=_SAME):
                rows = rows[:step]
                break
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
        return len(rows)

    def _implied(self, safe: Tensor, risky: Tensor, costs: Tensor) -> list[float]:
        claimed, first = self.task.theta, len(self._columns.implied)
        if claimed is None or not isinstance(self._rule, Mixing):
            return [math.nan] * len(safe)
        wanted = np.asarray(claimed[first : first + len(safe)], np.float64)
        given = torch.from_numpy(wanted.copy()).to(safe.device)
        theta = given.clamp(0, 1)
        if isinstance(self._rule, ShadowOrder) and self._rule.realised:
            law = self._rule.law_at(safe, risky, theta.nan_to_num(0.0))
            charge = self._at_tokens(first, law) - self._at_tokens(first, safe)
        else:
            charge = self._rule.charge_at(safe, risky, theta, costs)
        valid = (given - theta).abs() <= WEIGHT_SLACK  # NaN is not
        implied: list[float] = torch.where(valid, charge, math.nan).tolist()
        return implied

    def _at_tokens(self, first: int, law: Tensor) -> Tensor:
        """Takes log-probabilities of the tokens from a step on."""
        tokens = self.task.tokens[first : first + len(law)].astype(np.int64)
        at = torch.from_numpy(tokens).to(law.device).unsqueeze(-1)
        return law.gather(-1, at).squeeze(-1)

    def _draw(self, law: Tensor) -> None:
        columns, stream = self._columns, self.task.stream
        first = len(columns.expected)
        if stream is None:
            best, gaps = np.full(len(law), -1), np.full(len(law), math.nan)
        else:
            tokens = self.task.tokens[first : first + len(law)]
            best, gaps = perturbed_best(law.cpu().numpy(), stream, first, tokens)
        columns.expected += best.tolist()
        columns.shortfall += gaps.tolist()


def perturbed_best(
    laws: NDArray[np.float64], stream: Stream, first: int, tokens: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Finds the tokens that laws and noise imply, and by how much the given ones miss their score.

    The score log p - log E with E = -log u is largest where p / E is. As E >= 1 - u, only tokens
    with p / (1 - u) at least the given one's p / E can beat it; the logarithm is taken for those.

    Args:
        laws: Log-laws of consecutive steps [steps, vocabulary].
        stream: Key of the draws.
        first: Number of the first step.
        tokens: The tokens that were written.
    """
    rows = np.arange(len(laws))
    raw = _noise_words(stream, first, *laws.shape)
    own = np.log(-np.log(uniforms(raw[rows, tokens])))
    with np.errstate(divide="ignore", under="ignore"):
        score = laws[rows, tokens] - own
        bound = (np.exp(score) * (1 - 1e-4) * 2.0**-64).astype(np.float32)
        # Single precision will do to find the candidates: ~raw is 1 - u in units of 2^-64.
        mass = np.exp(laws.astype(np.float32))
        where, rival = np.nonzero(mass >= (~raw).astype(np.float32) * bound[:, None])
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
    debts: dict[tuple[int, ...], dict[bool, float]] = {}
    prompts: dict[int, dict[bool, list[tuple[NDArray[np.float64], ...]]]] = {}
    replayers: dict[int, list[Replayer]] = {}
    for piece in reader.read(texts):
        text = texts[piece.text]
        offset = len(text.prompt) - 1  # the law at this position is of the first written token
        if text.prompt not in debts:
            parts = prompts.setdefault(piece.text, {raw: [] for raw in counts})
            for raw in counts:
                parts[raw].append(prompt_logp(piece, text.prompt, raw=raw))
            if piece.stop >= offset:
                debts[text.prompt] = {}
                for raw, each in prompts.pop(piece.text).items():
                    logp = [np.concatenate(column) for column in zip(*each, strict=True)]
                    debt = debt_of_laws(mechanism, text.prompt, special, *logp)
                    debts[text.prompt][raw] = debt
        at, last = max(piece.start, offset), min(piece.stop, len(text.tokens) - 1)
        if last <= at:
            continue
        if piece.text not in replayers:
            owed = debts[text.prompt]
            replayers[piece.text] = [
                Replayer(
                    mechanism,
                    replace(task, debt=owed[promised], other_debt=owed.get(not promised)),
                )
                for task in groups[text]
            ]
        rows = 1
        while at < last:
            safe, risky = piece.laws(at, min(last, at + rows))
            rows = max(1, _PIECE // safe.shape[-1])
            for replayer in replayers[piece.text]:
                served = replayer.feed(safe, risky)
                if on_steps is not None:
                    whole = Served(*(torch.cat(blocks) for blocks in zip(*served, strict=True)))
                    on_steps(replayer.task, at - offset, whole, safe, risky)
            at += len(safe)
        if at == len(text.tokens) - 1:
            yield from (replayer.result() for replayer in replayers.pop(piece.text))
