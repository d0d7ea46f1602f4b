from __future__ import annotations

import linecache
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from nafaudit.core.debt import DebtRule
from nafaudit.core.errors import InputError, LawError
from nafaudit.core.ledger import Banking, currency_of
from nafaudit.mechanisms.anchored import Anchored
from nafaudit.mechanisms.cards import CARDS
from nafaudit.mechanisms.choosing import RULES
from nafaudit.mechanisms.laws import kl, log_law
from nafaudit.mechanisms.registry import BUILDERS, Guarded, mechanism, recorded_mechanism
from nafaudit.protocols import Resources, Served

SAFE = log_law(torch.tensor([[0.0, 1.0, 2.0]]))
RISKY = log_law(torch.tensor([[2.0, 1.0, 0.0]]))
LIMIT = torch.tensor([0.1], dtype=torch.float64)


class Own(Anchored):
    """Somebody's rule."""


class Whole:
    """Somebody's mechanism with a ledger and a debt of its own."""

    rule = Anchored()
    ledger = Banking()
    debt = DebtRule(0)


class Twisted:
    """A rule that returns one thing wrong."""

    def __init__(self, **wrong: Any) -> None:
        self.wrong = wrong

    def serve(self, prefixes: Any, safe: Any, risky: Any, allowance: Any) -> Any:
        good = Anchored().serve(prefixes, safe, risky, allowance)._asdict()
        return Served(**{k: self.wrong[k](v) if k in self.wrong else v for k, v in good.items()})


class Unnormalised(Twisted):
    def __init__(self) -> None:
        super().__init__(law=lambda law: law + 1e-6)


class NotANumber(Twisted):
    def __init__(self) -> None:
        super().__init__(law=lambda law: law * math.nan)


class WrongShape(Twisted):
    def __init__(self) -> None:
        super().__init__(law=lambda law: law[:, :-1])


class Single(Twisted):
    def __init__(self) -> None:
        super().__init__(charge=lambda charge: charge.float())


class Liar:
    """Serves the risky law and says that it cost nothing."""

    def serve(self, prefixes: Any, safe: Any, risky: Any, allowance: Any) -> Any:
        return Served(risky, torch.zeros_like(allowance), torch.full_like(allowance, 0.5))


class Vandal:
    """Overwrites what it was lent, so that its law looks free."""

    def serve(self, prefixes: Any, safe: Any, risky: Any, allowance: Any) -> Any:
        law = risky.clone()
        safe.copy_(law)
        return Served(law, allowance * 0, allowance * math.nan)


class NoSpec(Whole):
    ledger = object()  # type: ignore[assignment]


class OwnCurrency(Liar):
    currency = "peanuts"


class Fickle(Liar):
    """Names KL until the first step, and a currency of its own from then on."""

    asked = 0

    @property
    def currency(self) -> str:
        self.asked += 1
        return "kl" if self.asked < 2 else "peanuts"


class Crash:
    def serve(self, prefixes: Any, safe: Any, risky: Any, allowance: Any) -> Any:
        raise KeyError("theirs")


class NoTheta(Twisted):
    def __init__(self) -> None:
        super().__init__(theta=lambda theta: None)


HERE = "tests.mechanisms.test_registry"


def test_every_mechanism_has_a_card() -> None:
    assert [card.name for card in CARDS] == [*BUILDERS, *RULES]


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("allowance", [0.0, 0.1, 9.0])
def test_ours_serve_what_is_asked_of_others(name: str, allowance: float) -> None:
    spec = {"renyi": "renyi:4"}.get(name, name)
    made = mechanism(spec, DebtRule()).bind(
        Resources([b"a", b"the", b"of"], lambda text: (), ("a",))
    )
    limit = torch.full_like(LIMIT, allowance)
    served = Guarded(made.rule, name).serve([[]], SAFE, RISKY, limit)
    assert {part.dtype for part in served} == {torch.float64}


def test_names_carry_what_decides_a_record() -> None:
    assert mechanism("anchored", DebtRule()).name == "anchored:debt=positives,n=5"
    assert mechanism("anchored", DebtRule(0, "official")).name == "anchored:debt=official,n=0"
    raw = mechanism("anchored", DebtRule(5, "official-raw"))
    assert raw.name == "anchored:debt=official-raw,n=5"
    assert recorded_mechanism(raw.name).debt == raw.debt
    name = mechanism(f"{HERE}:Own", DebtRule(3)).name
    assert re.fullmatch(rf"{HERE}:Own@[0-9a-f]{{12}}:debt=positives,n=3", name)


def test_an_edited_rule_is_another_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names = set()
    for number in (1, 2):
        source = f"class Rule:\n    version = {number}\n    def serve(self, *laws): ...\n"
        (tmp_path / "edited_rule.py").write_text(source)
        sys.modules.pop("edited_rule", None)
        linecache.clearcache()
        names.add(mechanism("edited_rule:Rule", DebtRule()).name)
    assert len(names) == 2


def test_a_rule_cannot_talk_its_charge_down() -> None:
    served = mechanism(f"{HERE}:Liar", DebtRule()).rule.serve([[]], SAFE, RISKY, LIMIT)
    assert torch.equal(served.charge, kl(RISKY, SAFE))
    assert served.theta.tolist() == [1.0]
    safe = SAFE.clone()
    served = mechanism(f"{HERE}:Vandal", DebtRule()).rule.serve([[]], safe, RISKY, LIMIT)
    assert torch.equal(served.charge, kl(RISKY, SAFE))
    assert torch.equal(safe, SAFE)
    named = mechanism(f"{HERE}:OwnCurrency", DebtRule()).rule.serve([[]], SAFE, RISKY, LIMIT)
    assert named.charge.tolist() == [0.0]


@pytest.mark.parametrize(
    ("named", "order"),
    [
        *(("kl", 1.0), ("none", 1.0), ("renyi:1", 1.0), ("renyi:2", 2.0), ("renyi:0.5", 0.5)),
        *(("renyi:inf", math.inf), ("realised", math.inf), ("whole", math.inf)),
    ],
)
def test_naming_a_known_currency_does_not_talk_a_charge_down(named: str, order: float) -> None:
    liar = Liar()
    liar.currency = named  # type: ignore[attr-defined]
    charge = Guarded(liar, "liar").serve([[]], SAFE, RISKY, LIMIT).charge
    p, q = RISKY[0].exp(), SAFE[0].exp()
    expected = {
        1.0: float((p * (p / q).log()).sum()),
        math.inf: float((p / q).log().max()),
    }.get(order) or math.log(float((p**order * q ** (1 - order)).sum())) / (order - 1)
    assert charge.item() == pytest.approx(expected, rel=1e-12)
    assert charge.item() > 0


def test_a_currency_is_named_once() -> None:
    rule = Guarded(Fickle(), "fickle")
    for _ in range(3):
        assert rule.serve([[]], SAFE, RISKY, LIMIT).charge.item() > 0
    assert rule.currency == "kl"


@pytest.mark.parametrize("named", ["renyi:", "renyi:x", "renyi:0", "renyi:-1", "renyi:nan"])
def test_a_divergence_of_no_order_is_refused(named: str) -> None:
    with pytest.raises(InputError, match="a number above 0"):
        currency_of(named)


def test_a_plug_in_serves_like_the_built_in() -> None:
    expected = Anchored().serve([[]], SAFE, RISKY, LIMIT)
    for spec in (f"{HERE}:Own", f"{HERE}:Whole"):
        built = mechanism(spec, DebtRule())
        for one, other in zip(built.rule.serve([[]], SAFE, RISKY, LIMIT), expected, strict=True):
            # Two ways to write one formula: equal up to the rounding of a few operations.
            assert torch.allclose(one, other, rtol=1e-12, atol=1e-12)
    assert mechanism(f"{HERE}:Whole", DebtRule()).debt == DebtRule(0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Unnormalised", "has mass"),
        ("NotANumber", "has mass"),
        ("WrongShape", r"law must be \(1, 3\), got \(1, 2\)"),
        ("Single", "charge must be float64"),
        ("Crash", "raised KeyError: 'theirs'"),
        ("NoTheta", "theta must be"),
    ],
)
def test_what_is_not_a_law_is_refused_by_name(name: str, message: str) -> None:
    rule = mechanism(f"{HERE}:{name}", DebtRule()).rule
    with pytest.raises(LawError, match=message) as caught:
        rule.serve([[]], SAFE, RISKY, LIMIT)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    "spec", ["nothing", "json:loads", f"{HERE}:Nowhere", f"{HERE}:NoSpec", f"{HERE}:Twisted.x"]
)
def test_what_is_no_mechanism_is_refused(spec: str) -> None:
    with pytest.raises(InputError):
        mechanism(spec, DebtRule())
