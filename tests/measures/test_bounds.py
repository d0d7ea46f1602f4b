from __future__ import annotations

import math
from pathlib import Path

import pytest

from nafaudit.core.text import plain
from nafaudit.core.trajectory import Key
from nafaudit.measures.audit import MEANS, AuditResult, BoundRow, bound_rows
from nafaudit.stats import Sample, bound
from nafaudit.workload import Prompt
from tests.handmade import MECHANISM, make_run
from tests.records import trajectory

PROMPTS = [Prompt(f"p{i:02d}", "text") for i in range(24)]


def means(path: Path, charge: float, k: float = 1.0) -> list[BoundRow]:
    """Limits of the mean spend of a run whose first prompt's steps cost `charge`."""
    records = [
        trajectory(Key(prompt.id, MECHANISM, budget, 0), [charge if i == 0 else 0.5] * 60)
        for budget in (k, 3.0)
        for i, prompt in enumerate(PROMPTS)
    ]
    return [
        row
        for row in bound_rows(AuditResult.of(make_run(path, PROMPTS, records)))
        if row.arm_index == 0
    ]


def test_limits_of_means_share_one_level_and_those_of_rates_do_not(tmp_path: Path) -> None:
    rows = means(tmp_path, 0.6)
    rates, limits = ([row for row in rows if row.unit == unit] for unit in ("share", "nats"))
    assert [row.level for row in rates] == [0.05, 0.05]
    assert [row.method for row in limits] == list(MEANS)
    sample = Sample.of([36.0] + [30.0] * 23, 60.0, [prompt.id for prompt in PROMPTS])
    for row in limits:
        assert row.level == 0.05 / (2 * len(MEANS))
        assert row.upper == bound(row.method, sample, row.level).value
        assert plain(row)["level"] == row.level


def test_a_hair_above_the_budget_takes_no_limit_away(tmp_path: Path) -> None:
    methods = [row.method for row in means(tmp_path / "a", 1.0 + 1e-9) if row.unit == "nats"]
    assert methods == list(MEANS)
    # More than a hair is no rounding: the bound that presumes Z <= K is not shown.
    methods = [row.method for row in means(tmp_path / "b", 1.01) if row.unit == "nats"]
    assert methods == ["cluster-t"]


@pytest.mark.parametrize("charge", [math.nan, math.inf])
def test_a_spend_that_is_not_known_leaves_no_limit_of_the_mean(
    charge: float, tmp_path: Path
) -> None:
    assert [row.unit for row in means(tmp_path, charge)] == ["share", "share"]
