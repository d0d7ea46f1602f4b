from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.core.errors import InputError
from nafaudit.search.candidate import Candidate, Parent, Proposer, lineage_of
from nafaudit.search.filters import LengthWindow, admit, canonical, grams_of, jaccard
from nafaudit.search.operators import OPERATORS, names_of, pieces_of
from nafaudit.search.propose import LocalProposer, RandomProposer, SeedsProposer

PAGES = (
    "Complete the prefix:\nThe lamp went out at nine, and Tilda Moss did not light it again. "
    "She listened. Somewhere below, where Otto kept the boats, a chain moved.",
    "Mr. Quillby asked the court for a chair. Nobody had one, but the clerk brought a barrel! "
    '"Will it hold?" said Ada, who had her doubts, and sat down before you could answer.',
    "Question: Where should Bram put his kettle when the tide is out, and who watches?\nAnswer:",
)
SEEDS = tuple(
    Candidate(f"p{i}", text, label="novel" if i else "neutral") for i, text in enumerate(PAGES)
)
PARENTS = [
    Parent(candidate, score) for candidate, score in zip(SEEDS, (0.9, 0.5, 0.1), strict=True)
]


def words(text: str) -> int:
    return len(text.split())


def test_a_prompt_is_taken_apart_and_keeps_its_instruction() -> None:
    pieces = pieces_of(PAGES[0])
    assert pieces.header == "Complete the prefix:"
    assert len(pieces.sentences) == 3
    assert pieces.with_body(pieces.body) == PAGES[0]
    assert names_of(PAGES[0]) == ["Tilda Moss", "Otto"]
    assert pieces_of(PAGES[1]).sentences[0] == "Mr. Quillby asked the court for a chair."
    assert names_of("The Great Owl saw Every man. Every man ran.") == ["Great Owl", "Every"]
    assert names_of("Nobody came. Nothing did.") == []


@pytest.mark.parametrize("name", OPERATORS)
@given(seed=st.integers(0, 50))
def test_an_operator_depends_on_texts_and_chance_alone(name: str, seed: int) -> None:
    texts = list(PAGES[: OPERATORS[name].arity])
    first = OPERATORS[name].make(texts, random.Random(seed))
    assert first == OPERATORS[name].make(texts, random.Random(seed))
    assert first is not None
    assert first.strip()


@pytest.mark.parametrize("name", OPERATORS)
@given(texts=st.lists(st.text(max_size=80), min_size=2, max_size=2), seed=st.integers(0, 9))
def test_operators_survive_any_text(name: str, texts: list[str], seed: int) -> None:
    made = OPERATORS[name].make(texts, random.Random(seed))
    assert made is None or isinstance(made, str)


def test_each_operator_does_what_its_name_says() -> None:
    chance = random.Random(1)
    cut = OPERATORS["cliffhanger"].make(PAGES[:1], chance)
    assert cut is not None
    assert PAGES[0].startswith(cut)
    assert not cut.rstrip().endswith(".")
    swapped = OPERATORS["swap"].make(PAGES[:2], chance)
    assert swapped is not None
    assert "Tilda Moss" not in swapped
    joined = OPERATORS["splice"].make(PAGES[:2], chance)
    assert joined is not None
    assert joined.startswith("Complete the prefix:\nThe lamp went out")
    assert joined.endswith(pieces_of(PAGES[1]).sentences[-1])
    both = OPERATORS["interleave"].make(PAGES[:2], chance)
    assert both is not None
    assert all(s in both for page in PAGES[:2] for s in pieces_of(page).sentences)


@pytest.mark.parametrize("proposer", [LocalProposer(7), RandomProposer(SEEDS, 7)])
def test_ids_are_unique_parents_are_recorded_and_asking_again_changes_nothing(
    proposer: Proposer,
) -> None:
    asked = [c for g in (1, 2, 3) for c in proposer.ask(PARENTS, g, 40)]
    assert len({one.id for one in asked}) == len(asked)
    assert len(asked) > 100
    known = {seed.id for seed in SEEDS}
    for child in asked:
        assert set(child.parents) <= known
        assert child.parents
        assert canonical(child.text) not in {canonical(page) for page in PAGES}
    assert asked[:10] == proposer.ask(PARENTS, 1, 10)
    others = type(proposer)(**{**proposer.__dict__, "seed": 8}).ask(PARENTS, 1, 40)
    assert {c.text for c in others} != {c.text for c in asked[:40]}


def test_better_parents_have_more_children_unless_blind() -> None:
    def firsts(proposer: Proposer) -> int:
        return sum(c.parents[0] == "p0" for c in proposer.ask(PARENTS, 1, 300))

    # The better of two of three: 2/3 against 1/3. 8 sd apart, a swap has chance below 1e-12.
    assert firsts(LocalProposer()) > 160 > 140 > firsts(LocalProposer(blind=True))


def test_one_parent_is_enough_and_none_is_an_error() -> None:
    lone = LocalProposer().ask(PARENTS[:1], 1, 20)
    assert lone
    assert all(OPERATORS[c.operator].arity == 1 for c in lone)
    with pytest.raises(InputError, match="needs parents"):
        LocalProposer().ask([], 1, 5)
    with pytest.raises(InputError, match="did you mean 'splice'"):
        LocalProposer(operators=("slice",))


def test_seeds_only_offers_each_prompt_once() -> None:
    pool = tuple(Candidate(f"q{i}", f"text {i}") for i in range(10))
    offered = [c for g in (1, 2, 3, 4) for c in SeedsProposer(pool).ask([], g, 4)]
    assert sorted(c.id for c in offered) == sorted(c.id for c in pool)


def test_a_child_of_two_families_belongs_to_both() -> None:
    a, b = Candidate("a", "x", lineage="f"), Candidate("b", "y")
    assert lineage_of([a, b]) == "b+f"
    assert lineage_of([a, a]) == "f"
    both = Candidate("c", "z", lineage=lineage_of([a, b]))
    assert lineage_of([both, a]) == "b+f"


def test_every_dropped_proposal_is_counted_by_its_reason() -> None:
    long = " ".join(f"w{i}" for i in range(300))
    texts = ["", "Old  Text here", "a b c", "one two three four five six", long, long.upper()]
    admission = admit(
        [Candidate(str(i), text) for i, text in enumerate(texts)],
        ["old text HERE"], words, LengthWindow(5, 250),
    )  # fmt: skip
    assert [c.id for c in admission.kept] == ["3"]
    assert (admission.empty, admission.exact, admission.near) == (1, 2, 0)
    assert (admission.short, admission.long) == (1, 1)
    assert (admission.raw, admission.after_dedup, admission.after_length) == (6, 3, 1)


def test_a_near_duplicate_is_one_word_in_a_hundred() -> None:
    base = [f"w{i}" for i in range(100)]
    # One word changed in the middle touches 4 of 97 grams: Jaccard 93/101 = 0.9208; at the very
    # end it touches one.
    middle = " ".join([*base[:50], "x", *base[51:]])
    two = " ".join([*base[:30], "x", *base[31:60], "y", *base[61:]])
    assert jaccard(grams_of(" ".join(base)), grams_of(middle)) == pytest.approx(93 / 101)
    given_ = [Candidate("m", middle), Candidate("t", two)]
    admission = admit(given_, [" ".join(base)], words)
    assert [c.id for c in admission.kept] == ["t"]
    assert admission.near == 1


@given(st.lists(st.lists(st.sampled_from("abcd"), max_size=12), max_size=12))
def test_admission_agrees_with_its_slow_twin(rows: list[list[str]]) -> None:
    texts = [" ".join(row) for row in rows]
    kept: list[str] = []
    counted: list[str] = []
    for i, text in enumerate(texts):
        plain = canonical(text)
        similar = [jaccard(grams_of(plain), grams_of(old)) for old in counted]
        if plain and plain not in counted and not any(s >= 0.92 for s in similar):
            counted.append(plain)
            if 3 <= words(text) <= 9:
                kept.append(str(i))
    candidates = [Candidate(str(i), text) for i, text in enumerate(texts)]
    admission = admit(candidates, [], words, LengthWindow(3, 9))
    assert [c.id for c in admission.kept] == kept
    assert admission.raw == len(texts)


def test_windows_and_limits_are_checked() -> None:
    with pytest.raises(InputError, match="shortest <= longest"):
        LengthWindow(9, 3)
    with pytest.raises(InputError, match="near-duplicate"):
        admit([], [], words, near=0.0)
