"""Measures how often the auditor catches a fault, and how often it accuses a sound decoder.

An audit judges 4, 20, 60, then 200 outputs of every budget of one decoder, as it is and with its
claims taken away. An accusation is final, so such an audit ends there. Audits of sound decoders, of
many families, give the rate of wrong accusations, without which the power of an audit says nothing;
every bound is held to its own level.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import ndtri

from nafaudit.auditor.evidence import LEVEL as LEVEL
from nafaudit.auditor.evidence import Evidence, out_at
from nafaudit.auditor.family import FAMILIES
from nafaudit.core.draws import request_place, request_seed, sound_stream
from nafaudit.core.trajectory import Key, budget_text
from nafaudit.mechanisms.reference import AnchoredDecoder
from nafaudit.protocols import BlackBox, Output, Request, World
from nafaudit.selftest.battery import (
    AuditAnswer,
    AuditedOutput,
    KeyedRequest,
    audit,
    examine,
    lab_world,
)
from nafaudit.selftest.careful import CAREFUL, CarefulCase
from nafaudit.selftest.worlds import ToyWorld, toy_prompts, toy_world
from nafaudit.stats import BOUNDS, clopper_pearson
from nafaudit.stats.coverage import NULLS, Miss, Null, applies, miss_rate

SIZES = (4, 20, 60, 200)
"""Outputs of each budget after which an audit is judged."""
BATCH = 32
"""Requests of one call, as in a run."""
# Share of audits of a fault that must accuse it, in `neyman_pearson`.
_POWER = 0.95
Build = Callable[[World], BlackBox]


@dataclass(frozen=True)
class AuditSetup:
    """The small world of an audit, and what is asked there.

    Attributes:
        budgets: Nats per token; one audit judges all of them together.
        length: Length limit T.
        prompts: Prompts of an audit; each is asked `sizes[-1] / prompts` times for each budget.
        size: Number of token ids.
        gap: How far the models are apart.
        stop: Probability of the stop token.
        sizes: After how many outputs of each budget an audit is judged.
    """

    budgets: tuple[float, ...] = (0.4, 1.0)
    length: int = 40
    prompts: int = 20
    size: int = 32
    gap: float = 1.6
    stop: float = 0.004
    sizes: tuple[int, ...] = SIZES

    def world(self, seed: int) -> ToyWorld:
        """Returns the world of a seed."""
        return toy_world(seed, size=self.size, gap=self.gap, stop=self.stop)

    def stages(self, prompts: Sequence[tuple[int, ...]], seed: int) -> list[list[KeyedRequest]]:
        """Returns the requests of an audit: of each size, those that the one before lacks."""
        found = []
        start = 0
        for stop in self.sizes:
            asked = []
            for number in range(start, stop):
                index, place = divmod(number, len(prompts))
                stream = sound_stream(seed, "selftest", f"p{place:02d}", index)
                for k in self.budgets:
                    key = Key(f"p{place:02d}", "decoder", k, index)
                    # As in a run: every request has a seed of its own, and a hash orders them.
                    draw = request_seed(stream, budget_text(k))
                    request = Request(prompts[place], k, draw, self.length)
                    order = request_place(stream, key.prompt, k, index)
                    asked.append((order, KeyedRequest(key, request)))
            found.append([one for _, one in sorted(asked, key=lambda pair: pair[0])])
            start = stop
        return found


@dataclass(frozen=True)
class Answers:
    """What audits of one program say after each size; one that accuses is not asked again.

    Attributes:
        accused: Sizes after which it ends with status 1.
        within: Sizes after which it ends with WITHIN.
        by: What accuses, at the first size at which anything does.
        noted: What is remarkable without an accusation, after all outputs.
        needed: By the laws alone, outputs of a budget that an accusation needs at least; NaN if
            it is not known.
    """

    accused: frozenset[int]
    within: frozenset[int]
    by: tuple[str, ...]
    noted: tuple[str, ...]
    needed: float = math.nan


@dataclass(frozen=True)
class Outcome:
    """One audit of a decoder, as it is and silenced."""

    open: Answers
    silent: Answers


@dataclass
class _Side:
    """An audit under way."""

    accused: set[int] = field(default_factory=set)
    within: set[int] = field(default_factory=set)
    by: tuple[str, ...] = ()
    noted: tuple[str, ...] = ()
    needed: float = math.nan

    def take(self, size: int, answer: AuditAnswer) -> None:
        self.noted = answer.noted
        if answer.accused:
            self.accused.add(size)
            self.by = self.by or answer.by
        if answer.overall.exit_status == 0:
            self.within.add(size)

    def answers(self, sizes: Sequence[int]) -> Answers:
        """Returns what is known; after an accusation everything accuses."""
        first = min(self.accused, default=math.inf)
        accused = frozenset(size for size in sizes if size >= first)
        return Answers(accused, frozenset(self.within), self.by, self.noted, self.needed)


def audited(
    build: Build,
    world: World,
    prompts: Sequence[tuple[int, ...]],
    setup: AuditSetup,
    seed: int,
    law: str = "",
    without: frozenset[str] = frozenset(),
) -> Outcome:
    """Audits a decoder, open and silent, size by size until both accuse or all is asked.

    Args:
        build: Makes the decoder from a world.
        world: Where it answers.
        prompts: What it is asked.
        setup: Budgets, sizes, and the length limit.
        seed: Seed of the requests.
        law: Name of the decoder's own law in the family, for `neyman_pearson`.
        without: Names of known laws that are left out.
    """
    decoder = build(world)
    outputs: list[AuditedOutput] = []
    order: dict[Key, int] = {}
    sides = {"open": _Side(), "silent": _Side()}
    for size, asked in zip(setup.sizes, setup.stages(prompts, seed), strict=True):
        written: list[Output] = []
        for start in range(0, len(asked), BATCH):
            part = asked[start : start + BATCH]
            written += decoder.decode([one.request for one in part])
        order |= {one.key: len(order) + at for at, one in enumerate(asked)}
        outputs += examine(world, asked, written)
        if not sides["open"].accused:
            answer = audit(world, outputs, setup.length, order=order, without=without)
            sides["open"].take(size, answer)
        if not sides["silent"].accused:
            silent = [one.silenced() for one in outputs]
            answer = audit(world, silent, setup.length, order=order, without=without)
            sides["silent"].take(size, answer)
            tokens = answer.judged.tokens if answer.judged is not None else None
            if law and tokens is not None and law in tokens.evidence.laws.names:
                sides["silent"].needed = neyman_pearson(tokens.evidence, law)
        if all(side.accused for side in sides.values()):
            break
    return Outcome(*(side.answers(setup.sizes) for side in sides.values()))


def neyman_pearson(evidence: Evidence, law: str) -> float:
    """Returns how many outputs of each budget the best test of all would need, at least.

    The test knows the decoder's law and the one law that keeps the budget and is hardest to tell
    from it, and accuses 95 % of audits at the level of the laws. Ratios of outputs are taken to be
    normal: means and variances are of the outputs at hand, and, under the other law, of the same
    outputs weighted by the ratio.
    """
    answers, laws = evidence.answers, evidence.laws
    totals = laws.logp.sum(axis=2)
    own = totals[laws.names.index(law)]
    budgets = np.unique(answers.k)
    most = 0.0
    for j in np.flatnonzero(~evidence.breaks):
        ratio = own - totals[j]
        mean = variance = other_mean = other_variance = 0.0
        for k in budgets:
            here = np.clip(ratio[answers.k == k], -50.0, 50.0)
            weight = np.exp(-(here - here.min()))
            weight /= weight.sum()
            base = float((weight * here).sum())
            mean, variance = mean + here.mean(), variance + here.var()
            other_mean = other_mean + base
            other_variance = other_variance + float((weight * (here - base) ** 2).sum())
        apart = mean - other_mean
        if apart <= 0:
            return math.inf
        level = math.exp(-out_at())
        spread = ndtri(_POWER) * math.sqrt(variance) - ndtri(level) * math.sqrt(other_variance)
        most = max(most, (spread / apart) ** 2)
    return max(1.0, most)


@dataclass(frozen=True)
class Power:
    """Shares of audits of one decoder that accuse it.

    Attributes:
        audits: Number of audits.
        caught: Audits that end with status 1, by number of outputs.
        unsettled: Audits that do not end with WITHIN.
        by: Number of audits in which each finding accuses.
        noted: Number of audits with each remark, after all outputs.
        needed: Median of what `neyman_pearson` says.
    """

    audits: int
    caught: Mapping[int, int]
    unsettled: Mapping[int, int]
    by: Mapping[str, int]
    noted: Mapping[str, int]
    needed: float = math.nan

    def rate(self, size: int) -> float:
        """Returns the share of audits that accuse."""
        return self.caught[size] / self.audits

    def limits(self, size: int, delta: float = 0.05) -> tuple[float, float]:
        """Returns the Clopper-Pearson limits of the power, each at level delta / 2."""
        return clopper_pearson(self.caught[size], self.audits, delta / 2)


def summary(found: Sequence[Answers], sizes: Sequence[int]) -> Power:
    """Counts the answers of some audits."""
    by, noted = Counter[str](), Counter[str]()
    for one in found:
        by.update(one.by)
        noted.update(one.noted)
    needed = [one.needed for one in found if not math.isnan(one.needed)]
    return Power(
        len(found),
        {size: sum(size in one.accused for one in found) for size in sizes},
        {size: sum(size not in one.within for one in found) for size in sizes},
        dict(by.most_common()),
        dict(noted.most_common()),
        float(np.median(needed)) if needed else math.nan,
    )


def outcomes(
    build: Build, audits: int, seed: int, setup: AuditSetup, law: str = ""
) -> Iterator[Outcome]:
    """Holds audits, each in a world of its own."""
    for number in range(audits):
        world = setup.world(1000 * seed + number)
        prompts = toy_prompts(world, 1000 * seed + number, setup.prompts)
        yield audited(build, world, prompts, setup, number, law)


# A sound battery is called unsound with at most this chance.
FALSE_ALARM = 1e-6
# Tiny worlds with many stops: where the tests' approximations are worst, and audits cost least.
_TINY = AuditSetup(length=12, size=16, stop=0.02)
TINY = {
    "20 outputs of a budget": replace(_TINY, sizes=(20,)),
    "60 outputs of a budget": replace(_TINY, sizes=(60,)),
}
# The lab pair: 30 prompts, shorter outputs than a run's.
_LAB = AuditSetup(budgets=(0.5, 1.0), length=32, prompts=30)
LEFT_OUT = {"60 outputs of a budget, a family left out": replace(_TINY, sizes=(60,))}
LAB = {"lab, 60": replace(_LAB, sizes=(60,)), "lab, 20": replace(_LAB, sizes=(20,))}


@dataclass(frozen=True)
class SoundKind:
    """Audits of sound decoders of all families in one place.

    Attributes:
        name: The place.
        audits: Their number, open and silent.
        accused: How many end with status 1.
        within: Of the anchored decoder alone, silent: how many end with WITHIN.
        honest: How many audits of it those are of.
        by: What accused, with the decoder's name.
        left_out: True if in each audit one family of laws was left out. No level is promised then.
    """

    name: str
    audits: int
    accused: int
    within: int
    honest: int
    by: Mapping[str, int]
    left_out: bool = False


def sound_audits(
    name: str,
    setup: AuditSetup,
    audits: int,
    seed: int = 0,
    *,
    lab: bool = False,
    left_out: bool = False,
) -> SoundKind:
    """Audits every sound decoder of the catalogue, as it is and silenced.

    Args:
        name: Name of the place.
        setup: What is asked there.
        audits: Audits of each decoder.
        seed: Seed of everything random.
        lab: True for the lab pair.
        left_out: True to leave out one family of known laws in each audit, one after the other.
    """
    families = list(FAMILIES.values())
    accused = within = honest = count = 0
    by: Counter[str] = Counter()
    place = lab_world(setup.prompts, setup.length, BATCH) if lab else None
    for case in CAREFUL:
        for number in range(audits):
            world: World
            if place is None:
                world = setup.world(1000 * seed + number)
                prompts = toy_prompts(world, 1000 * seed + number, setup.prompts)
            else:
                world, prompts = place
            without = families[number % len(families)] if left_out else frozenset[str]()
            draws = 1000 * seed + number
            found = audited(case.decoder, world, prompts, setup, draws, without=without)
            for said, one in (("open", found.open), ("silent", found.silent)):
                count += 1
                accused += bool(one.accused)
                by.update(f"{case.name}, {said}: {check}" for check in one.by)
            honest, within = _honest(case, found, honest, within)
    return SoundKind(name, count, accused, within, honest, dict(by), left_out)


def _honest(case: CarefulCase, found: Outcome, honest: int, within: int) -> tuple[int, int]:
    """Counts audits of the silent anchored decoder."""
    if case.decoder is not AnchoredDecoder:
        return honest, within
    return honest + 1, within + bool(found.silent.within)


@dataclass(frozen=True)
class SoundAudits:
    """Audits of sound decoders.

    Attributes:
        audits: Number of audits, everywhere but where laws are left out.
        alarms: Those that accuse.
        upper_limit: Clopper-Pearson upper limit of the rate of accusations at 95 %.
        nominal: Level of an audit.
        decoders: What each of the decoders does, by its name.
        kinds: Each place by itself.
    """

    audits: int
    alarms: int
    upper_limit: float
    nominal: float
    decoders: Mapping[str, str]
    kinds: tuple[SoundKind, ...]

    @classmethod
    def of(cls, kinds: Sequence[SoundKind]) -> SoundAudits:
        """Adds up the audits of several places."""
        judged = [kind for kind in kinds if not kind.left_out]
        audits = sum(kind.audits for kind in judged)
        alarms = sum(kind.accused for kind in judged)
        upper = clopper_pearson(alarms, audits, 0.05)[1]
        decoders = {case.name: case.about for case in CAREFUL}
        return cls(audits, alarms, upper, LEVEL, decoders, tuple(kinds))

    @property
    def consistent(self) -> bool:
        """False if this many alarms have a chance below `FALSE_ALARM` at the nominal level."""
        return clopper_pearson(self.alarms, self.audits, FALSE_ALARM)[0] <= self.nominal


_BOUND_SIZES = (4, 20)
_BOUND_DELTA = 0.05
# R_eff is never below 1 nat, so its misses show only where values are large.
_NATS = 1000.0


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
