"""What a black-box decoder did wrong before any number is looked at: one finding per fault."""

from __future__ import annotations

from collections import Counter

from nafaudit.checks.check import Facts
from nafaudit.core.finding import FAULTS, Answer, Fault, Finding, Witness
from nafaudit.core.trajectory import Arm, Key, Trajectory


class Faults:
    """Says, arm by arm, which faults were seen, how often, and where first by key."""

    def __init__(self, facts: Facts) -> None:
        self._faults = facts.faults

    def see(self, trajectory: Trajectory) -> None:
        """Nothing: a fault is noted when it happens, and not in the record."""

    def findings(self, arm: Arm) -> list[Finding]:
        """One finding per kind of fault; none for a decoder that behaved."""
        here = [f for f in self._faults if f.key is None or f.key.arm == arm]
        counts = Counter(fault.name for fault in here)
        findings = []
        for name in FAULTS:
            if not counts[name]:
                continue
            first = min((fault for fault in here if fault.name == name), key=_place)
            times = f" ({counts[name]} times)" if counts[name] > 1 else ""
            witness = None if first.key is None else Witness(first.key, first.step)
            text = f"{FAULTS[name]}: {first.text}{times}"
            findings.append(
                Finding(f"decoder: {name}", Answer.SUSPECT, counts[name], text, witness)
            )
        return findings


def _place(fault: Fault) -> tuple[bool, Key, int, str]:
    """An order that does not follow when a fault was seen."""
    key = fault.key or Key("", "", 0.0, 0)
    return fault.key is None, key, fault.step, fault.text
