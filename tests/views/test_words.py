"""Sentences of a report that must not contradict each other."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nafaudit.core.finding import Kept, Worth
from nafaudit.core.ledger import Banking
from nafaudit.core.trajectory import Key
from nafaudit.measures.audit import AuditResult
from nafaudit.measures.context import RunContext
from nafaudit.measures.table import Measures
from nafaudit.measures.verdicts import ArmVerdict, judge, overall_of, regime
from nafaudit.store.run import Run
from nafaudit.views.audit import number_rows
from nafaudit.views.words import replay_section, summary, verdict_texts
from tests.records import many, trajectory

RUNS = Path(__file__).parents[1] / "runs" / "89722fc"


def _arm(*more: float, debt: float = 0.0) -> ArmVerdict:
    every = [*many(20)]
    if more:
        every.append(trajectory(Key("q", every[0].key.mechanism, 1.0, 0), list(more), debt=debt))
    return judge(Measures.of(every, RunContext(Banking())))[0]


@pytest.mark.parametrize("kept", (Kept.VIOLATED, Kept.REFUTED, Kept.WITHIN))
def test_only_a_kept_budget_limits_copying(kept: Kept) -> None:
    arm = _arm()
    numbers = {"passages": 4, "vacuous": 0, "K": 3.0, "surprisal_min": 9.0, "cap_max": 0.1, "T": 8}
    findings = tuple(
        replace(one, numbers=numbers) if one.check == "worth" else one for one in arm.findings
    )
    arm = replace(arm, kept=kept, worth=Worth.INFORMATIVE, findings=findings)
    said = verdict_texts(arm)[2]
    assert (said.tone == "good") == (kept == Kept.WITHIN)
    assert (said.headline == "It limits copying") == (kept == Kept.WITHIN)


def test_a_use_of_all_of_a_small_budget_is_explained() -> None:
    """The limit never acts, and yet one execution spends all that its debt left."""
    free = [
        trajectory(Key(f"p{i}", "anchored", 10.0, 0), [0.5] * 9, theta=[1.0] * 9) for i in range(19)
    ]
    poor = trajectory(Key("q", "anchored", 10.0, 0), [3.0], debt=7.0, theta=[1.0])
    arm = judge(Measures.of([*free, poor], RunContext(Banking())))[0]
    assert arm.tested == "IDLE" and math.isclose(arm.utilisation.max, 1.0)
    assert "100.0%, is of a budget that was 3 nats, because of the debt of 7" in arm.worst_use
    assert arm.worst_use in verdict_texts(arm)[1].text


def test_an_idle_arm_is_said_to_change_hardly_any_answer() -> None:
    rows = [trajectory(Key(f"p{i}", "own", 1.0, 0), [0.1] * 9, theta=[1.0] * 9) for i in range(20)]
    arm = judge(Measures.of(rows, RunContext(Banking())))[0]
    assert arm.tested == "IDLE"
    said = verdict_texts(arm)[1]
    assert "0 of 20 answers were limited" in said.text
    assert "it changed hardly any answer" in summary(overall_of([arm]), [arm])


def test_a_summary_begins_with_the_reason_of_the_verdict() -> None:
    for arm in (_arm(), _arm(9.0), replace(_arm(), kept=Kept.INCONCLUSIVE)):
        overall = overall_of([arm])
        assert summary(overall, [arm]).lower().startswith(f"{overall.why}.".lower())


def _refuted(**changes: object) -> ArmVerdict:
    return replace(_arm(), kept=Kept.REFUTED, refuted="sampler: gain", **changes)  # type: ignore[arg-type]


def test_shares_of_a_promised_law_are_no_facts_about_a_refuted_decoder() -> None:
    arm = _refuted(tested="UNKNOWN")
    said = verdict_texts(arm, "decoder")[1]
    assert said.tone == "open" and said.headline == "Not known"
    told = regime(arm.regime, arm.limited, arm.copies, refuted=True)
    assert told.text.startswith("if served as promised: ") and math.isnan(told.value)
    row = number_rows([arm], ["k = 1"])[0]
    assert row["violations"] is None


def test_a_known_overspend_is_not_called_unknown() -> None:
    arms = [replace(_refuted(), kept=Kept.VIOLATED)]
    said = summary(overall_of(arms), arms, "decoder")
    assert "not known" not in said and "also refutes what the decoder wrote" in said
    assert "not known" in summary(overall_of([_refuted()]), [_refuted()], "decoder")


def _replay(source: str, kept: Kept) -> list[str]:
    def one(check: str, k: float | None, value: float, verdict: str = "FAILED") -> dict[str, Any]:
        text = f"off by at most {value:g}"
        return {
            "check": check, "k": k, "value": value, "verdict": verdict, "text": text,
            "witness": None,
        }  # fmt: skip

    found = {
        **{
            "replayed": 80,
            "recorded": 80,
            "tokens": 9,
            "current": True,
            "outdated": "",
            "notes": [],
        },
        "deviation": {},
        "findings": [
            one("replay: budget", None, 19, "VIOLATED"),
            one("replay: allowance", 0.25, 0.58),
            one("replay: allowance", 1.0, 2.8),
            one("sampler: gain", 0.25, 1e-9),
            one("sampler: gain", 1.0, 1e-7),
        ],
    }
    identity: dict[str, Any] = {"protocol": "sound"} | (
        {"promise": {}} if source == "decoder" else {}
    )
    run = SimpleNamespace(design={"identity": identity})
    result = SimpleNamespace(verification=found, arms=[replace(_arm(), kept=kept)], run=run)
    return [one["text"] for one in replay_section(cast(AuditResult, result))["remarks"]]


def test_a_number_of_one_arm_is_not_said_of_several() -> None:
    said = _replay("decoder", Kept.REFUTED)
    assert "replay: allowance at k = 0.25, k = 1; worst at k = 1: off by at most 2.8." in said
    assert "sampler: gain at k = 0.25, k = 1; worst at k = 0.25: off by at most 1e-09." in said


def test_a_black_box_is_counted_once() -> None:
    """Its verdicts rest on the replay; a second count, with other slack, would contradict them."""
    assert not any("replay: budget" in one for one in _replay("decoder", Kept.VIOLATED))
    assert any("replay: budget" in one for one in _replay("record", Kept.VIOLATED))
    assert any("replay: budget" in one for one in _replay("decoder", Kept.REFUTED))


def test_no_rate_is_stated_of_draws_that_a_search_chose() -> None:
    """Prompts that spent more were drawn more often: a limit of the rate would not hold."""
    found = AuditResult.of(Run(RUNS / "search"))
    arms = [arm for arm in found.arms if arm.kept == "WITHIN" and not arm.baseline]
    assert arms
    for arm in arms:
        kept = next(one for one in arm.findings if one.check == "invariant")
        assert "rate below" not in kept.text and "no rate follows" in kept.text
        assert "confidence" not in verdict_texts(arm)[0].text
