from __future__ import annotations

import math

import numpy as np
import pytest

from nafaudit.core.errors import InputError
from nafaudit.stats import BOUNDS, MIN_EVIDENCE, Assumption, Sample, bound, enough

VALUES = np.linspace(0.0, 1.0, 24)
PROMPTS = [f"p{i // 2}" for i in range(24)]
INDEPENDENT = [name for name in BOUNDS if Assumption.CLUSTERS not in BOUNDS[name].assumes]
RANGED = [name for name in BOUNDS if Assumption.RANGE in BOUNDS[name].assumes]


def test_twenty_units_are_evidence_and_fewer_are_not() -> None:
    assert MIN_EVIDENCE == 20
    assert enough(20)
    assert not enough(19)
    assert bound("hoeffding", Sample(VALUES[:20], 1.0), 0.05).evidence
    assert not bound("hoeffding", Sample(VALUES[:19], 1.0), 0.05).evidence


def test_few_events_are_evidence_as_their_limit_says_how_few() -> None:
    rate = bound("clopper-pearson", Sample(np.zeros(4)), 0.05)
    assert rate.evidence
    assert rate.width == pytest.approx(0.5271, abs=1e-4)
    assert not bound("ebb-reff", Sample(VALUES, 1.0), 0.05).evidence


def test_the_width_of_a_lower_bound_is_a_distance_too() -> None:
    lower = bound("betting-lower", Sample(VALUES), 0.05)
    assert lower.width == lower.point - lower.value > 0


def test_a_level_beyond_the_quantile_gives_no_small_bound() -> None:
    sample = Sample(np.array([0.0, 0.0, 0.0, 1.0]), 1.0, list("abcd"))
    assert bound("cluster-t", sample, 1e-300).value > 1


@pytest.mark.parametrize("name", RANGED)
def test_values_outside_the_range_are_refused(name: str) -> None:
    for values in (VALUES + 0.1, VALUES - 0.1):
        with pytest.raises(InputError, match=r"must lie in \[0, 1\]"):
            bound(name, Sample(values, 1.0, [str(i) for i in range(24)]), 0.05)
    with pytest.raises(InputError, match="finite upper end"):
        bound(name, Sample(VALUES, clusters=[str(i) for i in range(24)]), 0.05)


@pytest.mark.parametrize("name", INDEPENDENT)
def test_clusters_are_refused_where_values_must_be_independent(name: str) -> None:
    with pytest.raises(InputError, match="values of one prompt are not independent"):
        bound(name, Sample(VALUES.round(), 1.0, PROMPTS), 0.05)
    bound(name, Sample(VALUES.round(), 1.0, [str(i) for i in range(24)]), 0.05)


@pytest.mark.parametrize("name", BOUNDS)
def test_looking_early_is_refused_unless_it_is_allowed(name: str) -> None:
    sample = Sample(VALUES.round(), 1.0, [str(i) for i in range(24)], peeked=True)
    if BOUNDS[name].anytime:
        assert bound(name, sample, 0.05).n == 24
    else:
        with pytest.raises(InputError, match="chosen after looking"):
            bound(name, sample, 0.05)


@pytest.mark.parametrize("name", BOUNDS)
def test_too_few_values_are_refused(name: str) -> None:
    least = BOUNDS[name].least
    values = np.zeros(least)
    prompts = [str(i) for i in range(least)]
    assert math.isfinite(bound(name, Sample(values, 1.0, prompts), 0.05).value)
    if least > 1:
        with pytest.raises(InputError, match=f"n of at least {least}"):
            bound(name, Sample(values[1:], 1.0, prompts[1:]), 0.05)


@pytest.mark.parametrize("name", [name for name in BOUNDS if not BOUNDS[name].ordered])
def test_the_order_of_records_changes_no_bit(name: str) -> None:
    rng = np.random.default_rng(0)
    values = rng.random(40) if BOUNDS[name].about == "mean" else rng.random(40).round()
    prompts = [f"p{i}" for i in range(40)]
    order = rng.permutation(40)
    shuffled = Sample(values[order], 1.0, [prompts[i] for i in order])
    assert bound(name, Sample(values, 1.0, prompts), 0.05) == bound(name, shuffled, 0.05)


def test_a_sample_must_be_numbers() -> None:
    with pytest.raises(InputError, match="value 1 of the sample is nan"):
        Sample(np.array([1.0, math.nan]), 1.0)
    with pytest.raises(InputError, match="at least 1 value"):
        Sample(np.array([]), 1.0)
    with pytest.raises(InputError, match="above 0"):
        Sample(VALUES, 0.0)
    with pytest.raises(InputError, match="1 prompts for 24 values"):
        Sample(VALUES, 1.0, ["p"])


def test_an_unknown_bound_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'hoeffding'"):
        bound("hoefding", Sample(VALUES, 1.0), 0.05)
