"""What totals alone say of debt and budget, and where they contradict themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from nafaudit.core.finding import foreign_tolerance
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


def believed(
    stated: object, k: object, limit: int, debt: float, where: str, context: Context
) -> float:
    """The budget that a total is judged by: as stated, but no more than k T without debt.

    A rule that grants more than k T needs the user's word (`--ledger`).

    Args:
        stated: The budget as logged.
        k: The rate as logged; its digits say how exact it is.
        limit: T; 0 if not known.
        debt: As logged; NaN if it is not.
        where: `file:line`.
        context: What the user said.
    """
    budget, rate = _number(stated), _number(k)
    if context.options.ledger not in (None, "banking") or not math.isfinite(budget):
        return budget
    if limit and math.isfinite(rate):
        # A rate such as 0.333 may have been rounded; 0.5 is what was asked for.
        inexact = limit * _half_unit(k) if _decimals(k) >= 3 else 0.0
        if budget > rate * limit + max(rounding(stated), _half_unit(stated)) + inexact:
            context.hygiene.add("budget-above-kT", where)
            return rate * limit
    elif math.isfinite(debt) and debt < -rounding(stated):
        context.hygiene.add("debt-negative", where)
        return budget + debt
    return budget


def larger_total(
    one: float, other: float, budget: float, slack: float, where: str, context: Context
) -> float:
    """The spend behind two totals of one sequence; NaN if they decide differently."""
    if math.isnan(one) or math.isnan(other) or abs(one - other) <= slack:
        return other if math.isnan(one) else one
    context.hygiene.add("totals-differ", where)
    most = max(0.0, budget) + float(foreign_tolerance(np.array([budget]))[0])
    return math.nan if (one > most) != (other > most) else max(one, other)


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
