"""When do spend and overlap tell the same story? A number for the paper's "agree qualitatively".

Each quantity's classes are placed on the line from its smallest to its largest class. The lower
third of that line is low, the upper third high. A class that is low in one and high in the other
is out of step. The rule has no unit, so it works for any overlap metric; it says nothing about
how much overlap there is.
"""

from __future__ import annotations

from collections.abc import Mapping

# Mean overlaps that differ by less than this from smallest to largest do not differ.
LEAST_OVERLAP = 0.01


def out_of_step(
    spend: Mapping[str, float], overlap: Mapping[str, float], least: float = LEAST_OVERLAP
) -> dict[str, str]:
    """Classes whose spend and overlap contradict each other, with how.

    Args:
        spend: Mean spend by class.
        overlap: Mean overlap by class; classes without one are left out.
        least: Overlaps that differ by less than this from smallest to largest do not differ.
    """
    shared = [name for name in spend if name in overlap]
    first = _thirds({name: spend[name] for name in shared})
    second = _thirds({name: overlap[name] for name in shared}, least)
    words = {1: "low spend, high overlap", -1: "high spend, low overlap"}
    return {
        name: words[(second[name] - first[name]) // 2]
        for name in shared
        if abs(second[name] - first[name]) == 2
    }


def _thirds(values: Mapping[str, float], least: float = 0.0) -> dict[str, int]:
    """-1 for the lower third between smallest and largest, 1 for the upper, 0 between."""
    if not values:
        return {}
    low, high = min(values.values()), max(values.values())
    if high - low <= least:
        return dict.fromkeys(values, 0)
    place = {name: (value - low) / (high - low) for name, value in values.items()}
    return {name: (at > 2 / 3) - (at < 1 / 3) for name, at in place.items()}
