"""Was the limit tested? How many answers it changed, and what was copied with and without it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from nafaudit.core.finding import Tested, judge_tested
from nafaudit.core.ledger import RISKY_ONLY, is_baseline
from nafaudit.core.trajectory import Arm
from nafaudit.measures.measure import Measure
from nafaudit.measures.table import Measures
from nafaudit.stats.betting import betting_rows

_HIDDEN = {"json": None}
# Level of each side of the interval of a difference in copies: 95 % in all.
_SIDE = 0.025


@dataclass(frozen=True)
class Limited:
    """Answers that the limit changed, of those that count.

    With common draws (our own engine) an answer is limited if its tokens differ from what the risky
    model alone wrote with the same draws. Else it is limited if a step that the debt did not force
    served anything but the risky model.

    Attributes:
        limited: How many of them the limit changed.
        counted: Answers to prompts with a reference; to all prompts if none has one.
        referenced: True if prompts with a reference are counted alone.
        by: What tells it: draws, steps, or neither.
        verdict: The second verdict.
    """

    limited: int
    counted: int
    referenced: bool = field(metadata=_HIDDEN)
    by: str
    verdict: Tested = field(metadata=_HIDDEN)

    @classmethod
    def of(cls, rows: Measures, arm: Arm) -> Limited:
        """Counts the answers of an arm.

        Args:
            rows: Rows of all arms.
            arm: Which of them.
        """
        own = rows.of_arm(arm)
        if is_baseline(arm.k):  # nothing is limited there
            return cls(0, 0, False, "", Tested.UNKNOWN)
        known = rows.context.references
        counted = [row for row in own if known.get(row.key.prompt, "").strip()]
        referenced = bool(counted)
        counted = counted or list(own)
        risky = _by_unit(rows, Arm(arm.mechanism, RISKY_ONLY))
        # Rules that choose among whole drafts have draws of their own, and no law at a step.
        common = (
            bool(counted)
            and not rows.context.foreign
            and all(
                row.digest and not math.isnan(row.served_logp) and _unit(row) in risky
                for row in counted
            )
        )
        if common:
            limited = sum(row.digest != risky[_unit(row)].digest for row in counted)
            by = "draws"
        elif counted and all(row.length and not row.unweighted for row in counted):
            # Without common draws equal texts are chance.
            limited = sum(row.forced + row.active > row.opening for row in counted)
            by = "steps"
        else:
            return cls(0, len(counted), referenced, "", Tested.UNKNOWN)
        return cls(limited, len(counted), referenced, by, judge_tested(limited, len(counted)))

    @property
    def share(self) -> float:
        """Share of the answers that are limited; NaN if it is not known."""
        return self.limited / self.counted if self.counted and self.by else math.nan

    @property
    def text(self) -> str:
        """Says it."""
        whose = " that have a reference" if self.referenced else ""
        if not self.by:
            if not self.counted:
                return "no answer under a budget is recorded"
            return f"what limited {self.counted} answers{whose} is not recorded"
        why = "a step that the debt did not force was not the risky model's"
        if self.by == "draws":
            why = "with the same draws the risky model alone wrote another"
        return f"{self.limited} of {self.counted} answers{whose} were limited: {why}"


@dataclass(frozen=True)
class Copies:
    """Answers that copy 20 words or more of their reference nearly verbatim.

    Attributes:
        copied: How many do, under the budget.
        scored: Of how many that is known.
        risky: How many of the risky model alone do.
        risky_scored: Of how many that is known.
        difference: Mean over prompts of the share under the budget less that of the risky model
            alone; answers are paired by draw where draws are common. NaN without both.
        lower: Lower limit of that mean, 95 % together with the upper one; prompts are the units.
        upper: Upper limit.
    """

    copied: int
    scored: int
    risky: int
    risky_scored: int
    difference: float
    lower: float
    upper: float

    @classmethod
    def of(cls, rows: Measures, arm: Arm) -> Copies:
        """Counts the copies of an arm.

        Args:
            rows: Rows of all arms.
            arm: Which of them.
        """
        own = _scored(rows.of_arm(arm))
        if is_baseline(arm.k):
            copied, nothing = sum(row.recall > 0 for row in own), math.nan
            return cls(copied, len(own), 0, 0, nothing, nothing, nothing)
        alone = _scored(rows.of_arm(Arm(arm.mechanism, RISKY_ONLY)))
        if not rows.context.foreign:
            units = {_unit(row) for row in own} & {_unit(row) for row in alone}
            pairs = [[row for row in some if _unit(row) in units] for some in (own, alone)]
        else:
            pairs = [own, alone]
        ours, theirs = (_by_prompt(some) for some in pairs)
        gaps = [fmean(ours[p]) - fmean(theirs[p]) for p in sorted(ours.keys() & theirs.keys())]
        lower, upper = _interval(gaps)
        return cls(
            sum(row.recall > 0 for row in own),
            len(own),
            sum(row.recall > 0 for row in alone),
            len(alone),
            fmean(gaps) if gaps else math.nan,
            lower,
            upper,
        )

    @property
    def text(self) -> str:
        """Says it; empty if nothing is known."""
        if not self.scored:
            return ""
        said = f"{self.copied} of {self.scored} copy 20 words or more of it"
        if self.risky_scored:
            said += f", of the risky model alone {self.risky} of {self.risky_scored}"
        if not math.isnan(self.difference):
            said += (
                f" ({100 * self.difference:+.0f} points, 95% interval {100 * self.lower:+.0f} to "
                f"{100 * self.upper:+.0f})"
            )
        return said


def _unit(row: Measure) -> tuple[str, int]:
    return row.key.prompt, row.key.trajectory


def _by_unit(rows: Measures, arm: Arm) -> dict[tuple[str, int], Measure]:
    return {_unit(row): row for row in rows.of_arm(arm) if row.digest}


def _scored(rows: Sequence[Measure]) -> list[Measure]:
    return [row for row in rows if not math.isnan(row.recall)]


def _by_prompt(rows: Sequence[Measure]) -> dict[str, list[bool]]:
    found: dict[str, list[bool]] = defaultdict(list)
    for row in rows:
        found[row.key.prompt].append(row.recall > 0)
    return found


def _interval(gaps: Sequence[float]) -> tuple[float, float]:
    """Returns limits of the mean of values between -1 and 1, by betting on either side."""
    if not gaps:
        return math.nan, math.nan
    values = (1 + np.array(gaps)) / 2
    high, low = betting_rows(np.stack([values, 1 - values]), 1.0, _SIDE)
    return 1 - 2 * float(low), 2 * float(high) - 1
