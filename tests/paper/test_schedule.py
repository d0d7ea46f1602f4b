from __future__ import annotations

from collections import Counter
from itertools import groupby

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.core.draws import fnv1a, trajectory_seeds
from nafaudit.paper.workload import batch_sizes, paper_lab_workload
from nafaudit.workload.prompts import BATCH, BUCKET_WIDTH


def slow(lengths: dict[str, int], n: int) -> Counter[int]:
    """Every job in order, then cut where seed or bucket changes or a batch is full."""
    jobs = sorted(
        (seed, length // BUCKET_WIDTH)
        for prompt, length in lengths.items()
        for seed in trajectory_seeds(prompt, n)
    )
    sizes: Counter[int] = Counter()
    for _, group in groupby(jobs):
        count = len(list(group))
        sizes.update(min(BATCH, count - start) for start in range(0, count, BATCH))
    return sizes


def names_of_offset(offset: int, n: int) -> list[str]:
    """The first n of the ids 0000000, 0000001, ... whose hash ends in the offset."""
    digits = np.arange(1_000_000)[:, None] // 10 ** np.arange(6, -1, -1) % 10 + ord("0")
    value = np.full(len(digits), 2166136261, np.uint64)
    for column in digits.T.astype(np.uint64):
        value = (value ^ column) * np.uint64(16777619) & np.uint64(0xFFFFFFFF)
    return [f"{i:07d}" for i in np.flatnonzero(value % np.uint64(100_000) == offset)[:n]]


ALIKE = [name for offset in (0, 1, 2) for name in names_of_offset(offset, 4)]


@given(st.dictionaries(st.sampled_from(ALIKE), st.integers(1, 99)), st.integers(1, 12))
def test_batches_are_those_of_the_slow_twin(lengths: dict[str, int], n: int) -> None:
    assert batch_sizes(lengths, n) == slow(lengths, n)


def test_seeds_that_agree_share_batches_of_at_most_eight() -> None:
    # One offset that nine prompts share: a batch of eight and one of one, per seed.
    same = names_of_offset(1, 9)
    assert [fnv1a(name) % 100_000 for name in same] == [1] * 9
    assert batch_sizes(dict.fromkeys(same, 5), 2) == {8: 2, 1: 2}
    # Another length bucket is another batch.
    assert batch_sizes({name: 40 * i for i, name in enumerate(same[:2])}, 1) == {1: 2}


def test_nearly_every_batch_of_the_lab_has_one_row() -> None:
    lengths = {p.id: 40 for p in paper_lab_workload().prompts if p.label == "neutral"}
    sizes = batch_sizes(lengths, 10)
    assert sum(size * count for size, count in sizes.items()) == 2000
    assert sizes[1] > 0.9 * 2000
