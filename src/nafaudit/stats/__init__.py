"""Bounds as pure functions: a sample in, a bound out, the assumptions in the docstring."""

from nafaudit.stats.means import clustered_mean, student_two_sided
from nafaudit.stats.rates import zero_count_upper

__all__ = ["clustered_mean", "student_two_sided", "zero_count_upper"]
