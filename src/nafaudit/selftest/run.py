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

from nafaudit.auditor.evidence import LEAST_ANSWERS
from nafaudit.core.finding import CheckWord, Outcome, Overall
from nafaudit.selftest.faults import CATALOGUE, Breaks, FaultCase
from nafaudit.selftest.power import (
    LAB,
    LEFT_OUT,
    LEVEL,
    TINY,
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
from nafaudit.selftest.worlds import Overspend, overspend, toy_prompts
from nafaudit.stats.coverage import Miss

# Power that a fault must reach at the largest size.
ENOUGH = 0.95
# A listed law may need this many times what the best test of all needs.
_TIMES = 3


@dataclass(frozen=True)
class FaultRow:
    """One fault, and how often it was caught.

    Attributes:
        name: Name of the fault.
        description: What it does.
        breaks: What is wrong with it: budget, sampling, bookkeeping, or its conformity alone.
        law: Name of its law in the auditor's family; empty if it is not listed.
        exceeds: True if it truly exceeds its budget.
        caught_by: What accuses the open decoder, the most frequent first.
        power: Share of audits of the open decoder that accuse it, by outputs of each budget.
        silent: The same of the silent decoder.
        unsettled: Share of audits of the silent decoder that are not WITHIN.
        limits: Clopper-Pearson limits of the open power.
        needed: Outputs of each budget that the best test of all needs for the silent decoder.
        noted: Share of audits of the open decoder with a remark, after all outputs.
        audits: Number of audits.
        harmless: Why a warning is enough; empty if it must be caught.
        escapes: Why it need not be caught; empty if it must.
        overspend: What it truly costs.
    """

    name: str
    description: str
    breaks: Breaks
    law: str
    exceeds: bool
    caught_by: tuple[str, ...]
    power: Mapping[int, float]
    silent: Mapping[int, float]
    unsettled: Mapping[int, float]
    limits: Mapping[int, tuple[float, float]]
    needed: float
    noted: float
    audits: int
    harmless: str
    escapes: str
    overspend: Overspend
    json_properties: ClassVar = ("as_expected",)

    @classmethod
    def of(cls, case: FaultCase, open_: Power, silent: Power, overspend: Overspend) -> FaultRow:
        """Returns the row of a fault that was audited."""
        sizes = sorted(open_.caught)
        remarks = ("bookkeeping: ", "decoder: ", "sampling: ")
        noted = max((n for name, n in open_.noted.items() if name.startswith(remarks)), default=0)
        return cls(
            name=case.name,
            description=case.about,
            breaks=case.breaks,
            law=case.law,
            exceeds=case.exceeds,
            caught_by=tuple(open_.by),
            power={size: open_.rate(size) for size in sizes},
            silent={size: silent.rate(size) for size in sizes},
            unsettled={size: silent.unsettled[size] / silent.audits for size in sizes},
            limits={size: open_.limits(size) for size in sizes},
            needed=silent.needed,
            noted=noted / open_.audits,
            audits=open_.audits,
            harmless=case.harmless,
            escapes=case.escapes,
            overspend=overspend,
        )

    @property
    def must_catch(self) -> bool:
        """True if the self-test fails without an accusation or, of bookkeeping, a remark."""
        return not (self.harmless or self.escapes or self.breaks == "conformity")

    @property
    def wrongly_accused(self) -> bool:
        """True if an audit accuses what keeps its budget: silent, or with claims that are true."""
        last = max(self.power)
        true = self.breaks == "conformity" and self.power[last] > 0
        return true or (not self.exceeds and self.silent[last] > 0 and self.breaks != "sampling")

    @property
    def as_expected(self) -> bool:
        """True if it was caught, or need not be, and nothing was accused that may not be."""
        last = max(self.power)
        if self.wrongly_accused:
            return False
        if not self.must_catch:
            return True
        # Fewer than so many outputs of a budget refute by no law.
        enough = max(_TIMES * self.needed, LEAST_ANSWERS)
        sizes = [size for size in sorted(self.power) if size >= enough]
        if self.law and self.exceeds and sizes:
            return min(self.power[sizes[0]], self.silent[sizes[0]]) >= ENOUGH
        # Claims that contradict each other are noted; by its tokens alone it may go unseen.
        return max(self.noted, self.power[last]) >= ENOUGH


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
        level: Level of an audit.
        budgets: k of the audits of faults, judged together.
        faults: Every fault that was tried.
        sound: Audits of sound decoders.
        bounds: Worst miss rate of every bound.
        command: The command that makes this table.
        seed: Seed of everything random.
        setup: World of the audits of faults.
    """

    passed: bool
    level: float
    budgets: tuple[float, ...]
    faults: tuple[FaultRow, ...]
    sound: SoundAudits
    bounds: tuple[BoundMisses, ...]
    command: str = field(metadata={"json": None})
    seed: int = field(metadata={"json": None})
    setup: AuditSetup = field(metadata={"json": None})

    @property
    def sizes(self) -> tuple[int, ...]:
        """Outputs of each budget after which an audit is judged."""
        return self.setup.sizes

    @property
    def missed(self) -> list[FaultRow]:
        """Faults that escaped and should not have, or are no faults and were accused."""
        return [row for row in self.faults if not row.as_expected]

    @property
    def overall(self) -> Overall:
        """Returns PASSED or FAILED, and the number of faults that were caught as they must be."""
        must = [row for row in self.faults if row.must_catch]
        caught = sum(row.as_expected for row in must)
        why = f"{caught} of {len(must)} faults that must be caught are, at n = {self.sizes[-1]}"
        if self.passed:
            return Overall(Outcome.PASSED, why, 0)
        if self.missed:
            why += f"; not as expected: {', '.join(row.name for row in self.missed)}"
        if not self.sound.consistent:
            why += f"; {self.sound.alarms} wrong accusations are more than their level explains"
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
        budgets=size.setup.budgets,
        faults=tuple(rows),
        sound=audits,
        bounds=bounds,
        command=shlex.join([*words, *(["--seed", str(seed)] if seed else [])]),
        seed=seed,
        setup=size.setup,
    )


@dataclass(frozen=True)
class SelftestSize:
    """Size of a self-test.

    Attributes:
        audits: Audits of every fault.
        sound: Audits of each sound decoder in each place, by the place's name.
        setup: World of the audits of faults.
    """

    audits: int
    sound: Mapping[str, int]
    setup: AuditSetup


FULL = SelftestSize(
    5,
    {
        "20 outputs of a budget": 170,
        "60 outputs of a budget": 60,
        "60 outputs of a budget, a family left out": 22,
        "lab, 60": 4,
        "lab, 20": 8,
    },
    AuditSetup(),
)
# Fewer outputs and faults: a minute, not a calibration.
QUICK = SelftestSize(1, {"20 outputs of a budget": 1}, replace(AuditSetup(), sizes=(20, 60)))
# Outputs whose true spend is metered.
_METERED = 24
_QUICK = frozenset(
    {
        "sample-risky", "tempered", "top-p", "greedy", "no-debt", "bank-reset", "one-step-ahead",
        "fifteen-percent-more", "neighbours-debt", "books-late", "debt-doubled", "total-halved",
        "runs-past-its-stop", "theta-plus-small", "claims-nothing", "noise-reused",
    }
)  # fmt: skip


def quick_cases() -> list[FaultCase]:
    """Returns faults that a minute is enough for."""
    return [case for case in CATALOGUE if case.name in _QUICK]


def selftest(
    *,
    full: bool,
    seed: int = 0,
    jobs: int = 1,
    on_progress: Callable[[str], None] = lambda text: None,
) -> SelftestResult:
    """Audits the auditor.

    Args:
        full: The published form; the better part of an hour on two cores, and the lab pair.
        seed: Seed of worlds, prompts and draws.
        jobs: Processes that share the work; the result does not depend on it.
        on_progress: Called with the part that begins, in words.
    """
    size = FULL if full else QUICK
    cases = list(CATALOGUE) if full else quick_cases()
    places = {**TINY, **LEFT_OUT, **LAB}
    kinds = [
        partial(
            sound_audits,
            name,
            places[name],
            audits,
            seed,
            lab=name in LAB,
            left_out=name in LEFT_OUT,
        )
        for name, audits in size.sound.items()
    ]
    audits = [partial(_row, case, size, seed) for case in cases]
    parts: list[Callable[[], Any]] = [*kinds, partial(bound_misses, seed=seed), *audits]
    done = _results(parts, jobs, on_progress)
    sound = [next(done) for _ in kinds]
    misses = next(done)
    return selftest_result(list(done), sound, misses, size, seed=seed, full=full)


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
    setup = size.setup
    found = list(outcomes(case.decoder, size.audits, seed, setup, case.law))
    shown = summary([one.open for one in found], setup.sizes)
    silent = summary([one.silent for one in found], setup.sizes)
    world = setup.world(1000 * seed)
    prompts = toy_prompts(world, 1000 * seed, setup.prompts)
    asked = [one.request for part in setup.stages(prompts, seed) for one in part]
    spent = overspend(case.decoder(world), asked[:: max(1, len(asked) // _METERED)][:_METERED])
    return FaultRow.of(case, shown, silent, spent)
