from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from nafaudit.core.debt import DebtRule, most_debt, prefix_debt
from nafaudit.core.errors import InputError
from tests.conftest import golden

RATIOS = arrays(np.float64, st.integers(0, 30), elements=st.floats(-20, 20, width=32))


def _vector(text: str) -> list[float]:
    return [float(part) for part in text.split(";")]


@pytest.mark.parametrize("row", golden("vec_debt"), ids=lambda row: row["case"])
def test_golden(row: dict[str, str]) -> None:
    debt = prefix_debt(
        np.array(_vector(row["llr"])),
        np.array(_vector(row["valid"])) > 0,
        DebtRule(int(row["n"])),
    )
    assert debt == pytest.approx(float(row["debt"]), abs=1e-12)


def test_official_definition_divides_by_the_places() -> None:
    ratios = np.array([-1, 2.0, -0.5, 0.4, 1.2])
    everything = np.ones(5, bool)
    assert prefix_debt(ratios, everything, DebtRule(5)) == pytest.approx(3.6 / 3)
    official = DebtRule(5, "official")
    assert prefix_debt(ratios, everything, official) == pytest.approx(3.6 / 5)
    assert prefix_debt(ratios[1:2], everything[1:2], official) == 2.0


@given(RATIOS, st.integers(0, 8))
def test_slow_twin(ratios: np.ndarray, n: int) -> None:
    counted = np.arange(ratios.size) % 3 != 2
    positive = sorted((r for r, c in zip(ratios, counted, strict=True) if c and r > 0))[-n or 99 :]
    positive = positive if n else []
    expected = sum(positive) / len(positive) if positive else 0.0
    assert prefix_debt(ratios, counted, DebtRule(n)) == pytest.approx(expected, rel=1e-12)


@given(RATIOS, st.integers(0, 8))
def test_official_is_never_larger_and_both_are_never_negative(ratios: np.ndarray, n: int) -> None:
    counted = np.ones(ratios.size, bool)
    ours = prefix_debt(ratios, counted, DebtRule(n))
    official = prefix_debt(ratios, counted, DebtRule(n, "official"))
    assert 0 <= official <= ours * (1 + 1e-12)
    if (ratios > 0).sum() >= n:
        assert official == pytest.approx(ours, rel=1e-12)


def test_a_token_the_safe_model_forbids_owes_without_end() -> None:
    assert prefix_debt(np.array([np.inf, 1.0]), np.ones(2, bool), DebtRule()) == np.inf


def test_bad_rules_are_refused() -> None:
    with pytest.raises(InputError, match="at least 0"):
        DebtRule(-1)
    with pytest.raises(InputError, match="'positives' or 'official'"):
        DebtRule(5, "mean")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="NaN"):
        prefix_debt(np.array([np.nan]), np.ones(1, bool), DebtRule())


@pytest.mark.parametrize("kind", ["positives", "official"])
def test_a_raw_debt_is_the_same_mean_of_other_laws(kind: Literal["positives", "official"]) -> None:
    ratios, everything = np.array([-1, 2.0, -0.5, 0.4, 1.2]), np.ones(5, bool)
    rule = DebtRule(4, kind)
    raw = rule.other
    assert (raw.definition, raw.raw, rule.raw) == (f"{kind}-raw", True, False)
    assert raw.other == rule and raw.laws != rule.laws
    assert prefix_debt(ratios, everything, raw) == prefix_debt(ratios, everything, rule)
    assert most_debt(ratios, everything, raw) == most_debt(ratios, everything, rule)
