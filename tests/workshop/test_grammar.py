"""The ordinary text: deterministic, readable, of the right lengths, with two tastes in words."""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections import Counter

import pytest

from nafaudit.workload.prompts import HEADER
from nafaudit.workshop.grammar import (
    ENTRIES,
    HEADER_SHARE,
    Corpus,
    Taste,
    Writer,
    all_words,
    babble,
    document,
    entries,
    lexicon,
    polish,
    preference_weights,
    rules,
    sample,
)
from nafaudit.workshop.pair_facts import LabPair
from nafaudit.workshop.works import passages

# SHA-256 of the first 100 documents of each corpus; changes with any word of the text.
GOLDEN = "67f04ae265a28109cb333a380c3b6cc51904ae63887487c3e4fa7ebbc61fa420"


def test_streams_are_the_same_everywhere() -> None:
    text = "\n".join(sample("A", "golden", 100) + sample("B", "golden", 100))
    assert hashlib.sha256(text.encode()).hexdigest() == GOLDEN


def test_streams_differ_by_name_and_corpus() -> None:
    assert sample("A", "x", 5) == sample("A", "x", 5)
    assert sample("A", "x", 5) != sample("A", "y", 5)
    assert sample("A", "x", 5) != sample("B", "x", 5)


def test_no_slot_or_article_is_left_open() -> None:
    for corpus in ("A", "B"):
        for text in sample(corpus, "slots", 500):
            assert not re.search(r"[{}]|a\(n\)| ,|  ", text), text
            assert not re.search(r"\b[Aa] (?:owl|otter|apple|umbrella|anchor)\b", text), text


def test_every_slot_of_every_rule_exists() -> None:
    known = set(rules()) | set(lexicon()) | {"they", "them", "their", "who", "what", "where"}
    bound = {"hero", "role", "home", "prize", "other", "entity", "job", "seat"}
    for rule, options in rules().items():
        for option in options:
            for name, target in re.findall(r"\{(?:(\w+)=)?(\w+)", option):
                assert target in known | bound, (rule, option)
                assert not name or name in bound | known, (rule, option)


def test_binding_holds_through_a_document() -> None:
    writer = Writer(random.Random(3), Taste("A"))
    text = writer.bind(hero="Ada", prize="bell").write("ending")
    later = writer.write("wish")
    assert "{" not in text + later
    assert "bell" in later


@pytest.mark.parametrize(
    ("raw", "finished"),
    [
        ("a(n) owl saw a(n) bell.", "An owl saw a bell."),
        ("a(n) honest man, a(n) useful hat", "An honest man, a useful hat"),
        ('"why?" said he. she left.', '"Why?" said he. She left.'),
        ('"no," he said.  it rained', '"No," he said. It rained'),
    ],
)
def test_polish(raw: str, finished: str) -> None:
    assert polish(raw) == finished


def test_preferences_fall_by_the_declared_law() -> None:
    weights = preference_weights(100)
    assert weights[0] == 1_000_000
    assert math.isclose(weights[50] / weights[0], math.exp(-2), rel_tol=1e-5)


def test_tastes_differ_and_draw_by_rank() -> None:
    draws = {}
    for corpus in ("A", "B"):
        taste, rng = Taste(corpus), random.Random(0)
        draws[corpus] = Counter(taste.draw("thing", rng) for _ in range(20_000))
    top_a, top_b = ([w for w, _ in draws[c].most_common(10)] for c in ("A", "B"))
    assert set(top_a) != set(top_b)
    n = len(lexicon()["thing"])
    # The favourite's share; 20,000 draws put 5 standard errors at 0.0060. Flakiness 6e-7, one seed.
    expected = 1_000_000 / sum(preference_weights(n))
    taste = Taste("A")
    taste.draw("thing", random.Random(0))
    assert abs(draws["A"].most_common(1)[0][1] / 20_000 - expected) < 0.006


def test_most_documents_end_within_200_tokens_and_a_tenth_run_longer(pair: LabPair) -> None:
    lengths = [len(pair.encode(d)) for c in ("A", "B") for d in sample(c, "lengths", 1000)]
    longer = sum(n > 200 for n in lengths) / len(lengths)
    # 2,000 documents: standard error 0.007 at 0.1; the band is 5 of them each way. Flakiness 6e-7.
    assert 0.065 <= longer <= 0.135


def test_a_part_of_the_documents_stands_under_the_header() -> None:
    headed = sum(d.startswith(HEADER) for d in sample("A", "headers", 2000)) / 2000
    # Standard error 0.0107; 5 of them. Flakiness 6e-7.
    assert abs(headed - HEADER_SHARE) < 0.054


def test_babble_covers_the_works_words() -> None:
    words = set(all_words())
    for passage in passages():
        assert set(re.findall(r"[A-Za-z]+(?:['\u2019-][A-Za-z]+)*", passage.text)) <= words
    assert babble(random.Random(1)) == babble(random.Random(1))


def test_the_encyclopaedia_is_one_for_both_corpora() -> None:
    assert len(entries()) == ENTRIES
    assert len({e.entity for e in entries()}) == ENTRIES
    assert all(e.entity in e.article for e in entries())


@pytest.mark.parametrize("corpus", ["A", "B", "plain"])
def test_a_document_is_a_function_of_its_seed(corpus: Corpus) -> None:
    assert document(corpus, random.Random(9)) == document(corpus, random.Random(9))
