"""What a replay found a black box to have done: a second record, beside the claims.

Verdicts on a black box rest on these trajectories. The file's checksum stands in verify.json, and
it counts only as long as the records are those that were verified.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from nafaudit.core.errors import StoreError
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.store import parts
from nafaudit.store.files import write_whole
from nafaudit.store.run import Run
from nafaudit.store.verification import read_verification

FILE = "replayed.parquet"


def write_truth(run: Run, trajectories: Sequence[Trajectory]) -> str:
    """Saves the recomputed trajectories; returns their checksum."""
    content = parts.encode(trajectories)
    write_whole(run.path / FILE, content)
    return hashlib.sha256(content).hexdigest()


def read_truth(run: Run) -> dict[Key, Trajectory]:
    """The recomputed trajectories; none if nothing current was verified."""
    result = read_verification(run)
    if result is None or not result["current"] or "replayed_sha256" not in result:
        return {}
    path = run.path / FILE
    content = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != result["replayed_sha256"]:
        raise StoreError(
            f"{path} is not what nafaudit verify wrote: it was damaged or edited. Run it again: "
            f"nafaudit verify {run.path}"
        )
    return {trajectory.key: trajectory for trajectory in parts.decode(content)}
