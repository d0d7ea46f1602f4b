"""Reading protected passages, with an error that names file, place and remedy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from nafaudit.core.errors import InputError
from nafaudit.workload.prompts import read_records, read_text, whole_text


@dataclass(frozen=True)
class Passage:
    """One passage of protected text.

    Attributes:
        id: Unique among those given together.
        text: The passage.
        where: `file:line` of its start, for errors; empty if it came from no file.
    """

    id: str
    text: str = field(repr=False)
    where: str = field(default="", compare=False)

    def __str__(self) -> str:
        """Names the passage for an error."""
        return f"{self.where}: passage {self.id!r}" if self.where else f"passage {self.id!r}"


def read_passages(path: Path) -> list[Passage]:
    """Reads passages from a file.

    `.jsonl`: one object per line with `text` and, if wanted, `id`. Anything else is plain text
    whose passages are separated by blank lines. A missing id becomes `<file name>:<number>`.
    """
    what = "a text file with blank lines between passages, or JSON Lines with 'text' and 'id'"
    passages = []
    if path.suffix == ".jsonl":
        for record in read_records(path, what):
            where, row = record.where, record.data
            if "text" not in row:
                raise InputError(f"{where}: a JSON object with 'text' (and 'id') is needed.")
            fields = {"id": f"{path.stem}:{record.place + 1}"} | row
            for name in ("id", "text"):
                if not isinstance(fields[name], str):
                    raise InputError(f"{where}: {name!r} must be a string, got {fields[name]!r}.")
                whole_text(fields[name], where, name)
            if not fields["text"].strip():
                raise InputError(f"{where}: 'text' is empty; leave the line out.")
            passages.append(Passage(fields["id"], fields["text"].strip(), where))
    else:
        content = read_text(path, what).replace("\r\n", "\n").replace("\r", "\n")
        numbered = enumerate(content.split("\n"), start=1)
        for is_text, block in groupby(numbered, lambda line: bool(line[1].strip())):
            if is_text:
                lines = list(block)
                text = "\n".join(line for _, line in lines).strip()
                name = f"{path.stem}:{len(passages) + 1}"
                passages.append(Passage(name, text, f"{path}:{lines[0][0]}"))
    check_passages(passages, str(path))
    return passages


def check_passages(passages: Sequence[Passage], where: str) -> None:
    """Raises if there is no passage or if two share an id."""
    if not passages:
        raise InputError(f"{where}: no passages; give at least one.")
    seen: set[str] = set()
    for passage in passages:
        if passage.id in seen:
            raise InputError(f"{passage} occurs twice; give every passage an id of its own.")
        seen.add(passage.id)


def passages_hash(passages: Sequence[Passage]) -> str:
    """Computes the SHA-256 of ids and texts, in their order."""
    rows = json.dumps([(passage.id, passage.text) for passage in passages])
    return hashlib.sha256(rows.encode()).hexdigest()
