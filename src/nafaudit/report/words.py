"""The verdicts in words that need no mathematics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nafaudit.checks.verdict import ArmResult
from nafaudit.core.finding import Finding, Kept, Tested, Worth
from nafaudit.core.ledger import budget_word
from nafaudit.core.text import nats, percent
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
        finding: What it rests on.
    """

    question: str
    word: str
    tone: str
    headline: str
    text: str
    finding: Finding


def budget_name(k: float) -> str:
    """A budget in words a table has room for."""
    return {0.0: "safe only", math.inf: "risky only"}.get(k, f"k = {budget_word(k)}")


def said_of(arm: ArmResult, *, refuted: bool = False) -> tuple[Said, Said, Said]:
    """The three verdicts of one arm.

    Args:
        arm: What was judged.
        refuted: True if a replay from the models contradicts the log.
    """
    findings = {finding.check: finding for finding in arm.findings}
    kept = _kept(arm, findings["invariant"])
    if refuted and arm.kept == Kept.WITHIN:
        text = f"By the log alone: {kept.text} But a replay from the models refutes the log."
        kept = replace(kept, tone="bad", headline="Only by a refuted log", text=text)
    return (
        kept,
        _tested(arm, findings["regime"]),
        _worth(arm, findings["worth"]),
    )


def sentence(finding: Finding) -> str:
    """What a check says, as a sentence."""
    return f"{finding.text[:1].upper()}{finding.text[1:]}." if finding.text else ""


def summary(arms: Sequence[ArmResult], *, refuted: bool = False) -> str:
    """The whole audit in a few sentences.

    Args:
        arms: What was judged.
        refuted: True if a replay from the models contradicts the log.
    """
    judged = [arm for arm in arms if not arm.is_baseline]
    if not judged:
        return "Only baselines were run, so there is no budget to judge."
    parts = ["A replay from the models refutes the log, so its numbers cannot be trusted."]
    parts = parts if refuted else []
    broken = [arm for arm in judged if arm.kept == Kept.VIOLATED]
    unsure = [arm for arm in judged if arm.kept == Kept.INCONCLUSIVE]
    executions = sum(arm.invariant.trajectories for arm in judged)
    if broken:
        parts.append(f"The promise was broken at {_names(broken)}.")
    if unsure:
        parts.append(f"The records do not decide whether it was kept at {_names(unsure)}.")
    if not broken and not unsure:
        logged = ", by the log" if refuted else ""
        parts.append(
            f"None of {executions} executions at {_names(judged)} went over budget{logged}."
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
        f"(with 95% confidence; of prompts, fewer than "
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


def _worth(arm: ArmResult, finding: Finding) -> Said:
    ask, numbers = QUESTIONS["worth"], finding.numbers
    if arm.worth == Worth.UNKNOWN:
        return Said(ask, arm.worth, "open", "Not known", sentence(finding), finding)
    n, reached = int(numbers["passages"]), int(numbers["vacuous"])
    if arm.worth == Worth.VACUOUS:
        text = (
            f"A decoder may keep this budget and still reproduce {reached} of {n} protected "
            f"passages word for word: K = {numbers['K']:g} nats is no less than what the safe "
            f"model needs to write them (half of them need {nats(numbers['surprisal_median'])} or "
            "less)."
        )
        return Said(ask, arm.worth, "bad", "Little or nothing", text, finding)
    text = (
        f"{_of(n - reached, n)} protected passages cost more than K = {numbers['K']:g} nats to "
        f"write (the cheapest {nats(numbers['surprisal_min'])}). If the budget is kept, a given "
        f"passage comes out of one request with a chance of at most {percent(numbers['cap_max'])}."
    )
    return Said(ask, arm.worth, "good", "It limits copying", text, finding)


def _of(some: int, n: int) -> str:
    return f"All {n}" if some == n else f"{some} of {n}"


def _names(arms: Sequence[ArmResult]) -> str:
    several = len({arm.mechanism for arm in arms}) > 1
    names = [
        f"{arm.mechanism} {budget_name(arm.k)}" if several else budget_name(arm.k) for arm in arms
    ]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
