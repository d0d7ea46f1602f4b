"""Are the run's promise and prompts those that it was made with?

Records are replayed against the design and the prompts beside them; without this, whoever edits a
prompt's text or class in a run changes what its true numbers are said to be about.
"""

from __future__ import annotations

import hashlib
import json

from nafaudit.core.errors import StoreError
from nafaudit.store.gaps import Missing, same_prompts
from nafaudit.store.run import Run


def require_unaltered(run: Run) -> None:
    """Raises a `StoreError` that names the file if a design or its prompts were edited."""
    design = run.design
    identity = design["identity"]
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    if hashlib.sha256(text.encode()).hexdigest() != design["hash"]:
        raise _edited(run, "design.json")
    if not same_prompts(run.prompts(), design):
        raise _edited(run, "prompts.jsonl")


def lost(run: Run, recorded: int, gaps: Missing | None) -> list[str]:
    """A note on what the run was asked for and does not have; none if it has all."""
    if gaps is not None:
        return [gaps.text]
    lacking = run.asked - recorded
    if lacking <= 0:
        return []
    return [f"{lacking} of the {run.asked} trajectories that were asked for are not recorded"]


def _edited(run: Run, name: str) -> StoreError:
    return StoreError(
        f"{run.path / name} is not what was written, by the hash in the run's design: it was "
        "damaged or edited. Restore it, or make the run again with another --out."
    )
