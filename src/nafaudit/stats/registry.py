"""Every bound by name, so that a report, a docs page and a self-test see the same list."""

from __future__ import annotations

from nafaudit.core.errors import InputError, nearest
from nafaudit.stats.betting import BETTING, BETTING_LOWER, BETTING_PROMPTS, PRPL
from nafaudit.stats.bound import Bound, BoundSpec, Sample
from nafaudit.stats.moments import (
    ANDERSON,
    CLUSTER_T,
    EBB,
    EBB_EFFECTIVE,
    HOEFFDING,
    HOEFFDING_BENTKUS,
    MAURER_PONTIL,
)
from nafaudit.stats.rates import ANYTIME_RATE, CLOPPER_PEARSON

BOUNDS: dict[str, BoundSpec] = {
    spec.name: spec
    for spec in (
        EBB,
        EBB_EFFECTIVE,
        MAURER_PONTIL,
        HOEFFDING,
        HOEFFDING_BENTKUS,
        ANDERSON,
        PRPL,
        BETTING,
        BETTING_LOWER,
        BETTING_PROMPTS,
        CLUSTER_T,
        CLOPPER_PEARSON,
        ANYTIME_RATE,
    )
}


def bound(name: str, sample: Sample, delta: float) -> Bound:
    """The named bound of a sample; `InputError` where its assumptions are seen to be broken."""
    if name not in BOUNDS:
        raise InputError(f"there is no bound {name!r}{nearest(name, BOUNDS)}")
    return BOUNDS[name](sample, delta)
