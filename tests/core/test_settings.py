from __future__ import annotations

import math

import pytest

from nafaudit.core.errors import InputError
from nafaudit.core.settings import load_settings


def test_only_the_papers_protocol_may_leave_out_the_baselines() -> None:
    assert load_settings(None, {"k": (3.0, 1.0)}).budgets == (0.0, 1.0, 3.0, math.inf)
    paper = {"protocol": "paper", "k": (3.0, 1.0)}
    assert load_settings(None, paper).budgets == (0.0, 1.0, 3.0, math.inf)
    assert load_settings(None, paper | {"baselines": False}).budgets == (1.0, 3.0)
    with pytest.raises(InputError, match="no-baselines is for --protocol paper"):
        load_settings(None, {"baselines": False})


def test_a_budget_that_is_a_baseline_stays_when_it_was_asked_for() -> None:
    asked = {"protocol": "paper", "k": (-1.0, 0.0, 1.0), "baselines": False}
    assert load_settings(None, asked).budgets == (0.0, 1.0, math.inf)
