"""Forged copies of a run: one number altered, every checksum right."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.store import parts
from nafaudit.store.run import Run

Edit = Callable[[Trajectory], Trajectory | None]


def forge(source: Path, target: Path, key: Key, edit: Edit) -> Path:
    """Copies a run and rewrites one trajectory of it; leaves it out if the edit gives None."""
    shutil.copytree(source, target)
    journal = []
    for entry in Run(target).journal():
        path = target / "parts" / entry["part"]
        records = list(parts.decode(path.read_bytes()))
        edited = [edit(t) if t.key == key else t for t in records]
        content = parts.encode([t for t in edited if t is not None])
        path.write_bytes(content)
        journal.append(entry | {"sha256": hashlib.sha256(content).hexdigest()})
    lines = "".join(json.dumps(entry) + "\n" for entry in journal)
    (target / "journal.jsonl").write_text(lines)
    return target


def with_step(step: int, **values: Any) -> Edit:
    """Changes numbers of one step; a value may be a function of the old one."""

    def edit(trajectory: Trajectory) -> Trajectory:
        columns = {}
        for name, value in values.items():
            column = getattr(trajectory.steps, name).copy()
            column[step] = value(column[step]) if callable(value) else value
            columns[name] = column
        return replace(trajectory, steps=replace(trajectory.steps, **columns))

    return edit


def with_debt(change: float) -> Edit:
    """Changes the debt, and every allowance with it, as a careful forger would."""

    def edit(trajectory: Trajectory) -> Trajectory:
        allowance = np.maximum(trajectory.steps.allowance - change, 0.0)
        steps = replace(trajectory.steps, allowance=allowance)
        return replace(trajectory, debt=trajectory.debt + change, steps=steps)

    return edit


def without(
    source: Path,
    target: Path,
    dropped: Callable[[Key], bool],
    extents: list[dict[str, Any]] | None = None,
) -> Path:
    """Copies a run, leaves trajectories out and says in the design what was asked instead."""
    shutil.copytree(source, target)
    journal = []
    for entry in Run(target).journal():
        path = target / "parts" / entry["part"]
        kept = [t for t in parts.decode(path.read_bytes()) if not dropped(t.key)]
        if not kept:
            path.unlink()
            continue
        content = parts.encode(kept)
        path.write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        journal.append(entry | {"rows": len(kept), "sha256": digest})
    lines = "".join(json.dumps(entry) + "\n" for entry in journal)
    (target / "journal.jsonl").write_text(lines)
    if extents is not None:
        design = json.loads((target / "design.json").read_text())
        (target / "design.json").write_text(json.dumps(design | {"extents": extents}))
    return target
