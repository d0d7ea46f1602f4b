"""Bounds as pure functions: a sample in, a bound out, the assumptions in the docstring."""

from nafaudit.stats.rates import zero_count_upper

__all__ = ["zero_count_upper"]
