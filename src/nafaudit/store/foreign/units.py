"""Percent or fraction? Found out by computing the ratio."""

from __future__ import annotations

import math

from nafaudit.store.foreign.hygiene import Hygiene


def compare_utilisation(
    given: float, spend: float, budget: float, where: str, hygiene: Hygiene
) -> None:
    """Notes whether a logged utilisation is a fraction, a percentage, or neither."""
    if not all(map(math.isfinite, (given, spend, budget))) or abs(budget) < 1e-12:
        return
    ratio = spend / budget
    if math.isclose(given, ratio, rel_tol=1e-3, abs_tol=1e-5):
        return
    if math.isclose(given, 100 * ratio, rel_tol=1e-3, abs_tol=1e-3):
        hygiene.add("percent", where)
    else:
        hygiene.add("utilisation-differs", where)
