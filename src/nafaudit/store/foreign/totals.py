"""The debt behind a total: told, or what is missing from k T."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from nafaudit.store.foreign.entry import Context
from nafaudit.store.foreign.fields import number

DEBT_NAMES = ("delta_init", "true_prefix_debt", "prefix_debt", "debt")


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
    if math.isfinite(derived):
        context.hygiene.add("debt-derived", where)
        return derived
    context.hygiene.add("missing", where, "debt")
    return math.nan
