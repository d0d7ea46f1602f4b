"""What totals alone say of debt and budget, and where they contradict themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.finding import foreign_tolerance
from nafaudit.core.ledger import half_digit
from nafaudit.store.foreign.entry import Context
from nafaudit.store.foreign.fields import number

DEBT_NAMES = ("delta_init", "true_prefix_debt", "prefix_debt", "debt")


def rounding(*values: object) -> float:
    """By how much logged numbers may differ from each other for their digits alone.

    Whole numbers are taken at their word.
    """
    known = [abs(x) for x in map(_number, values) if math.isfinite(x)]
    slack = float(foreign_tolerance(np.array([max(known, default=0.0)]))[0])
    return max(slack, math.fsum(_half_unit(value) for value in values if _decimals(value)))


def judged_by(
    stated: object,
    k: object,
    limit: int,
    debt: float,
    where: str,
    context: Context,
    *,
    bank: bool = False,
) -> tuple[float, float]:
    """The budget of a total, and what k and T grant if that is less and nobody said which counts.

    The second is NaN where nothing is contested: the budget is no more than k T, to rounding, or
    the user said whether it is believed (`--ledger`).

    Args:
        stated: The budget as logged.
        k: The rate as logged; its digits say how exact it is.
        limit: T; 0 if not known.
        debt: As logged; NaN if it is not.
        where: `file:line`.
        context: What the user said.
        bank: True if the debt is taken off k T, as the paper's bank does.
    """
    budget, rate = _number(stated), _number(k)
    rule = context.options.ledger
    if rule not in (None, "banking") or math.isnan(budget) or not 0 < rate < math.inf:
        return budget, math.nan
    owed = max(0.0, debt) if math.isfinite(debt) else 0.0
    if limit:
        digits = max(rounding(stated), _half_unit(stated))
        most = max(0.0, rate * limit - (owed if bank or rule else 0.0))
        inexact = limit * half_digit(k)
        if budget <= most + digits or budget + owed <= rate * limit + inexact + digits:
            return budget, math.nan
        context.hygiene.add("budget-above-kT", where)
    elif math.isfinite(debt) and debt < -rounding(stated):
        most = max(0.0, budget + debt)
        context.hygiene.add("debt-negative", where)
    else:
        return budget, math.nan
    return (most, math.nan) if rule else (budget, most)


def credited(
    granted: NDArray[np.float64], k: float, debt: float, where: str, context: Context
) -> float:
    """What k grants over the steps, if the log grants more by a negative debt; NaN otherwise.

    NaN too if the user said whether that is believed (`--ledger`).
    """
    if context.options.ledger or not granted.size or not 0 < k < math.inf:
        return math.nan
    explained = np.arange(1, granted.size + 1) * k - debt
    if not debt < -rounding(debt) or not np.allclose(granted, explained, rtol=1e-6, atol=1e-3):
        return math.nan
    context.hygiene.add("debt-negative", where)
    return granted.size * k


def over(spend: float, limit: float) -> bool:
    """True if a total exceeds a limit beyond rounding; nothing exceeds one that is not known."""
    if math.isnan(limit):
        return False
    limit = max(0.0, limit)
    return spend > limit + float(foreign_tolerance(np.array([limit]))[0])


def larger_total(
    one: float, other: float, budget: float, slack: float, where: str, context: Context
) -> float:
    """The spend behind two totals of one sequence; NaN if they decide differently."""
    if math.isnan(one) or math.isnan(other) or abs(one - other) <= slack:
        return other if math.isnan(one) else one
    context.hygiene.add("totals-differ", where)
    return math.nan if over(one, budget) != over(other, budget) else max(one, other)


def debt_of(
    data: Mapping[str, Any], k: float, limit: int, budget: float, where: str, context: Context
) -> float:
    """The debt of a sequence; NaN if neither it nor T is known.

    Where only totals are logged, B = k T - debt, with T the steps that its batch ran.
    """
    for name in DEBT_NAMES:
        found = number(data.get(name), name, where)
        if not math.isnan(found):
            return found
    start = number(data.get("init_budget_tensor"), "init_budget_tensor", where)
    if not math.isnan(start):
        return -start
    derived = k * limit - budget if limit and math.isfinite(k) else math.nan
    # A budget above k T is not explained by a debt.
    if math.isfinite(derived) and derived >= -rounding(budget):
        context.hygiene.add("debt-derived", where)
        return max(0.0, derived)
    context.hygiene.add("missing", where, "debt")
    return math.nan


def _number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _decimals(value: object) -> int:
    return len(str(value).strip().lower().partition("e")[0].partition(".")[2])


def _half_unit(value: object) -> float:
    """Half of the last digit that a number is written with; 0 for one with an exponent."""
    word = str(value).strip().lower()
    if not math.isfinite(_number(value)) or "e" in word:
        return 0.0
    return float(0.5 * 10.0 ** -_decimals(value))
