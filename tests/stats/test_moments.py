from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.core.errors import InputError
from nafaudit.stats import BOUNDS, Moments, Sample, bound, ebb, implied_range, paper_range
from tests.conftest import golden

STAGE1 = 0.05 / 12
PAPER_R = paper_range(200, 128256)


def numbers(text: str) -> list[float]:
    return [float(one) for one in text.split(";")]


@pytest.mark.parametrize("row", golden("vec_ebb"), ids=lambda row: row["z"])
def test_the_papers_code_is_reproduced_exactly(row: dict[str, str]) -> None:
    values, high, delta = numbers(row["z"]), float(row["R"]), float(row["delta"])
    moments = Moments.of(values)
    assert moments.mean == pytest.approx(float(row["mean"]), rel=1e-9)
    assert moments.variance == pytest.approx(float(row["var"]), rel=1e-9)
    assert moments.spread == pytest.approx(float(row["range"]), rel=1e-9)
    # Ten digits are what the table has.
    assert ebb(values, high, delta).value == pytest.approx(float(row["U_R"]), rel=2e-10)
    proxy = ebb(moments, high, delta, effective=True)
    assert proxy.value == pytest.approx(float(row["U_Reff"]), rel=2e-10)
    assert not proxy.holds
    assert not proxy.evidence


@pytest.mark.parametrize("k", [1, 3, 5])
def test_all_18_printed_rows_from_their_printed_inputs(k: int) -> None:
    rows = golden(f"h1_k{k}")
    assert len(rows) == 6
    for row in rows:
        moments = Moments(float(row["mean_spend"]), float(row["var"]), int(row["M"]))
        value = ebb(moments, PAPER_R, STAGE1).value
        assert abs(value - float(row["U_EBB_R"])) < 0.01
        if "pass_R" in row:
            assert (value <= float(row["K"])) == bool(int(row["pass_R"]))


def test_the_released_summary_to_nine_digits() -> None:
    rows = golden("repo_h1_summary_fullprec")
    assert len(rows) == 12
    for row in rows:
        moments = Moments(float(row["mean_Z"]), float(row["var_Z"]), int(row["M"]))
        assert float(row["R"]) == PAPER_R
        value = ebb(moments, PAPER_R, float(row["delta"])).value
        assert abs(value - float(row["U_EBB"])) < 1e-9


def test_a_printed_proxy_gives_away_the_largest_spend() -> None:
    printed = {
        ("h1_k" + row["k"], row["class"]): row for k in (1, 3, 5) for row in golden(f"h1_k{k}")
    }
    for row in golden("check_h1_recomputed"):
        source = printed[row["table"], row["class"]]
        moments = Moments(float(source["mean_spend"]), float(source["var"]), int(source["M"]))
        reach = implied_range(float(source["U_EBB_Reff"]), moments, STAGE1)
        assert reach == pytest.approx(float(row["implied_R_eff_from_U_Reff"]), abs=0.01)


def test_the_papers_table_of_the_range_term_is_misprinted() -> None:
    """The formula agrees with our recomputation; the printed table is 0.2 % low."""
    for row in golden("bernstein_vs_N"):
        n, reach = int(row["N"]), float(row["R_eff"])
        term = ebb(Moments(0.0, 0.0, n), reach, 0.0033).value
        assert term == pytest.approx(float(row["recomputed_delta_0.0033"]), abs=1e-4)
        assert 0.0005 < 1 - float(row["printed"]) / term < 0.004
    for row in golden("bernstein_blowup_eq"):
        term = ebb(Moments(0.0, 0.0, 4), float(row["range"]), 0.0033).value
        assert term == pytest.approx(float(row["recomputed_term"]), abs=1e-3)


def by_hand(moments: Moments, factor: float, divisor: int, delta: float) -> float:
    level = math.log(2 / delta)
    spread = math.sqrt(2 * moments.variance * level / moments.n)
    return moments.mean + spread + factor * 50.0 * level / divisor


@given(
    st.lists(st.floats(0, 50), min_size=2, max_size=12),
    st.floats(1e-6, 0.5),
)
def test_closed_forms_by_hand(values: list[float], delta: float) -> None:
    sample, moments = Sample(np.array(values), 50.0), Moments.of(values)
    expected = {
        "ebb": by_hand(moments, 3.0, moments.n, delta),
        "ebb-reff": ebb(moments, 50.0, delta, effective=True).value,
        "maurer-pontil": by_hand(moments, 7 / 3, moments.n - 1, delta),
        "hoeffding": moments.mean + 50.0 * (math.log(1 / delta) / 2 / moments.n) ** 0.5,
    }
    for name, value in expected.items():
        found = bound(name, sample, delta)
        assert found.value == pytest.approx(value, rel=1e-9, abs=1e-9)
        assert found.width == found.value - found.point
        assert (found.name, found.n, found.delta) == (name, len(values), delta)
        assert found.assumes == BOUNDS[name].assumes


def test_what_breaks_ebb_is_said_and_the_number_still_given() -> None:
    assert ebb([7.0], 10.0, 0.05).note == "n = 1 has no variance"
    above = ebb([0.0, 900.0], 600.0, 0.05)
    assert (above.holds, above.note) == (False, "values outside [0, 600]")
    fine = ebb([1.0, 2.0] * 10, 600.0, 0.05)
    assert (fine.holds, fine.note, fine.evidence) == (True, "", True)
    assert not ebb([1.0, 2.0] * 9, 600.0, 0.05).evidence


@pytest.mark.parametrize("delta", [0.0, 1.0, math.nan, -1.0])
def test_a_level_must_be_one(delta: float) -> None:
    with pytest.raises(InputError, match="delta must be in"):
        ebb([1.0, 2.0], 3.0, delta)


def test_bad_moments_are_refused() -> None:
    for bad in [(math.nan, 1.0, 3), (1.0, -1.0, 3), (1.0, 1.0, 0), (1.0, math.inf, 3)]:
        with pytest.raises(InputError):
            Moments(*bad)
    with pytest.raises(InputError, match="none"):
        Moments.of([])
    with pytest.raises(InputError, match="R must be"):
        ebb([1.0, 2.0], math.inf, 0.05)
    with pytest.raises(InputError, match="smallest and largest"):
        ebb(Moments(1.0, 1.0, 4), 5.0, 0.05, effective=True)
    with pytest.raises(InputError, match="need T"):
        paper_range(0, 10)
