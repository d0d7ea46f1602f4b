"""What a count of violations says about the rate of violations."""

from __future__ import annotations


def zero_count_upper(n: int, significance: float = 0.05) -> float:
    """One-sided Clopper-Pearson upper limit of a rate after 0 events in n trials.

    Solves (1 - u)^n = significance. Assumes independent trials of one rate; trajectories of
    one prompt are not, so quote it for prompts as well.

    Reference: Clopper and Pearson (1934), Biometrika 26.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}.")
    if not 0 < significance < 1:
        raise ValueError(f"significance must be in (0, 1), got {significance}.")
    return float(1.0 - significance ** (1.0 / n))
