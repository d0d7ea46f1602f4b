"""Which arms and trajectories of two runs belong together, and where trajectories part."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.trajectory import Arm, Steps, Trajectory
from nafaudit.measures.audit import AuditResult
from nafaudit.measures.verdicts import ArmVerdict
from nafaudit.stats import quantile
from nafaudit.store.run import Run

# What the same law costs on another machine may differ by this much (sharp-edges.md).
MACHINE_SLACK = 1e-5

_Unit = tuple[str, int]
"""A trajectory of an arm: its prompt and number."""


class SharedDraws(StrEnum):
    """What the same prompt and number in both runs have in common."""

    SHARED = "shared draws"
    SEEDS = "same seeds, own samplers"
    OTHER = "other draws"
    UNKNOWN = "draws not known"


@dataclass(frozen=True)
class ArmPair:
    """An arm of each run; both of one budget.

    Attributes:
        a: Arm of the first run.
        b: Arm of the second run.
    """

    a: ArmVerdict = field(metadata={"json": None})
    b: ArmVerdict = field(metadata={"json": None})
    json_properties: ClassVar = ("k", "mechanisms")

    @property
    def k(self) -> float:
        """The budget of both."""
        return self.a.k

    @property
    def mechanisms(self) -> tuple[str, str]:
        """Mechanism of the first run and of the second."""
        return self.a.mechanism, self.b.mechanism

    @property
    def arms(self) -> tuple[Arm, Arm]:
        """Their keys."""
        return self.a.arm, self.b.arm


@dataclass(frozen=True)
class Pairing:
    """How two runs are laid side by side.

    Attributes:
        draws: What the same prompt and number have in common.
        why: The reason, in words.
        pairs: Arms that both runs have.
        only_a: Arms without a counterpart.
        only_b: Arms without a counterpart.
        prompts: Prompts that both runs have, with the same text.
        changed: Ids that both runs have, but with another text; these are left out.
    """

    draws: SharedDraws
    why: str
    pairs: tuple[ArmPair, ...]
    only_a: tuple[ArmVerdict, ...]
    only_b: tuple[ArmVerdict, ...]
    prompts: frozenset[str]
    changed: tuple[str, ...]

    @property
    def paired(self) -> bool:
        """False if the runs share no prompt, so that nothing can be paired."""
        return bool(self.prompts)

    @property
    def by_number(self) -> bool:
        """True if trajectories are paired by their number, and not only by prompt."""
        return self.draws in (SharedDraws.SHARED, SharedDraws.SEEDS)


def pairing(a: AuditResult, b: AuditResult) -> Pairing:
    """Lays two runs side by side."""
    draws, why = shared_draws(a.run.design["identity"], b.run.design["identity"])
    pairs, only_a, only_b = match_arms(a.arms, b.arms)
    seen_a, seen_b = ({row.key.prompt for row in side.rows} for side in (a, b))
    both = seen_a & seen_b

    def text(side: AuditResult, prompt: str) -> str:
        known = side.prompts.get(prompt)
        return known.text if known else ""

    same = {prompt for prompt in both if text(a, prompt) == text(b, prompt)}
    return Pairing(draws, why, pairs, only_a, only_b, frozenset(same), tuple(sorted(both - same)))


def match_arms(
    arms_a: tuple[ArmVerdict, ...], arms_b: tuple[ArmVerdict, ...]
) -> tuple[tuple[ArmPair, ...], tuple[ArmVerdict, ...], tuple[ArmVerdict, ...]]:
    """Pairs arms by mechanism and budget, else by budget where each run has one arm left."""
    left_b = {one.arm: one for one in arms_b}
    found = [ArmPair(one, left_b.pop(one.arm)) for one in arms_a if one.arm in left_b]
    matched = {pair.a.arm for pair in found}
    left_a = [one for one in arms_a if one.arm not in matched]
    for one in left_a:
        same_a = [arm for arm in left_a if arm.k == one.k]
        same_b = [arm for arm in left_b.values() if arm.k == one.k]
        if len(same_a) == len(same_b) == 1:
            found.append(ArmPair(one, left_b.pop(same_b[0].arm)))
    taken = {pair.a.arm for pair in found}
    return (
        tuple(sorted(found, key=lambda pair: (pair.a.k, pair.a.mechanism))),
        tuple(one for one in arms_a if one.arm not in taken),
        tuple(left_b.values()),
    )


def shared_draws(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[SharedDraws, str]:
    """Returns, from two identities, whether the same prompt and number drew with the same noise."""
    if "imported" in (a["protocol"], b["protocol"]):
        return SharedDraws.UNKNOWN, "a log does not say what its trajectories drew with"
    # The paper's seeds follow from prompt and number; its protocol has no seed and no purpose.
    keys = ["protocol"] if a["protocol"] == "paper" else ["protocol", "seed", "purpose"]
    differing = [f"{key} {a[key]} and {b[key]}" for key in keys if a[key] != b[key]]
    if differing:
        return SharedDraws.OTHER, f"the runs differ in {', '.join(differing)}"
    black_boxes = ["promise" in identity for identity in (a, b)]
    if all(black_boxes):
        if a["layout"].get("requests") != b["layout"].get("requests"):
            return SharedDraws.OTHER, "one of them was asked with seeds of another version"
        return (
            SharedDraws.SEEDS,
            "both decoders got the same seeds; how each draws from its seed is not known",
        )
    if any(black_boxes):
        return SharedDraws.OTHER, "one of them is a black box with a sampler of its own"
    if a["layout"].get("draws") != b["layout"].get("draws"):
        return SharedDraws.OTHER, "the noise is laid out in another way in the two versions"
    if a["pair"].get("vocabulary") != b["pair"].get("vocabulary"):
        return SharedDraws.OTHER, "the vocabularies differ, and noise belongs to token ids"
    return SharedDraws.SHARED, "the same noise for the same prompt, number, step and token"


def designs_apart(
    a: Mapping[str, Any], b: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, str, str]]:
    """Returns every key at which two identities differ, with both values."""
    for key in sorted({*a, *b}):
        value_a, value_b = a.get(key), b.get(key)
        if isinstance(value_a, Mapping) and isinstance(value_b, Mapping):
            yield from designs_apart(value_a, value_b, f"{prefix}{key}.")
        elif value_a != value_b:
            words = ["not given" if v is None else v for v in (value_a, value_b)]
            text_a, text_b = (word if isinstance(word, str) else json.dumps(word) for word in words)
            yield f"{prefix}{key}", text_a, text_b


@dataclass(frozen=True)
class Trace:
    """What is kept of a trajectory to compare another one with: 12 bytes a step.

    Attributes:
        token: Token ids.
        charge: Charges, in nats.
        digest: Digest of every bit of the record's steps.
    """

    token: NDArray[np.int32]
    charge: NDArray[np.float64]
    digest: bytes

    @classmethod
    def of(cls, trajectory: Trajectory) -> Trace:
        """Returns the trace of a record."""
        digest = hashlib.blake2b(digest_size=16)
        for name in Steps.columns:
            digest.update(getattr(trajectory.steps, name).tobytes())
        return cls(trajectory.steps.token, trajectory.steps.charge, digest.digest())


@dataclass(frozen=True)
class FirstDifference:
    """The first difference of two trajectories of one prompt and number: in tokens, and in charges.

    Attributes:
        prompt: Id of the prompt of both.
        number: Number of both.
        identical: True if every bit of the steps is equal.
        tokens_known: True if both say all their tokens.
        token_step: First step with another token, or where one has ended; None if there is none.
        charge_step: First step, up to there, whose charge differs by more than machines do.
        charge_gap: Largest difference of charges before another token, in nats.
    """

    prompt: str
    number: int = field(metadata={"json": "trajectory"})
    identical: bool = field(metadata={"json": None})
    tokens_known: bool = field(metadata={"json": None})
    token_step: int | None
    charge_step: int | None
    charge_gap: float = field(metadata={"json": None})


@dataclass(frozen=True)
class Differences:
    """Every pair of trajectories of one arm that can be laid side by side.

    Attributes:
        pair: The two arms.
        by_unit: Difference by prompt and number; only of pairs that both have steps.
    """

    pair: ArmPair = field(metadata={"json": ...})
    by_unit: Mapping[_Unit, FirstDifference] = field(metadata={"json": None})
    json_properties: ClassVar = (
        *("pairs", "identical", "same_tokens", "first", "median", "charge_gap", "parted"),
    )

    @property
    def pairs(self) -> int:
        """How many pairs there are."""
        return len(self.by_unit)

    @property
    def identical(self) -> int:
        """Pairs whose records are equal to the last bit."""
        return sum(one.identical for one in self.by_unit.values())

    @property
    def same_tokens(self) -> int:
        """Pairs that wrote the same tokens."""
        return sum(one.tokens_known and one.token_step is None for one in self.by_unit.values())

    @property
    def token_steps(self) -> list[int]:
        """Steps at which tokens of a pair first differ, for pairs that do; sorted."""
        return sorted(p.token_step for p in self.by_unit.values() if p.token_step is not None)

    @property
    def first(self) -> int | None:
        """The earliest step at which a pair parts; None if none does."""
        return min(self.token_steps, default=None)

    @property
    def parted(self) -> list[FirstDifference]:
        """Pairs that part in tokens or charges, by prompt and number."""
        parted = [
            one
            for one in self.by_unit.values()
            if one.token_step is not None or one.charge_step is not None
        ]
        return sorted(parted, key=lambda one: (one.prompt, one.number))

    @property
    def median(self) -> float:
        """Median step at which pairs part; NaN if none does."""
        return quantile(self.token_steps, 0.5)

    @property
    def charge_gap(self) -> float:
        """Largest difference of charges before tokens differ; NaN if there is no pair."""
        return max((one.charge_gap for one in self.by_unit.values()), default=math.nan)


def differences(
    a: Run, b: Run, pairs: Sequence[ArmPair], prompts: frozenset[str]
) -> list[Differences]:
    """Lays trajectories side by side; the first run's tokens and charges are held in memory."""
    pairs_a = {pair.arms[0]: pair for pair in pairs}
    pairs_b = {pair.arms[1]: pair for pair in pairs}
    traces: dict[Arm, dict[_Unit, Trace]] = {arm: {} for arm in pairs_a}
    for one in a.trajectories():
        key = one.key
        if key.arm in pairs_a and key.prompt in prompts and len(one):
            traces[key.arm][key.prompt, key.trajectory] = Trace.of(one)
    found: dict[Arm, dict[_Unit, FirstDifference]] = {arm: {} for arm in pairs_a}
    for one in b.trajectories():
        key, unit = one.key, (one.key.prompt, one.key.trajectory)
        if key.arm in pairs_b and len(one):
            arm = pairs_b[key.arm].arms[0]
            if unit in traces[arm]:
                found[arm][unit] = first_difference(unit, traces[arm][unit], Trace.of(one))
    return [Differences(pair, found[pair.arms[0]]) for pair in pairs]


def first_difference(unit: _Unit, a: Trace, b: Trace) -> FirstDifference:
    """Compares two trajectories; tokens are compared only where both say all of them."""
    known = not ((a.token < 0).any() or (b.token < 0).any())
    shared = min(a.token.size, b.token.size)
    step = _first(a.token[:shared] != b.token[:shared]) if known else None
    if step is None and a.token.size != b.token.size:
        step = shared
    # The charge of a step is fixed before its token is drawn, so the parting step counts.
    upto = shared if step is None else min(shared, step + 1)
    charge_a, charge_b = a.charge[:upto], b.charge[:upto]
    with np.errstate(invalid="ignore"):
        gaps = np.where(charge_a == charge_b, 0.0, np.abs(charge_a - charge_b))
        beyond = ~(gaps <= MACHINE_SLACK * (1 + np.minimum(np.abs(charge_a), np.abs(charge_b))))
    # A charge missing in both runs is no difference; one missing in a single run is.
    both_missing = np.isnan(charge_a) & np.isnan(charge_b)
    known_gaps = gaps[~np.isnan(gaps)]
    return FirstDifference(
        *unit,
        a.digest == b.digest,
        known,
        step,
        _first(beyond & ~both_missing),
        float(known_gaps.max()) if known_gaps.size else 0.0,
    )


def _first(differs: NDArray[np.bool_]) -> int | None:
    """Returns the first step that is marked; None if none is."""
    where = np.flatnonzero(differs)
    return int(where[0]) if where.size else None
