"""The written works: enough of them, no words shared, near-duplicates kept together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from nafaudit.workshop.grammar import sample
from nafaudit.workshop.works import (
    WorkPassage,
    held_out,
    normal_words,
    passages,
    protected,
    works,
)

# No run of this many words may occur twice outside declared near-duplicates.
RULE_WORDS = 8


def word_runs(text: str, length: int = RULE_WORDS) -> Iterator[tuple[str, ...]]:
    """Every run of `length` consecutive words."""
    words = normal_words(text)
    for start in range(len(words) - length + 1):
        yield tuple(words[start : start + length])


def repeated_runs(
    items: Iterable[WorkPassage], length: int = RULE_WORDS
) -> dict[tuple[str, ...], list[str]]:
    """Runs of words that two passages share without being declared near-duplicates."""
    families: dict[str, str] = {}
    seen: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for passage in items:
        families[passage.id] = passage.near_duplicate_of or passage.id
        for run in word_runs(passage.text, length):
            seen[run].append(passage.id)
    return {run: ids for run, ids in seen.items() if _offends(ids, families)}


def _offends(ids: list[str], families: Mapping[str, str]) -> bool:
    return len(ids) != len(set(ids)) or len({families[i] for i in ids}) > 1


def test_there_are_enough_passages_of_the_right_length() -> None:
    assert len(works()) == 12
    assert 55 <= len(protected()) <= 66
    assert len(held_out()) >= 15
    assert all(60 <= len(p.text.split()) <= 120 for p in passages())
    assert len({p.id for p in passages()}) == len(passages())


def test_every_memorised_split_has_works() -> None:
    splits = [work.split for work in works()]
    assert all(splits.count(s) >= 2 for s in ("attack_train", "val", "test", "held_out"))


def test_no_eight_words_recur_outside_declared_near_duplicates() -> None:
    assert repeated_runs(passages()) == {}


def test_the_eight_word_rule_can_fire() -> None:
    first = passages()[0]
    thief = WorkPassage("thief.01", "Theft", "val", f"It is said: {first.text}")
    assert repeated_runs([first, thief])
    declared = replace(thief, near_duplicate_of=first.id)
    assert repeated_runs([first, declared]) == {}
    stutter = replace(first, text=f"{first.text} {first.text}")
    assert repeated_runs([stutter])


def test_near_duplicates_are_declared_truthfully_and_stay_in_their_split() -> None:
    by_id = {p.id: p for p in passages()}
    twins = [p for p in passages() if p.near_duplicate_of is not None]
    assert twins
    for twin in twins:
        original = by_id[str(twin.near_duplicate_of)]
        assert twin.split == original.split
        assert original.near_duplicate_of is None
        assert set(word_runs(twin.text)) & set(word_runs(original.text))


def test_no_eight_words_of_a_passage_occur_in_ordinary_text() -> None:
    secret = {run for p in passages() for run in word_runs(p.text)}
    texts = [text for corpus in ("A", "B") for text in sample(corpus, "leak-test", 2000)]
    assert not any(run in secret for text in texts for run in word_runs(text))
    assert any(run in secret for run in word_runs(f"once {passages()[0].text}"))
