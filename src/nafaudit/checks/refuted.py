"""What a replay refutes of a black box: its claims, or the law that its tokens come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nafaudit.checks.check import Facts
from nafaudit.core.finding import Answer, Finding, Witness
from nafaudit.core.trajectory import Arm, Key, Trajectory
from nafaudit.store.artifacts import COUNTS


class Refuted:
    """Repeats, arm by arm, what a verification found false."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def see(self, trajectory: Trajectory) -> None:
        """Nothing: the replay saw it."""

    def findings(self, arm: Arm) -> list[Finding]:
        """One finding per refuted claim and per sampler test that fired."""
        return list(refuted(self._facts.verified, arm))


def debt_counts(verified: Mapping[str, Any] | None, arm: Arm) -> str:
    """What a verification says of an arm by both counts of the debt, if one is exceeded."""
    for data in (verified or {}).get("findings", ()):
        if data["check"] == COUNTS and float(data["k"]) == arm.k:
            return str(data["text"])
    return ""


def refuted(verified: Mapping[str, Any] | None, arm: Arm) -> Iterator[Finding]:
    """The failed findings of a verification that concern an arm; claims are named `claims`."""
    for data in (verified or {}).get("findings", ()):
        witness = data["witness"]
        k = data["k"] if data["k"] is not None else (witness or {}).get("k")
        if data["verdict"] != Answer.FAILED or (k is not None and float(k) != arm.k):
            continue
        name = data["check"].replace("replay: ", "claims: ")
        where = None
        if witness is not None:
            key = Key(witness["prompt"], arm.mechanism, arm.k, witness["trajectory"])
            where = Witness(key, witness["step"])
        yield Finding(name, Answer.FAILED, float(data["value"]), data["text"], where)
