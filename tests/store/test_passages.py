from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nafaudit.core.errors import StoreError
from nafaudit.core.passage import PassageScores, ScoredPassage
from nafaudit.store.artifacts import passages_bytes, read_passages_file, write_passages

PASSAGE = st.builds(
    lambda name, values, more: ScoredPassage(name, len(values) + more, tuple(values)),
    st.text(st.characters(codec="utf-8"), max_size=8),
    st.lists(st.floats(0, None, allow_infinity=True), min_size=1, max_size=5),
    st.integers(0, 3),
)


@settings(max_examples=25)  # each syncs a file
@given(st.lists(PASSAGE, max_size=4), st.text(st.characters(codec="utf-8"), max_size=20))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, passages: list[ScoredPassage], context: str
) -> None:
    scores = PassageScores(context, "the safe model", tuple(passages))
    path = tmp_path_factory.mktemp("p") / "passages.jsonl"
    write_passages(path, scores)
    assert read_passages_file(path) == scores
    assert path.read_bytes() == passages_bytes(scores)


SCORES = PassageScores("c", "a", (ScoredPassage("p", 2, (1.5, 2.0)),))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"1.5", b"9.5"),
        (b'"context": "c"', b'"context": "d"'),
        (b"}\n", b""),
        (b'"sha256"', b'"s"'),
    ],
)
def test_an_edited_file_is_refused(tmp_path: Path, old: bytes, new: bytes) -> None:
    path = tmp_path / "passages.jsonl"
    write_passages(path, SCORES)
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(StoreError, match="is not what was written"):
        read_passages_file(path)


def test_another_checksum_of_a_bad_row_is_still_refused(tmp_path: Path) -> None:
    """Whoever forges the checksum too still has to write passages that can exist."""
    path = tmp_path / "passages.jsonl"
    header = b'{"format": 1, "context": "c", "anchor": "a", "passages": 1}\n'
    body = b'{"id": "p", "tokens": 1, "surprisals": [-1.0]}\n'
    digest = hashlib.sha256(header + body).hexdigest().encode()
    path.write_bytes(header[:-2] + b', "sha256": "' + digest + b'"}\n' + body)
    with pytest.raises(StoreError, match="negative or NaN"):
        read_passages_file(path)


def test_no_file_is_no_passages(tmp_path: Path) -> None:
    assert read_passages_file(tmp_path / "passages.jsonl") is None
