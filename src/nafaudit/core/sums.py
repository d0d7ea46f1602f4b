"""Sums that do not depend on the order of their terms."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def total(values: Iterable[float] | NDArray[np.floating]) -> float:
    """The exactly rounded sum; NaN if a term is, or if infinities oppose each other."""
    terms: list[float] = values.tolist() if isinstance(values, np.ndarray) else list(values)
    try:
        return math.fsum(terms)
    except ValueError:
        return math.nan
    except OverflowError:
        return sum(terms)
