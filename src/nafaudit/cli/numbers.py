"""Numbers as every terminal table writes them."""

from __future__ import annotations

import math


def nats(value: float) -> str:
    """Nats, with as many digits as a table has room for."""
    if math.isnan(value):
        return "-"
    if value < 100:
        return f"{value:.1f}"
    return f"{value:.0f}" if value < 1e6 else f"{value:.1e}"


def percent(share: float) -> str:
    """A share; nearly all is not all, and nearly nothing is not nothing."""
    if not math.isfinite(share):
        return "-"
    whole = 0.0995 <= share < 0.995 or share == 1
    return f"{share:.0%}" if whole else f"{share:.1%}"
