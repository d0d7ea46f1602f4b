"""A verification for people and for machines: the one form of both."""

from __future__ import annotations

import math
import textwrap
from typing import Any

from nafaudit.checks.verification import COUNTS, QUANTITIES, ArmFinding, Verification
from nafaudit.core.finding import Answer, Kept
from nafaudit.core.ledger import budget_name
from nafaudit.core.text import as_number
from nafaudit.measures.audit import witness_json

_FINE = (Answer.FINE, Answer.INFO, Kept.WITHIN)


def verification_json(found: Verification, run: str, design: str) -> dict[str, Any]:
    """Every finding and deviation; strict JSON, NaN and infinity as strings."""
    return {
        "run": run,
        "design": design,
        "recorded": found.recorded,
        "replayed": found.trajectories,
        "tokens": found.tokens,
        "seconds": found.seconds,
        "deviation": {
            name: {level: as_number(value) for level, value in numbers.items()}
            for name, numbers in found.deviation.items()
        },
        "notes": found.notes,
        "findings": [_finding(one) for one in found.findings],
    }


def _finding(one: ArmFinding) -> dict[str, Any]:
    finding = one.finding
    return {
        "mechanism": one.arm.mechanism if one.arm else None,
        "k": as_number(one.arm.k) if one.arm else None,
        "check": finding.check,
        "verdict": str(finding.verdict),
        "value": as_number(finding.value),
        "numbers": {name: as_number(value) for name, value in finding.numbers.items()},
        "witness": witness_json(finding.witness),
        "text": finding.text,
    }


def verification_text(found: Verification) -> str:
    """A table of deviations, then whatever is not fine, then what was done; 80 columns."""
    lines = []
    if found.deviation:
        lines.append(f"{'quantity':<10}{'largest':>10}{'warn':>9}{'fail':>9}  what was compared")
    for name, numbers in found.deviation.items():
        largest = "-" if math.isnan(numbers["max"]) else f"{numbers['max']:.1e}"
        row = f"{name:<10}{largest:>10}{numbers['warn']:>9.0e}{numbers['fail']:>9.0e}"
        lines.append(f"{row}  {QUANTITIES[name]}")
    if found.deviation:
        lines.append("deviations in nats, divided by 1 plus the size of the number")
    budgets = [one for one in found.findings if one.finding.check == "replay: budget"]
    lines += [f"budget: {one.finding.verdict}, {one.finding.text}" for one in budgets]
    lines += [
        f"debt, {budget_name(one.arm.k)}: {one.finding.text}"
        for one in found.findings
        if one.finding.check == COUNTS and one.arm is not None
    ]
    lines += _sampler_lines(found)
    shown = [one for one in found.findings if one.finding.verdict not in _FINE]
    lines += [_line(one) for one in shown if one.finding.verdict != Answer.UNKNOWN]
    lines += [f"note: {note}" for note in found.notes]
    rate = found.tokens / found.seconds if found.seconds > 0 else 0.0
    lines.append(
        f"{found.trajectories} of {found.recorded} trajectories, {found.tokens} tokens replayed "
        f"in {found.seconds:.1f} s ({rate:.0f} a second)"
    )
    verdict = "the claims are refuted" if found.failed else "the claims are true as far as replayed"
    lines.append(verdict if found.trajectories else "nothing could be replayed: inconclusive")
    return "\n".join(wrapped for line in lines for wrapped in _wrap(line))


def _sampler_lines(found: Verification) -> list[str]:
    tests = [one for one in found.findings if one.finding.check.startswith("sampler: ")]
    if not tests:
        return []
    fired = sum(one.finding.verdict == Answer.FAILED for one in tests)
    level = sum(one.finding.numbers.get("level", 0.0) for one in tests)
    arms = len({one.arm for one in tests})
    return [
        f"sampler: {fired} of {len(tests)} tests fired ({arms} budgets, {level:.2g} for all of "
        "them together)"
    ]


def _line(one: ArmFinding) -> str:
    finding = one.finding
    arm = f"{budget_name(one.arm.k)}: " if one.arm else ""
    where = ""
    if finding.witness is not None:
        key = finding.witness.key
        where = (
            f" (first at prompt {key.prompt!r}, {budget_name(key.k)}, trajectory "
            f"{key.trajectory}, step {finding.witness.step})"
        )
    return f"{arm}{finding.check} {finding.verdict}: {finding.text}{where}"


def _wrap(line: str, width: int = 80) -> list[str]:
    if len(line) <= width:
        return [line]
    return textwrap.wrap(line, width, subsequent_indent="  ", break_on_hyphens=False)
