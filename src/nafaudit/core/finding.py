"""Findings of checks with their verdict words, and faults of decoders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.text import plain
from nafaudit.core.trajectory import Arm, Key


class Kept(StrEnum):
    """The first verdict: whether every trajectory stays inside its budget.

    REFUTED: what was written, or what is claimed of it, is not what was promised, so that how much
    was spent is not known.
    """

    WITHIN = "WITHIN"
    VIOLATED = "VIOLATED"
    REFUTED = "REFUTED"
    INCONCLUSIVE = "INCONCLUSIVE"

    @property
    def exit_status(self) -> int:
        """Status that a command with this verdict ends with."""
        return {Kept.WITHIN: 0, Kept.VIOLATED: 1, Kept.REFUTED: 1, Kept.INCONCLUSIVE: 3}[self]


class Tested(StrEnum):
    """The second verdict: whether the constraint ever acted."""

    ACTIVE = "ACTIVE"
    IDLE = "IDLE"
    UNKNOWN = "UNKNOWN"


class Worth(StrEnum):
    """The third verdict: what a kept budget says about reproducing a protected passage."""

    INFORMATIVE = "INFORMATIVE"
    VACUOUS = "VACUOUS"
    UNKNOWN = "UNKNOWN"


class CheckWord(StrEnum):
    """The word of a check that sets none of the three verdicts."""

    FINE = "FINE"
    SUSPECT = "SUSPECT"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"
    INFO = "INFO"


class Outcome(StrEnum):
    """The word of a command that judges no budget.

    MEASURED: numbers came out, and they mean something. ENOUGH, TOO FEW: whether a planned run can
    lead to a verdict. PASSED: of the auditor's own test. CONFORMS, BROKEN: a contract. ANSWERED,
    RECOMPUTED: a checklist, a paper; neither is a verdict.
    """

    MEASURED = "MEASURED"
    ENOUGH = "ENOUGH"
    TOO_FEW = "TOO FEW"
    PASSED = "PASSED"
    CONFORMS = "CONFORMS"
    BROKEN = "BROKEN"
    ANSWERED = "ANSWERED"
    RECOMPUTED = "RECOMPUTED"


# Fewer trajectories than this say nothing about a mechanism, unless one of them is a violation.
MIN_TRAJECTORIES = 20
# At least this share of the answers must be limited for a budget to count as tested.
ACTIVE_SHARE = 0.05
# A budget that reaches the surprisal of at least this share of the passages says nothing.
VACUOUS_SHARE = 0.5
# How often a check that rests on chance may call a sound arm SUSPECT.
ALARM_LEVEL = 1e-4


def own_tolerance(limit: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the slack in nats for our own records: float64 sums, nothing else."""
    finite = np.isfinite(limit)
    # `where` costs more than the rest, and most limits are finite.
    known = limit if finite.all() else np.where(finite, limit, 0.0)
    return np.asarray(1e-6 * (1.0 + known))


def foreign_tolerance(limit: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the slack in nats for other people's logs, rounded and summed in float32."""
    return np.asarray(np.maximum(1e-3, 1e-6 * np.where(np.isfinite(limit), limit, 0.0)))


def replayed_tolerance(limit: NDArray[np.float64], sums: float, step: float) -> NDArray[np.float64]:
    """Returns the slack in nats for a spend that a replay recomputed from what others claim.

    Args:
        limit: What was granted.
        sums: What a sum may be off by, relative to 1 + its size.
        step: What a single charge may be off by; the first few of an answer are its whole spend.
    """
    return np.asarray(np.maximum(step, sums * (1 + np.where(np.isfinite(limit), limit, 0.0))))


@dataclass(frozen=True)
class Witness:
    """The trajectory and step that a finding rests on; no step if the log has only totals."""

    key: Key = field(metadata={"json": ...})
    step: int | None

    @property
    def at(self) -> str:
        """Returns where it is, in words: trajectory, and step if there are steps."""
        return witness_at(self.key.trajectory, self.step)


def witness_at(trajectory: int, step: int | None) -> str:
    """Names a trajectory, and the step if there is one."""
    return f"trajectory {trajectory}" + ("" if step is None else f", step {step}")


@dataclass(frozen=True)
class Finding:
    """One answer of one check.

    Attributes:
        check: Name of the check.
        verdict: One of the words above, or of the check's own.
        value: The number behind it.
        text: In words, without a full stop.
        witness: The worst step, if there is one.
        numbers: Further numbers by name, for programs.
    """

    check: str
    verdict: str
    value: float
    text: str
    witness: Witness | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    json_order: ClassVar = ("check", "verdict", "value", "numbers", "witness", "text")

    def to_json(self, arm: Arm | None) -> dict[str, Any]:
        """Returns plain data; `arm` is None for a finding about a whole run."""
        found: dict[str, Any] = plain(self)
        return {"mechanism": None, "k": None} | (plain(arm) if arm else {}) | found


@dataclass(frozen=True)
class Overall:
    """The one answer of a command: what a script, a page and a person read first.

    Attributes:
        verdict: One of the words above.
        why: What decided it, in words without a full stop.
        exit_status: What the command ends with.
    """

    verdict: str
    why: str
    exit_status: int

    def __str__(self) -> str:
        """The first line of a terminal."""
        return f"{self.verdict}: {self.why}"


FAIL_ON = ("suspect", "idle", "vacuous")
"""Words that may be asked to fail a command: of any check, of the second and the third verdict."""


@dataclass(frozen=True)
class Thresholds:
    """What a user asks of an answer beyond the budgets: for CI.

    Attributes:
        fail_on: Words of `FAIL_ON`; a finding with one of them fails the command.
        min_executions: Trajectories that every budget needs; `MIN_TRAJECTORIES` count anyway.
    """

    fail_on: tuple[str, ...] = ()
    min_executions: int = 0

    def decide(
        self, answer: Overall, found: Mapping[str, str], executions: Mapping[str, int]
    ) -> Overall:
        """Returns the answer that the thresholds make of one; an answer of 1 stays.

        Args:
            answer: Without thresholds.
            found: Where each verdict word was found first, in words.
            executions: How many there are, by the name of the budget.
        """
        if answer.exit_status == 1:
            return answer
        for word in self.fail_on:
            if (where := found.get(word.upper())) is not None:
                return Overall(word.upper(), f"{where}, and fail-on {word} was asked for", 1)
        few = [name for name, count in executions.items() if count < self.min_executions]
        if few and answer.exit_status == 0:
            why = (
                f"{few[0]} has {executions[few[0]]} trajectories, fewer than the "
                f"{self.min_executions} that were asked for"
            )
            return Overall(Kept.INCONCLUSIVE, why, 3)
        return answer


def judge_kept(trajectories: int, violations: int, unjudged: int = 0) -> Kept:
    """Decides the first verdict from counts of trajectories."""
    if violations:
        return Kept.VIOLATED
    enough = trajectories >= MIN_TRAJECTORIES and not unjudged
    return Kept.WITHIN if enough else Kept.INCONCLUSIVE


def judge_tested(limited: int, answers: int) -> Tested:
    """Decides the second verdict from counts of answers.

    Args:
        limited: Answers that the limit changed.
        answers: All answers that count.
    """
    if answers < MIN_TRAJECTORIES:
        return Tested.UNKNOWN
    return Tested.ACTIVE if limited >= ACTIVE_SHARE * answers else Tested.IDLE


def judge_worth(vacuous: int, passages: int) -> Worth:
    """Decides the third verdict from counts of passages.

    Args:
        vacuous: Passages whose surprisal S under the safe model is at most K.
        passages: All passages with a known S.
    """
    if not passages:
        return Worth.UNKNOWN
    return Worth.VACUOUS if vacuous >= VACUOUS_SHARE * passages else Worth.INFORMATIVE


# Adding one is adding a line; `lost` are those after which there is nothing to record.
FAULTS = {
    "raised": "its decode raised an exception",
    "died": "its process ended while it was asked for outputs",
    "hang": "it gave no answer within the time limit",
    "given-up": "it hung or crashed too often to be asked for more",
    "garbled": "its answer could not be read",
    "count": "it did not return one output per request",
    "shape": "a part of its output has the wrong type or length",
    "empty": "it wrote no token",
    "token": "it wrote a token id that does not exist",
    "length": "it wrote more tokens than it was asked for",
    "after-stop": "it wrote on after a stop token",
    "short": "it ended early, without a stop token",
    "nan": "a number that it claims is not one",
    "law": "a law that it shows is not one",
    "family": "it names a family of laws that is not known",
    "exit": "its process did not end cleanly",
}


@dataclass(frozen=True)
class Fault:
    """One thing that went wrong in a decoder that is not ours.

    Attributes:
        name: One of `FAULTS`.
        text: What was seen, in a sentence without its full stop.
        key: The output that was asked for; None if no single one is to blame.
        step: Where in it.
        lost: True if the output could not be recorded.
    """

    name: str
    text: str
    key: Key | None = None
    step: int = 0
    lost: bool = False

    def __post_init__(self) -> None:
        if self.name not in FAULTS:
            raise ValueError(f"unknown fault {self.name!r}; known: {', '.join(FAULTS)}.")
