"""`nafaudit selftest` as one function: every fault, sound decoders, every bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from typing import Any

from nafaudit.selftest.catalogue import CATALOGUE, SAMPLER, Case
from nafaudit.selftest.power import SOUND, Arena, bound_misses, outcomes, sound_audits, summary
from nafaudit.selftest.table import Row, Selftest
from nafaudit.selftest.worlds import overspend
from nafaudit.stats.coverage import Miss

Note = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """How much is tried.

    Attributes:
        first: Audits of every fault.
        more: Audits of faults that the first ones did not settle by a check that cannot err.
        sound: Audits of each kind of sound decoder.
        arena: Where wrong samplers are audited.
        short: Where faults are audited that claims give away, whatever the length.
        lab: True to try every fault on the lab pair too.
    """

    first: int
    more: int
    sound: int
    arena: Arena
    short: Arena
    lab: bool


_SHORT = replace(Arena(), length=48)
FULL = Effort(12, 24, 252, Arena(), _SHORT, lab=True)
# Shorter outputs, and only faults that such an audit shows: a minute, not a calibration.
QUICK = Effort(1, 1, 6, _SHORT, _SHORT, lab=False)
# Outputs whose true spend is metered.
_METERED = 24
_QUICK_SAMPLERS = frozenset(
    {
        "sample-risky",
        "sample-safe",
        "tempered",
        "top-p",
        "greedy",
        "penalty-after",
        "theta-plus-small",
        "claims-nothing",
        "noise-reused",
    }
)


def quick_cases() -> list[Case]:
    """Faults that a minute is enough for: refuted claims, and the plainest wrong samplers."""
    return [
        case
        for case in CATALOGUE
        if not case.expected[0].startswith(SAMPLER) or case.name in _QUICK_SAMPLERS
    ]


def selftest(*, full: bool, seed: int = 0, jobs: int = 1, note: Note = lambda _: None) -> Selftest:
    """Audits the auditor.

    Args:
        full: The published form; minutes, and the lab pair.
        seed: Of worlds, prompts and draws.
        jobs: Processes that share the work; the result does not depend on it.
        note: Told what is done.
    """
    effort = FULL if full else QUICK
    cases = list(CATALOGUE) if full else quick_cases()
    tasks = [partial(_row, case, effort, seed) for case in cases]
    kinds = [partial(sound_audits, name, effort.sound, seed) for name in SOUND]
    bounds = [partial(_bounds, seed)]
    labs = [partial(_on_the_lab, cases, seed)] if effort.lab else []
    done = iter(_all([*kinds, *bounds, *labs, *tasks], jobs, note))
    sound = [next(done) for _ in kinds]
    misses = next(done)
    lab = next(done) if labs else [None] * len(cases)
    rows = [replace(row, lab=fired) for row, fired in zip(done, lab, strict=True)]
    return Selftest(rows, sound, misses, seed, full, effort.arena, effort.short)


def _all(tasks: Sequence[Callable[[], Any]], jobs: int, note: Note) -> Iterator[Any]:
    """The results in order, from this process or from several."""
    if jobs == 1:
        for number, task in enumerate(tasks):
            note(f"part {number + 1} of {len(tasks)}")
            yield task()
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(_alone, task) for task in tasks]
        for number, future in enumerate(futures):
            note(f"part {number + 1} of {len(tasks)}")
            yield future.result()


def _alone(task: Callable[[], Any]) -> Any:
    import torch

    torch.set_num_threads(1)
    return task()


def _bounds(seed: int) -> list[Miss]:
    return list(bound_misses(seed=seed))


def _row(case: Case, effort: Effort, seed: int) -> Row:
    arena = effort.arena if case.expected[0].startswith(SAMPLER) else effort.short
    found = list(outcomes(case.decoder, effort.first, seed, arena, coupled=case.coupled))
    # What a refuted claim shows a dozen times it always shows; chance needs more audits.
    if not all(_refuted(one.fired[arena.sizes[0]]) for one in found) and effort.more > effort.first:
        found += outcomes(
            case.decoder, effort.more - effort.first, seed + 1, arena, coupled=case.coupled
        )
    world = arena.world(seed)
    asked = [one.request for one in arena.asked(world, seed, 0)]
    spent = overspend(case.decoder(world), asked[:: len(asked) // _METERED][:_METERED])
    return Row(case, summary(found, arena.sizes), spent)


def _on_the_lab(cases: Sequence[Case], seed: int) -> list[tuple[str, ...]]:
    from nafaudit.selftest.spot import LabSpot

    spot = LabSpot(seed)
    return [spot.fired(case) for case in cases]


def _refuted(fired: tuple[str, ...]) -> bool:
    return any(not name.startswith((SAMPLER, "martingale", "duplicates")) for name in fired)
