"""Reading protected passages, with an error that names file, place and remedy."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nafaudit.core.errors import InputError


@dataclass(frozen=True)
class Passage:
    """One passage of protected text; its id is unique among those given together."""

    id: str
    text: str


def read_passages(path: Path) -> list[Passage]:
    """Reads passages from a file.

    `.jsonl`: one object per line with `text` and, if wanted, `id`. Anything else is plain text
    whose passages are separated by blank lines. A missing id becomes `<file name>:<number>`.
    """
    try:
        content = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror}; give a text file with blank lines between passages, or "
            "JSON Lines with 'text' and 'id'."
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not UTF-8 (byte {error.start}); convert it, for example with iconv."
        ) from error
    passages = _from_jsonl(path, content) if path.suffix == ".jsonl" else _from_text(path, content)
    check_passages(passages, str(path))
    return passages


def check_passages(passages: Sequence[Passage], where: str) -> None:
    """Raises if there is no passage or if two share an id."""
    if not passages:
        raise InputError(f"{where}: no passages; give at least one.")
    seen: set[str] = set()
    for passage in passages:
        if passage.id in seen:
            raise InputError(
                f"{where}: passage id {passage.id!r} occurs twice; ids must be unique."
            )
        seen.add(passage.id)


def passages_hash(passages: Sequence[Passage]) -> str:
    """SHA-256 of ids and texts, in their order."""
    rows = json.dumps([(passage.id, passage.text) for passage in passages])
    return hashlib.sha256(rows.encode()).hexdigest()


def _from_text(path: Path, content: str) -> list[Passage]:
    blocks = [block.strip() for block in re.split(r"\n[^\S\n]*\n", content)]
    texts = [block for block in blocks if block]
    return [Passage(f"{path.stem}:{number}", text) for number, text in enumerate(texts, start=1)]


def _from_jsonl(path: Path, content: str) -> list[Passage]:
    # Not splitlines: a JSON string may hold U+2028 and the like.
    return [
        _passage(line, f"{path}:{number}", f"{path.stem}:{number}")
        for number, line in enumerate(content.split("\n"), start=1)
        if line.strip()
    ]


def _passage(line: str, where: str, default_id: str) -> Passage:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not JSON ({error.msg} at column {error.colno}).") from error
    if not isinstance(row, dict) or "text" not in row:
        raise InputError(f"{where}: a JSON object with 'text' (and 'id') is needed.")
    fields = {"id": default_id} | row
    for name in ("id", "text"):
        if not isinstance(fields[name], str):
            raise InputError(f"{where}: {name!r} must be a string, got {fields[name]!r}.")
        if any("\ud800" <= character <= "\udfff" for character in fields[name]):
            raise InputError(f"{where}: {name!r} holds half of a surrogate pair; mend the text.")
    if not fields["text"].strip():
        raise InputError(f"{where}: 'text' is empty; leave the line out.")
    return Passage(fields["id"], fields["text"].strip())
