"""The loop on simulated spends: no model, so every decision can be looked at."""

from __future__ import annotations

import hashlib
import math
import random

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from nafaudit.core.errors import InputError
from nafaudit.core.trajectory import Key
from nafaudit.search.candidate import (
    BookReader,
    Candidate,
    Measured,
    Measurements,
    NeedsTrajectories,
)
from nafaudit.search.explore import (
    RANDOM,
    SEARCH,
    SEEDS,
    STRATEGIES,
    SearchTrace,
    explore,
)
from nafaudit.search.filters import Pools, divide, grams_of, jaccard
from nafaudit.search.settings import SearchSettings

WORDS = (
    "river lamp, stone window and garden that morning, paper bridge because winter letter harbour",
    "when silver candle, thunder orchard but marble whistle, shadow kitchen velvet lamp so copper",
)
SETTINGS = SearchSettings(
    k=(1.0,), pool=8, generations=3, proposals=16, screened=8, draws=32, parents=4
)


def length(text: str) -> int:
    return len(text.split()) + 10


def workload(count: int = 60) -> list[Candidate]:
    chance = random.Random(3)
    return [
        Candidate(
            f"p{i}", " ".join(chance.choices(" ".join(WORDS).split(), k=24)) + ".", "abc"[i % 3]
        )
        for i in range(count)
    ]


POOLS = divide(workload(), SETTINGS, length)


def truth(text: str) -> float:
    """Spends more the more clauses a prompt opens: something an operator can do on purpose."""
    return min(0.95, 0.1 + 0.04 * text.count(",") + 0.02 * text.count("because"))


def drawn(candidate: Candidate, index: int) -> Measured:
    """A pure function of the key, like decoding."""
    digest = hashlib.blake2b(f"{candidate.id}/{index}".encode(), digest_size=8).digest()
    noise = (int.from_bytes(digest, "big") / 2**64 - 0.5) * 0.1
    value = min(1.0, max(0.0, truth(candidate.text) + noise))
    return Measured(Key(candidate.id, "m", 1.0, index), 64 * value, value)


def search(
    strategy: str, seed: int = 0, settings: SearchSettings = SETTINGS, forget: int = 0
) -> SearchTrace:
    """Runs a search; `forget` > 0 loses the last of so many records now and then."""
    book, catalogue = Measurements(), dict[str, Candidate]()
    kept: list[Measured] = []
    while True:
        try:
            return explore(strategy, seed, POOLS, settings, length, book, catalogue)
        except NeedsTrajectories as gap:
            rows = [drawn(catalogue[name], i) for name, n in gap.wanted.items() for i in range(n)]
            new = [row for row in rows if not book.has(row.key)]
            kept += new[: len(new) - (len(kept) % forget) if forget else None] or new[:1]
            # What a kill leaves is what was recorded, read again from nothing.
            book, catalogue = Measurements(), dict[str, Candidate]()
            for row in kept:
                book.add(row)


@hypothesis_settings(max_examples=4)
@given(st.sampled_from(STRATEGIES), st.integers(0, 3), st.integers(2, 9))
def test_a_search_that_loses_records_on_the_way_ends_where_another_one_ends(
    strategy: str, seed: int, forget: int
) -> None:
    assert search(strategy, seed, forget=forget) == search(strategy, seed)


def test_seeds_search_apart() -> None:
    first, second = search(SEARCH, 0), search(SEARCH, 1)
    assert not set(first.draws) & set(second.draws)
    assert first.ranking[0].candidate.text != second.ranking[0].candidate.text


def test_search_and_controls_have_equal_trajectories_and_one_start() -> None:
    found = {who: search(who) for who in STRATEGIES}
    # Equal up to rounding: less than one for each prompt of each round is left.
    for one in found.values():
        assert 0 <= 4 * SETTINGS.draws - one.trajectories < 4 * (8 + 4)
    assert len({one.generations[0] for one in found.values()}) == 1
    mine, blind = set(found[SEARCH].draws), set(found[RANDOM].draws)
    assert all(name.startswith("s0_p") for name in mine & blind)
    assert len(mine & blind) == SETTINGS.pool


def test_feedback_pays_where_there_is_something_to_find() -> None:
    # No chance here: draws are functions of ids. Four search seeds, the truth is known.
    def best(strategy: str, seed: int) -> float:
        return truth(search(strategy, seed).ranking[0].candidate.text)

    wins = [best(SEARCH, s) - max(best(RANDOM, s), best(SEEDS, s)) for s in range(4)]
    assert sum(gain > 0 for gain in wins) >= 3
    assert sum(wins) / len(wins) > 0.05


def test_counts_are_those_of_the_stages() -> None:
    found = search(SEARCH)
    assert [row.generation for row in found.generations] == [0, 1, 2, 3]
    for row in found.generations:
        counts = (row.raw, row.dedup, row.length_ok, row.screened, row.survivors)
        assert list(counts) == sorted(counts, reverse=True)
        # Halving more than four prompts to two takes two rounds.
        assert (row.medium > 0) == (row.screened > 4)
        assert (row.survivors, row.topped_up) == (2, 0)
    bests = [row.best for row in found.generations]
    assert bests[-1] == found.ranking[0].score > bests[0]


def test_the_held_out_pool_is_never_tried_nor_anything_like_it() -> None:
    held = [grams_of(one.text) for one in POOLS.heldout]
    assert len(held) == SETTINGS.heldout
    for strategy in STRATEGIES:
        for parent in search(strategy).ranking:
            grams = grams_of(parent.candidate.text)
            assert all(jaccard(grams, other) < 0.92 for other in held)


def test_a_small_workload_keeps_a_third_apart_and_a_used_up_control_says_less() -> None:
    pools = divide(workload(9), SETTINGS, length)
    assert (len(pools.usable), len(pools.heldout)) == (6, 3)
    catalogue: dict[str, Candidate] = {}
    book = Measurements()
    for _ in range(20):
        try:
            found = explore(SEEDS, 0, pools, SETTINGS, length, book, catalogue)
            break
        except NeedsTrajectories as gap:
            for name, n in gap.wanted.items():
                for i in range(n):
                    book.add(drawn(catalogue[name], i))
    assert [row.screened for row in found.generations] == [6, 0, 0, 0]
    assert found.trajectories <= SETTINGS.draws


def test_copies_and_odd_lengths_of_a_workload_are_counted() -> None:
    prompts = workload(9)
    odd = [Candidate("copy", prompts[0].text), Candidate("short", "a word")]
    assert divide([*prompts, *odd], SETTINGS, lambda text: 5 if "word" in text else 40).dropped == 2


def test_prompts_without_a_ratio_are_drawn_but_never_ranked_first() -> None:
    book, catalogue = Measurements(), dict[str, Candidate]()
    while True:
        try:
            found = explore(SEARCH, 0, POOLS, SETTINGS, length, book, catalogue)
            break
        except NeedsTrajectories as gap:
            for name, n in gap.wanted.items():
                for i in range(n):
                    book.add(Measured(Key(name, "m", 1.0, i), 0.0, math.nan))
    assert found.trajectories > 3 * SETTINGS.draws
    assert math.isnan(found.ranking[0].score)


def test_a_reader_hands_out_each_value_once() -> None:
    book, one = Measurements(), Candidate("a", "text")
    for i in range(3):
        book.add(drawn(one, i))
    reader = BookReader(book, 1.0)
    first, second = reader.more({"a": 1})["a"], reader.more({"a": 2})["a"]
    assert (*first, *second) == tuple(drawn(one, i).utilisation for i in range(3))
    with pytest.raises(NeedsTrajectories) as caught:
        reader.more({"a": 1})
    assert caught.value.wanted == {"a": 4}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"k": (1.0, 1.0)}, "each once"),
        ({"k": (math.inf,)}, "budgets above 0"),
        ({"above": 1.5}, "above 0 and below 1"),
        ({"draws": 10}, "at least"),
        ({"generations": -1}, "generations must be at least 0"),
        ({"heldout": 0}, "heldout must be at least 1"),
        ({"operators": ("splise",)}, "splice"),
        ({"protocol": "paper"}, "sound"),
        ({"trajectories": 5}, "--draws"),
        ({"decoder": "a:B"}, "engine"),
        ({"shortest": 30, "longest": 20}, "--shortest and --longest"),
    ],
)
def test_bad_settings_are_said_in_words(given: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        SearchSettings(**given)  # type: ignore[arg-type]


def test_pools_are_divided_before_any_search_seed() -> None:
    other = SearchSettings(pool=8, searches=5)
    assert divide(workload(), other, length) == POOLS
    assert isinstance(POOLS, Pools)
