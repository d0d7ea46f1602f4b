"""What one budget says, as numbers: a row per passage and a card per budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nafaudit.core.finding import Worth, judge_worth
from nafaudit.core.passage import ScoredPassage
from nafaudit.stats.certificate import (
    PATHWISE,
    cap,
    certify,
    critical_k,
    log_cap,
    queries_left,
    vacuous,
)

if TYPE_CHECKING:
    from nafaudit.worth.certify import CertifySettings

RENYI_ORDER = 2.0


@dataclass(frozen=True)
class PassageRow:
    """One passage.

    Attributes:
        id: Which.
        tokens: Its length.
        surprisal: S: nats of its first T tokens, all that one output can hold.
        per_token: Nats per token over the whole passage.
        critical_k: S / T: the budget from which on K = kT says nothing about it.
        paying_k: Largest prefix surprisal per token: from this budget on a bank without debt can
            pay for every prefix of the passage.
        window_surprisal: S of its least surprising window; NaN if it is shorter than one.
        debt_at_most: The most that a prompt quoting it can owe, whatever the risky model.
        caps: Largest chance of reproduction under each budget, from the smallest up.
        queries: Queries under each budget after which something is still said.
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
class BudgetCard:
    """One budget.

    Attributes:
        k: Nats per token.
        budget: K = kT, the most that an output may be charged; any debt would lower it.
        worth: The third verdict.
        passages: How many.
        vacuous: How many of them K reaches.
        cap_median: Largest chance of reproduction that a KL budget K allows, median passage.
        cap_max: The same for the passage that is worst off.
        worst: That passage.
        log10_renyi: Of the largest chance if K bounded the Renyi divergence of order 2.
        log10_pathwise: Of the same if K bounded every single output's log-ratio.
        window_budget: kw, the budget of a window of w tokens.
        windows: How many windows there are.
        windows_vacuous: How many of them that reaches.
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
    """One passage's own numbers and what each budget allows."""
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


def budget_card(
    k: float,
    rows: Sequence[PassageRow],
    passages: Sequence[ScoredPassage],
    settings: CertifySettings,
) -> BudgetCard:
    """What one budget says about all passages.

    Args:
        k: Nats per token.
        rows: Of the passages, the one with the smallest S first.
        passages: The same passages, in any order.
        settings: What was asked.
    """
    worst, budget = rows[0], k * settings.decoding.max_new_tokens
    surprisals = np.array([row.surprisal for row in rows])
    reached = int(vacuous(surprisals, budget).sum())
    windows = np.concatenate([passage.windows(settings.window) for passage in passages])
    said = certify(worst.surprisal, budget)
    return BudgetCard(
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
        forced_at_most=_whole(max(row.debt_at_most for row in rows) / k),
    )


def _whole(steps: float) -> float:
    """Whole steps; a token that the safe model forbids makes a debt without end."""
    return float(math.floor(steps)) if math.isfinite(steps) else steps
