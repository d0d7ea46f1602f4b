"""Files beside the records: passages, search, replayed records, verification.

What a verification found, kept beside the run so that a report can show it.

The file has its own checksum, and that of the journal it was made from: an edited result is an
error, and one that is older than the records says so.

The file of passages and their surprisals, from which anybody can judge a budget without models.

    {"format": 1, "context": ..., "anchor": ..., "passages": n, "sha256": ...}
    {"id": ..., "tokens": n, "surprisals": [...]}

one line per passage after the first. The checksum covers everything but itself; infinity is the
string "inf". The file is written whole and replaced whole.

What a replay found a black box to have done: a second record, beside the claims.

Verdicts on a black box rest on these trajectories. The file's checksum stands in verify.json, and
it counts only as long as the records are those that were verified.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nafaudit.core.errors import StoreError
from nafaudit.core.passage import PassageScores, ScoredPassage
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.store import parts
from nafaudit.store.files import write_whole
from nafaudit.store.run import Run

VERIFICATION = "verify.json"


def write_verification(run: Run, result: dict[str, Any]) -> Path:
    """Saves a result; `result` is plain data without NaN."""
    content = result | {"journal": _journal_hash(run)}
    data = content | {"sha256": _hash(content)}
    path = run.path / VERIFICATION
    write_whole(path, json.dumps(data, indent=2, allow_nan=False).encode() + b"\n")
    return path


def read_verification(run: Run) -> dict[str, Any] | None:
    """Returns the saved result, or None if there is none.

    `current` in it says whether the records are still those that were verified.

    Raises:
        StoreError: The file was edited or damaged.
    """
    path = run.path / VERIFICATION
    if not path.is_file():
        return None
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        said = data.pop("sha256")
    except (ValueError, KeyError, AttributeError):
        said, data = None, {}
    if said is None or said != _hash(data):
        raise StoreError(
            f"{path} is not what nafaudit verify wrote: it was damaged or edited. Delete it and "
            f"run: nafaudit verify {run.path}"
        )
    return data | {"current": data["journal"] == _journal_hash(run)}


def _hash(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _journal_hash(run: Run) -> str:
    path = run.path / "journal.jsonl"
    return hashlib.sha256(path.read_bytes() if path.exists() else b"").hexdigest()


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


SEARCH = "search.json"


def read_search(run: Run) -> dict[str, Any] | None:
    """Returns the content of RUN/search.json, or None if the run holds no finished search.

    Raises:
        StoreError: The file is not what a search writes.
    """
    path = run.path / SEARCH
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
        if not isinstance(data, dict) or not isinstance(data.get("outcome"), str):
            raise ValueError("it has no outcome")
        if _too_deep(data):
            raise ValueError("its parts are nested too deeply")
    except (ValueError, OSError, RecursionError) as error:
        raise StoreError(
            f"{path} is not what nafaudit search wrote ({error}): it was damaged or edited. Delete "
            "it and run the search's own command again, which makes it anew from the records."
        ) from error
    return data


def _too_deep(value: Any, left: int = 16) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left == 0 or any(_too_deep(one, left - 1) for one in inner)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not strict JSON")


REPLAYED = "replayed.parquet"


def write_truth(run: Run, trajectories: Sequence[Trajectory]) -> str:
    """Saves the recomputed trajectories; returns their checksum."""
    content = parts.encode(trajectories)
    write_whole(run.path / REPLAYED, content)
    return hashlib.sha256(content).hexdigest()


def read_truth(run: Run) -> dict[Key, Trajectory]:
    """The recomputed trajectories; none if nothing current was verified."""
    result = read_verification(run)
    if result is None or not result["current"] or "replayed_sha256" not in result:
        return {}
    path = run.path / REPLAYED
    content = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != result["replayed_sha256"]:
        raise StoreError(
            f"{path} is not what nafaudit verify wrote: it was damaged or edited. Run it again: "
            f"nafaudit verify {run.path}"
        )
    return {trajectory.key: trajectory for trajectory in parts.decode(content)}
