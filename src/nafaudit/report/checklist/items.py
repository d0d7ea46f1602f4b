"""What an item of the checklist is, and the numbers at which it passes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

# The paper's numbers.
MIN_EXECUTIONS = 1500
MIN_TRAJECTORIES = 20
HIGH_RATIO = 0.9
ANCHOR_DIFFERENCE = 0.20
MIN_AUC = 0.8
MIN_SEEDS = 2
# The level of its per-prompt bounds.
PROMPT_LEVEL = 0.0033

TITLES = {
    1: "anchors matched in capability",
    2: f"M >= {MIN_EXECUTIONS} per class, U_EBB (R_eff) <= K",
    3: "overlap and spend agree",
    4: f"N >= {MIN_TRAJECTORIES} wherever rho > {HIGH_RATIO}",
    5: "a width beside every estimate",
    6: f"surrogate AUC >= {MIN_AUC}",
    7: f"at least {MIN_SEEDS} search seeds",
}


class Answer(StrEnum):
    """What the checklist says of an item."""

    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Item:
    """One item, answered.

    Attributes:
        number: Its number in the paper, 1 to 7.
        answer: The word.
        text: Why, with the number.
        todo: What to run to pass it; empty if it passes.
        value: The number that decided; NaN if there is none.
        claimed: What the paper says of itself; empty for a run.
    """

    number: int
    answer: Answer
    text: str
    todo: str = ""
    value: float = math.nan
    claimed: str = ""

    @property
    def title(self) -> str:
        """What is asked, in a few words."""
        return TITLES[self.number]

    @property
    def holds(self) -> bool | None:
        """True if what is claimed is what was found; None if nothing is claimed."""
        return (self.claimed == str(self.answer)) if self.claimed else None


def judged(number: int, good: bool, text: str, todo: str = "", value: float = math.nan) -> Item:
    """An item that passes or fails."""
    if good:
        return Item(number, Answer.PASS, text, "", value)
    return Item(number, Answer.FAIL, text, todo, value)


def not_applicable(number: int, text: str, todo: str) -> Item:
    """An item that these records cannot answer."""
    return Item(number, Answer.NOT_APPLICABLE, text, todo)
