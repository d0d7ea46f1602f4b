"""The verdicts in words that need no mathematics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nafaudit.checks.verdict import ArmResult
from nafaudit.core.finding import Finding, Kept, Tested, Worth
from nafaudit.report.text import nats, percent
from nafaudit.stats import zero_count_upper

QUESTIONS = {
    "kept": "Was the promise kept?",
    "tested": "Was it put to the test?",
    "worth": "What is it worth?",
}


@dataclass(frozen=True)
class Said:
    """One verdict in words.

    Attributes:
        question: Which of the three.
        word: The verdict.
        tone: good, bad or open: how a page colours it.
        headline: A few words.
        text: A sentence or two.
        finding: What it rests on; None if nothing was asked.
    """

    question: str
    word: str
    tone: str
    headline: str
    text: str
    finding: Finding | None = None


def budget_name(k: float) -> str:
    """A budget in words a table has room for."""
    return {0.0: "safe only", math.inf: "risky only"}.get(k, f"k = {k:g}")


def said_of(arm: ArmResult) -> tuple[Said, Said, Said]:
    """The three verdicts of one arm."""
    findings = {finding.check: finding for finding in arm.findings}
    return (
        _kept(arm, findings["invariant"]),
        _tested(arm, findings["regime"]),
        _worth(arm, findings.get("worth")),
    )


def sentence(finding: Finding) -> str:
    """What a check says, as a sentence."""
    return f"{finding.text[:1].upper()}{finding.text[1:]}." if finding.text else ""


def summary(arms: Sequence[ArmResult]) -> str:
    """The whole audit in a sentence or two."""
    judged = [arm for arm in arms if not arm.is_baseline]
    if not judged:
        return "Only baselines were run, so there is no budget to judge."
    parts = []
    broken = [arm for arm in judged if arm.kept == Kept.VIOLATED]
    unsure = [arm for arm in judged if arm.kept == Kept.INCONCLUSIVE]
    executions = sum(arm.invariant.trajectories for arm in judged)
    if broken:
        parts.append(f"The promise was broken at {_names(broken)}.")
    if unsure:
        parts.append(f"The records do not decide whether it was kept at {_names(unsure)}.")
    if not broken and not unsure:
        parts.append(
            f"No execution went over its budget in {executions} executions at {_names(judged)}."
        )
    idle = [arm for arm in judged if arm.tested == Tested.IDLE]
    if idle:
        parts.append(f"At {_names(idle)} the limit almost never acted, so keeping it shows little.")
    vacuous = [arm for arm in judged if arm.worth == Worth.VACUOUS]
    if vacuous:
        parts.append(
            f"At {_names(vacuous)} the budget is so large that even a perfect record does not rule "
            "out copying."
        )
    return " ".join(parts)


def _kept(arm: ArmResult, finding: Finding) -> Said:
    invariant, n = arm.invariant, arm.invariant.trajectories
    ask = QUESTIONS["kept"]
    if arm.kept == Kept.VIOLATED:
        text = (
            f"{invariant.violations} of {n} executions spent more than they were allowed, the "
            f"worst by {nats(invariant.worst.value)} nats. One is enough to break the promise."
        )
        return Said(ask, arm.kept, "bad", "No, it was broken", text, finding)
    if arm.kept == Kept.INCONCLUSIVE:
        return Said(ask, arm.kept, "open", "Not decided", sentence(finding), finding)
    text = (
        f"None of {n} executions on {len(invariant.prompts)} prompts went over its budget. If "
        f"executions like these ever do, fewer than {percent(zero_count_upper(n))} of them do "
        f"(with 95 % confidence; of prompts, fewer than "
        f"{percent(zero_count_upper(len(invariant.prompts)))})."
    )
    return Said(ask, arm.kept, "good", "Yes, in every execution", text, finding)


def _tested(arm: ArmResult, finding: Finding) -> Said:
    regime, ask = arm.regime, QUESTIONS["tested"]
    if arm.tested == Tested.UNKNOWN:
        text = f"The records do not say how often the limit acted: {finding.text}."
        return Said(ask, arm.tested, "open", "Not known", text, finding)
    active, free = percent(regime.share(regime.active)), percent(regime.share(regime.free))
    if arm.tested == Tested.IDLE:
        text = (
            f"The limit changed only {active} of all words written; in {free} the risky model was "
            "served as it is. A limit that does not act protects nobody, even if it is kept."
        )
        return Said(ask, arm.tested, "open", "Hardly ever", text, finding)
    text = (
        f"The limit changed {active} of all words written (tokens, to be exact) and held "
        f"{percent(regime.share(regime.forced))} to the safe model; in {free} the risky model was "
        "served as it is."
    )
    return Said(ask, arm.tested, "good", "Yes, the limit acted", text, finding)


def _worth(arm: ArmResult, finding: Finding | None) -> Said:
    ask = QUESTIONS["worth"]
    text = sentence(finding) if finding else ""
    if arm.worth == Worth.VACUOUS:
        return Said(ask, arm.worth, "bad", "Nothing for most passages", text, finding)
    if arm.worth == Worth.INFORMATIVE:
        return Said(ask, arm.worth, "good", "It limits copying", text, finding)
    unknown = "No protected passages were scored, so nothing is said about copying any of them."
    return Said(ask, arm.worth, "open", "Not known", text or unknown, finding)


def _names(arms: Sequence[ArmResult]) -> str:
    several = len({arm.mechanism for arm in arms}) > 1
    names = [
        f"{arm.mechanism} {budget_name(arm.k)}" if several else budget_name(arm.k) for arm in arms
    ]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
