"""What the paper says, what follows from its own numbers, and the one rule that compares them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from nafaudit.core.errors import InputError, nearest
from nafaudit.report.paper.interval import Interval, about, interval, rounded


class Verdict(StrEnum):
    """What a recomputation says of one printed cell or claim."""

    AGREE = "agree"
    DISAGREE = "disagree"
    NOT_CHECKABLE = "not checkable"


@dataclass(frozen=True)
class Claim:
    """Something printed that can be recomputed.

    Attributes:
        point: What it is about; claims of one point stand or fall together.
        where: Where it is printed.
        printed: What is printed: a number, or words.
        says: What was computed to compare it with.
        allowed: The values for which what is printed is right.
        computed: The values that the rounding of the inputs allows.
        released: True if it rests on numbers that were published beside the paper.
        reading: Which numbers words were read as; empty for a number.
    """

    point: str
    where: str
    printed: str
    says: str
    allowed: Interval
    computed: Interval
    released: bool = False
    reading: str = ""

    @property
    def verdict(self) -> Verdict:
        """They agree if some value is allowed by both."""
        return Verdict.AGREE if self.allowed.meets(self.computed) else Verdict.DISAGREE

    @property
    def text(self) -> str:
        """One sentence with both numbers."""
        reading = f" (read as {self.reading})" if self.reading else ""
        basis = " (from the released files)" if self.released else ""
        return f"printed {self.printed}{reading}; computed {self.computed}, {self.says}{basis}"


@dataclass(frozen=True)
class Unchecked:
    """Something printed that nothing printed or released can test.

    Attributes:
        where: Where it is printed.
        printed: What is printed.
        why: What would be needed.
    """

    where: str
    printed: str
    why: str

    @property
    def verdict(self) -> Verdict:
        """Always the same; the type has no other."""
        return Verdict.NOT_CHECKABLE


def allowed(printed: str, rule: str) -> Interval:
    """The values for which a printed number or word is right.

    Args:
        printed: As printed; for `reads` any words.
        rule: `rounded` (all digits count), `about` ("approximately"), `exactly` (a count),
            `at most`, `at least`, `below`, or `reads LOW HIGH`, our reading of words.
    """
    if rule.startswith("reads "):
        low, high = (float(end) for end in rule.split()[1:])
        return Interval(low, high)
    if rule not in _RULES:
        raise InputError(f"unknown rule {rule!r}{nearest(rule, _RULES)}")
    return _RULES[rule](printed)


# What the words in a status column say of U_EBB over its budget.
PASS_MARKS = {"pass": Interval(0.0, 1.0), "fail": Interval(math.nextafter(1.0, 2.0), math.inf)}

_RULES: dict[str, Callable[[str], Interval]] = {
    "rounded": rounded,
    "about": about,
    "exactly": lambda text: interval(float(text)),
    "at most": lambda text: Interval(-math.inf, float(text)),
    "at least": lambda text: Interval(float(text), math.inf),
    "below": lambda text: Interval(-math.inf, math.nextafter(float(text), -math.inf)),
    "above": lambda text: Interval(math.nextafter(float(text), math.inf), math.inf),
}
