"""Which trajectories a page shows in full when there is no room for all of them.

What findings point at comes first, then the worst of every arm, then a sample; a choice brings
the same prompt and number under every other budget along, since they share their draws. The
choice depends on the records alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, zip_longest

from nafaudit.report.data import Report
from nafaudit.report.outline import Outline, lot_of

_Unit = tuple[str, int]

# Bytes that a record takes in the page, for planning only; the page is measured after.
_STEP_BYTES = 27
_RECORD_BYTES = 160
_PROMPT_BYTES = 1400


def choose(report: Report, room: int) -> list[Outline]:
    """Trajectories to show, in the order of their keys, in about `room` bytes."""
    units: dict[_Unit, list[Outline]] = {}
    for one in report.outlines:
        if one.length:
            units.setdefault(_unit(one), []).append(one)
    chosen: dict[_Unit, list[Outline]] = {}
    for unit in chain(_pointed_at(report), _worst(report), _sample(units)):
        if unit in chosen or unit not in units:
            continue
        room -= _PROMPT_BYTES + sum(_RECORD_BYTES + _STEP_BYTES * o.length for o in units[unit])
        if room < 0 and chosen:
            break
        chosen[unit] = units[unit]
    return sorted((one for group in chosen.values() for one in group), key=lambda one: one.key)


def sample(outlines: Iterable[Outline], most: int) -> list[Outline]:
    """The worst quarter of `most` and a sample of the rest, in the order of their keys."""
    ordered = sorted(outlines, key=lambda one: (one.badness, one.lot), reverse=True)
    if len(ordered) <= most:
        return sorted(ordered, key=lambda one: one.key)
    worst, rest = ordered[: most // 4], ordered[most // 4 :]
    drawn = sorted(rest, key=lambda one: one.lot)[: most - len(worst)]
    return sorted([*worst, *drawn], key=lambda one: one.key)


def _unit(one: Outline) -> _Unit:
    return one.key.prompt, one.key.trajectory


def _pointed_at(report: Report) -> Iterator[_Unit]:
    for arm in report.arms:
        for finding in arm.findings:
            if finding.witness is not None:
                yield finding.witness.key.prompt, finding.witness.key.trajectory


def _worst(report: Report) -> Iterator[_Unit]:
    """The worst few of each arm, in turn."""
    ranked = [
        sorted(report.of(arm), key=lambda one: one.badness, reverse=True)[:20]
        for arm in report.arms
        if not arm.is_baseline
    ]
    for turn in zip_longest(*ranked):
        yield from (_unit(one) for one in turn if one is not None)


def _sample(units: Iterable[_Unit]) -> Iterator[_Unit]:
    return iter(sorted(units, key=lambda unit: lot_of(*unit)))
