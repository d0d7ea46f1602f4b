"""The file of passages and their surprisals, from which anybody can judge a budget without models.

    {"format": 1, "context": ..., "anchor": ..., "passages": n, "sha256": ...}
    {"id": ..., "tokens": n, "surprisals": [...]}

one line per passage after the first. The checksum covers everything but itself; infinity is the
string "inf". The file is written whole and replaced whole.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from nafaudit.core.errors import StoreError
from nafaudit.core.passage import PassageScores, ScoredPassage
from nafaudit.store.files import write_whole

PASSAGES = "passages.jsonl"
FORMAT = 1


def write_passages(path: Path, scores: PassageScores) -> None:
    """Writes the file, or leaves the one that is there."""
    write_whole(path, passages_bytes(scores))


def passages_bytes(scores: PassageScores) -> bytes:
    """The content of the file; the same scores give the same bytes."""
    body = "".join(_line(_row(passage)) for passage in scores.passages).encode()
    header = {
        "format": FORMAT,
        "context": scores.context,
        "anchor": scores.anchor,
        "passages": len(scores),
    }
    return _line(header | {"sha256": _checksum(header, body)}).encode() + body


def read_passages_file(path: Path) -> PassageScores | None:
    """Reads the file back; None if there is none.

    Raises:
        StoreError: It is not what was written.
    """
    if not path.exists():
        return None
    first, _, body = path.read_bytes().partition(b"\n")
    try:
        header = json.loads(first)
        sha256 = header.pop("sha256")
        if header["format"] != FORMAT or sha256 != _checksum(header, body):
            raise ValueError("its SHA-256 differs")
        rows = [json.loads(line) for line in body.split(b"\n")[:-1]]
        passages = tuple(_passage(row) for row in rows)
        return PassageScores(header["context"], header["anchor"], passages)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"{path} is not what was written ({error}): it was damaged or edited. Restore it, or "
            "remove it and run the same command again, which scores the passages anew."
        ) from error


def _line(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False) + "\n"


def _checksum(header: dict[str, Any], body: bytes) -> str:
    return hashlib.sha256(_line(header).encode() + body).hexdigest()


def _row(passage: ScoredPassage) -> dict[str, Any]:
    surprisals = [value if math.isfinite(value) else str(value) for value in passage.surprisals]
    return {"id": passage.id, "tokens": passage.length, "surprisals": surprisals}


def _passage(row: dict[str, Any]) -> ScoredPassage:
    return ScoredPassage(row["id"], row["tokens"], tuple(map(float, row["surprisals"])))
