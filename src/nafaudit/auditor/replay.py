"""Replays trajectories: from laws and tokens to every number that a sound decoder would log.

Laws come in as plain tensors, so the same code replays a run of checkpoints, a lab run and a
toy world that fits on paper. Of the decoder only the tokens are trusted: its debt,
allowances, weights and charges are claims, held against the result by `nafaudit.auditor.claims`.

The allowance of a step depends on every charge before it. Steps are still worked on together:
the charges of a block are guessed (all of the risky law, or all of the allowance), the block is
served, and the shadow account says how far the guess was right. What follows a wrong guess is
served again. The result is that of one step after the other, whatever the rule. Blocks of several
trajectories are worked on together (`feed_together`): what is asked of laws is asked of many rows.

`replay_texts` replays what a pair of checkpoints wrote, many texts from one pass. Trajectories of
different budgets often begin with the same tokens and share their draws: a law, what it costs and
the noise of a step are computed once for all of them.
"""

from __future__ import annotations

import bisect
import copy
import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nafaudit.auditor.shadow import (
    Mixing,
    ShadowAnchored,
    ShadowBank,
    Tried,
    shadow_account,
    shadow_debt,
    shadow_of,
)
from nafaudit.auditor.teacher_forcing import ForcedText, Part, Piece, Reader, prompt_logp
from nafaudit.core.draws import Stream, uniforms
from nafaudit.core.errors import LawError
from nafaudit.core.ledger import REALISED, Banking, Payment, is_baseline
from nafaudit.core.trajectory import (
    STEP_TYPES,
    WEIGHT_SLACK,
    Key,
    Replayed,
    Steps,
    Trajectory,
)
from nafaudit.protocols import Mechanism, Served, World, currency

# Laws are worked on in pieces of about this many numbers, to stay near a processor's cache.
_PIECE = 1 << 18
# Allowances that agree to this are the same; the noise of a forward pass is far larger.
_SAME = 1e-9
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
        self.rule = ShadowAnchored() if alone else shadow_of(mechanism)
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
            part = slice(start, start + size)
            steps = Feed(self, 0, len(safe[part]))
            served += feed_together([steps], safe[part], risky[part])
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

    def guess(self, seen: _Seen) -> list[float]:
        """Guesses allowances, as far as it pays: each step spends all it needs or all it may."""
        realised = currency(self.rule) == REALISED
        if isinstance(self._account, ShadowBank) and not realised:
            return self._account.foresee(step[1] for step in seen.steps[: self._reach])
        account = copy.deepcopy(self._account)
        guessed = []
        for token, cost, ratio, gap in itertools.islice(seen.steps, self._reach):
            allowance = account.allowance()
            guessed.append(allowance)
            spent = ratio if realised else min(cost, allowance)
            account.pay(Payment(spent, spent, token, gap))
        return guessed

    def prefixes(self, count: int) -> list[tuple[int, ...]]:
        """Returns what stands before each of the next steps."""
        written = (*self.task.prompt, *self.task.tokens.tolist())
        at = len(self.task.prompt) + self.step
        return [written[: at + i] for i in range(count)]

    def book(self, made: _Made, guessed: list[float], seen: _Seen) -> int:
        """Pays for the steps whose allowance was guessed right; returns how many."""
        first, columns, account = self.step, self._columns, self._account
        realised = currency(self.rule) == REALISED
        right = 0
        for charge, served, anchor, (token, _, _, gap) in zip(
            made.charge, made.served, seen.safe, seen.steps, strict=False
        ):
            allowance = account.allowance()
            if right and not math.isclose(allowance, guessed[right], rel_tol=_SAME, abs_tol=_SAME):
                break
            if math.isnan(charge) or math.isnan(served):
                key = tuple(self.task.key)
                raise LawError(f"replaying {key}: step {first + right} has no law.")
            ratio = served - anchor
            paid = ratio if realised else charge
            columns.allowance.append(allowance)
            columns.charge.append(paid)
            account.pay(Payment(paid, ratio, token, gap))
            right += 1
        columns.theta += made.theta[:right]
        columns.served += made.served[:right]
        columns.safe += seen.safe[:right]
        columns.risky += seen.risky[:right]
        self._reach = 2 * self._reach if right == len(guessed) else max(1, right // 2)
        return right

    def add(self, implied: list[float], expected: list[int], shortfall: list[float]) -> None:
        """Takes what does not depend on the account's state: charges of claims, draws."""
        self._columns.implied += implied
        self._columns.expected += expected
        self._columns.shortfall += shortfall


class Feed(NamedTuple):
    """Steps that a replayer is to take next.

    Attributes:
        replayer: Whose.
        first: Row of the first step among the laws that are given.
        steps: How many.
    """

    replayer: Replayer
    first: int
    steps: int


class _Seen(NamedTuple):
    """What is known of some steps of one trajectory before they are served.

    Attributes:
        steps: Token, cost of the risky law, log p_risky / p_safe of the token, that as recorded.
        safe: Log-probabilities of the tokens in the safe law.
        risky: And in the risky one.
    """

    steps: list[tuple[int, float, float, float]]
    safe: list[float]
    risky: list[float]

    def after(self, count: int) -> _Seen:
        """Returns the later steps."""
        return self.part(slice(count, None)) if count else self

    def part(self, rows: slice) -> _Seen:
        """Returns some of the steps."""
        return _Seen(self.steps[rows], self.safe[rows], self.risky[rows])


class _Made(NamedTuple):
    """What was served at some steps of one trajectory, as numbers of the record."""

    charge: list[float]
    theta: list[float]
    served: list[float]


def feed_together(feeds: Sequence[Feed], safe: Tensor, risky: Tensor) -> list[Served]:
    """Replays the next steps of several trajectories, each at most once.

    Args:
        feeds: Whose steps have which of the laws.
        safe: Log-laws of the safe model [rows, vocabulary], float64, warped.
        risky: Log-laws of the risky model, likewise.

    Returns:
        What a sound decoder serves at the steps of each.
    """
    found: dict[int, Served] = {}
    by_rule: dict[object, list[int]] = {}
    for number, feed in enumerate(feeds):
        rule = feed.replayer.rule
        by_rule.setdefault(rule if isinstance(rule, Mixing) else id(rule), []).append(number)
    costs: dict[Mixing, Tensor] = {}
    for numbers in by_rule.values():
        rule = feeds[numbers[0]].replayer.rule
        pricing = rule if isinstance(rule, Mixing) else ShadowAnchored()
        if pricing not in costs:
            costs[pricing] = pricing.cost(safe, risky)
        rows = _Rows([feeds[number] for number in numbers], safe, risky, costs[pricing])
        found |= zip(numbers, rows.replay(), strict=True)
    return [found[number] for number in range(len(feeds))]


class _Rows:
    """The next steps of trajectories that have one rule, one row each."""

    def __init__(self, feeds: Sequence[Feed], safe: Tensor, risky: Tensor, cost: Tensor) -> None:
        self._feeds, self._rule = feeds, feeds[0].replayer.rule
        at = np.concatenate([np.arange(f.first, f.first + f.steps) for f in feeds])
        if not np.array_equal(at, np.arange(len(safe))):
            where = torch.from_numpy(at).to(safe.device)
            safe, risky, cost = (x.index_select(0, where) for x in (safe, risky, cost))
        self._safe, self._risky, self._cost = safe, risky, cost
        self._starts = np.cumsum([0, *(feed.steps for feed in feeds)]).tolist()
        steps = [slice(f.replayer.step, f.replayer.step + f.steps) for f in feeds]
        self._steps = steps
        tokens = [f.replayer.task.tokens[s] for f, s in zip(feeds, steps, strict=True)]
        self._tokens = np.concatenate(tokens).astype(np.int64)
        self._drawn = torch.from_numpy(self._tokens).to(safe.device).unsqueeze(-1)

    def replay(self) -> list[Served]:
        """Serves every row, books it, and says which token its noise implies."""
        implied, tried = self._try()
        served = self._serve(tried)
        expected, shortfall = self._draw(served.law)
        found = []
        for feed, (start, stop) in zip(self._feeds, itertools.pairwise(self._starts), strict=True):
            part = slice(start, stop)
            feed.replayer.add(implied[part], expected[part], shortfall[part])
            found.append(Served(*(tensor[part] for tensor in served)))
        return found

    def _serve(self, tried: Tried | None) -> Served:
        """Serves every row; those after a wrong guess again, until all are right."""
        safe, risky = (self._at_tokens(law).cpu().numpy() for law in (self._safe, self._risky))
        with np.errstate(invalid="ignore", over="ignore"):
            gaps = risky.astype(np.float32).astype(np.float64)
            gaps -= safe.astype(np.float32).astype(np.float64)
            ratios = risky - safe
        each = (self._tokens.tolist(), self._cost.tolist(), ratios.tolist(), gaps.tolist())
        whole = _Seen(list(zip(*each, strict=True)), safe.tolist(), risky.tolist())
        seen = [whole.part(slice(start, stop)) for start, stop in itertools.pairwise(self._starts)]
        made: Served | None = None
        places, left = self._starts[:-1], [feed.steps for feed in self._feeds]
        while any(left):
            going = [n for n, count in enumerate(left) if count]
            guesses = {n: self._feeds[n].replayer.guess(seen[n]) for n in going}
            rows = [row for n in going for row in range(places[n], places[n] + len(guesses[n]))]
            all_rows = made is None and len(rows) == len(self._safe)
            where = None if all_rows else torch.tensor(rows, device=self._safe.device)
            block = self._block(where, guesses, tried)
            drawn = self._drawn if where is None else self._drawn[where]
            numbers = _Made(
                block.charge.tolist(),
                weights_as_recorded(block.theta.cpu().numpy()),
                block.law.gather(-1, drawn).squeeze(-1).tolist(),
            )
            start = 0
            right: list[int] = []
            for n in going:
                part = slice(start, start + len(guesses[n]))
                one = _Made(*(column[part] for column in numbers))
                count = self._feeds[n].replayer.book(one, guesses[n], seen[n])
                right += range(start, start + count)
                seen[n], places[n], left[n] = (
                    seen[n].after(count),
                    places[n] + count,
                    left[n] - count,
                )
                start = part.stop
            if all_rows and not any(left):
                return block
            if made is None:
                new = (torch.empty_like(x) for x in (self._safe, self._cost, self._cost))
                made = Served(*new)
            into = torch.tensor([rows[n] for n in right], device=self._safe.device)
            for column, values in zip(made, block, strict=True):
                column[into] = values[torch.tensor(right, device=self._safe.device)]
        assert made is not None
        return made

    def _block(
        self, where: Tensor | None, guesses: Mapping[int, list[float]], tried: Tried | None
    ) -> Served:
        """Serves some rows at the allowances that are guessed."""
        safe, risky, cost = self._safe, self._risky, self._cost
        if where is not None:
            safe, risky, cost = safe[where], risky[where], cost[where]
            tried = tried and Tried(*(values[where] for values in tried))
        allowed = list(itertools.chain.from_iterable(guesses.values()))
        allowance = torch.tensor(allowed, dtype=torch.float64, device=safe.device)
        if isinstance(self._rule, ShadowAnchored):
            return self._rule.serve_at_cost(safe, risky, allowance, cost, tried)
        if isinstance(self._rule, Mixing):
            return self._rule.serve_at_cost(safe, risky, allowance, cost)
        prefixes = [self._feeds[n].replayer.prefixes(len(each)) for n, each in guesses.items()]
        return self._rule.serve(
            list(itertools.chain.from_iterable(prefixes)), safe, risky, allowance
        )

    def _try(self) -> tuple[list[float], Tried | None]:
        """Charges the claimed weights truly, and returns what that says of the curve."""
        unknown = np.full(len(self._safe), math.nan)
        for feed, steps, start in zip(self._feeds, self._steps, self._starts, strict=False):
            if feed.replayer.task.theta is not None:
                claimed = feed.replayer.task.theta[steps]
                unknown[start : start + len(claimed)] = claimed
        if np.isnan(unknown).all() or not isinstance(self._rule, Mixing):
            return [math.nan] * len(unknown), None
        given = torch.from_numpy(unknown).to(self._safe.device)
        theta, tried = given.clamp(0, 1), None
        if isinstance(self._rule, ShadowAnchored):
            tried = self._rule.try_weights(self._safe, self._risky, theta, self._cost)
            charge = tried.charge
        elif self._rule.realised:
            law = self._rule.law_at(self._safe, self._risky, theta.nan_to_num(0.0))
            charge = self._at_tokens(law) - self._at_tokens(self._safe)
        else:
            charge = self._rule.charge_at(self._safe, self._risky, theta, self._cost)
        valid = (given - theta).abs() <= WEIGHT_SLACK  # NaN is not
        return torch.where(valid, charge, math.nan).tolist(), tried

    def _at_tokens(self, law: Tensor) -> Tensor:
        """Takes log-probabilities of the tokens."""
        return law.gather(-1, self._drawn).squeeze(-1)

    def _draw(self, law: Tensor) -> tuple[list[int], list[float]]:
        """Finds the tokens that the noise implies; -1 and NaN where the draws are not ours."""
        known = [feed.replayer.task.stream is not None for feed in self._feeds]
        rows = np.repeat(known, [feed.steps for feed in self._feeds])
        best, gaps = np.full(len(rows), -1), np.full(len(rows), math.nan)
        if rows.any():
            draws = [
                (feed.replayer.task.stream, range(steps.start, steps.stop))
                for feed, steps in zip(self._feeds, self._steps, strict=True)
                if feed.replayer.task.stream is not None
            ]
            values = law.cpu().numpy()
            values = values if rows.all() else values[rows]
            best[rows], gaps[rows] = perturbed_best(values, draws, self._tokens[rows])
        return best.tolist(), gaps.tolist()


def weights_as_recorded(theta: NDArray[np.float64]) -> list[float]:
    """Rounds weights as `theta_as_recorded` does, many together."""
    rounded = theta.astype(np.float32)
    one, zero = np.float32(1), np.float32(0)
    rounded = np.where((theta < 1) & (rounded >= one), np.nextafter(one, zero), rounded)
    rounded = np.where((theta > 0) & (rounded <= zero), np.nextafter(zero, one), rounded)
    found: list[float] = rounded.tolist()
    return found


def perturbed_best(
    laws: NDArray[np.float64],
    draws: Sequence[tuple[Stream, range]],
    tokens: NDArray[np.integer],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Finds the tokens that laws and noise imply, and by how much the given ones miss their score.

    Equal draws are made once. The score log p - log E with E = -log u is largest where p / E is. As
    E >= 1 - u, only tokens with p / (1 - u) at least the given one's p / E can beat it; the
    logarithm is taken for those.

    Args:
        laws: Log-laws of steps of several streams, one after the other [steps, vocabulary].
        draws: Each stream, and which of its steps.
        tokens: The tokens that were written.
    """
    rows = np.arange(len(laws))
    raw, slots = _noise_words(draws, laws.shape[1])
    own = np.log(-np.log(uniforms(raw[slots, tokens])))
    # Single precision will do to find the candidates, and so do the upper halves of the words:
    # those of ~raw without their last bit are 1 - u in units of 2^-31, or a little less.
    upper = ~raw.view(np.uint32)[:, _UPPER::2] >> np.uint32(1)
    least = upper.view(np.int32).astype(np.float32)
    with np.errstate(divide="ignore", under="ignore"):
        score = laws[rows, tokens] - own
        bound = (np.exp(score) * (1 - 1e-4) * 2.0**-31).astype(np.float32)
        mass = laws.astype(np.float32)
        np.exp(mass, out=mass)
        reach = least[slots]
        reach *= bound[:, None]
        where, rival = np.divmod(np.flatnonzero(mass >= reach), laws.shape[1])
        scores = laws[where, rival] - np.log(-np.log(uniforms(raw[slots[where], rival])))
    order = np.lexsort((scores, where))
    last = np.flatnonzero(np.diff(where[order], append=len(laws)))
    best = order[last]
    gaps = np.maximum(scores[best] - np.where(np.isneginf(score), -np.inf, score), 0.0)
    return rival[best], gaps


def _noise_words(
    draws: Sequence[tuple[Stream, range]], lanes: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Draws `words` of some steps of some streams, each once.

    Returns:
        Words [different steps, lanes], and which of them each step has.
    """
    wanted: dict[Stream, set[int]] = {}
    for stream, steps in draws:
        wanted.setdefault(stream, set()).update(steps)
    places: dict[tuple[Stream, int], int] = {}
    raw = np.empty((sum(map(len, wanted.values())), lanes), np.uint64)
    blocks = -(-lanes // 4)
    for stream, steps_of in wanted.items():
        ordered = sorted(steps_of)
        generator = np.random.Philox(
            key=np.array(stream.words, dtype=np.uint64),
            counter=np.array([0, ordered[0], 0, 0], dtype=np.uint64),
        )
        # One generator is moved from step to step.
        for step, following in zip(ordered, [*ordered[1:], ordered[-1] + 1], strict=True):
            place = places[stream, step] = len(places)
            raw[place] = generator.random_raw(lanes)
            generator.advance(((following - step) << 64) - blocks)
    slots = [places[stream, step] for stream, steps in draws for step in steps]
    return raw, np.array(slots)


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
    promised = mechanism.debt.raw
    # Without warps, or without a debt, both counts of a debt are one.
    two = reader.decoding.warps and mechanism.debt.n > 0
    counts = (promised, not promised) if two else (promised,)
    debts = {text.prompt: _Debts(reader, mechanism, text.prompt, counts) for text in texts}
    replayers: dict[int, list[Replayer]] = {}
    room = max(1, _PIECE // len(reader.pair.vocabulary))
    for pieces in reader.read(texts):
        for piece in pieces:
            for prompt in dict.fromkeys(texts[number].prompt for number in piece.texts):
                debts[prompt].take(piece)
        # The law at one position before the end of a prompt is of the first written token.
        written_from = [
            max(piece.start, min(len(texts[number].prompt) - 1 for number in piece.texts))
            for piece in pieces
        ]
        for parts in _filled(pieces, written_from, room):
            safe, risky = reader.laws(parts)
            feeds: list[Feed] = []
            at = 0
            for part in parts:
                for number in part.piece.texts:
                    text = texts[number]
                    offset = len(text.prompt) - 1
                    first, last = max(part.first, offset), min(part.last, len(text.tokens) - 1)
                    if last <= first:
                        continue
                    if number not in replayers:
                        owed = debts[text.prompt].found
                        made = (
                            replace(task, debt=owed[promised], other_debt=owed.get(not promised))
                            for task in groups[text]
                        )
                        replayers[number] = [Replayer(mechanism, task) for task in made]
                    row, count = at + first - part.first, last - first
                    feeds += (Feed(replayer, row, count) for replayer in replayers[number])
                at += part.last - part.first
            while feeds:
                few = 1 + bisect.bisect_right(
                    list(itertools.accumulate(feed.steps for feed in feeds[1:])), 2 * room
                )
                batch, feeds = feeds[:few], feeds[few:]
                for feed, served in zip(batch, feed_together(batch, safe, risky), strict=True):
                    if on_steps is not None:
                        rows = slice(feed.first, feed.first + feed.steps)
                        first = feed.replayer.step - feed.steps
                        on_steps(feed.replayer.task, first, served, safe[rows], risky[rows])
            for number in {number for part in parts for number in part.piece.texts}:
                ready = replayers.get(number, [])
                if ready and all(one.step == len(one.task.tokens) for one in ready):
                    yield from (replayer.result() for replayer in replayers.pop(number))


def _filled(pieces: Sequence[Piece], firsts: Sequence[int], room: int) -> Iterator[list[Part]]:
    """Yields positions of pieces, from some position on, as many together as there is room for."""
    parts: list[Part] = []
    left = room
    for piece, at in zip(pieces, firsts, strict=True):
        while at < piece.stop:
            last = min(piece.stop, at + left)
            parts.append(Part(piece, at, last))
            left -= last - at
            at = last
            if not left:
                yield parts
                parts, left = [], room
    if parts:
        yield parts


class _Debts:
    """The debts of one prompt, by whether they are counted in the raw laws, as its laws come in."""

    def __init__(
        self,
        reader: Reader,
        mechanism: Mechanism,
        prompt: tuple[int, ...],
        counts: Sequence[bool],
    ) -> None:
        self.found: dict[bool, float] = {}
        self._reader, self._mechanism, self._prompt = reader, mechanism, prompt
        self._special = reader.pair.vocabulary.special
        self._logp: dict[bool, list[tuple[NDArray[np.float64], ...]]] = {raw: [] for raw in counts}
        self._taken = 0

    def take(self, piece: Piece) -> None:
        """Takes laws of consecutive positions; others of the same positions may have come first."""
        if self.found or piece.start != self._taken:
            return
        self._taken = piece.stop
        for raw, parts in self._logp.items():
            parts.append(prompt_logp(self._reader, piece, self._prompt, raw=raw))
            if piece.stop >= len(self._prompt) - 1:
                logp = [np.concatenate(column) for column in zip(*parts, strict=True)]
                self.found[raw] = debt_of_laws(self._mechanism, self._prompt, self._special, *logp)
