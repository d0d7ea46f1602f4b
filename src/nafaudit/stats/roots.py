"""Where a monotone function crosses a level, for many rows at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Test = Callable[[NDArray[np.float64]], NDArray[np.bool_]]

# Halvings of an interval inside [0, 1]; what is left is below float64's spacing near 1.
STEPS = 54


def first_true(
    test: Test, low: NDArray[np.float64], high: NDArray[np.float64], steps: int = STEPS
) -> NDArray[np.float64]:
    """The smallest argument at which `test` is True, rounded up.

    Args:
        test: False, then True, as its argument grows from low to high.
        low: Where it is False.
        high: Where it is True, or taken to be.
        steps: How often the interval is halved.
    """
    low, high = low.copy(), high.copy()
    for _ in range(steps):
        middle = 0.5 * (low + high)
        passed = test(middle)
        high = np.where(passed, middle, high)
        low = np.where(passed, low, middle)
    return high
