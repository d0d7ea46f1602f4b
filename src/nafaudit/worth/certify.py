"""A certificate from the safe model and the text alone: passages in, cards and rows out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from nafaudit.core import trust as trusts
from nafaudit.core.debt import DebtRule, most_debt
from nafaudit.core.design import Decoding
from nafaudit.core.errors import InputError
from nafaudit.core.ledger import as_budget, is_baseline
from nafaudit.core.numerics import check_threads
from nafaudit.core.passage import PassageScores, ScoredPassage
from nafaudit.core.trust import Trust
from nafaudit.engine.lanes import Scorer
from nafaudit.models.checkpoints import check_device, check_dtype, context_of, load_tokenizer
from nafaudit.models.pair import Anchor, load_anchor
from nafaudit.workload.passages import Passage, passages_hash
from nafaudit.worth.cards import BudgetCard, PassageRow, budget_card, passage_row
from nafaudit.worth.texts import GivenText, check_lengths, given_text, opening_of


@dataclass(frozen=True)
class CertifySettings:
    """What a certificate is asked for.

    Attributes:
        k: Budgets in nats per token.
        decoding: Warps of the safe model, and the length limit T of one output.
        debt: How a prompt's debt would be reckoned.
        given: Opening tokens of each passage that the prompt gives away.
        window: Tokens of the windows that are certified too.
        device: Torch device.
        dtype: Precision of the forward pass.
        threads: Torch threads, 1 or 2; two only where they change no bit.
        trust: What the checkpoint is permitted.
    """

    k: tuple[float, ...] = (0.25, 1.0, 3.0, 10.0)
    decoding: Decoding = field(default_factory=Decoding)
    debt: DebtRule = field(default_factory=DebtRule)
    given: int = 0
    window: int = 50
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    trust: Trust = trusts.NONE

    def __post_init__(self) -> None:
        check_threads(self.threads)
        for name, least in (("given", 0), ("window", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, got {getattr(self, name)}.")
        budgets = tuple(sorted({as_budget(k) for k in self.k}))
        if not budgets or any(is_baseline(k) for k in budgets):
            raise InputError(
                f"k must be above 0 and finite, got {', '.join(f'{k:g}' for k in self.k)}; a "
                "certificate is about a budget, not about a model alone."
            )
        object.__setattr__(self, "k", budgets)


@dataclass(frozen=True)
class Certification:
    """What the budgets say about the passages.

    Attributes:
        identity: What decides the surprisals: model, text, what stands before it, warps.
        settings: What was asked.
        scores: The surprisals.
        rows: One per passage, the one with the smallest critical k first.
        cards: One per budget, from the smallest up.
    """

    identity: dict[str, Any]
    settings: CertifySettings
    scores: PassageScores
    rows: tuple[PassageRow, ...]
    cards: tuple[BudgetCard, ...]

    @property
    def hash(self) -> str:
        """SHA-256 of the identity."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()


def certify(
    safe: str,
    passages: Sequence[Passage],
    settings: CertifySettings,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Certification:
    """Scores every passage once and says what each budget allows.

    Args:
        safe: Directory or hub id of the safe model.
        passages: The protected text.
        settings: Budgets and conventions; checked before the model loads.
        report: Called with how many passages are scored, and how many there are.
    """
    check_dtype(settings.dtype)
    check_device(settings.device)
    tokenizer = load_tokenizer(safe, settings.trust)
    opening, named = opening_of(tokenizer)
    texts = [given_text(tokenizer, passage, opening, settings.given) for passage in passages]
    check_lengths(texts, context_of(safe, trust=settings.trust), "the safe model")
    torch.set_num_threads(settings.threads)
    anchor = load_anchor(safe, dtype=settings.dtype, device=settings.device, trust=settings.trust)
    scored, debts = [], {}
    for done, text in enumerate(texts, start=1):
        passage, debts[text.passage.id] = _score(anchor, text, opening, settings)
        scored.append(passage)
        report(done, len(texts))
    context = named + (f" and its own first {settings.given} tokens" if settings.given else "")
    scores = PassageScores(context, settings.decoding.anchor, tuple(scored))
    rows = sorted((passage_row(p, debts[p.id], settings) for p in scored), key=_worst_first)
    return Certification(
        identity={
            **anchor.fingerprint,
            "passages": passages_hash(passages),
            "context": context,
            "anchor": settings.decoding.anchor,
        },
        settings=settings,
        scores=scores,
        rows=tuple(rows),
        cards=tuple(budget_card(k, rows, scored, settings) for k in settings.k),
    )


def _worst_first(row: PassageRow) -> tuple[float, str]:
    return row.critical_k, row.id


def _score(
    anchor: Anchor, text: GivenText, opening: tuple[int, ...], settings: CertifySettings
) -> tuple[ScoredPassage, float]:
    """The scored passage, and the most that a prompt which quotes it can owe."""
    scorer = Scorer(anchor.model, anchor.vocabulary, settings.decoding, context=anchor.context)
    start = max(1, len(opening))
    row = (*text.before, *text.tokens)
    values = scorer.surprisals(row[:start], row[start:])
    quoted = len(text.before) - start
    passage = ScoredPassage(text.passage.id, len(text.tokens), tuple(values[quoted:].tolist()))
    if settings.debt.raw and settings.decoding.warps:
        own = Scorer(anchor.model, anchor.vocabulary, Decoding(), context=anchor.context)
        values = own.surprisals(row[:start], row[start:])
    # Without a prompt of its own, the passage itself may be quoted in one.
    prompt = values[:quoted] if settings.given else values
    return passage, most_debt(prompt, np.ones(len(prompt), bool), settings.debt)
