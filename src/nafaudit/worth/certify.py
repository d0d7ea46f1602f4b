"""Certifies budgets: scores protected passages once, and says what each budget allows."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch

from nafaudit import __version__
from nafaudit.core.debt import DebtRule, most_debt
from nafaudit.core.design import Decoding
from nafaudit.core.errors import InputError
from nafaudit.core.finding import Overall, Worth, judge_worth
from nafaudit.core.passage import PassageScores, ScoredPassage
from nafaudit.core.progress import OnProgress, Progress
from nafaudit.engine.lanes import Scorer
from nafaudit.models.checkpoints import check_device, check_dtype, context_of, load_tokenizer
from nafaudit.models.pair import Anchor, load_anchor
from nafaudit.stats.certificate import (
    PATHWISE,
    cap,
    critical_k,
    log_cap,
    queries_left,
    vacuous,
)
from nafaudit.stats.certificate import (
    certify as certify_passage,
)
from nafaudit.workload.passages import Passage, passages_hash
from nafaudit.worth.settings import CertifySettings

RENYI_ORDER = 2.0
T = TypeVar("T")


@dataclass(frozen=True)
class PassageRow:
    """One passage, its surprisals, and what each budget allows.

    Attributes:
        id: Its name.
        tokens: Its length.
        surprisal: S: nats of its first T tokens, all that one output can hold.
        per_token: Nats per token over the whole passage.
        critical_k: S / T: the budget from which on K = kT says nothing about it.
        paying_k: Largest prefix surprisal per token: from this budget on a bank without debt can
            pay for every prefix of the passage.
        window_surprisal: S of its least surprising window; NaN if it is shorter than one.
        debt_at_most: The most that a prompt quoting it can owe, whatever the risky model.
        caps: Largest chance of reproduction under each budget, from the smallest up.
        queries: Number of queries after which each budget still says something.
    """

    id: str
    tokens: int
    surprisal: float
    per_token: float
    critical_k: float
    paying_k: float
    window_surprisal: float
    debt_at_most: float
    caps: tuple[float, ...]
    queries: tuple[float, ...]


@dataclass(frozen=True)
class BudgetCertificate:
    """One budget, and what it says about all passages.

    Attributes:
        k: Nats per token.
        budget: K = kT, the most that an output may be charged; any debt would lower it.
        worth: The third verdict.
        passages: Number of passages.
        vacuous: Number of passages that K reaches.
        cap_median: Largest chance of reproduction that a KL budget K allows, median passage.
        cap_max: Largest chance of reproduction of the worst passage.
        worst: The passage with the smallest S.
        log10_renyi: Of the largest chance if K bounded the Renyi divergence of order 2.
        log10_pathwise: Of the largest chance if K bounded every single output's log-ratio.
        window_budget: kw, the budget of a window of w tokens.
        windows: Number of windows.
        windows_vacuous: Number of windows that kw reaches.
        queries: Queries whose budgets add up to less than S of the worst passage; one more and
            nothing is said.
        log10_draws: Of the draws whose best reaches the worst passage's S on top of K.
        log10_best_of: Of the safe model's draws whose best may diverge by K.
        forced_at_most: Opening tokens that the debt of a prompt quoting a passage can leave to
            the safe model alone.
    """

    k: float
    budget: float
    worth: Worth
    passages: int
    vacuous: int
    cap_median: float
    cap_max: float
    worst: str
    log10_renyi: float
    log10_pathwise: float
    window_budget: float
    windows: int
    windows_vacuous: int
    queries: float
    log10_draws: float
    log10_best_of: float
    forced_at_most: float


def passage_row(passage: ScoredPassage, debt: float, settings: CertifySettings) -> PassageRow:
    """Returns one passage's own numbers and what each budget allows."""
    length = settings.decoding.max_new_tokens
    surprisal = passage.surprisal(length)
    prefixes = passage.prefixes
    windows = passage.windows(settings.window)
    budgets = [k * length for k in settings.k]
    return PassageRow(
        id=passage.id,
        tokens=passage.length,
        surprisal=surprisal,
        per_token=passage.surprisal(0) / passage.length,
        critical_k=critical_k(surprisal, length),
        paying_k=float((prefixes / np.arange(1, prefixes.size + 1))[:length].max()),
        window_surprisal=float(windows.min()) if windows.size else math.nan,
        debt_at_most=debt,
        caps=tuple(cap(surprisal, budgets).tolist()),
        queries=tuple(queries_left(surprisal, budget) for budget in budgets),
    )


def budget_certificate(
    k: float,
    rows: Sequence[PassageRow],
    passages: Sequence[ScoredPassage],
    settings: CertifySettings,
) -> BudgetCertificate:
    """Returns what one budget says about all passages.

    Args:
        k: Nats per token.
        rows: Rows of the passages, the one with the smallest S first.
        passages: Their surprisals, in any order.
        settings: What was asked.
    """
    worst, budget = rows[0], k * settings.decoding.max_new_tokens
    surprisals = np.array([row.surprisal for row in rows])
    reached = int(vacuous(surprisals, budget).sum())
    windows = np.concatenate([passage.windows(settings.window) for passage in passages])
    said = certify_passage(worst.surprisal, budget)
    # A token that the safe model forbids makes a debt without end.
    forced = max(row.debt_at_most for row in rows) / k
    return BudgetCertificate(
        k=k,
        budget=budget,
        worth=judge_worth(reached, len(rows)),
        passages=len(rows),
        vacuous=reached,
        cap_median=float(np.median(cap(surprisals, budget))),
        cap_max=said.probability,
        worst=worst.id,
        log10_renyi=float(log_cap(worst.surprisal, budget, RENYI_ORDER)) / math.log(10),
        log10_pathwise=float(log_cap(worst.surprisal, budget, PATHWISE)) / math.log(10),
        window_budget=k * settings.window,
        windows=windows.size,
        windows_vacuous=int(vacuous(windows, k * settings.window).sum()),
        queries=said.queries,
        log10_draws=said.log10_draws,
        log10_best_of=said.log10_equal,
        forced_at_most=float(math.floor(forced)) if math.isfinite(forced) else forced,
    )


@dataclass(frozen=True)
class GivenText:
    """A passage divided into what is given and what is asked for.

    Attributes:
        passage: The passage.
        before: The opening and the tokens that are given.
        tokens: The other tokens.
    """

    passage: Passage
    before: tuple[int, ...]
    tokens: tuple[int, ...]

    @property
    def id(self) -> str:
        """Returns the passage's id."""
        return self.passage.id


def opening_of(tokenizer: Any) -> tuple[tuple[int, ...], str]:
    """Returns what the tokenizer puts before a passage, in ids and in words."""
    if own := tuple(tokenizer("")["input_ids"]):
        return own, f"the tokenizer's own opening {tokenizer.convert_ids_to_tokens(list(own))}"
    for kind in ("bos", "eos"):
        if (index := getattr(tokenizer, f"{kind}_token_id")) is not None:
            return (int(index),), f"the tokenizer's {kind} token"
    return (), "nothing: the first token is not scored"


def given_text(tokenizer: Any, passage: Passage, opening: tuple[int, ...], given: int) -> GivenText:
    """Divides a passage after its first `given` tokens."""
    ids = tuple(tokenizer(passage.text, add_special_tokens=False)["input_ids"])
    # A token has to stand before the first scored one.
    given = max(given, 0 if opening else 1)
    if len(ids) <= given:
        raise InputError(
            f"{passage} has {len(ids)} tokens, of which {given} are given; nothing "
            "is left to ask about. Lower --given or leave the passage out."
        )
    return GivenText(passage, (*opening, *ids[:given]), ids[given:])


def spread(items: Sequence[T], most: int) -> tuple[T, ...]:
    """Returns at most `most` items, evenly over the whole list; all if it is 0."""
    n = len(items)
    count = n if not most else min(most, n)
    return tuple(items[i * n // count] for i in range(count))


def check_lengths(texts: Sequence[GivenText], context: int, whose: str) -> None:
    """Raises if a passage does not fit the models' positions."""
    longest = max(texts, key=lambda text: len(text.before) + len(text.tokens))
    if (needed := len(longest.before) + len(longest.tokens)) > context:
        raise InputError(
            f"{longest.passage} needs {needed} positions; {whose} has {context}. "
            "Split the passage: a blank line in a text file starts a new one."
        )


@dataclass(frozen=True)
class Certificate:
    """Budgets, passages, and what each budget says about them.

    Attributes:
        hash: SHA-256 of the identity.
        nafaudit: Version that made it.
        identity: Model, text, what stands before it, and warps, which decide the surprisals.
        max_new_tokens: Length limit T of one output.
        given: Opening tokens of each passage that the prompt gives away.
        window: Tokens of the windows that are certified too.
        debt: Rule of a prompt's debt.
        cards: One per budget, from the smallest up.
        passages: One row each, the one with the smallest critical k first.
        scores: The surprisals.
    """

    hash: str
    nafaudit: str
    identity: dict[str, Any]
    max_new_tokens: int
    given: int
    window: int
    debt: DebtRule
    cards: tuple[BudgetCertificate, ...]
    passages: tuple[PassageRow, ...]
    scores: PassageScores = field(metadata={"json": None})

    @property
    def overall(self) -> Overall:
        """Returns INFORMATIVE if a budget says something; exit status 0 also if none does."""
        words = {
            worth: ", ".join(f"{card.k:g}" for card in self.cards if card.worth == worth)
            for worth in (Worth.INFORMATIVE, Worth.VACUOUS)
        }
        says = {
            Worth.INFORMATIVE: "the budget limits how often most passages can come out",
            Worth.VACUOUS: "it says nothing about half of the passages or more",
        }
        why = "; ".join(f"at k = {at} {says[worth]}" for worth, at in words.items() if at)
        return Overall(next(worth for worth, budgets in words.items() if budgets), why, 0)


def certify(
    safe: str,
    passages: Sequence[Passage],
    settings: CertifySettings,
    on_progress: OnProgress = lambda progress: None,
) -> Certificate:
    """Scores every passage once and says what each budget allows.

    Args:
        safe: Directory or hub id of the safe model.
        passages: The protected text.
        settings: Budgets and conventions; checked before the model loads.
        on_progress: Called as passages are scored.
    """
    check_dtype(settings.dtype)
    check_device(settings.device)
    tokenizer = load_tokenizer(safe, settings.trust)
    opening, named = opening_of(tokenizer)
    texts = [given_text(tokenizer, passage, opening, settings.given) for passage in passages]
    check_lengths(texts, context_of(safe, trust=settings.trust), "the safe model")
    torch.set_num_threads(settings.threads)
    anchor = load_anchor(safe, dtype=settings.dtype, device=settings.device, trust=settings.trust)
    scored, debts, start = [], {}, time.monotonic()
    for done, text in enumerate(texts, start=1):
        passage, debts[text.passage.id] = _score(anchor, text, opening, settings)
        scored.append(passage)
        seconds = time.monotonic() - start
        on_progress(Progress("", done, len(texts), seconds=seconds, unit="passages"))
    context = named + (f" and its own first {settings.given} tokens" if settings.given else "")
    scores = PassageScores(context, settings.decoding.anchor, tuple(scored))
    rows = sorted(
        (passage_row(p, debts[p.id], settings) for p in scored),
        key=lambda row: (row.critical_k, row.id),
    )
    identity = {
        **anchor.fingerprint,
        "passages": passages_hash(passages),
        "context": context,
        "anchor": settings.decoding.anchor,
    }
    return Certificate(
        hash=hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest(),
        nafaudit=__version__,
        identity=identity,
        max_new_tokens=settings.decoding.max_new_tokens,
        given=settings.given,
        window=settings.window,
        debt=settings.debt_rule,
        cards=tuple(budget_certificate(k, rows, scored, settings) for k in settings.k),
        passages=tuple(rows),
        scores=scores,
    )


def _score(
    anchor: Anchor, text: GivenText, opening: tuple[int, ...], settings: CertifySettings
) -> tuple[ScoredPassage, float]:
    """Returns the scored passage, and the most that a prompt which quotes it can owe."""
    scorer = Scorer(anchor.model, anchor.vocabulary, settings.decoding, context=anchor.context)
    start = max(1, len(opening))
    row = (*text.before, *text.tokens)
    values = scorer.surprisals(row[:start], row[start:])
    quoted = len(text.before) - start
    passage = ScoredPassage(text.passage.id, len(text.tokens), tuple(values[quoted:].tolist()))
    if settings.debt_rule.raw and settings.decoding.warps:
        own = Scorer(anchor.model, anchor.vocabulary, Decoding(), context=anchor.context)
        values = own.surprisals(row[:start], row[start:])
    # Without a prompt of its own, the passage itself may be quoted in one.
    prompt = values[:quoted] if settings.given else values
    return passage, most_debt(prompt, np.ones(len(prompt), bool), settings.debt_rule)
