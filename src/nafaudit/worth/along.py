"""Follows written text under many mechanisms and budgets at once, from one pass of both models.

The text decides every token, so all budgets see the same laws: what each would have served there,
what that costs, what it buys and what it gives away follow without decoding.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nafaudit.core.ledger import REALISED, Account, Payment
from nafaudit.engine.laws import Piece, Reader, Text, prompt_logp
from nafaudit.mechanisms.laws import kl
from nafaudit.mechanisms.replay import debt_of_laws
from nafaudit.protocols import Mechanism

# Laws that are held at once, of each model: 64 MB in float64.
_HELD = 1 << 23

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Path:
    """One text under one mechanism and budget: sums over its tokens.

    Attributes:
        text: Number of the text.
        mechanism: Number of the mechanism.
        k: The budget.
        price: Charges, in the mechanism's own currency.
        divergence: The same in nats of KL to the safe law, whatever the currency.
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
class Ends:
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


@dataclass
class _Laws:
    """Laws of one text, as they come in."""

    prompt: dict[bool, list[tuple[Array, ...]]] = field(default_factory=dict)
    safe: list[Tensor] = field(default_factory=list)
    risky: list[Tensor] = field(default_factory=list)


def follow(
    reader: Reader,
    mechanisms: Sequence[Mechanism],
    budgets: Sequence[float],
    texts: Sequence[Text],
) -> Iterator[tuple[int, Ends, list[Path]]]:
    """Yields every text with its ends and a path per mechanism and budget.

    Args:
        reader: The pair and its warps; it reads every text once.
        mechanisms: Step-level ones.
        budgets: Nats per token.
        texts: What is followed; the prompt decides the debt.
    """
    counts = {mechanism.debt.raw for mechanism in mechanisms}
    held: dict[int, _Laws] = {}
    ready: list[int] = []
    numbers = 0
    for piece in reader.read(texts):
        laws = held.setdefault(piece.text, _Laws())
        numbers += _take(laws, piece, texts[piece.text], counts)
        if piece.stop >= len(texts[piece.text].tokens):
            ready.append(piece.text)
        if numbers > _HELD and ready:
            yield from _follow(reader, mechanisms, budgets, texts, {i: held.pop(i) for i in ready})
            ready, numbers = [], sum(x.numel() for one in held.values() for x in one.safe)
    if ready:
        yield from _follow(reader, mechanisms, budgets, texts, {i: held.pop(i) for i in ready})


def _take(laws: _Laws, piece: Piece, text: Text, counts: Collection[bool]) -> int:
    """Keeps what a piece says, the prompt as each debt counts it; returns how many numbers."""
    for raw in counts:
        laws.prompt.setdefault(raw, []).append(prompt_logp(piece, text.prompt, raw=raw))
    first = max(piece.start, len(text.prompt) - 1)
    last = min(piece.stop, len(text.tokens) - 1)
    if last <= first:
        return 0
    safe, risky = piece.laws(first, last)
    laws.safe.append(safe)
    laws.risky.append(risky)
    return safe.numel()


def _follow(
    reader: Reader,
    mechanisms: Sequence[Mechanism],
    budgets: Sequence[float],
    texts: Sequence[Text],
    held: dict[int, _Laws],
) -> Iterator[tuple[int, Ends, list[Path]]]:
    names = sorted(held)
    safe = {i: torch.cat(held[i].safe) for i in names}
    risky = {i: torch.cat(held[i].risky) for i in names}
    special = reader.pair.vocabulary.special

    def debt_of(mechanism: Mechanism, i: int) -> float:
        parts = zip(*held[i].prompt[mechanism.debt.raw], strict=True)
        logp = [np.concatenate(part) for part in parts]
        return debt_of_laws(mechanism, texts[i].prompt, special, logp[0], logp[1])

    paths: dict[int, list[Path]] = {i: [] for i in names}
    for number, mechanism in enumerate(mechanisms):
        debts = {i: debt_of(mechanism, i) for i in names}
        rows = [
            _Row(i, number, k, mechanism.ledger.open(k, debts[i])) for i in names for k in budgets
        ]
        _serve(mechanism, rows, texts, safe, risky)
        for row in rows:
            paths[row.text].append(row.path())
    first = mechanisms[0]
    for i in names:
        yield i, _ends(texts[i], safe[i], risky[i], debt_of(first, i)), paths[i]


@dataclass
class _Row:
    """A path in the making."""

    text: int
    mechanism: int
    k: float
    account: Account
    sums: Array = field(default_factory=lambda: np.zeros(6))

    def path(self) -> Path:
        price, nats, gained, leaked, free, forced = self.sums.tolist()
        where = (self.text, self.mechanism, self.k)
        return Path(*where, price, nats, gained, leaked, int(free), int(forced))


def _serve(
    mechanism: Mechanism,
    rows: Sequence[_Row],
    texts: Sequence[Text],
    safe: dict[int, Tensor],
    risky: dict[int, Tensor],
) -> None:
    """Serves token after token, all texts and budgets together, and pays for each."""
    longest = max(len(texts[row.text].output) for row in rows)
    for step in range(longest):
        alive = [row for row in rows if len(texts[row.text].output) > step]
        anchor = torch.stack([safe[row.text][step] for row in alive])
        other = torch.stack([risky[row.text][step] for row in alive])
        written = [texts[row.text] for row in alive]
        prefixes = [text.prompt + text.output[:step] for text in written]
        allowed = [row.account.allowance() for row in alive]
        allowance = torch.tensor(allowed, dtype=torch.float64, device=anchor.device)
        served = mechanism.rule.serve(prefixes, anchor, other, allowance)
        tokens = [text.output[step] for text in written]
        at = torch.tensor(tokens, device=anchor.device).unsqueeze(-1)
        logp, base = (law.gather(-1, at).squeeze(-1) for law in (served.law, anchor))
        spent = kl(served.law, anchor)
        ratio = logp - base
        # Paid as the text realises it, where the currency says so.
        charge = ratio if mechanism.currency == REALISED else served.charge
        columns = (
            charge,
            spent,
            kl(other, anchor) - kl(other, served.law),
            logp,
            (served.theta == 1).to(torch.float64),
            (served.theta == 0).to(torch.float64),
        )
        values = torch.stack(columns, dim=1).cpu().numpy()
        ratios = ratio.tolist()
        for row, value, ratio, token in zip(alive, values, ratios, tokens, strict=True):
            row.sums += value
            row.account.pay(Payment(float(value[0]), ratio, token))


def _ends(text: Text, safe: Tensor, risky: Tensor, debt: float) -> Ends:
    at = torch.tensor(text.output, device=safe.device).unsqueeze(-1)
    own, other = (law.gather(-1, at).squeeze(-1).cpu().numpy() for law in (safe, risky))
    needed = (np.cumsum(-own) + debt) / np.arange(1, len(own) + 1)
    return Ends(
        len(text.output),
        math.fsum(kl(risky, safe).tolist()),
        math.fsum(own.tolist()),
        math.fsum(other.tolist()),
        float(needed.max()),
    )
