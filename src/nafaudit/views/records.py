"""One trajectory as it is shown: rounded for the page's viewer, or in full as JSON.

A record is named by its key, which is the same wherever the run was made; part and row, which
follow how its parts were cut, name it too.
"""

from __future__ import annotations

import codecs
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.errors import InputError
from nafaudit.core.ledger import allowances
from nafaudit.core.text import as_number, cut, name, plain, visible
from nafaudit.core.trajectory import LOGGED_FIELDS, Steps, Trajectory, budget_text
from nafaudit.measures.audit import AuditResult
from nafaudit.measures.common_text import Reference
from nafaudit.measures.measure import Measure
from nafaudit.measures.overlap import spans
from nafaudit.store.artifacts import read_texts
from nafaudit.store.run import RecordPlace, Run

# An id may hold anything, a budget and a number neither mark: the last marks are the form's own.
_NAME = re.compile(r"(.*)@([^@#]+)#([0-9]+)", re.DOTALL)
# What a shell leaves as it is; a mark # that does not begin a word begins no comment.
_WORD = re.compile(r"[\w.:,/%+=@-][\w.:,/%+=@#-]*", re.ASCII)
_FORM = "give PROMPT@K#TRAJECTORY as the report shows it, or PART:ROW"
# Names that a message lists.
_LISTED = 6
# Millionths of a nat: the running sum of 200 rounded charges is then right to 1e-4.
_CHARGE, _LOGARITHM, _THETA = 1e6, -1e3, 1e4
_LONGEST_PIECE = 60


def record_name(result: AuditResult, one: Measure) -> str:
    """Names a record: with the mechanism if the run has several."""
    return one.key.name(in_full=len({arm.mechanism for arm in result.arms}) > 1)


def typed_record(result: AuditResult, one: Measure) -> str:
    """Names a record as a shell takes it; by part and row if its name cannot be shown as it is."""
    given = record_name(result, one)
    if name(given) != given:
        return f"{one.place.part}:{one.place.row}"
    return given if _WORD.fullmatch(given) else shlex.quote(given)


def record_json(run: Run, where: str, *, redact: bool = False) -> dict[str, Any]:
    """Reads the record of this name, or at PART:ROW; every number as it is on disk.

    Args:
        run: The run.
        where: Its name, or its place.
        redact: Leave out the text that an imported log has of it.

    Raises:
        InputError: There is no such record, or there are several; the message says which.
    """
    match = _NAME.fullmatch(where)
    try:
        asked = match and (match[1], float(match[2]), int(match[3]))
    except ValueError:
        asked = None
    place = _place_at(run, where) if asked is None else _place_named(run, where, *asked)
    trajectory = next(t for found, t in run.located({place.part}) if found == place)

    def numbers(value: Any) -> Any:
        if hasattr(value, "tolist"):
            return [as_number(number) for number in value.tolist()]
        return as_number(float(value))

    data: dict[str, Any] = plain(trajectory.key) | {
        "debt": as_number(trajectory.debt),
        "stopped": trajectory.stopped,
        "spend": as_number(trajectory.spend),
        "steps": {name: numbers(getattr(trajectory.steps, name)) for name in Steps.columns},
    }
    if (logged := trajectory.logged) is not None:
        data["logged"] = {name: numbers(getattr(logged, name)) for name in LOGGED_FIELDS}
    text = None if redact else read_texts(run).texts.get(trajectory.key)
    if text is not None:
        data["text"] = text
    return data


def trajectory_named(
    run: Run, prompt: str, k: float, index: int, mechanism: str | None = None
) -> Trajectory:
    """Reads one trajectory.

    Args:
        run: Where it is recorded.
        prompt: Id of its prompt.
        k: Its budget.
        index: Its number.
        mechanism: Its mechanism, where a run has several.

    Raises:
        InputError: There is no such record, or there are several; the message says which.
    """
    given = str(prompt) if mechanism is None else f"{prompt}@{mechanism}"
    place = _place_named(run, f"{given}@{budget_text(k)}#{index}", given, k, index)
    return next(t for found, t in run.located({place.part}) if found == place)


def _place_named(run: Run, where: str, prompt: str, k: float, number: int) -> RecordPlace:
    every = list(run.places())
    near = [
        (place, key)
        for place, key in every
        if prompt in (key.prompt, f"{key.prompt}@{key.mechanism}")
    ]
    found = [(place, key) for place, key in near if (key.k, key.trajectory) == (k, number)]
    if len(found) == 1:
        return found[0][0]
    if found:
        several = "; ".join(f"{key.name(in_full=True)} ({p.part}:{p.row})" for p, key in found)
        raise InputError(
            f"{where!r} names {len(found)} records in {run.path}; give one of: {several}."
        )
    if near:
        budgets = ", ".join(map(budget_text, sorted({key.k for _, key in near})))
        last = max(key.trajectory for _, key in near)
        there = f"Of {prompt!r} there are K = {budgets} and trajectories up to {last}."
    else:
        ids = sorted({key.prompt for _, key in every})
        listed = ", ".join(map(repr, ids[:_LISTED])) or "(none: no records)"
        there = f"There is no prompt {prompt!r}; the first ids are {listed}."
    raise InputError(f"no record {where!r} in {run.path}; {_FORM}. {there}")


def _place_at(run: Run, where: str) -> RecordPlace:
    entries = {str(entry["part"]): int(entry["rows"]) for entry in run.journal()}
    part, _, row = where.rpartition(":")
    if part not in entries or not row.isdecimal() or int(row) >= entries[part]:
        known = f"rows 0 to {entries[part] - 1}" if part in entries else ", ".join(entries)
        raise InputError(
            f"no record {where!r} in {run.path}; {_FORM}. There are: {known or 'no parts'}."
        )
    return RecordPlace(part, int(row))


def read_chosen(
    result: AuditResult, chosen: Sequence[Measure]
) -> Iterator[tuple[Measure, Trajectory]]:
    """Reads the records of some rows, in the order of their keys; only their parts are read."""
    places: dict[str, list[int]] = {}
    for one in chosen:
        places.setdefault(one.place.part, []).append(one.place.row)
    found: dict[RecordPlace, Trajectory] = {}
    for part, batch in result.run.batches(places):
        # What is taken out holds no more of its part in memory.
        rows = sorted(places[part])
        some = batch.take(np.array(rows))
        found |= {RecordPlace(part, row): one for row, one in zip(rows, some, strict=True)}
    return ((one, found[one.place]) for one in chosen)


# Infinite and absurd numbers in a log are findings, not warnings.
@np.errstate(over="ignore", invalid="ignore")
def encode(
    result: AuditResult, one: Measure, trajectory: Trajectory, pieces: dict[str, int] | None
) -> dict[str, Any]:
    """Writes one record for the viewer: rounded numbers, shown text, nothing else.

    Args:
        result: What it belongs to.
        one: Its row.
        trajectory: The record itself.
        pieces: Texts of tokens with their numbers, new ones are added; None leaves text out.
    """
    steps, edge = trajectory.steps, result.context.theta_tolerance
    # Rounded such that exactly 0 and 1 keep their meaning and nothing else gets it.
    inner = np.clip(np.round(steps.theta.astype(np.float64) * _THETA), 1, _THETA - 1)
    weights = np.where(steps.theta <= edge, 0.0, np.where(steps.theta >= 1 - edge, _THETA, inner))
    record: dict[str, Any] = {
        "n": one.key.trajectory,
        "d": as_json(trajectory.debt),
        "s": int(trajectory.stopped),
        "rc": as_json(one.recall, 4),
        "c": _scaled(steps.charge, _CHARGE),
        "th": _scaled(np.where(np.isnan(steps.theta), np.nan, weights), 1.0),
        "sv": _scaled(steps.served, _LOGARITHM),
        "sf": _scaled(steps.safe, _LOGARITHM),
        "rk": _scaled(steps.risky, _LOGARITHM),
    } | _ledger(result, trajectory)
    if one.violated:
        record["ov"] = one.excess_step
    shown = list(token_texts(steps.token.tolist(), result.context.pieces))
    texts = ["" if special else text for text, special in shown]
    if copied := _copied_tokens(texts, result.context.prepared.get(one.key.prompt)):
        record["cp"] = copied
    if pieces is not None:
        # Half a character is a dot.
        written = [
            cut(visible(text).replace("\n", "\u23ce\n"), _LONGEST_PIECE) or "\u00b7"
            for text, _ in shown
        ]
        record["tok"] = [pieces.setdefault(text, len(pieces)) for text in written]
        special = [i for i, (_, is_special) in enumerate(shown) if is_special]
        record |= {"sp": special} if special else {}
    return record


def token_texts(
    tokens: Iterable[int], pieces: Sequence[bytes | None]
) -> Iterator[tuple[str, bool]]:
    """Yields the text that each token completes, and whether it is a token without text.

    Joined, the texts of ordinary tokens are what `detokenize` gives: a character that several
    tokens make up belongs to the last of them.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for token in tokens:
        piece = pieces[token] if 0 <= token < len(pieces) else None
        if piece is None:
            yield f"\u27e8{token}\u27e9" if token >= 0 else "\u27e8?\u27e9", True
        else:
            yield decoder.decode(piece), False


def _copied_tokens(texts: Sequence[str], reference: Reference | None) -> list[tuple[int, int]]:
    """Ranges of tokens that hold text which stands in the reference too; ends are exclusive."""
    if reference is None:
        return []
    ends = np.cumsum([len(text) for text in texts])
    found = []
    for start, end in spans("".join(texts), reference):
        # The first token that reaches beyond the start, and the first that reaches the end.
        first, last = np.searchsorted(ends, [start, end - 1], side="right").tolist()
        found.append((first, last + 1))
    return found


def _ledger(result: AuditResult, trajectory: Trajectory) -> dict[str, Any]:
    """Grants and allowances, left out where the page can compute them from k, debt and charge."""

    def close(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
        near = one.shape == other.shape and (one == other) | (np.abs(one - other) <= 1e-7)
        return bool(np.all(near))

    key, steps = trajectory.key, trajectory.steps
    facts = result.context.of_budget(key.k)
    if math.isinf(key.k):
        return {"al": "inf"}
    granted = facts.granted(trajectory)
    flat = np.asarray(np.arange(1, len(steps) + 1) * key.k - trajectory.debt, np.float64)
    linear = granted is not None and close(granted, flat)
    found: dict[str, Any] = {"lin": 1} if linear else {}
    if granted is not None and not linear:
        found["g"] = _scaled(granted, _CHARGE)
    ledger = facts.ledger
    predicted = None if ledger is None else allowances(ledger, key.k, trajectory.debt, steps)
    if not linear or predicted is None or not close(predicted, steps.allowance):
        found["al"] = _scaled(steps.allowance, _CHARGE)
    return found


def _scaled(values: NDArray[np.floating], scale: float) -> list[float | str | None]:
    scaled = np.rint(values.astype(np.float64) * scale)
    if np.isfinite(scaled).all() and (np.abs(scaled) < 2**53).all():
        whole: list[float | str | None] = scaled.astype(np.int64).tolist()
        return whole
    return [as_json(value) for value in scaled.tolist()]


def as_json(value: float, digits: int | None = None) -> float | str | None:
    """Writes a number for the page: unknown is null, infinite a string."""
    if math.isnan(value):
        return None
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    rounded = value if digits is None else round(value, digits)
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 1e15 else rounded
