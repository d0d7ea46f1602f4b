"""Runs `nafaudit selftest`: every fault, sound decoders, every bound, and the result."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from typing import Any, ClassVar

from nafaudit.core.finding import CheckWord, Outcome, Overall
from nafaudit.selftest.battery import lab_audits
from nafaudit.selftest.faults import CATALOGUE, SAMPLER, Breaks, FaultCase
from nafaudit.selftest.power import (
    LEVEL,
    SIZES,
    SOUND,
    AuditSetup,
    Power,
    SoundAudits,
    SoundKind,
    bound_misses,
    is_sound,
    outcomes,
    sound_audits,
    summary,
)
from nafaudit.selftest.worlds import Overspend, overspend
from nafaudit.stats.coverage import Miss

# Power that a fault must reach at the largest size.
ENOUGH = 0.95


@dataclass(frozen=True)
class FaultRow:
    """One fault, and how often it was caught.

    Attributes:
        name: Name of the fault.
        description: What it does.
        breaks: What is wrong with it: budget, sampling, bookkeeping, or its conformity alone.
        expected_check: Beginnings of the names of checks that should notice, the likeliest first.
        caught_by: Checks that fired, the most frequent first.
        power: Share of audits that caught it, by number of outputs.
        limits: Clopper-Pearson limits of the power.
        audits: Number of audits.
        warned: Share of audits with an alarm or a warning.
        harmless: Why a warning is enough; empty if it must be caught.
        escapes: Why 60 outputs need not show it; empty if they must.
        overspend: What it truly costs.
        lab: Checks that fired on the lab pair; None if it was not tried there.
    """

    name: str
    description: str
    breaks: Breaks
    expected_check: tuple[str, ...]
    caught_by: tuple[str, ...]
    power: Mapping[int, float]
    limits: Mapping[int, tuple[float, float]]
    audits: int
    warned: Mapping[int, float]
    harmless: str
    escapes: str
    overspend: Overspend
    lab: tuple[str, ...] | None = None
    json_properties: ClassVar = ("as_expected",)

    @classmethod
    def of(cls, case: FaultCase, power: Power, overspend: Overspend) -> FaultRow:
        """Returns the row of a fault that was audited."""
        return cls(
            name=case.name,
            description=case.about,
            breaks=case.breaks,
            expected_check=case.expected,
            caught_by=tuple(power.by),
            power={size: power.rate(size) for size in SIZES},
            limits={size: power.limits(size) for size in SIZES},
            audits=power.audits,
            warned={size: power.warned[size] / power.audits for size in SIZES},
            harmless=case.harmless,
            escapes=case.escapes,
            overspend=overspend,
        )

    @property
    def must_catch(self) -> bool:
        """True if the self-test fails without an alarm."""
        return not (self.harmless or self.escapes or self.breaks == "conformity")

    @property
    def as_expected(self) -> bool:
        """True if an expected check caught it, or if it need not be caught.

        A warning counts where the fault is harmless.
        """
        if self.escapes or self.breaks == "conformity":
            return True
        if (self.warned if self.harmless else self.power)[SIZES[-1]] < ENOUGH:
            return False
        fired = self.expected_check if self.harmless else self.caught_by
        return any(name.startswith(self.expected_check) for name in fired)


@dataclass(frozen=True)
class BoundMisses:
    """Worst miss rate of one bound.

    Attributes:
        name: Name of the bound.
        nominal: The miss rate that it allows itself.
        miss_rate: How often it missed a mean that is known.
        samples: Number of samples.
        worst_law: The law on which that was.
        n: Values per sample.
        sound: True if it misses no more often than it may.
        allowed: True if it is sound, or never promised anything, as the paper's proxy.
    """

    name: str
    nominal: float
    miss_rate: float
    samples: int
    worst_law: str
    n: int
    sound: bool
    allowed: bool = field(metadata={"json": None})


@dataclass(frozen=True)
class SelftestResult:
    """Result of `nafaudit selftest`.

    Attributes:
        passed: True if every fault is caught that must be, and nothing sound is accused.
        level: Level of the whole battery of checks.
        budget: k of the audits.
        faults: Every fault that was tried.
        sound: Audits of sound decoders.
        bounds: Worst miss rate of every bound.
        command: The command that makes this table.
        seed: Seed of everything random.
        setup: World of the audits of wrong samplers.
        short: World of the audits of other faults.
    """

    passed: bool
    level: float
    budget: float
    faults: tuple[FaultRow, ...]
    sound: SoundAudits
    bounds: tuple[BoundMisses, ...]
    command: str = field(metadata={"json": None})
    seed: int = field(metadata={"json": None})
    setup: AuditSetup = field(metadata={"json": None})
    short: AuditSetup = field(metadata={"json": None})

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of outputs after which an audit is judged."""
        return SIZES

    @property
    def missed(self) -> list[FaultRow]:
        """Faults that escaped and should not have."""
        return [row for row in self.faults if not row.as_expected]

    @property
    def overall(self) -> Overall:
        """Returns PASSED or FAILED, and the number of faults that were caught as they must be."""
        must = [row for row in self.faults if row.must_catch]
        caught = sum(row.as_expected for row in must)
        why = f"{caught} of {len(must)} faults that must be caught are, at n = {SIZES[-1]}"
        if self.passed:
            return Overall(Outcome.PASSED, why, 0)
        if self.missed:
            why += f"; not caught: {', '.join(row.name for row in self.missed)}"
        if not self.sound.consistent:
            why += f"; {self.sound.alarms} false alarms are more than their level explains"
        if bounds := [one.name for one in self.bounds if not one.allowed]:
            why += f"; bounds that miss more than they may: {', '.join(bounds)}"
        return Overall(CheckWord.FAILED, why, 1)


def selftest_result(
    rows: Sequence[FaultRow],
    sound: Sequence[SoundKind],
    misses: Sequence[Miss],
    size: SelftestSize,
    *,
    seed: int,
    full: bool,
) -> SelftestResult:
    """Judges what was found.

    Args:
        rows: Rows of every fault that was tried.
        sound: Audits of sound decoders.
        misses: Worst miss rate of every bound.
        size: How much was tried.
        seed: Seed of everything random.
        full: True for the published form.
    """
    audits = SoundAudits.of(sound)
    bounds = tuple(
        BoundMisses(m.bound, m.delta, m.rate, m.samples, m.null, m.n, m.sound, is_sound(m))
        for m in misses
    )
    caught = all(row.as_expected for row in rows)
    words = ["nafaudit", "selftest", *(["--full"] if full else [])]
    return SelftestResult(
        passed=caught and audits.consistent and all(bound.allowed for bound in bounds),
        level=LEVEL,
        budget=size.setup.k,
        faults=tuple(rows),
        sound=audits,
        bounds=bounds,
        command=shlex.join([*words, *(["--seed", str(seed)] if seed else [])]),
        seed=seed,
        setup=size.setup,
        short=size.short,
    )


@dataclass(frozen=True)
class SelftestSize:
    """Size of a self-test.

    Attributes:
        first: Audits of every fault.
        more: Audits of a fault where not every one of the first refuted a claim.
        sound: Audits of each kind of sound decoder.
        setup: World of the audits of wrong samplers.
        short: World of the audits of faults that claims show, whatever the length.
        lab: True to try every fault on the lab pair too.
    """

    first: int
    more: int
    sound: int
    setup: AuditSetup
    short: AuditSetup
    lab: bool


_SHORT = replace(AuditSetup(), length=48)
FULL = SelftestSize(12, 24, 252, AuditSetup(), _SHORT, lab=True)
# Shorter outputs, and only faults that such an audit shows: a minute, not a calibration.
QUICK = SelftestSize(1, 1, 6, _SHORT, _SHORT, lab=False)
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


def quick_cases() -> list[FaultCase]:
    """Returns faults that a minute is enough for: refuted claims and plainly wrong samplers."""
    return [
        case
        for case in CATALOGUE
        if not case.expected[0].startswith(SAMPLER) or case.name in _QUICK_SAMPLERS
    ]


def selftest(
    *,
    full: bool,
    seed: int = 0,
    jobs: int = 1,
    on_progress: Callable[[str], None] = lambda text: None,
) -> SelftestResult:
    """Audits the auditor.

    Args:
        full: The published form; minutes, and the lab pair.
        seed: Seed of worlds, prompts and draws.
        jobs: Processes that share the work; the result does not depend on it.
        on_progress: Called with the part that begins, in words.
    """
    size = FULL if full else QUICK
    cases = list(CATALOGUE) if full else quick_cases()
    kinds = [partial(sound_audits, name, size.sound, seed) for name in SOUND]
    labs = [partial(lab_audits, cases, seed, LEVEL)] if size.lab else []
    audits = [partial(_row, case, size, seed) for case in cases]
    parts: list[Callable[[], Any]] = [*kinds, partial(bound_misses, seed=seed), *labs, *audits]
    done = _results(parts, jobs, on_progress)
    sound = [next(done) for _ in kinds]
    misses = next(done)
    lab = next(done) if labs else [None] * len(cases)
    rows = [replace(row, lab=fired) for row, fired in zip(done, lab, strict=True)]
    return selftest_result(rows, sound, misses, size, seed=seed, full=full)


def _results(
    parts: Sequence[Callable[[], Any]], jobs: int, on_progress: Callable[[str], None]
) -> Iterator[Any]:
    """Yields the results in order, from this process or from several."""
    with ExitStack() as stack:
        pending = parts
        if jobs > 1:
            context = get_context("spawn")
            pool = stack.enter_context(ProcessPoolExecutor(jobs, mp_context=context))
            pending = [pool.submit(_one_thread, part).result for part in parts]
        for number, result in enumerate(pending, 1):
            on_progress(f"part {number} of {len(parts)}")
            yield result()


def _one_thread(part: Callable[[], Any]) -> Any:
    import torch

    torch.set_num_threads(1)
    return part()


def _row(case: FaultCase, size: SelftestSize, seed: int) -> FaultRow:
    """Audits one fault, and meters what it truly spends."""
    setup = size.setup if case.expected[0].startswith(SAMPLER) else size.short
    found = list(outcomes(case.decoder, size.first, seed, setup, coupled=case.coupled))
    chance = (SAMPLER, "martingale", "duplicates")
    refuted = all(
        any(not name.startswith(chance) for name in one.fired[setup.sizes[0]]) for one in found
    )
    # What a refuted claim shows a dozen times it always shows; chance needs more audits.
    if not refuted and (more := size.more - size.first) > 0:
        found += outcomes(case.decoder, more, seed + 1, setup, coupled=case.coupled)
    world = setup.world(seed)
    asked = [one.request for one in setup.asked(world, seed, 0)]
    spent = overspend(case.decoder(world), asked[:: len(asked) // _METERED][:_METERED])
    return FaultRow.of(case, summary(found, setup.sizes), spent)
