"""One record as JSON: where a number on the page comes from in the end.

A record is named by its key, which is the same wherever the run was made; part and row, which
follow how its parts were cut, name it too.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from typing import Any

from nafaudit.core.errors import InputError
from nafaudit.core.text import name
from nafaudit.core.trajectory import LOGGED_FIELDS, Key, Steps, Trajectory, budget_text
from nafaudit.report.data import Report
from nafaudit.report.outline import Outline
from nafaudit.report.result import as_number, key_json
from nafaudit.store.run import Place, Run

# An id may hold anything, a budget and a number neither mark: the last marks are the form's own.
_NAME = re.compile(r"(.*)@([^@#]+)#([0-9]+)", re.DOTALL)
# What a shell leaves as it is; a mark # that does not begin a word begins no comment.
_WORD = re.compile(r"[\w.:,/%+=@-][\w.:,/%+=@#-]*", re.ASCII)
_FORM = "give PROMPT@K#TRAJECTORY as the report shows it, or PART:ROW"
# Names that a message lists.
_LISTED = 6


def record_name(report: Report, one: Outline) -> str:
    """The name of a record: with the mechanism if the run has several."""
    return one.key.name(in_full=len({arm.mechanism for arm in report.arms}) > 1)


def typed_record(report: Report, one: Outline) -> str:
    """The same as a shell takes it; part and row if the name cannot be shown as it is."""
    given = record_name(report, one)
    if name(given) != given:
        return f"{one.place.part}:{one.place.row}"
    return given if _WORD.fullmatch(given) else shlex.quote(given)


def record_json(run: Run, where: str) -> dict[str, Any]:
    """The record of this name, or at PART:ROW; every number as it is on disk.

    Raises:
        InputError: There is no such record, or there are several; the message says which.
    """
    asked = _read(where)
    place = _at(run, where) if asked is None else _named(run, where, *asked)
    return _as_json(next(t for found, t in run.located({place.part}) if found == place))


def _read(where: str) -> tuple[str, float, int] | None:
    """Whose, budget and number of a name; None if it is none."""
    match = _NAME.fullmatch(where)
    try:
        return match and (match[1], float(match[2]), int(match[3]))
    except ValueError:
        return None


def _named(run: Run, where: str, who: str, k: float, number: int) -> Place:
    every = list(run.places())
    near = [
        (place, key) for place, key in every if who in (key.prompt, f"{key.prompt}@{key.mechanism}")
    ]
    found = [(place, key) for place, key in near if (key.k, key.trajectory) == (k, number)]
    if len(found) == 1:
        return found[0][0]
    if found:
        several = "; ".join(f"{key.name(in_full=True)} ({p.part}:{p.row})" for p, key in found)
        raise InputError(
            f"{where!r} names {len(found)} records in {run.path}; give one of: {several}."
        )
    there = _there(who, [key for _, key in near], {key.prompt for _, key in every})
    raise InputError(f"no record {where!r} in {run.path}; {_FORM}. {there}")


def _there(who: str, near: Sequence[Key], prompts: Collection[str]) -> str:
    """What there is instead."""
    if near:
        budgets = ", ".join(map(budget_text, sorted({key.k for key in near})))
        last = max(key.trajectory for key in near)
        return f"Of {who!r} there are K = {budgets} and trajectories up to {last}."
    listed = ", ".join(map(repr, sorted(prompts)[:_LISTED]))
    return f"There is no prompt {who!r}; the first ids are {listed or '(none: no records)'}."


def _at(run: Run, where: str) -> Place:
    entries = {str(entry["part"]): int(entry["rows"]) for entry in run.journal()}
    part, _, row = where.rpartition(":")
    if part not in entries or not row.isdecimal() or int(row) >= entries[part]:
        known = f"rows 0 to {entries[part] - 1}" if part in entries else ", ".join(entries)
        raise InputError(
            f"no record {where!r} in {run.path}; {_FORM}. There are: {known or 'no parts'}."
        )
    return Place(part, int(row))


def _as_json(trajectory: Trajectory) -> dict[str, Any]:
    key, logged = trajectory.key, trajectory.logged
    data = key_json(key) | {
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
