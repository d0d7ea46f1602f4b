"""Follows written text step by step, many rows at once, under any rule.

The text decides every token, so all laws are known beforehand; only the allowance of a step depends
on the steps before it. `replay.Replayer` works on the steps of one trajectory together, which pays
for large vocabularies; here the rows of a step are served together, which pays where rows are many.

- `replay_many` replays trajectories of a small world under the shadow rule. Auditing the auditor
  replays hundreds of thousands of short ones over a few dozen tokens, where what counts is the
  number of calls. The tests hold it to `Replayer`.
- `follow_texts` follows texts under the audited rules at many budgets, from one pass of both
  models: what each would have served, what that costs, what it buys and what it gives away.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nafaudit.auditor.replay import ReplayTask, ReplayWithLaws, debt_along, debt_of_laws
from nafaudit.auditor.shadow import Mixing, ShadowAnchored, divergence, shadow_account
from nafaudit.auditor.teacher_forcing import ForcedText, Part, Piece, Reader, prompt_logp
from nafaudit.core.ledger import REALISED, Account, Banking, Payment, is_baseline
from nafaudit.core.trajectory import STEP_TYPES, Replayed, Steps, Trajectory
from nafaudit.protocols import Mechanism, Rule, Served, World, currency

# Laws that are held at once, of each model: 64 MB in float64.
_HELD = 1 << 23

Array = NDArray[np.float64]


class FollowRow(NamedTuple):
    """A text under one account.

    Attributes:
        prompt: Token ids before it.
        tokens: Its token ids.
        first: Number of the law of its first token; those of the others come after it.
        account: What it may spend.
    """

    prompt: tuple[int, ...]
    tokens: Sequence[int]
    first: int
    account: Account


class FollowedStep(NamedTuple):
    """One step of all rows that are long enough for it.

    Attributes:
        rows: Their numbers.
        at: Numbers of their laws.
        safe: Log-laws of the safe model [rows, vocabulary].
        risky: Log-laws of the risky model.
        allowance: What each might spend.
        served: What was served.
        logp: log p_served of each row's token.
        charge: What each paid.
    """

    rows: list[int]
    at: Tensor
    safe: Tensor
    risky: Tensor
    allowance: Tensor
    served: Served
    logp: Tensor
    charge: Tensor


def follow(
    rule: Rule,
    rows: Sequence[FollowRow],
    safe: Tensor,
    risky: Tensor,
    costs: Tensor | None = None,
) -> Iterator[FollowedStep]:
    """Serves step after step, all rows together, and pays for each.

    Args:
        rule: What serves.
        rows: What is followed; rows may share laws.
        safe: Log-laws of the safe model at every step of every text [laws, vocabulary].
        risky: Log-laws of the risky model, likewise.
        costs: What each risky law costs, if that is known and the rule takes it.
    """
    realised = currency(rule) == REALISED
    for step in range(max(len(row.tokens) for row in rows)):
        alive = [number for number, row in enumerate(rows) if len(row.tokens) > step]
        here = [rows[number] for number in alive]
        at = torch.tensor([row.first + step for row in here], device=safe.device)
        anchor, other = safe[at], risky[at]
        allowed = [row.account.allowance() for row in here]
        allowance = torch.tensor(allowed, dtype=torch.float64, device=safe.device)
        if costs is not None and isinstance(rule, Mixing):
            served = rule.serve_at_cost(anchor, other, allowance, costs[at])
        else:
            prefixes = [(*row.prompt, *row.tokens[:step]) for row in here]
            served = rule.serve(prefixes, anchor, other, allowance)
        tokens = [row.tokens[step] for row in here]
        drawn = torch.tensor(tokens, device=safe.device).unsqueeze(-1)
        logp, base = (law.gather(-1, drawn).squeeze(-1) for law in (served.law, anchor))
        ratio = logp - base
        # Paid as the text realises it, where the currency says so.
        charge = ratio if realised else served.charge
        paid = zip(here, charge.tolist(), ratio.tolist(), tokens, strict=True)
        for row, spent, gained, token in paid:
            row.account.pay(Payment(spent, gained, token))
        yield FollowedStep(alive, at, anchor, other, allowance, served, logp, charge)


def replay_many(
    world: World, mechanism: Mechanism, tasks: Sequence[ReplayTask]
) -> list[ReplayWithLaws]:
    """Replays what was written in a small world, for KL-anchored decoding on the banking ledger.

    Args:
        world: The two models.
        mechanism: The promise.
        tasks: What was written; their debts are recomputed here.
    """
    debts: dict[tuple[int, ...], float] = {}
    laws: list[tuple[Tensor, Tensor]] = []
    rows: list[FollowRow] = []
    claimed: list[Array] = []
    total = 0
    for task in tasks:
        tokens = task.tokens.tolist()
        both = world.prefix_laws((*task.prompt, *tokens[:-1]))
        one, other = (torch.from_numpy(np.array(law, np.float64)) for law in both)
        if task.prompt not in debts:
            debts[task.prompt] = debt_along(world, mechanism, task.prompt, one, other)
        at = len(task.prompt) - 1
        laws.append((one[at : at + len(tokens)], other[at : at + len(tokens)]))
        ledger = Banking() if is_baseline(task.key.k) else mechanism.ledger
        account = shadow_account(ledger, task.key.k, debts[task.prompt])
        rows.append(FollowRow(task.prompt, tokens, total, account))
        theta = np.full(len(tokens), math.nan) if task.theta is None else task.theta
        claimed.append(np.asarray(theta, np.float64))
        total += len(tokens)
    safe, risky = (torch.cat(parts) for parts in zip(*laws, strict=True))
    shadow, cost = ShadowAnchored(), divergence(risky, safe)
    law = torch.empty_like(safe)
    numbers = {name: torch.empty_like(cost) for name in ("allowance", "charge", "theta")}
    for step in follow(shadow, rows, safe, risky, cost):
        law[step.at] = step.served.law
        values = (step.allowance, step.served.charge, step.served.theta)
        for name, value in zip(numbers, values, strict=True):
            numbers[name][step.at] = value
    # Weights in float32, strictly inside (0, 1) where they are in float64.
    weights = numbers["theta"].numpy()
    inside = (weights > 0) & (weights < 1)
    zero, unit = np.float32(0), np.float32(1)
    rounded = np.clip(
        weights.astype(np.float32), np.nextafter(zero, unit), np.nextafter(unit, zero)
    )
    written = np.concatenate([task.tokens for task in tasks])
    drawn = torch.from_numpy(written.astype(np.int64)).unsqueeze(-1)
    columns = {
        "allowance": numbers["allowance"].numpy(),
        "charge": numbers["charge"].numpy(),
        "theta": np.where(inside, rounded, weights),
        **{
            name: one.gather(-1, drawn).squeeze(-1).numpy()
            for name, one in (("served", law), ("safe", safe), ("risky", risky))
        },
    }
    # The true charge of the claimed weights; NaN where none is claimed.
    given = torch.from_numpy(np.concatenate(claimed))
    charge = shadow.charge_at(safe, risky, given, cost)
    implied = torch.where((given >= 0) & (given <= 1), charge, math.nan).numpy()
    found = []
    for task, row, (one, other) in zip(tasks, rows, laws, strict=True):
        n, debt = len(row.tokens), debts[task.prompt]
        part = slice(row.first, row.first + n)
        steps = Steps(
            token=task.tokens.astype(np.int32),
            **{name: column[part].astype(STEP_TYPES[name]) for name, column in columns.items()},
        )
        again = Replayed(
            Trajectory(task.key, debt, task.stopped, steps),
            granted=Banking().accrued(task.key.k, debt, steps.token),
            implied=implied[part],
            shortfall=np.full(n, math.nan),
            expected=np.full(n, -1, np.int32),
        )
        found.append(ReplayWithLaws(again, law[part], one, other))
    return found


@dataclass(frozen=True)
class Followed:
    """One text under one mechanism and budget: sums over its tokens.

    Attributes:
        text: Number of the text.
        mechanism: Number of the mechanism.
        k: The budget.
        price: Charges, in the mechanism's own currency.
        divergence: Sum of the KL to the safe law in nats, whatever the currency.
        gained: Sum of G = D(risky || safe) - D(risky || served), the fidelity that was bought.
        leaked: Sum of log p_served of the text's own tokens.
        free: Tokens at which the risky law was served unchanged.
        forced: Tokens at which the safe law was.
    """

    text: int
    mechanism: int
    k: float
    price: float
    divergence: float
    gained: float
    leaked: float
    free: int
    forced: int


@dataclass(frozen=True)
class TextEnds:
    """The two models on one text, between which every budget lies.

    Attributes:
        tokens: How many are counted.
        ceiling: Sum of D(risky || safe): all the fidelity there is to buy.
        safe: Sum of log p_safe of its tokens.
        risky: Sum of log p_risky.
        paying_k: Largest (S of a prefix + debt) / tokens: from this budget on the bank of the
            banking ledger can pay for the surprisal of every prefix. A boundary of that model of
            the bank, not a forecast of recall.
    """

    tokens: int
    ceiling: float
    safe: float
    risky: float
    paying_k: float


FollowedText = tuple[int, TextEnds, list[Followed]]


@dataclass
class _Laws:
    """Laws of one text, as they come in."""

    prompt: dict[bool, list[tuple[Array, ...]]] = field(default_factory=dict)
    safe: list[Tensor] = field(default_factory=list)
    risky: list[Tensor] = field(default_factory=list)

    def take(self, reader: Reader, piece: Piece, text: ForcedText, counts: Collection[bool]) -> int:
        """Keeps what a piece says, the prompt as each debt counts it; returns how many numbers."""
        for raw in counts:
            self.prompt.setdefault(raw, []).append(prompt_logp(reader, piece, text.prompt, raw=raw))
        first = max(piece.start, len(text.prompt) - 1)
        last = min(piece.stop, len(text.tokens) - 1)
        if last <= first:
            return 0
        safe, risky = reader.laws([Part(piece, first, last)])
        self.safe.append(safe)
        self.risky.append(risky)
        return safe.numel()


def follow_texts(
    reader: Reader,
    mechanisms: Sequence[Mechanism],
    budgets: Sequence[float],
    texts: Sequence[ForcedText],
    kl: Callable[[Tensor, Tensor], Tensor],
) -> Iterator[FollowedText]:
    """Yields every text with its ends and what each mechanism and budget makes of it.

    Args:
        reader: The pair and its warps; it reads every text once.
        mechanisms: Step-level ones.
        budgets: Nats per token.
        texts: What is followed; the prompt decides the debt.
        kl: D_KL of each row of two log-laws: the divergence in which the mechanisms charge.
    """
    counts = {mechanism.debt.raw for mechanism in mechanisms}
    held: dict[int, _Laws] = {}
    ready: list[int] = []
    numbers = 0
    for piece in itertools.chain.from_iterable(reader.read(texts)):
        for text in piece.texts:
            laws = held.setdefault(text, _Laws())
            numbers += laws.take(reader, piece, texts[text], counts)
            if piece.stop >= len(texts[text].read):
                ready.append(text)
        if numbers > _HELD and ready:
            part = {i: held.pop(i) for i in sorted(ready)}
            yield from _follow_held(reader, mechanisms, budgets, texts, kl, part)
            ready, numbers = [], sum(x.numel() for one in held.values() for x in one.safe)
    if ready:
        part = {i: held.pop(i) for i in sorted(ready)}
        yield from _follow_held(reader, mechanisms, budgets, texts, kl, part)


def _follow_held(
    reader: Reader,
    mechanisms: Sequence[Mechanism],
    budgets: Sequence[float],
    texts: Sequence[ForcedText],
    kl: Callable[[Tensor, Tensor], Tensor],
    held: dict[int, _Laws],
) -> Iterator[FollowedText]:
    """Follows the texts whose laws are there."""
    special = reader.pair.vocabulary.special
    safe = torch.cat([law for one in held.values() for law in one.safe])
    risky = torch.cat([law for one in held.values() for law in one.risky])
    firsts, total = {}, 0
    for i in held:
        firsts[i] = total
        total += len(texts[i].output)

    def debt_of(mechanism: Mechanism, i: int) -> float:
        parts = zip(*held[i].prompt[mechanism.debt.raw], strict=True)
        logp = [np.concatenate(part) for part in parts]
        return debt_of_laws(mechanism, texts[i].prompt, special, logp[0], logp[1])

    found: dict[int, list[Followed]] = {i: [] for i in held}
    for number, mechanism in enumerate(mechanisms):
        debts = {i: debt_of(mechanism, i) for i in held}
        places = [(i, k) for i in held for k in budgets]
        rows = [
            FollowRow(*texts[i], firsts[i], mechanism.ledger.open(k, debts[i])) for i, k in places
        ]
        sums = np.zeros((len(rows), 6))
        for step in follow(mechanism.rule, rows, safe, risky):
            law = step.served.law
            columns = (
                step.charge,
                kl(law, step.safe),
                kl(step.risky, step.safe) - kl(step.risky, law),
                step.logp,
                (step.served.theta == 1).to(torch.float64),
                (step.served.theta == 0).to(torch.float64),
            )
            sums[step.rows] += torch.stack(columns, dim=1).cpu().numpy()
        for (i, k), (price, nats, gained, leaked, free, forced) in zip(
            places, sums.tolist(), strict=True
        ):
            counts = int(free), int(forced)
            found[i].append(Followed(i, number, k, price, nats, gained, leaked, *counts))
    for i in held:
        n = len(texts[i].output)
        part = slice(firsts[i], firsts[i] + n)
        at = torch.tensor(texts[i].output, device=safe.device).unsqueeze(-1)
        own, other = (law[part].gather(-1, at).squeeze(-1).cpu().numpy() for law in (safe, risky))
        needed = (np.cumsum(-own) + debt_of(mechanisms[0], i)) / np.arange(1, n + 1)
        ends = TextEnds(
            n,
            math.fsum(kl(risky[part], safe[part]).tolist()),
            math.fsum(own.tolist()),
            math.fsum(other.tolist()),
            float(needed.max()),
        )
        yield i, ends, found[i]
