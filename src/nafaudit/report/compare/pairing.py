"""Which arms and executions of two runs belong together, and whether chance is shared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from nafaudit.checks.verdict import ArmResult
from nafaudit.core.trajectory import Arm
from nafaudit.report.data import Report


class Draws(StrEnum):
    """What the same prompt and number in both runs have in common."""

    SHARED = "shared draws"
    SEEDS = "same seeds, own samplers"
    OTHER = "other draws"
    UNKNOWN = "draws not known"


@dataclass(frozen=True)
class ArmPair:
    """An arm of each run; both of one budget.

    Attributes:
        a: Of the first run.
        b: Of the second.
    """

    a: ArmResult
    b: ArmResult

    @property
    def arms(self) -> tuple[Arm, Arm]:
        """Their keys."""
        return Arm(self.a.mechanism, self.a.k), Arm(self.b.mechanism, self.b.k)


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

    draws: Draws
    why: str
    pairs: tuple[ArmPair, ...]
    only_a: tuple[ArmResult, ...]
    only_b: tuple[ArmResult, ...]
    prompts: frozenset[str]
    changed: tuple[str, ...]

    @property
    def paired(self) -> bool:
        """False if the runs share no prompt, so that nothing can be paired."""
        return bool(self.prompts)

    @property
    def by_number(self) -> bool:
        """True if executions are paired by their number, and not only by prompt."""
        return self.draws in (Draws.SHARED, Draws.SEEDS)


def pairing(a: Report, b: Report) -> Pairing:
    """Lays two runs side by side."""
    draws, why = shared_draws(a.run.design["identity"], b.run.design["identity"])
    pairs, only_a, only_b = match_arms(a.arms, b.arms)
    seen_a, seen_b = ({one.key.prompt for one in side.outlines} for side in (a, b))
    both = seen_a & seen_b
    same = {prompt for prompt in both if _text(a, prompt) == _text(b, prompt)}
    return Pairing(draws, why, pairs, only_a, only_b, frozenset(same), tuple(sorted(both - same)))


def match_arms(
    ours: tuple[ArmResult, ...], theirs: tuple[ArmResult, ...]
) -> tuple[tuple[ArmPair, ...], tuple[ArmResult, ...], tuple[ArmResult, ...]]:
    """Pairs arms by mechanism and budget, else by budget where each run has one arm left."""
    left = {(arm.mechanism, arm.k): arm for arm in theirs}
    found = [
        ArmPair(arm, left.pop((arm.mechanism, arm.k)))
        for arm in ours
        if (arm.mechanism, arm.k) in left
    ]
    matched = {(pair.a.mechanism, pair.a.k) for pair in found}
    rest = [arm for arm in ours if (arm.mechanism, arm.k) not in matched]
    for arm in rest:
        mine = [other for other in rest if other.k == arm.k]
        yours = [other for other in left.values() if other.k == arm.k]
        if len(mine) == len(yours) == 1:
            found.append(ArmPair(arm, left.pop((yours[0].mechanism, yours[0].k))))
    taken = {(pair.a.mechanism, pair.a.k) for pair in found}
    return (
        tuple(sorted(found, key=lambda pair: (pair.a.k, pair.a.mechanism))),
        tuple(arm for arm in ours if (arm.mechanism, arm.k) not in taken),
        tuple(left.values()),
    )


def shared_draws(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[Draws, str]:
    """Whether the same prompt and number drew with the same noise, from two identities."""
    if "imported" in (ours["protocol"], theirs["protocol"]):
        return Draws.UNKNOWN, "a log does not say what its executions drew with"
    # The paper's seeds follow from prompt and number alone; it knows neither seed nor purpose.
    keys = ["protocol"] if ours["protocol"] == "paper" else ["protocol", "seed", "purpose"]
    differing = [f"{key} {ours[key]} and {theirs[key]}" for key in keys if ours[key] != theirs[key]]
    if differing:
        return Draws.OTHER, f"the runs differ in {', '.join(differing)}"
    boxes = ["promise" in identity for identity in (ours, theirs)]
    if all(boxes):
        return Draws.SEEDS, "both decoders got the same seeds; how they draw is their own affair"
    if any(boxes):
        return Draws.OTHER, "one of them is a black box with a sampler of its own"
    if ours["layout"].get("draws") != theirs["layout"].get("draws"):
        return Draws.OTHER, "the noise is laid out in another way in the two versions"
    if ours["pair"].get("vocabulary") != theirs["pair"].get("vocabulary"):
        return Draws.OTHER, "the vocabularies differ, and noise belongs to token ids"
    return Draws.SHARED, "the same noise for the same prompt, number, step and token"


def designs_apart(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, str, str]]:
    """Every key at which two identities differ, with both values."""
    for key in sorted({*ours, *theirs}):
        mine, other = ours.get(key), theirs.get(key)
        if isinstance(mine, Mapping) and isinstance(other, Mapping):
            yield from designs_apart(mine, other, f"{prefix}{key}.")
        elif mine != other:
            yield f"{prefix}{key}", _shown(mine), _shown(other)


def _shown(value: Any) -> str:
    if value is None:
        return "not given"
    return value if isinstance(value, str) else json.dumps(value)


def _text(report: Report, prompt: str) -> str:
    known = report.prompts.get(prompt)
    return known.text if known else ""
