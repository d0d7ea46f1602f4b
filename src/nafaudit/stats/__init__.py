"""Bounds as pure functions: a sample in, a bound out, the assumptions as data.

`bound(name, Sample(values, high), delta)` gives any of `BOUNDS`, and refuses a sample that breaks
an assumption of it. `ebb` is the paper's U_EBB for any input, also from printed moments.
"""

from nafaudit.stats.bound import MIN_EVIDENCE, Assumption, Bound, BoundSpec, Sample, enough
from nafaudit.stats.means import clustered_mean, student_two_sided
from nafaudit.stats.moments import Moments, ebb, effective_range, implied_range, paper_range
from nafaudit.stats.rates import zero_count_upper
from nafaudit.stats.registry import BOUNDS, bound

__all__ = [
    "BOUNDS",
    "MIN_EVIDENCE",
    "Assumption",
    "Bound",
    "BoundSpec",
    "Moments",
    "Sample",
    "bound",
    "clustered_mean",
    "ebb",
    "effective_range",
    "enough",
    "implied_range",
    "paper_range",
    "student_two_sided",
    "zero_count_upper",
]
