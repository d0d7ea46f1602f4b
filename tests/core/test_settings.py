from __future__ import annotations

import math
from typing import Any

import pytest

from nafaudit.core.errors import InputError
from nafaudit.core.options import load
from nafaudit.core.settings import RunSettings


def test_only_the_papers_protocol_may_leave_out_the_baselines() -> None:
    assert load(RunSettings, None, {"k": (3.0, 1.0)}).budgets == (0.0, 1.0, 3.0, math.inf)
    paper = {"protocol": "paper", "k": (3.0, 1.0)}
    assert load(RunSettings, None, paper).budgets == (0.0, 1.0, 3.0, math.inf)
    assert load(RunSettings, None, paper | {"baselines": False}).budgets == (1.0, 3.0)
    with pytest.raises(InputError, match="no-baselines is for --protocol paper"):
        load(RunSettings, None, {"baselines": False})


def test_a_budget_that_is_a_baseline_stays_when_it_was_asked_for() -> None:
    asked = {"protocol": "paper", "k": (-1.0, 0.0, 1.0), "baselines": False}
    assert load(RunSettings, None, asked).budgets == (0.0, 1.0, math.inf)


@pytest.mark.parametrize(
    ("given", "debt"),
    [
        ({}, "official"),
        ({"temperature": 1.0}, "official"),
        ({"temperature": 0.7}, "official-raw"),
        ({"repetition_penalty": 1.1}, "official-raw"),
        ({"temperature": 0.7, "debt": "official"}, "official"),
    ],
)
def test_the_published_decoder_is_held_to_the_debt_that_it_counts(
    given: dict[str, Any], debt: str
) -> None:
    assert load(RunSettings, None, {"decoder": "anchoreddecode"} | given).debt == debt
    assert load(RunSettings, None, {"decoder": "mine:Decoder"} | given).debt == given.get(
        "debt", "positives"
    )
