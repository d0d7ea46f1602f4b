"""What a black box shows of the laws that it served, kept beside the records of a run.

    shown.jsonl       one line per trajectory that shows something: key, family of its theta, laws
    laws/NAME.npy     the log-laws of its steps, float32 [steps, size]; NAME is a hash of the key

A file of laws is on disk before its line, and the line before the trajectory is recorded: whatever
is recorded has what was shown of it. A trajectory that is asked for again after a kill is written
again, and its last line counts.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.errors import StoreError
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.store.declared import LawsFile, ShownLine, strict_json, validated
from nafaudit.store.files import append_line, make_directory, whole_lines, write_whole

if TYPE_CHECKING:
    from nafaudit.store.run import Run

SHOWN, LAWS = "shown.jsonl", "laws"


class ShownLaws(Mapping[Key, NDArray[np.float32]]):
    """The shown log-laws of a run by trajectory, each read when it is asked for.

    They are as they were shown: of mass 1 within 1e-4, not within rounding; see `log_laws`.
    """

    def __init__(self, path: Path, files: Mapping[Key, LawsFile]) -> None:
        self._path, self._files = path, files

    def __getitem__(self, key: Key) -> NDArray[np.float32]:
        entry = self._files[key]
        path = self._path / LAWS / entry["file"]
        try:
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() != entry["sha256"]:
                raise ValueError("its SHA-256 differs")
            laws = np.load(io.BytesIO(content), allow_pickle=False)
            if laws.dtype != np.float32 or laws.shape != (entry["steps"], entry["size"]):
                raise ValueError(f"it holds {laws.dtype} of shape {laws.shape}")
        except (OSError, ValueError, EOFError) as error:
            raise _damaged(path, error) from error
        return np.asarray(laws)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def shown_laws(run: Run) -> ShownLaws:
    """Returns the log-laws that a black box showed; none of a run that has none.

    Raises:
        StoreError: shown.jsonl, or later a file of laws, is not what was written.
    """
    lines = _lines(run.path)
    return ShownLaws(run.path, {key: one["laws"] for key, one in lines.items() if "laws" in one})


def shown_families(run: Run) -> dict[Key, str]:
    """Returns which family of laws theta is the weight of, where the decoder says so.

    Raises:
        StoreError: shown.jsonl is not what was written.
    """
    lines = _lines(run.path)
    return {key: one["family"] for key, one in lines.items() if "family" in one}


def log_laws(shown: NDArray[np.float32]) -> NDArray[np.float64]:
    """Returns shown log-laws in float64, each of mass 1."""
    laws = shown.astype(np.float64)
    return np.asarray(laws - np.log(np.exp(laws).sum(axis=-1, keepdims=True)))


def write_shown(path: Path, trajectory: Trajectory) -> None:
    """Keeps what a trajectory shows, if it shows anything; on disk when this returns.

    Args:
        path: Run directory.
        trajectory: About to be recorded there.
    """
    key, shown = trajectory.key, trajectory.shown
    if shown is None:
        return
    # As text, because JSON has no infinite budget.
    named = [str(part) for part in key]
    line: dict[str, object] = {"key": named}
    if shown.family:
        line["family"] = shown.family
    if shown.laws is not None:
        steps, size = shown.laws.shape
        stream = io.BytesIO()
        np.save(stream, np.ascontiguousarray(shown.laws, "<f4"), allow_pickle=False)
        content = stream.getvalue()
        name = f"{hashlib.sha256(json.dumps(named).encode()).hexdigest()[:32]}.npy"
        make_directory(path / LAWS)
        write_whole(path / LAWS / name, content)
        digest = hashlib.sha256(content).hexdigest()
        line["laws"] = {"file": name, "steps": steps, "size": size, "sha256": digest}
    append_line(path / SHOWN, json.dumps(line))


def _lines(path: Path) -> dict[Key, ShownLine]:
    """Reads what was shown of each trajectory; of two lines for one the last counts."""
    found = {}
    try:
        for line in whole_lines(path / SHOWN):
            one = validated(ShownLine, strict_json(line))
            prompt, mechanism, k, number = one["key"]
            found[Key(prompt, mechanism, float(k), int(number))] = one
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path / SHOWN, error) from error
    return found


def _damaged(path: Path, error: Exception) -> StoreError:
    return StoreError(
        f"{path} is not what was written ({type(error).__name__}: {error}): it was damaged or "
        "edited. Restore it, or start a new run with another --out."
    )
