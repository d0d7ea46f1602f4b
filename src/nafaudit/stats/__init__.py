"""Bounds as pure functions: a sample in, a bound out, the assumptions as data.

`bound(name, Sample(values, high), delta)` gives any of `BOUNDS`, and refuses a sample that breaks
an assumption of it. `ebb` is the paper's U_EBB for any input, also from printed moments.
`certify(S, K)` is what a budget says about one passage. Modules of their own: `rates` (also what
n trajectories can show) and `coverage` (how often a bound misses).
"""

from nafaudit.core.errors import InputError, nearest
from nafaudit.stats.betting import (
    BETTING,
    BETTING_LOWER,
    BETTING_PROMPTS,
    PRPL,
    e_values,
    prpl_sequence,
)
from nafaudit.stats.bound import MIN_EVIDENCE, Assumption, Bound, BoundSpec, Sample, enough
from nafaudit.stats.certificate import PassageCertificate, cap, certify, critical_k, log_cap
from nafaudit.stats.coverage import Bonferroni, e_bh
from nafaudit.stats.moments import (
    ANDERSON,
    CLUSTER_T,
    EBB,
    EBB_EFFECTIVE,
    HOEFFDING,
    HOEFFDING_BENTKUS,
    MAURER_PONTIL,
    Moments,
    clustered_mean,
    ebb,
    effective_range,
    implied_range,
    mean,
    paper_range,
    quantile,
    student_two_sided,
)
from nafaudit.stats.rates import (
    ANYTIME_RATE,
    CLOPPER_PEARSON,
    anytime_rate,
    clopper_pearson,
    zero_count_upper,
)

__all__ = [
    "BOUNDS",
    "MIN_EVIDENCE",
    "Assumption",
    "Bonferroni",
    "Bound",
    "BoundSpec",
    "Moments",
    "PassageCertificate",
    "Sample",
    "anytime_rate",
    "bound",
    "cap",
    "certify",
    "clopper_pearson",
    "clustered_mean",
    "critical_k",
    "e_bh",
    "e_values",
    "ebb",
    "effective_range",
    "enough",
    "implied_range",
    "log_cap",
    "mean",
    "paper_range",
    "prpl_sequence",
    "quantile",
    "student_two_sided",
    "zero_count_upper",
]

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
    """Computes a named bound; raises `InputError` for a sample that breaks an assumption."""
    if not isinstance(name, str) or name not in BOUNDS:
        known = f"The bounds are {', '.join(BOUNDS)}."
        raise InputError(f"there is no bound {name!r}{nearest(str(name), BOUNDS)} {known}")
    return BOUNDS[name](sample, delta)
