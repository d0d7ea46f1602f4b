"""Closed forms of what mechanisms promise, so that a card does not have to re-derive them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.errors import InputError


def best_of_kl(n: int) -> float:
    """Most KL to the safe law that choosing the best of n of its draws can have.

    ln n - (n - 1)/n; pathwise it is ln n, as no output becomes more than n times as likely.

    Reference: Beirami et al. (2024), theoretical guarantees on the best-of-n alignment policy.
    """
    if n < 1:
        raise InputError(f"need at least 1 draw, got {n}.")
    return math.log(n) - (n - 1) / n


def block_budget(n: int, block: int, length: int, window: int | None = None) -> float:
    """Pathwise budget of choosing the best of n draws for each block of tokens.

    Args:
        n: Draws per block.
        block: Tokens per block.
        length: Tokens of the whole output.
        window: Any stretch of so many tokens; the whole output if None. A window of w tokens
            touches at most ceil(w/block) + 1 blocks.
    """
    if min(n, block, length) < 1 or (window is not None and window < 1):
        raise InputError(f"need whole numbers above 0, got {(n, block, length, window)}.")
    touched = math.ceil(length / block)
    if window is not None:
        touched = min(touched, math.ceil(window / block) + 1)
    return touched * math.log(n)


def rejection_threshold(budget: float, tries: int) -> float:
    """Log-ratio below which CP-k accepts a risky draw, so that its budget is ln(1 + M e^kappa).

    Solved in logs, as e^budget overflows: budget + ln(1 - e^-budget) - ln M.

    Reference: Vyas, Kakade and Barak (2023), ICML, algorithm 4, with M tries and the safe model
    as the way out.
    """
    if not budget > 0 or tries < 1:
        raise InputError(f"need a budget above 0 and at least 1 try, got {budget} and {tries}.")
    return budget + math.log(-math.expm1(-budget)) - math.log(tries)


def freedman(excess: float, variance: float, step: float) -> float:
    """Chance that a martingale gets `excess` above 0, its variance and steps being bounded.

    exp(-x^2 / (2 (V + b x/3))).

    Reference: Freedman (1975), Annals of Probability 3.
    """
    if not (excess > 0 and variance >= 0 and step >= 0 and variance + step > 0):
        raise InputError(
            f"need an excess above 0, variance and step of at least 0, not both 0; got {excess}, "
            f"{variance}, {step}."
        )
    return math.exp(-(excess**2) / (2.0 * (variance + step * excess / 3.0)))


def forced_opening(debt: float, k: float, length: int) -> int:
    """Opening tokens that the safe model must write: those t with (t + 1) k <= debt."""
    if not (debt >= 0 and k >= 0) or length < 0:
        raise InputError(f"need debt and k of at least 0 and a length, got {debt}, {k}, {length}.")
    if k * length <= debt:
        return length
    n = int(debt // k) if math.isfinite(k) else 0
    return n + 1 if (n + 1) * k <= debt else n


def affordable(surprisals: Sequence[float], k: float, debt: float = 0.0) -> NDArray[np.bool_]:
    """Which tokens of a passage a banked budget could pay in full, one after the other.

    A token that the bank cannot pay is left to the safe model and costs nothing. It is a
    picture of where budget lasts, no forecast of what is reproduced.
    """
    paid, bank = [], -debt
    for price in surprisals:
        bank += k
        paid.append(price <= bank)
        bank -= price if paid[-1] else 0.0
    return np.array(paid, dtype=np.bool_)


def share_in_runs(paid: Sequence[bool] | NDArray[np.bool_], least: int) -> float:
    """Share of tokens in unbroken runs of at least `least` paid ones; NaN for no tokens."""
    runs = [len(list(group)) for one, group in groupby(paid) if one]
    return sum(run for run in runs if run >= least) / len(paid) if len(paid) else math.nan


def bucket_k(surprisals: Sequence[float], debt: float = 0.0) -> float:
    """Least k at which a bank pays every token of a passage: max over t of (S_t + debt)/(t + 1).

    S_t is the surprisal of the tokens up to t. Below it some token cannot be paid in full.
    """
    if not len(surprisals):
        raise InputError("a passage needs at least 1 token.")
    sums = np.cumsum(np.asarray(surprisals, dtype=np.float64)) + debt
    return float((sums / np.arange(1, sums.size + 1)).max())
