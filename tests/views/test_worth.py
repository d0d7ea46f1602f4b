"""What a certificate, an attack and a frontier say where the stored ones do not go."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from nafaudit.core.debt import DebtRule
from nafaudit.core.finding import Kept, Worth
from nafaudit.core.passage import PassageScores
from nafaudit.core.text import plain
from nafaudit.stats.rates import Crossing
from nafaudit.views.terminal import terminal
from nafaudit.views.worth import attack_document, certificate_document, frontier_document
from nafaudit.worth.attack_result import (
    AdmissionRecall,
    AttackResult,
    BudgetRecall,
    Odometer,
    Onset,
    UserBudget,
)
from nafaudit.worth.attack_run import Method, Reconstruction
from nafaudit.worth.certify import BudgetCertificate, Certificate, PassageRow
from tests.views.test_places import frontier

METHOD = Method("single", 60)
NEVER = Crossing(0.1, math.inf, 5.0, math.inf, math.inf, 1.0, 2)


def shown(text: str) -> str:
    assert max(map(len, text.splitlines())) <= 80
    return " ".join(text.split())


def attack(outcome: Kept, violations: int = 0, admitted: bool = True) -> AttackResult:
    got = (Reconstruction("p", 0.0, 2, 1, 3.0, False),)
    row = BudgetRecall(
        METHOD, 5.0, 0.0, 0, 2, 1.0, 3.0, 24, violations, "WITHIN", "ACTIVE", "VACUOUS", {}, got
    )
    users = tuple(UserBudget(b, 0.0, 0.0, 1.0, 3.0) for b in (0.0, 100.0))
    return AttackResult(
        Path("a"), "00", "0", outcome, admitted, AdmissionRecall(0.4, 0.1), "anchored", 1, 2, 25, 1,
        0.1, violations, (row,), (Onset(METHOD, NEVER),), (Odometer(METHOD, 5.0, users, NEVER),),
        (Path("a/single"),), "", (40, 60), 4.0, (),
    )  # fmt: skip


def test_a_violation_names_its_run_and_an_outcome_its_exit_status() -> None:
    found = attack(Kept.VIOLATED, 3)
    text = shown(terminal(attack_document(found, "passages.txt", [])))
    assert text.startswith("VIOLATED: 3 of 24 answers went over budget ")
    assert "first at k = 5: nafaudit check a/single" in text
    assert "none up to 5, limits beyond to beyond; none 100%" in text
    status = [attack(word).overall.exit_status for word in (Kept.WITHIN, Kept.INCONCLUSIVE)]
    assert (found.overall.exit_status, *status) == (1, 0, 3)
    assert "mixed" not in plain(found)
    assert plain(replace(found, mixed="2 arithmetics"))["mixed"] == "2 arithmetics"


def test_an_attack_that_is_not_admitted_shows_no_table() -> None:
    found = attack(Kept.INCONCLUSIVE, admitted=False)
    document = attack_document(found, "passages.txt", [])
    assert not document.sections
    assert terminal(document).startswith("INCONCLUSIVE: the risky model alone recalls too little")


def test_leaks_of_the_wrong_text_say_nothing() -> None:
    good = shown(terminal(frontier_document(frontier(), "x", [])))
    assert good.startswith("MEASURED: 1 points; protected text is nowhere less likely than under")
    bad = replace(
        frontier(), bracketed=False, protected=replace(frontier().protected, risky_leak=-9.0)
    )
    text = shown(terminal(frontier_document(bad, "x", [])))
    assert "INCONCLUSIVE: under the risky model alone the protected text loses 9.00 nats" in text
    assert (frontier().overall.exit_status, bad.overall.exit_status) == (0, 3)


@pytest.mark.parametrize(
    ("worth", "word"), [(Worth.VACUOUS, "VACUOUS"), (Worth.INFORMATIVE, "INFORMATIVE")]
)
def test_a_certificate_says_what_each_budget_is_worth(worth: Worth, word: str) -> None:
    card = BudgetCertificate(
        3.0, 60.0, worth, 1, 1, 1.0, 1.0, "p", 0.0, 0.0, 150.0, 0, 0, math.inf, 0.0, 26.0, 4.0
    )
    row = PassageRow("p", 30, math.inf, 2.0, 2.5, 3.0, math.nan, 1.0, (1.0,), (math.inf,))
    found = Certificate(
        "00", "0", {}, 20, 0, 50, DebtRule(), (card,), (row,), PassageScores("c", "safe", ())
    )
    text = shown(terminal(certificate_document(found, "x", [], 5)))
    assert f"k = 3, K = 60 nats: {worth}" in text
    assert "queries that it survives any number" in text
    assert "no windows vacuous" in text
    assert (found.overall.verdict, found.overall.exit_status) == (worth, 0)
    assert plain(found)["passages"][0]["surprisal"] == "inf"
