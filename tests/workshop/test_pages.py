"""A text as pages: nothing lost or made up, and errors that say what to give."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.core.errors import InputError
from nafaudit.workload.passages import Passage
from nafaudit.workshop.packing import FEWEST_WORDS, MOST_WORDS, cut, deal, own_pages, read_pages
from nafaudit.workshop.works import held_out

WORDS = st.lists(st.integers(1, 300), min_size=1, max_size=12)


def paragraphs(lengths: list[int]) -> list[Passage]:
    numbers = iter(range(10_000))
    return [Passage(str(n), " ".join(f"w{next(numbers)}" for _ in range(n))) for n in lengths]


@given(WORDS)
def test_pages_are_the_text_in_order_and_of_a_fair_length(lengths: list[int]) -> None:
    given_words = " ".join(p.text for p in paragraphs(lengths)).split()
    pages = cut(paragraphs(lengths), "t")
    words = " ".join(page.text for page in pages).split()
    assert words == given_words[: len(words)]
    assert len(given_words) - len(words) < FEWEST_WORDS
    assert all(FEWEST_WORDS <= len(page.text.split()) <= MOST_WORDS for page in pages)
    assert len({page.id for page in pages}) == len(pages)


@given(st.integers(4, 40), st.integers(2, 20))
def test_no_page_has_two_parts_to_play(count: int, memorised: int) -> None:
    pages = deal([Passage(str(i), f"text {i}") for i in range(count)], memorised, "t")
    dealt = [*pages.memorised, *pages.replayed, *pages.unseen]
    assert len(dealt) == len(set(dealt))
    assert 2 <= len(pages.memorised) <= memorised
    assert pages.replayed
    assert pages.unseen


def test_the_labs_own_pages_are_protected_works_with_one_text_each() -> None:
    pages = own_pages()
    assert (len(pages.memorised), len(pages.replayed), len(pages.unseen)) == (4, 2, 2)
    unseen_by_the_lab = {passage.text for passage in held_out()}
    assert not unseen_by_the_lab & {page.text for page in pages.memorised}


def test_another_word_is_another_text() -> None:
    pages = [Passage(str(i), f"text {i}") for i in range(4)]
    other = [*pages[:3], Passage("3", "text three")]
    assert deal(pages, 2, "t").hash != deal(other, 2, "t").hash


def test_json_lines_keep_their_passages(tmp_path: Path) -> None:
    path = tmp_path / "book.jsonl"
    page = " ".join(["word"] * 70)
    path.write_text("".join(f'{{"id": "p{i}", "text": "{page} {i}"}}\n' for i in range(5)))
    assert [p.id for p in read_pages(path).memorised] == ["p0", "p2", "p4"]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("short.txt", b"Only a few words.", "0 pages of at least 60 words; at least 4 are needed"),
        ("latin.txt", b"caf\xe9 " * 600, "latin.txt:1: not UTF-8"),
        ("empty.txt", b" \n", "no passages"),
        ("book.jsonl", b'{"text": "too short"}\n', "has 2 words; a page needs 60"),
        ("absent.txt", None, "No such file"),
    ],
)
def test_a_text_that_cannot_be_memorised_is_named(
    tmp_path: Path, name: str, content: bytes | None, complaint: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=complaint):
        read_pages(path)


def test_one_page_is_too_few() -> None:
    with pytest.raises(InputError, match="pages must be at least 2, got 1"):
        own_pages(1)
