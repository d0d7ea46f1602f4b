"""How often the auditor catches a fault, and how often it is wrong.

An audit looks at 4, 20, then 60 outputs of one decoder. What a check that never takes back an
alarm has refuted after 4 stays refuted, so such an audit ends there.

How often the auditor cries wolf: sound decoders under the whole battery, and every bound.

The power of a check says nothing as long as nobody knows its false alarms.
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
from nafaudit.selftest.battery import Asked, Exhibit, alarms, examine, findings, warnings
from nafaudit.selftest.worlds import ToyWorld, toy_prompts, toy_world
from nafaudit.stats import BOUNDS, clopper_pearson
from nafaudit.stats.coverage import NULLS, Miss, Null, applies, miss_rate

SIZES = (4, 20, 60)
# How often a whole audit may cry wolf. Two checks of the log rest on chance, `martingale` and
# `duplicates`; what they leave is the sampler tests'.
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
class Arena:
    """The small world in which audits are held, and what is asked there.

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
        """The world of a seed."""
        return toy_world(seed, size=self.size, gap=self.gap, stop=self.stop)

    def asked(self, world: ToyWorld, seed: int, audit: int) -> list[Asked]:
        """The requests of one audit, in the order in which they are made."""
        each = -(-self.sizes[-1] // self.prompts)
        found = []
        for number, prompt in enumerate(toy_prompts(world, seed, self.prompts)):
            for index in range(each):
                key = Key(f"{audit:04d}/{number:02d}", "decoder", self.k, index)
                # A hash, as in real runs: faults that look at a seed's bits find no pattern.
                draw = sound_stream(seed, "selftest", key.prompt, index).key % 2**63
                found.append(Asked(key, Request(prompt, self.k, draw, self.length)))
        return found[: self.sizes[-1]]


@dataclass
class _Audit:
    """One audit under way."""

    asked: list[Asked]
    decoder: BlackBox
    exhibits: list[Exhibit] = field(default_factory=list)
    fired: dict[int, tuple[str, ...]] = field(default_factory=dict)
    warned: dict[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def settled(self) -> bool:
        """True if nothing that is still to come can change the outcome."""
        return any(name.startswith(_FINAL) for fired in self.fired.values() for name in fired)


@dataclass(frozen=True)
class Outcome:
    """What came of one audit: which checks fired, and which only warned, by number of outputs."""

    fired: Mapping[int, tuple[str, ...]]
    warned: Mapping[int, tuple[str, ...]]


@dataclass(frozen=True)
class Power:
    """How often audits of one decoder ended in an alarm.

    Attributes:
        audits: How many were held.
        caught: Audits with an alarm, by number of outputs.
        warned: Audits with an alarm or a warning.
        by: How many audits each check fired in, at the first size at which any did.
    """

    audits: int
    caught: Mapping[int, int]
    warned: Mapping[int, int]
    by: Mapping[str, int]

    def rate(self, size: int) -> float:
        """Share of audits with an alarm."""
        return self.caught[size] / self.audits

    def limits(self, size: int, delta: float = 0.05) -> tuple[float, float]:
        """Clopper-Pearson limits of the power, each at level delta / 2."""
        low, _ = clopper_pearson(self.caught[size], self.audits, delta / 2)
        return low, clopper_pearson(self.caught[size], self.audits, delta / 2)[1]


def power(
    build: Build, audits: int, seed: int = 0, arena: Arena | None = None, *, coupled: bool = False
) -> Power:
    """Audits a decoder many times.

    Args:
        build: Makes the decoder from a world.
        audits: How many times.
        seed: Of worlds, prompts and draws.
        arena: Where.
        coupled: True if rows of one call may depend on each other; then an audit's outputs are
            asked for apart from other audits'.
    """
    arena = Arena() if arena is None else arena
    return summary(list(outcomes(build, audits, seed, arena, coupled=coupled)), arena.sizes)


def outcomes(
    build: Build, audits: int, seed: int, arena: Arena, *, coupled: bool = False
) -> Iterator[Outcome]:
    """Holds audits, some at a time."""
    for first in range(0, audits, arena.together):
        number = seed * 1000 + first // arena.together
        world = arena.world(number)
        shared = build(world)
        group = [
            _Audit(arena.asked(world, number, i), build(world) if coupled else shared)
            for i in range(min(arena.together, audits - first))
        ]
        start = 0
        for stop in arena.sizes:
            _look(world, [a for a in group if not a.settled], (start, stop), arena, coupled)
            start = stop
        for audit in group:
            yield Outcome(_carried(audit.fired, arena.sizes), _carried(audit.warned, arena.sizes))


def _carried(
    seen: Mapping[int, tuple[str, ...]], sizes: Sequence[int]
) -> dict[int, tuple[str, ...]]:
    """A settled audit ends as it was."""
    last: tuple[str, ...] = ()
    found = {}
    for size in sizes:
        last = seen.get(size, last)
        found[size] = last
    return found


def _look(
    world: ToyWorld, group: Sequence[_Audit], part: tuple[int, int], arena: Arena, coupled: bool
) -> None:
    """Asks every open audit's decoder for its next outputs, and judges all that it has."""
    if not group:
        return
    batches = [audit.asked[slice(*part)] for audit in group]
    asked = [one for batch in batches for one in batch]
    if coupled:
        outputs: list[Output] = []
        for audit, batch in zip(group, batches, strict=True):
            outputs += audit.decoder.decode([one.request for one in batch])
    else:
        outputs = list(group[0].decoder.decode([one.request for one in asked]))
    exhibits = iter(examine(world, asked, outputs))
    for audit, batch in zip(group, batches, strict=True):
        audit.exhibits += [next(exhibits) for _ in batch]
        found = findings(world, audit.exhibits, arena.length, arena.alpha)
        audit.fired[part[1]], audit.warned[part[1]] = alarms(found), warnings(found)


def summary(found: Sequence[Outcome], sizes: Sequence[int]) -> Power:
    """Counts what came of some audits."""
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
_SOUND = Arena(length=25, stop=0.02)
SOUND: dict[str, Arena] = {
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
class Sound:
    """Audits of one kind of sound decoder."""

    name: str
    power: Power


def sound_audits(name: str, audits: int, seed: int = 0) -> Sound:
    """Holds so many audits of one kind of sound decoder."""
    return Sound(name, power(AnchoredDecoder, audits, seed, SOUND[name]))


@dataclass(frozen=True)
class Alarms:
    """False alarms of all sound audits together.

    Attributes:
        audits: How many were held.
        alarms: How many ended in an alarm after all outputs.
        nominal: Level of the whole battery.
    """

    audits: int
    alarms: int
    nominal: float = LEVEL

    @property
    def upper(self) -> float:
        """Clopper-Pearson upper limit of the rate at 95 %."""
        return clopper_pearson(self.alarms, self.audits, 0.05)[1]

    @property
    def consistent(self) -> bool:
        """False if so many alarms have a chance below `FALSE_ALARM` at the nominal level."""
        return clopper_pearson(self.alarms, self.audits, FALSE_ALARM)[0] <= self.nominal


def pooled(kinds: list[Sound]) -> Alarms:
    """All sound audits together."""
    size = _SOUND.sizes[-1]
    return Alarms(
        sum(kind.power.audits for kind in kinds), sum(kind.power.caught[size] for kind in kinds)
    )


def bound_misses(samples: int = 10_000, seed: int = 0) -> Iterator[Miss]:
    """The worst miss rate of every public bound, over sample sizes and laws that suit it."""
    for spec in BOUNDS.values():
        yield max(
            (
                miss_rate(spec, null, n, _BOUND_DELTA, samples=samples, seed=seed)
                for n in _BOUND_SIZES
                for null in (NULLS if spec.proven else map(_in_nats, NULLS))
                if n >= spec.least and applies(spec, null)
            ),
            key=lambda miss: miss.rate,
        )


def _in_nats(null: Null) -> Null:
    """The same law, larger."""
    return replace(
        null,
        mean=null.mean * _NATS,
        high=null.high * _NATS,
        draw=lambda rng, shape: null.draw(rng, shape) * _NATS,
    )


def is_sound(miss: Miss) -> bool:
    """True if a bound misses as it may; a proxy, as the paper's R_eff, never promised anything."""
    return miss.sound or not BOUNDS[miss.bound].proven
