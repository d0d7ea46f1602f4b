"""What a verification found, kept beside the run so that a report can show it.

The file has its own checksum, and that of the journal it was made from: an edited result is an
error, and one that is older than the records says so.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from nafaudit.core.errors import StoreError
from nafaudit.store.files import write_whole
from nafaudit.store.run import Run

FILE = "verify.json"


def write_verification(run: Run, result: dict[str, Any]) -> Path:
    """Saves a result; `result` is plain data without NaN."""
    content = result | {"journal": _journal_hash(run)}
    data = content | {"sha256": _hash(content)}
    path = run.path / FILE
    write_whole(path, json.dumps(data, indent=2, allow_nan=False).encode() + b"\n")
    return path


def read_verification(run: Run) -> dict[str, Any] | None:
    """Returns the saved result, or None if there is none.

    `current` in it says whether the records are still those that were verified.

    Raises:
        StoreError: The file was edited or damaged.
    """
    path = run.path / FILE
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
