from __future__ import annotations

import inspect
import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.core.design import Decoding
from nafaudit.core.draws import Stream
from nafaudit.core.errors import InputError, LawError
from nafaudit.core.ledger import FixedBudget, Payment, ledger_of
from nafaudit.mechanisms.choosing import BestOfN, CapK
from nafaudit.mechanisms.sequences import decode_by_choice
from nafaudit.protocols import MOST_DRAFTS, Draft, Drafts, Plan, SequenceRule
from tests.mechanisms.tables import TableWorld

PROMPT = (0, 3)


class _Short(TableWorld):
    decoding = Decoding(3)


def _outputs(world: _Short) -> dict[tuple[int, ...], tuple[float, float]]:
    """Every output of at most three tokens, with its log-probability under both models."""
    found = {}
    for tokens in itertools.product(range(world.size), repeat=3):
        cut = next((i + 1 for i, t in enumerate(tokens) if t in world.stops), 3)
        y = tokens[:cut]
        laws = world.prefix_laws([PROMPT[-1], *y[:-1]])
        found[y] = tuple(float(law[np.arange(cut), y].sum()) for law in laws)
    return found  # type: ignore[return-value]


def _best_of(n: int, safe: dict[tuple[int, ...], tuple[float, float]]) -> dict[Any, float]:
    """The exact law of best-of-n: the likeliest under the risky model is the last in order."""
    below, law = 0.0, {}
    for y in sorted(safe, key=lambda y: safe[y][1]):
        reached = below + math.exp(safe[y][0])
        law[y] = reached**n - below**n
        below = reached
    return law


def _cap_k(plan: Plan, both: dict[tuple[int, ...], tuple[float, float]]) -> dict[Any, float]:
    passes = {y: r - s <= plan.cap for y, (s, r) in both.items()}
    rate = sum(math.exp(r) for y, (_, r) in both.items() if passes[y])
    tries = sum((1 - rate) ** i for i in range(plan.risky))
    return {
        y: tries * math.exp(r) * passes[y] + (1 - rate) ** plan.risky * math.exp(s)
        for y, (s, r) in both.items()
    }


@pytest.mark.parametrize("n", [1, 2, 5])
def test_best_of_n_costs_what_it_is_charged(n: int) -> None:
    both = _outputs(_Short())
    law = _best_of(n, both)
    assert math.fsum(law.values()) == pytest.approx(1)
    worst = max(math.log(q) - both[y][0] for y, q in law.items() if q > 0)
    assert worst <= math.log(n) + 1e-9
    divergence = math.fsum(q * (math.log(q) - both[y][0]) for y, q in law.items() if q > 0)
    assert divergence <= math.log(n) - (n - 1) / n + 1e-9
    if n > 1:  # and the charge is not idle: half of it is really reached
        assert worst > math.log(n) / 2


@pytest.mark.parametrize("budget", [0.3, 1.5, 4.0])
def test_cp_k_costs_what_it_is_charged(budget: float) -> None:
    both = _outputs(_Short())
    plan = CapK().plan(budget)
    assert plan.cost == pytest.approx(budget)
    law = _cap_k(plan, both)
    assert math.fsum(law.values()) == pytest.approx(1)
    assert max(math.log(q) - both[y][0] for y, q in law.items()) <= budget + 1e-9


@pytest.mark.parametrize(("rule", "k"), [(BestOfN(), math.log(3) / 3), (CapK(), 2.0)])
def test_what_is_written_has_the_exact_law(rule: Any, k: float) -> None:
    # 600 outputs; total variation over <= 85 cells stays below 0.2 but with p < 1e-6 (McDiarmid:
    # mean <= sqrt(85/600)/2 = 0.19 is the worst case; seen 0.11); seeds are fixed.
    world = _Short()
    both = _outputs(world)
    plan = rule.plan(k * 3)
    law = _best_of(plan.safe, both) if plan.risky == 0 else _cap_k(plan, both)
    drawn = Counter(
        decode_by_choice(world, rule, "r", PROMPT, k, Stream(seed))[0].tokens for seed in range(600)
    )
    distance = sum(abs(drawn[y] / 600 - q) for y, q in law.items()) / 2
    safe = {y: math.exp(s) for y, (s, _) in both.items()}
    assert distance < 0.2
    assert sum(abs(law[y] - q) for y, q in safe.items()) / 2 > 0.25  # the control: not the safe law


@given(st.floats(0, 200))
def test_no_plan_costs_more_than_its_budget(budget: float) -> None:
    for rule in (BestOfN(), CapK()):
        assert rule.plan(budget).cost <= budget + 1e-9
    assert BestOfN().plan(math.log(3)).safe == 3
    assert BestOfN().plan(500.0).safe == MOST_DRAFTS


class _Greedy(BestOfN):
    def plan(self, budget: float) -> Plan:
        return Plan(safe=9)


class _Forger(BestOfN):
    def choose(self, drafts: Drafts) -> Draft:
        return Draft((1, 2, 3), *np.zeros((3, 3)))


class _Crash(BestOfN):
    def choose(self, drafts: Drafts) -> Draft:
        raise KeyError("x")


class _FreePlan(Plan):
    cost = 0.0


class _Cheat(BestOfN):
    def plan(self, budget: float) -> Plan:
        return _FreePlan(safe=9)


class _Halves(BestOfN):
    def plan(self, budget: float) -> Plan:
        return Plan(safe=1.5)  # type: ignore[arg-type]


class _Spoiler(BestOfN):
    def choose(self, drafts: Drafts) -> Draft:
        drafts.safe[0].safe[:] = 0.0
        object.__setattr__(drafts.safe[0], "tokens", (1, 1, 1, 1))
        return drafts.safe[0]


def test_a_rule_cannot_change_what_is_recorded_of_its_choice() -> None:
    class First(BestOfN):
        def choose(self, drafts: Drafts) -> Draft:
            return drafts.safe[0]

    honest, _ = decode_by_choice(_Short(), First(), "theirs", PROMPT, 0.5, Stream(1))
    spoiled, _ = decode_by_choice(_Short(), _Spoiler(), "theirs", PROMPT, 0.5, Stream(1))
    assert spoiled.tokens == honest.tokens and spoiled.safe.tolist() == honest.safe.tolist()


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (_Cheat(), "theirs plans to spend 2.19722 nats of a budget of 1.5"),
        (_Halves(), "theirs: plan raised TypeError"),
        (_Greedy(), "theirs plans to spend 2.19722 nats of a budget of 1.5"),
        (_Forger(), "theirs chose an output that is not among its drafts"),
        (_Crash(), "theirs: choose raised KeyError"),
    ],
)
def test_a_rule_from_outside_is_not_believed(rule: Any, text: str) -> None:
    with pytest.raises(LawError, match=text):
        decode_by_choice(_Short(), rule, "theirs", PROMPT, 0.5, Stream(1))


def test_the_worked_example_of_a_sequence_rule_runs() -> None:
    assert SequenceRule.__doc__ is not None
    after = inspect.cleandoc(SequenceRule.__doc__).split("in full:")[1]
    names: dict[str, Any] = {"math": math, "Plan": Plan, "Draft": Draft, "Drafts": Drafts}
    exec(inspect.cleandoc(after), names)
    _, cost = decode_by_choice(_Short(), names["FirstOfTwo"](), "r", PROMPT, 0.5, Stream(1))
    assert cost.sum() == pytest.approx(math.log(2))


def test_bad_plans_are_refused() -> None:
    for bad in ({"safe": 0}, {"risky": -1}, {"safe": 65}, {"cap": math.nan}):
        with pytest.raises(InputError):
            Plan(**bad)


def test_the_whole_budget_is_there_at_once() -> None:
    ledger = ledger_of("whole:20")
    assert ledger == FixedBudget(20) and ledger.spec == "whole:20"
    assert ledger.accrued(0.5, 0.0, np.zeros(3, np.int32)).tolist() == [10.0] * 3
    account = ledger.open(0.5, 0.0)
    account.pay(Payment(4.0, 0.0, 1))
    assert account.allowance() == 6.0
    assert ledger_of("whole:x") is None
