from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.core.draws import Stream, gumbel, paper_stream, sound_stream, uniforms, words

_MASK = (1 << 64) - 1


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x64-10 from its definition (Salmon et al. 2011), the slow twin."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(c0 * 0xD2E7470EE14C6C93, 1 << 64)
        high1, low1 = divmod(c2 * 0xCA5A826395121157, 1 << 64)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & _MASK, (k1 + 0xBB67AE8584CAA73B) & _MASK
    return c0, c1, c2, c3


def test_twin_gives_the_published_answer() -> None:
    # Known-answer vector of Random123 for counter 0, key 0.
    assert philox((0, 0, 0, 0), (0, 0)) == (
        0x16554D9ECA36314C,
        0xDB20FE9D672D0FDC,
        0xD7E772CEE186176B,
        0x7E68B68AEC7BA23B,
    )


@given(st.integers(0, (1 << 128) - 1), st.integers(0, 1 << 40), st.integers(1, 41))
def test_words_follow_the_layout(key: int, step: int, lanes: int) -> None:
    stream = Stream(key)
    expected = [
        philox((1 + lane // 4, step, 0, 0), stream.words)[lane % 4] for lane in range(lanes)
    ]
    assert words(stream, step, lanes).tolist() == expected


@given(st.integers(0, (1 << 128) - 1), st.integers(0, 1000), st.integers(1, 300))
def test_a_lane_does_not_depend_on_how_many_there_are(key: int, step: int, lanes: int) -> None:
    whole = words(Stream(key), step, 300)
    assert np.array_equal(words(Stream(key), step, lanes), whole[:lanes])


def test_layout_is_frozen() -> None:
    # These values are in every recorded run. If they change, LAYOUT must too.
    stream = sound_stream(0, "audit", "bookmia.00.11", 3)
    assert stream.key == 0x905D66C8B7F3ADF23B24D622655C017E
    assert paper_stream(24565).key == 0xC1DDBB3A520E7D5865752A907D8FC11B
    assert gumbel(stream, 7, 3).tolist() == pytest.approx(
        [0.8000421098803572, 1.4692158249194875, 1.7744838113309096], rel=1e-15
    )


def test_extreme_words_stay_inside_and_give_finite_noise() -> None:
    u = uniforms(np.array([0, _MASK], dtype=np.uint64))
    assert 0 < u[0] < u[1] < 1
    assert u[0] == 2.0**-53
    assert u[1] == 1 - 2.0**-53
    assert np.isfinite(-np.log(-np.log(u))).all()


def test_everything_but_the_budget_is_in_the_key() -> None:
    base = sound_stream(1, "audit", "p", 0)
    others = [
        sound_stream(2, "audit", "p", 0),
        sound_stream(1, "confirm", "p", 0),
        sound_stream(1, "audit", "q", 0),
        sound_stream(1, "audit", "p", 1),
        paper_stream(1),
    ]
    assert len({base.key, *(stream.key for stream in others)}) == 6


def test_argmax_of_noise_samples_the_law() -> None:
    # Chi-square with 4 degrees of freedom at 40.5: flakiness budget 3.4e-8 (fixed seed anyway).
    law = np.array([0.5, 0.25, 0.125, 0.1, 0.025])
    draws = 20_000
    counts = Counter(
        int(np.argmax(np.log(law) + gumbel(sound_stream(0, "test", "p", i), 0, 5)))
        for i in range(draws)
    )
    expected = law * draws
    chi2 = sum((counts[v] - expected[v]) ** 2 / expected[v] for v in range(5))
    assert chi2 < 40.5


def test_a_wrong_law_would_be_noticed() -> None:
    # The companion: the same statistic against a law that is off by 0.02 in two places.
    law, wrong = np.array([0.5, 0.5]), np.array([0.48, 0.52])
    draws = 20_000
    first = sum(
        int(np.argmax(np.log(law) + gumbel(sound_stream(0, "test", "p", i), 0, 2)) == 0)
        for i in range(draws)
    )
    deviation = (first - wrong[0] * draws) / math.sqrt(draws * wrong[0] * wrong[1])
    assert abs(deviation) > 4


@pytest.mark.parametrize("bad", [(-1, 4), (0, 0)])
def test_bad_step_or_lanes_are_refused(bad: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="need step >= 0"):
        words(Stream(0), *bad)
