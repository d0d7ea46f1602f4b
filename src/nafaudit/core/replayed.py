"""What recomputing a trajectory gives: a second record, to hold the first one against."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.trajectory import Trajectory


@dataclass(frozen=True, eq=False)
class Replayed:
    """One trajectory, recomputed from the models, the tokens and the promise alone.

    Attributes:
        trajectory: The record that a sound decoder would have made of these tokens.
        granted: B_t after each step, from the recomputed debt.
        implied: True charge of each step at the *claimed* weight; NaN where none is claimed.
        shortfall: By how much the token's perturbed score misses the best; 0 if it is the best,
            NaN where the draws are not ours.
        expected: The token that law and noise imply; -1 where the draws are not ours.
        other_debt: The debt counted in the other laws (`DebtRule.other`); None where there are
            no others, as nothing is warped, or none at hand.
        granted_otherwise: B_t after each step, from that debt; None with it.
    """

    trajectory: Trajectory
    granted: NDArray[np.float64]
    implied: NDArray[np.float64]
    shortfall: NDArray[np.float64]
    expected: NDArray[np.int32]
    other_debt: float | None = None
    granted_otherwise: NDArray[np.float64] | None = None
