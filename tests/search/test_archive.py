from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from nafaudit.core.errors import InputError
from nafaudit.paper.kdpp import KDpp, log_elementary_symmetric, paper_archive
from nafaudit.search.archive import (
    Tfidf,
    dpp_archive,
    greedy_map,
    kernel,
    quality_weights,
)


def points(n: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d))


def by_brute_force(matrix: np.ndarray, k: int) -> dict[tuple[int, ...], float]:
    sets = list(combinations(range(len(matrix)), k))
    weights = np.array([np.linalg.det(matrix[np.ix_(s, s)]) for s in sets])
    return dict(zip(sets, (weights / weights.sum()).tolist(), strict=True))


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=7), st.integers(1, 7))
def test_symmetric_sums_agree_with_all_subsets(values: list[float], k: int) -> None:
    table = log_elementary_symmetric(np.log(values), k)
    slow = sum(math.prod(subset) for subset in combinations(values, k))
    assert np.exp(table[k, -1]) == pytest.approx(slow, rel=1e-9)


def test_draws_follow_the_law_of_all_subsets() -> None:
    matrix = kernel(points(7, 4), points(7, 1)[:, 0])
    law, process = by_brute_force(matrix, 3), KDpp(matrix, 3)
    assert process.log_normaliser == pytest.approx(
        math.log(sum(np.linalg.det(matrix[np.ix_(s, s)]) for s in law))
    )
    chance, n = np.random.default_rng(1), 5000
    seen = dict.fromkeys(law, 0)
    for _ in range(n):
        seen[tuple(process.draw(chance))] += 1
    statistic = sum((seen[s] - n * p) ** 2 / (n * p) for s, p in law.items())
    # A sound sampler fails with chance 1e-6; the seed is fixed.
    assert statistic < chi2.isf(1e-6, len(law) - 1)
    # The same statistic does see another law: draws of the kernel without qualities.
    plain = KDpp(kernel(points(7, 4)), 3)
    other = dict.fromkeys(law, 0)
    for _ in range(1000):
        other[tuple(plain.draw(chance))] += 1
    wrong = sum((other[s] - 1000 * p) ** 2 / (1000 * p) for s, p in law.items())
    assert wrong > chi2.isf(1e-6, len(law) - 1)


@pytest.mark.parametrize("scale", [1e-12, 1e12, 1e150])
def test_the_law_does_not_depend_on_the_scale(scale: float) -> None:
    # As many dimensions as items: equal eigenvalues would leave their vectors open.
    matrix = kernel(points(40, 60))
    a, b = np.random.default_rng(2), np.random.default_rng(2)
    one, two = KDpp(matrix, 12), KDpp(matrix * scale, 12)
    assert [one.draw(a) for _ in range(20)] == [two.draw(b) for _ in range(20)]
    assert greedy_map(matrix, 12) == greedy_map(matrix * scale, 12)


def test_draws_have_k_different_items_and_a_singular_kernel_is_refused() -> None:
    process = KDpp(kernel(points(30, 5)), 10)
    for seed in range(20):
        assert len(set(process.draw(np.random.default_rng(seed)))) == 10
    flat = points(10, 3) @ points(10, 3).T
    with pytest.raises(InputError, match="rank 3"):
        KDpp(flat, 4)
    with pytest.raises(InputError, match="square"):
        KDpp(np.ones((2, 3)), 1)


@given(st.integers(0, 40), st.integers(1, 4))
def test_each_greedy_step_is_the_best_single_step(seed: int, k: int) -> None:
    matrix = kernel(points(7, 4, seed), points(7, 1, seed)[:, 0])
    taken: list[int] = []
    for _ in range(k):
        left = [i for i in range(7) if i not in taken]
        taken.append(
            max(left, key=lambda i: np.linalg.det(matrix[np.ix_([*taken, i], [*taken, i])]))
        )
    assert greedy_map(matrix, k) == taken


def test_greedy_finds_the_likeliest_set_of_the_reference_case_and_beats_draws() -> None:
    matrix = kernel(points(7, 4), points(7, 1)[:, 0])
    law = by_brute_force(matrix, 3)
    assert tuple(sorted(greedy_map(matrix, 3))) == max(law, key=lambda s: law[s])
    large = kernel(points(120, 32))

    def volume(chosen: list[int]) -> float:
        return float(np.linalg.slogdet(large[np.ix_(chosen, chosen)])[1])

    drawn = [volume(KDpp(large, 12).draw(np.random.default_rng(s))) for s in range(5)]
    assert volume(greedy_map(large, 12)) > max(drawn) > volume(list(range(12)))


def test_of_copies_one_is_taken_and_a_text_without_words_is_like_no_other() -> None:
    twice = np.repeat(np.eye(3), 2, axis=0)
    # Without jitter, copies are exact.
    assert greedy_map(twice @ twice.T, 6) == [0, 2, 4]
    matrix = kernel(np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]]))
    assert matrix[1].tolist() == [0.0, 1.0, 0.0]
    assert greedy_map(matrix, 2) == [0, 1]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_qualities_stay_in_range_and_in_order(scores: list[float]) -> None:
    weights = quality_weights(scores)
    assert (weights >= math.exp(-1.5) - 1e-12).all()
    assert (weights <= math.exp(1.5) + 1e-12).all()
    order = np.argsort(scores)
    assert (np.diff(weights[order]) >= -1e-12).all()


def test_what_is_not_a_number_is_refused() -> None:
    with pytest.raises(InputError, match="finite number"):
        quality_weights([1.0, math.nan])
    with pytest.raises(InputError, match="finite numbers"):
        kernel([[math.nan]])
    with pytest.raises(InputError, match="scores for"):
        kernel(np.eye(3), [1.0])


def test_quality_decides_among_equals() -> None:
    same = np.ones((4, 2))
    assert dpp_archive([0.1, 0.9, 0.5, 0.2], same, 1) == [1]


def test_the_papers_archive_agrees_with_its_slow_twin() -> None:
    chance = np.random.default_rng(4)
    rho, spots = chance.random(40), points(40, 6)
    taken = [int(rho.argmax())]
    quality = (rho - rho.min()) / np.ptp(rho)
    while len(taken) < 24:
        left = [i for i in range(40) if i not in taken]
        taken.append(
            max(
                left,
                key=lambda i: (
                    0.5 * quality[i] + 0.5 * min(np.linalg.norm(spots[i] - spots[j]) for j in taken)
                ),
            )
        )
    found = paper_archive(rho.tolist(), spots)
    assert sorted(found) == sorted(taken)
    assert [rho[i] for i in found] == sorted(rho[taken], reverse=True)
    assert paper_archive([0.2, 0.5], spots[:2]) == [1, 0]


TEXTS = ["the owl counts at dusk", "the owl counts again", "a kettle sings in the kitchen"]


def test_tfidf_sees_likeness() -> None:
    made = Tfidf.of(TEXTS)
    assert made.name.startswith("TF-IDF (")
    points = made.embed(TEXTS)
    assert np.linalg.norm(points, axis=1) == pytest.approx([1.0] * 3)
    assert points[0] @ points[1] > points[0] @ points[2]
    assert made.embed(["zzz"]).sum() == 0.0
    with pytest.raises(InputError, match="corpus with words"):
        Tfidf.of([" "])
