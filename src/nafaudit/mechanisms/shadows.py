"""Which second implementation recomputes a rule."""

from __future__ import annotations

import math

from nafaudit.mechanisms.anchored import Anchored
from nafaudit.mechanisms.divergences import Pathwise, Renyi
from nafaudit.mechanisms.shadow import ShadowAnchored
from nafaudit.mechanisms.shadow_orders import ShadowOrder
from nafaudit.protocols import Rule

# Rules on the line between the two laws, whose weights can be charged whoever claims them.
Mixing = ShadowAnchored | ShadowOrder


def shadow_rule(rule: Rule) -> tuple[Rule, bool]:
    """A rule that recomputes another, and whether it is independent of it.

    A rule from outside has no second implementation: it is asked again, with recomputed laws and
    allowances, and what it serves is charged by our own divergence.
    """
    if type(rule) is Anchored:
        return ShadowAnchored(), True
    if type(rule) is Renyi:
        return (ShadowAnchored() if rule.alpha == 1 else ShadowOrder(rule.alpha)), True
    if type(rule) is Pathwise:
        return ShadowOrder(math.inf, realised=True), True
    return rule, False
