"""What one budget says, as numbers: a row per passage and a card per budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nafaudit.core.finding import Worth, judge_worth
from nafaudit.core.passage import ScoredPassage
from nafaudit.stats.certificate import reproduction_cap

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


@dataclass(frozen=True)
class BudgetCard:
    """One budget.

    Attributes:
        k: Nats per token.
        K: kT, the most that an output may be charged; any debt would lower it.
        worth: The third verdict.
        passages: How many.
        vacuous: How many of them K reaches.
        cap_median: Largest chance of reproduction that a KL budget K allows, median passage.
        cap_max: The same for the passage that is worst off.
        worst: That passage.
        log10_renyi: Of the largest chance if K bounded the Renyi divergence of order 2.
        log10_pathwise: Of the same if K bounded every single output's log-ratio.
        window_K: kw, the budget of a window of w tokens.
        windows: How many windows there are.
        windows_vacuous: How many of them window_K reaches.
        queries: Queries whose budgets add up to less than S of the worst passage; one more and
            nothing is said.
        log10_draws: Of the draws whose best reaches the worst passage's S on top of K.
        log10_best_of: Of the safe model's draws whose best may diverge by K.
        forced_at_most: Opening tokens that the debt of a prompt quoting the worst passage can
            force the safe model to write.
    """

    k: float
    K: float
    worth: Worth
    passages: int
    vacuous: int
    cap_median: float
    cap_max: float
    worst: str
    log10_renyi: float
    log10_pathwise: float
    window_K: float
    windows: int
    windows_vacuous: int
    queries: float
    log10_draws: float
    log10_best_of: float
    forced_at_most: int
