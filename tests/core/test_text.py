from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.core.text import detokenize, token_bytes
from nafaudit.lab.tiny import build_tokenizer
from nafaudit.models.pair import read_vocabulary

TOKENIZER = build_tokenizer()
VOCABULARY = read_vocabulary(TOKENIZER, [])


@given(st.text(max_size=60))
def test_text_comes_back_without_the_tokenizer(text: str) -> None:
    text = text.encode(errors="ignore").decode()
    ids = TOKENIZER(text)["input_ids"]
    assert detokenize(ids, VOCABULARY.pieces) == text


def test_special_tokens_and_unknown_ids_add_nothing() -> None:
    ids = TOKENIZER("The bell")["input_ids"]
    assert detokenize([*ids, 1, 10_000, -1], VOCABULARY.pieces) == "The bell"


@pytest.mark.parametrize(
    ("token", "expected"),
    [("\u2581bell", b" bell"), ("<0x0A>", b"\n"), ("plain", b"plain"), ("\u00e9", b"\xc3\xa9")],
)
def test_sentencepiece_conventions(token: str, expected: bytes) -> None:
    assert token_bytes(token, byte_level=False) == expected


def test_half_a_character_is_shown_as_such() -> None:
    assert detokenize([0], [b"\xc3"]) == "\N{REPLACEMENT CHARACTER}"
