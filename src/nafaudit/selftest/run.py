"""`nafaudit selftest` as one function: every fault, sound decoders, every bound."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from typing import Any, ClassVar

from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.core.finding import CheckWord, Overall
from nafaudit.core.trajectory import Key
from nafaudit.protocols import Request
from nafaudit.selftest.battery import Asked, alarms, examine, findings, warnings
from nafaudit.selftest.catalogue import CATALOGUE, SAMPLER, Case
from nafaudit.selftest.power import (
    LEVEL,
    SIZES,
    SOUND,
    Alarms,
    Arena,
    Power,
    Sound,
    bound_misses,
    is_sound,
    outcomes,
    pooled,
    sound_audits,
    summary,
)
from nafaudit.selftest.worlds import Overspend, overspend
from nafaudit.stats.coverage import Miss

Note = Callable[[str], None]
# What a fault must reach at the largest size.
ENOUGH = 0.95


@dataclass(frozen=True)
class FaultRow:
    """What came out for one fault.

    Attributes:
        name: Of the fault.
        description: What it does.
        expected_check: Beginnings of the names of checks that should notice, the likeliest first.
        caught_by: Checks that fired, the most frequent first.
        power: Share of audits that caught it, by number of outputs.
        limits: Clopper-Pearson limits of the power.
        audits: How many were held.
        warned: Share of audits with an alarm or a warning.
        harmless: Why a warning is enough; empty if it must be caught.
        escapes: Why 60 outputs need not show it; empty if they must.
        overspend: What it truly costs.
        lab: Checks that fired on the lab pair; None if it was not tried there.
    """

    name: str
    description: str
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
    also: ClassVar = ("as_expected",)

    @classmethod
    def of(cls, case: Case, power: Power, overspend: Overspend) -> FaultRow:
        """Returns the row of a fault that was audited."""
        return cls(
            name=case.name,
            description=case.about,
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
        """True if the audit fails its self-test without it."""
        return not (self.harmless or self.escapes)

    @property
    def as_expected(self) -> bool:
        """True if it was caught, by a check that was expected to, or need not be.

        A warning counts where the fault is harmless.
        """
        if self.escapes:
            return True
        if (self.warned if self.harmless else self.power)[SIZES[-1]] < ENOUGH:
            return False
        fired = self.expected_check if self.harmless else self.caught_by
        return any(name.startswith(self.expected_check) for name in fired)


@dataclass(frozen=True)
class SoundKind:
    """Audits of one kind of sound decoder: false alarms by number of outputs, and what fired."""

    name: str
    audits: int
    alarms: Mapping[int, int]
    fired: Mapping[str, int]


@dataclass(frozen=True)
class SoundAudits:
    """Audits of sound decoders: all together, then each kind."""

    audits: int
    alarms: int
    upper_limit: float
    nominal: float
    kinds: tuple[SoundKind, ...]


@dataclass(frozen=True)
class BoundMisses:
    """Worst miss rate of one bound.

    Attributes:
        name: Of the bound.
        nominal: The miss rate that it allows itself.
        miss_rate: How often it missed a mean that is known.
        samples: Of how many.
        worst_law: On which law.
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
    """Everything that `nafaudit selftest` found out.

    Attributes:
        passed: True if every fault is caught that must be, and nothing sound is accused.
        level: Of the whole battery of checks.
        budget: k of the audits.
        faults: Every fault that was tried.
        sound: Audits of sound decoders.
        bounds: Worst miss rate of every bound.
        command: What makes this table.
        seed: Of everything random.
        arena: Where wrong samplers were audited.
        short: Where the other faults were.
    """

    passed: bool
    level: float
    budget: float
    faults: tuple[FaultRow, ...]
    sound: SoundAudits
    bounds: tuple[BoundMisses, ...]
    command: str = field(metadata={"json": None})
    seed: int = field(metadata={"json": None})
    arena: Arena = field(metadata={"json": None})
    short: Arena = field(metadata={"json": None})

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
        """PASSED or FAILED, and how many faults of those that must be caught are."""
        must = [row for row in self.faults if row.must_catch]
        caught = sum(row.as_expected for row in must)
        why = f"{caught} of {len(must)} faults that must be caught are, at n = {SIZES[-1]}"
        return Overall("PASSED", why, 0) if self.passed else Overall(CheckWord.FAILED, why, 1)


def selftest_result(
    rows: Sequence[FaultRow],
    sound: Sequence[Sound],
    misses: Sequence[Miss],
    effort: Effort,
    *,
    seed: int,
    full: bool,
) -> SelftestResult:
    """Judges what was found.

    Args:
        rows: Of every fault that was tried.
        sound: Audits of sound decoders.
        misses: Worst miss rate of every bound.
        effort: How much was tried.
        seed: Of everything random.
        full: True for the published form.
    """
    alarms: Alarms = pooled(list(sound))
    bounds = tuple(
        BoundMisses(m.bound, m.delta, m.rate, m.samples, m.null, m.n, m.sound, is_sound(m))
        for m in misses
    )
    caught = all(row.as_expected for row in rows)
    words = ["nafaudit", "selftest", *(["--full"] if full else [])]
    return SelftestResult(
        passed=caught and alarms.consistent and all(bound.allowed for bound in bounds),
        level=LEVEL,
        budget=effort.arena.k,
        faults=tuple(rows),
        sound=SoundAudits(
            alarms.audits,
            alarms.alarms,
            alarms.upper,
            alarms.nominal,
            tuple(
                SoundKind(kind.name, kind.power.audits, kind.power.caught, kind.power.by)
                for kind in sound
            ),
        ),
        bounds=bounds,
        command=shlex.join([*words, *(["--seed", str(seed)] if seed else [])]),
        seed=seed,
        arena=effort.arena,
        short=effort.short,
    )


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
# One audit on the lab pair; its budget acts here: neither model alone is served at most steps.
_LAB_PROMPTS, _LAB_EACH, _LAB_LENGTH, _LAB_K = 4, 2, 64, 0.2
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


def selftest(
    *, full: bool, seed: int = 0, jobs: int = 1, note: Note = lambda _: None
) -> SelftestResult:
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
    return selftest_result(rows, sound, misses, effort, seed=seed, full=full)


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


def _row(case: Case, effort: Effort, seed: int) -> FaultRow:
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
    return FaultRow.of(case, summary(found, arena.sizes), spent)


def _on_the_lab(cases: Sequence[Case], seed: int) -> list[tuple[str, ...]]:
    """Returns for each fault the checks that fired in one small audit on the lab pair.

    Real models, the checks of the small worlds; where a fault is harmless, warnings count.
    """
    from nafaudit.engine.world import PairWorld
    from nafaudit.lab.prompts import prompts as lab_prompts
    from nafaudit.models.pair import load_pair
    from nafaudit.runner.pairs import named_pair

    paths = named_pair("lab").locate()
    pair = load_pair(*paths)
    texts = [prompt.text for prompt in lab_prompts()]
    every = max(1, len(texts) // _LAB_PROMPTS)
    chosen = [tuple(pair.tokenizer(t)["input_ids"]) for t in texts[::every][:_LAB_PROMPTS]]
    world = PairWorld(
        pair,
        Decoding(max_new_tokens=_LAB_LENGTH),
        DebtRule(),
        width=max(map(len, chosen)) + _LAB_LENGTH,
        batch=_LAB_PROMPTS * _LAB_EACH,
        checkpoints=paths,
    )
    asked = [
        Asked(
            Key(str(number), "decoder", _LAB_K, index),
            Request(prompt, _LAB_K, (seed * 100 + number) * 16 + index, _LAB_LENGTH),
        )
        for number, prompt in enumerate(chosen)
        for index in range(_LAB_EACH)
    ]
    fired = []
    for case in cases:
        outputs = case.decoder(world).decode([one.request for one in asked])
        found = findings(world, examine(world, asked, outputs), _LAB_LENGTH, LEVEL)
        fired.append(alarms(found) or (warnings(found) if case.harmless else ()))
    return fired


def _refuted(fired: tuple[str, ...]) -> bool:
    return any(not name.startswith((SAMPLER, "martingale", "duplicates")) for name in fired)
