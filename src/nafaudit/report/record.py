"""One record as JSON: where a number on the page comes from in the end."""

from __future__ import annotations

from typing import Any

from nafaudit.core.errors import InputError
from nafaudit.core.trajectory import LOGGED_FIELDS, Steps, Trajectory
from nafaudit.report.result import as_number
from nafaudit.store.run import Place, Run


def record_json(run: Run, where: str) -> dict[str, Any]:
    """The record at PART:ROW, every number as it is on disk.

    Raises:
        InputError: There is no such record; the message says which there are.
    """
    entries = {str(entry["part"]): int(entry["rows"]) for entry in run.journal()}
    part, _, row = where.rpartition(":")
    if part not in entries or not row.isdecimal() or int(row) >= entries[part]:
        known = f"rows 0 to {entries[part] - 1}" if part in entries else ", ".join(entries)
        raise InputError(
            f"no record {where!r} in {run.path}; give PART:ROW as the report shows it. "
            f"There are: {known or 'no parts'}."
        )
    place = Place(part, int(row))
    return _as_json(next(t for found, t in run.located({part}) if found == place))


def _as_json(trajectory: Trajectory) -> dict[str, Any]:
    key, logged = trajectory.key, trajectory.logged
    data = {
        "prompt": key.prompt,
        "mechanism": key.mechanism,
        "k": as_number(key.k),
        "trajectory": key.trajectory,
        "debt": as_number(trajectory.debt),
        "stopped": trajectory.stopped,
        "spend": as_number(trajectory.spend),
        "steps": {name: _numbers(getattr(trajectory.steps, name)) for name in Steps.columns},
    }
    if logged is not None:
        data["logged"] = {name: _numbers(getattr(logged, name)) for name in LOGGED_FIELDS}
    return data


def _numbers(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return [as_number(number) for number in value.tolist()]
    return as_number(float(value))
