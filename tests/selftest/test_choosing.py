"""Mechanisms that choose whole outputs pass the suite of their guarantee; broken ones do not."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from nafaudit.core.debt import DebtRule
from nafaudit.core.ledger import FixedBudget
from nafaudit.mechanisms.anchored import Anchored
from nafaudit.mechanisms.choosing import BestOfN
from nafaudit.mechanisms.registry import SequenceMechanism
from nafaudit.protocols import Draft, Drafts, Plan, SequenceRule
from nafaudit.selftest import choosing
from nafaudit.selftest.choosing import conform_choosing
from nafaudit.selftest.conform import Conforms
from tests.commands import call


def answers(rule: SequenceRule) -> dict[str, Conforms]:
    made = SequenceMechanism("mine", Anchored(), FixedBudget(0), DebtRule(0), sequence=rule)
    return {item.name: item.answer for item in conform_choosing(made, "mine")}


@pytest.mark.parametrize("spec", ["best-of-n", "blockwise:2,n=2", "cp-k:3", "hybrid:2"])
def test_each_of_ours_keeps_its_promise(spec: str, tmp_path: Path) -> None:
    done = call("conform", spec, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    for name in ("plans", "chooses", "repeats", "promise", "written", "k = 0"):
        assert re.search(rf"^{name} +YES ", done.stdout, re.MULTILINE), done.stdout


class Greedy(BestOfN):
    """Draws one draft more than is paid for."""

    def plan(self, budget: float) -> Plan:
        return Plan(safe=super().plan(budget).safe + 1)


class Inventor(BestOfN):
    """Serves what was never drawn."""

    def choose(self, drafts: Drafts) -> Draft:
        first = drafts.safe[0]
        return Draft(first.tokens, first.safe, first.risky, first.served)


class Moody(BestOfN):
    """Chooses otherwise each time."""

    calls = itertools.count()

    def choose(self, drafts: Drafts) -> Draft:
        return drafts.safe[next(self.calls) % len(drafts.safe)]


def test_broken_rules_are_named() -> None:
    assert answers(Greedy()) == {"plans": Conforms.NO}
    assert answers(Inventor()) == {"chooses": Conforms.NO}
    assert answers(Moody())["repeats"] is Conforms.NO


def test_a_charge_that_is_one_percent_too_low_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answers(BestOfN())["promise"] is Conforms.YES
    most = Plan.most
    monkeypatch.setattr(Plan, "most", lambda plan, length: 0.99 * most(plan, length))
    assert answers(BestOfN())["promise"] is Conforms.NO


def test_outputs_of_another_law_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    law = choosing._safe_law
    monkeypatch.setattr(choosing, "_law", lambda world, rule, name, plan: law(world))
    assert answers(BestOfN())["written"] is Conforms.NO
