"""How often the auditor cries wolf: sound decoders under the whole battery, and every bound.

The power of a check says nothing as long as nobody knows its false alarms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from nafaudit.mechanisms.reference import AnchoredDecoder
from nafaudit.selftest.power import LEVEL, Arena, Power, power
from nafaudit.stats import clopper_pearson
from nafaudit.stats.coverage import NULLS, Miss, Null, applies, miss_rate
from nafaudit.stats.registry import BOUNDS

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
