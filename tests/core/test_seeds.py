from __future__ import annotations

import csv
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from nafaudit.core.draws import fnv1a, trajectory_seeds

GOLDEN = Path(__file__).parents[1] / "golden" / "vec_seeds.csv"


def test_the_papers_seeds_exactly() -> None:
    with GOLDEN.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 11
    for row in rows:
        assert fnv1a(row["id"]) == int(row["fnv32"])
        assert fnv1a(row["id"]) % 100_000 == int(row["offset"])
        assert trajectory_seeds(row["id"], 10) == [int(s) for s in row["first10"].split(";")]


@given(st.text(), st.integers(0, 200))
def test_seeds_of_a_prompt_differ_and_begin_alike(name: str, n: int) -> None:
    seeds = trajectory_seeds(name, n)
    assert len(set(seeds)) == n
    assert trajectory_seeds(name, n + 7)[:n] == seeds
    assert all(0 <= seed - 42 - fnv1a(name) % 100_000 <= n + 1 for seed in seeds)


def test_characters_count_as_code_points_not_as_bytes() -> None:
    # U+1F600 is one step of the hash: (basis xor 0x1F600) * prime mod 2^32.
    assert fnv1a("\U0001f600") == (2166136261 ^ 0x1F600) * 16777619 % 2**32
