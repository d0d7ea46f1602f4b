"""The paper's per-prompt numbers of a run, with the width that its own tables leave out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nafaudit.core.errors import InputError
from nafaudit.core.trajectory import Arm
from nafaudit.measures.audit import AuditResult
from nafaudit.measures.measure import Measure
from nafaudit.report.checklist.items import PROMPT_LEVEL
from nafaudit.stats import Moments, ebb


@dataclass(frozen=True)
class Ratio:
    """One prompt under one budget, as the paper's second stage has it.

    Attributes:
        prompt: Which.
        mechanism: What is audited.
        k: Budget per token.
        n: Trajectories, N.
        mean: Mean spend, in nats.
        upper: U_EBB under R_eff, a proxy.
        width: U_EBB less the mean; NaN with one trajectory, which has no variance.
        budget: B_eff, the smallest budget of its trajectories, at least 0.
        rho: U_EBB / B_eff; NaN if invalid (B_eff = 0) or not known.
    """

    prompt: str
    mechanism: str
    k: float
    n: int
    mean: float
    upper: float
    width: float
    budget: float
    rho: float


def ratios(report: AuditResult) -> list[Ratio]:
    """Every prompt under every audited budget, prompts whose spends are not recorded left out."""
    found = []
    for arm in report.arms:
        if arm.baseline:
            continue
        groups: dict[str, list[Measure]] = {}
        for one in report.of_arm(arm):
            groups.setdefault(one.key.prompt, []).append(one)
        rows = (_ratio(report, Arm(arm.mechanism, arm.k), p, g) for p, g in groups.items())
        found += [row for row in rows if row is not None]
    return found


def _ratio(report: AuditResult, arm: Arm, prompt: str, group: list[Measure]) -> Ratio | None:
    try:
        moments = Moments.of(one.spend for one in group)
    except InputError:
        return None
    promised = report.context.promised(arm.k)
    # Without K nothing cuts the range; the range seen is the paper's R_eff then.
    high = promised if promised > 0 else math.inf
    reach = min(high, max(moments.spread, moments.top, 1.0))
    bound = ebb(moments, reach, PROMPT_LEVEL, effective=True)
    budgets = [one.budget for one in group]
    least = math.nan if any(map(math.isnan, budgets)) else max(0.0, min(budgets))
    return Ratio(
        prompt=prompt,
        mechanism=arm.mechanism,
        k=arm.k,
        n=moments.n,
        mean=moments.mean,
        upper=bound.value,
        width=bound.width if moments.n > 1 else math.nan,
        budget=least,
        rho=bound.value / least if least > 0 else math.nan,
    )
