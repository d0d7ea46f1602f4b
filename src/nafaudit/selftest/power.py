"""Measures how often the auditor catches a fault, and how often it raises a false alarm.

An audit judges 4, 20, then 60 outputs of one decoder. An alarm of a check that more outputs cannot
refute is final, so such an audit ends there. Audits of sound decoders give the rate of false
alarms, without which the power of a check says nothing; every bound is held to its own level.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nafaudit.core.draws import sound_stream
from nafaudit.core.finding import ALARM_LEVEL
from nafaudit.core.trajectory import Key
from nafaudit.mechanisms.reference import AnchoredDecoder
from nafaudit.protocols import BlackBox, Output, Request, World
from nafaudit.selftest.battery import (
    AuditedOutput,
    KeyedRequest,
    alarms,
    examine,
    findings,
    warnings,
)
from nafaudit.selftest.worlds import ToyWorld, toy_prompts, toy_world
from nafaudit.stats import BOUNDS, clopper_pearson
from nafaudit.stats.coverage import NULLS, Miss, Null, applies, miss_rate

SIZES = (4, 20, 60)
# How often a whole audit may raise a false alarm. Two checks of the log rest on chance,
# `martingale` and `duplicates`; what they leave is the sampler tests'.
LEVEL = 1e-3
_SAMPLER_LEVEL = LEVEL - 2 * ALARM_LEVEL
# Alarms that more outputs cannot take back: claims that are refuted, and running maxima.
_FINAL = (
    "invariant",
    "accounting",
    "opening",
    "hygiene",
    "decoder: ",
    "replay: ",
    "sampler: likelihood",
    "sampler: gain-cgf",
    "sampler: shared-noise",
)
Build = Callable[[World], BlackBox]


@dataclass(frozen=True)
class AuditSetup:
    """The small world of an audit, and what is asked there.

    Attributes:
        k: Budget in nats per token.
        length: Length limit T.
        prompts: Prompts of an audit; each is asked for `SIZES[-1] / prompts` outputs.
        size: Number of token ids.
        gap: How far the models are apart.
        stop: Probability of the stop token.
        together: Audits that share a world and are worked on together.
        sizes: After how many outputs an audit is judged.
        alpha: Level of the sampler tests.
    """

    k: float = 0.4
    length: int = 200
    prompts: int = 20
    size: int = 50
    gap: float = 1.6
    stop: float = 0.004
    together: int = 24
    sizes: tuple[int, ...] = SIZES
    alpha: float = _SAMPLER_LEVEL

    def world(self, seed: int) -> ToyWorld:
        """Returns the world of a seed."""
        return toy_world(seed, size=self.size, gap=self.gap, stop=self.stop)

    def asked(self, world: ToyWorld, seed: int, audit: int) -> list[KeyedRequest]:
        """Returns the requests of one audit, in the order in which they are made."""
        each = -(-self.sizes[-1] // self.prompts)
        found = []
        for number, prompt in enumerate(toy_prompts(world, seed, self.prompts)):
            for index in range(each):
                key = Key(f"{audit:04d}/{number:02d}", "decoder", self.k, index)
                # A hash, as in real runs: faults that look at a seed's bits find no pattern.
                draw = sound_stream(seed, "selftest", key.prompt, index).key % 2**63
                found.append(KeyedRequest(key, Request(prompt, self.k, draw, self.length)))
        return found[: self.sizes[-1]]


@dataclass
class _Audit:
    """One audit under way: its requests, its decoder, and what was found so far."""

    asked: list[KeyedRequest]
    decoder: BlackBox
    outputs: list[AuditedOutput] = field(default_factory=list)
    fired: dict[int, tuple[str, ...]] = field(default_factory=dict)
    warned: dict[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def settled(self) -> bool:
        """True if an alarm is final: more outputs cannot change the outcome."""
        return any(name.startswith(_FINAL) for fired in self.fired.values() for name in fired)


@dataclass(frozen=True)
class Outcome:
    """The outcome of an audit: which checks fired, and which only warned, by number of outputs."""

    fired: Mapping[int, tuple[str, ...]]
    warned: Mapping[int, tuple[str, ...]]


@dataclass(frozen=True)
class Power:
    """Shares of audits of one decoder that ended in an alarm.

    Attributes:
        audits: Number of audits.
        caught: Audits with an alarm, by number of outputs.
        warned: Audits with an alarm or a warning.
        by: Number of audits in which each check fired, at the first size at which any did.
    """

    audits: int
    caught: Mapping[int, int]
    warned: Mapping[int, int]
    by: Mapping[str, int]

    def rate(self, size: int) -> float:
        """Returns the share of audits with an alarm."""
        return self.caught[size] / self.audits

    def limits(self, size: int, delta: float = 0.05) -> tuple[float, float]:
        """Returns the Clopper-Pearson limits of the power, each at level delta / 2."""
        return clopper_pearson(self.caught[size], self.audits, delta / 2)


def power(
    build: Build,
    audits: int,
    seed: int = 0,
    setup: AuditSetup | None = None,
    *,
    coupled: bool = False,
) -> Power:
    """Audits a decoder many times.

    Args:
        build: Makes the decoder from a world.
        audits: Number of audits.
        seed: Seed of worlds, prompts and draws.
        setup: The world and what is asked there.
        coupled: True if rows of one call may depend on each other; then an audit's outputs are
            asked for apart from other audits'.
    """
    setup = AuditSetup() if setup is None else setup
    return summary(list(outcomes(build, audits, seed, setup, coupled=coupled)), setup.sizes)


def outcomes(
    build: Build, audits: int, seed: int, setup: AuditSetup, *, coupled: bool = False
) -> Iterator[Outcome]:
    """Holds audits, `together` at a time, and yields their outcomes."""
    for first in range(0, audits, setup.together):
        number = seed * 1000 + first // setup.together
        world = setup.world(number)
        shared = build(world)
        group = [
            _Audit(setup.asked(world, number, i), build(world) if coupled else shared)
            for i in range(min(setup.together, audits - first))
        ]
        start = 0
        for stop in setup.sizes:
            open_ = [audit for audit in group if not audit.settled]
            for audit in group:
                if audit.settled:  # it ends as it was
                    audit.fired[stop], audit.warned[stop] = audit.fired[start], audit.warned[start]
            batches = [audit.asked[start:stop] for audit in open_]
            asked = [one for batch in batches for one in batch]
            outputs: list[Output] = []
            if coupled:
                for audit, batch in zip(open_, batches, strict=True):
                    outputs += audit.decoder.decode([one.request for one in batch])
            elif asked:
                outputs += shared.decode([one.request for one in asked])
            examined = iter(examine(world, asked, outputs))
            for audit, batch in zip(open_, batches, strict=True):
                audit.outputs += [next(examined) for _ in batch]
                found = findings(world, audit.outputs, setup.length, setup.alpha)
                audit.fired[stop], audit.warned[stop] = alarms(found), warnings(found)
            start = stop
        for audit in group:
            yield Outcome(audit.fired, audit.warned)


def summary(found: Sequence[Outcome], sizes: Sequence[int]) -> Power:
    """Counts the outcomes of some audits."""
    by: Counter[str] = Counter()
    for one in found:
        by.update(next((one.fired[size] for size in sizes if one.fired[size]), ()))
    return Power(
        len(found),
        {size: sum(bool(one.fired[size]) for one in found) for size in sizes},
        {size: sum(bool(one.fired[size] or one.warned[size]) for one in found) for size in sizes},
        dict(by.most_common()),
    )


# A sound battery is called unsound with at most this chance.
FALSE_ALARM = 1e-6
# Short outputs with many stops: where the tests' approximations are worst.
_SOUND = AuditSetup(length=25, stop=0.02)
SOUND: dict[str, AuditSetup] = {
    "KL anchored, active budget": _SOUND,
    "KL anchored, idle budget": replace(_SOUND, k=4.0),
    "safe model alone": replace(_SOUND, k=0.0),
    "risky model alone": replace(_SOUND, k=float("inf")),
}
_BOUND_SIZES = (4, 20)
_BOUND_DELTA = 0.05
# R_eff is never below 1 nat, so its misses show only where values are large.
_NATS = 1000.0


@dataclass(frozen=True)
class SoundKind:
    """Audits of one kind of sound decoder: false alarms by number of outputs, and what fired."""

    name: str
    audits: int
    alarms: Mapping[int, int]
    fired: Mapping[str, int]


def sound_audits(name: str, audits: int, seed: int = 0) -> SoundKind:
    """Audits one kind of sound decoder, a name of `SOUND`, as often as given."""
    found = power(AnchoredDecoder, audits, seed, SOUND[name])
    return SoundKind(name, found.audits, found.caught, found.by)


@dataclass(frozen=True)
class SoundAudits:
    """Audits of sound decoders.

    Attributes:
        audits: Number of audits, of all kinds.
        alarms: Audits that ended in an alarm after all outputs.
        upper_limit: Clopper-Pearson upper limit of the rate of false alarms at 95 %.
        nominal: Level of the whole battery.
        kinds: Each kind by itself.
    """

    audits: int
    alarms: int
    upper_limit: float
    nominal: float
    kinds: tuple[SoundKind, ...]

    @classmethod
    def of(cls, kinds: Sequence[SoundKind]) -> SoundAudits:
        """Adds up the audits of several kinds."""
        audits = sum(kind.audits for kind in kinds)
        alarms = sum(kind.alarms[_SOUND.sizes[-1]] for kind in kinds)
        upper = clopper_pearson(alarms, audits, 0.05)[1]
        return cls(audits, alarms, upper, LEVEL, tuple(kinds))

    @property
    def consistent(self) -> bool:
        """False if this many alarms have a chance below `FALSE_ALARM` at the nominal level."""
        return clopper_pearson(self.alarms, self.audits, FALSE_ALARM)[0] <= self.nominal


def bound_misses(samples: int = 10_000, seed: int = 0) -> list[Miss]:
    """Returns the worst miss rate of every public bound, over sizes and laws that suit it."""
    return [
        max(
            (
                miss_rate(spec, null, n, _BOUND_DELTA, samples=samples, seed=seed)
                for n in _BOUND_SIZES
                for null in (NULLS if spec.proven else map(_in_nats, NULLS))
                if n >= spec.least and applies(spec, null)
            ),
            key=lambda miss: miss.rate,
        )
        for spec in BOUNDS.values()
    ]


def _in_nats(null: Null) -> Null:
    """Returns a law whose values are `_NATS` times as large."""
    return replace(
        null,
        mean=null.mean * _NATS,
        high=null.high * _NATS,
        draw=lambda rng, shape: null.draw(rng, shape) * _NATS,
    )


def is_sound(miss: Miss) -> bool:
    """True if a bound misses no more often than promised; a proxy like R_eff promises nothing."""
    return miss.sound or not BOUNDS[miss.bound].proven
