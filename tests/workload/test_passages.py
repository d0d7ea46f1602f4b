from __future__ import annotations

from pathlib import Path

import pytest

from nafaudit.core.errors import InputError
from nafaudit.workload.passages import Passage, passages_hash, read_passages


def test_text_is_split_at_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "works.txt"
    path.write_bytes("\ufeffOne line,\r\nand another.\r\n  \r\n\r\n\r\nSecond.\r\n".encode())
    assert read_passages(path) == [
        Passage("works:1", "One line,\nand another."),
        Passage("works:2", "Second."),
    ]
    assert [passage.where for passage in read_passages(path)] == [f"{path}:1", f"{path}:6"]


def test_json_lines_have_ids_of_their_own_or_of_their_line(tmp_path: Path) -> None:
    path = tmp_path / "works.jsonl"
    path.write_text('{"id": "a", "text": " A\\u2028b. "}\n\n{"text": "C.", "work": 3}\n')
    assert read_passages(path) == [Passage("a", "A\u2028b."), Passage("works:3", "C.")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.txt", None, "No such file or directory; give a text file"),
        ("empty.txt", b" \n\n", "no passages"),
        ("latin.txt", b"caf\xe9", "not UTF-8"),
        ("a.jsonl", b'{"id": "a"}', "a.jsonl:1: a JSON object with 'text'"),
        ("a.jsonl", b"[1]", "a.jsonl:1: a JSON object is needed, got list"),
        ("a.jsonl", b'{"text":"t","x":' + b"[" * 9999, "a.jsonl:1: .* nested too deeply"),
        ("a.jsonl", b'{"text":"t","x":' + b"9" * 5000 + b"}", "a.jsonl:1: .*must be finite"),
        ("a.jsonl", b"\n{", "a.jsonl:2: not JSON"),
        ("a.jsonl", b'{"text": 3}', "'text' must be a string, got 3"),
        ("a.jsonl", b'{"text": "\\ud800"}', "half of a surrogate pair"),
        ("a.jsonl", b'{"text": " "}', "'text' is empty"),
        (
            "a.jsonl",
            b'{"id": "x", "text": "a"}\n{"id": "x", "text": "b"}',
            "a.jsonl:2: .*'x' occurs twice",
        ),
    ],
)
def test_bad_input_is_named(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_passages(path)


def test_the_hash_tells_texts_apart() -> None:
    one, other = Passage("a", "bc"), Passage("ab", "c")
    assert passages_hash([one]) != passages_hash([other])
    assert passages_hash([one]) == passages_hash([Passage("a", "bc")])
