"""One audit of a decoder in a small world, by the very checks of `nafaudit run --decoder`.

Without it nobody could say how often the auditor is right: a real audit takes minutes, and this
takes a fraction of a second. A decoder is asked, its outputs are read as claims, replayed, tested
and judged; nothing here knows which decoder it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nafaudit.auditor.alternatives import ALTERNATIVES, SET_NAMES, step_scores, token_sets
from nafaudit.auditor.claims import ClaimComparison, levels
from nafaudit.auditor.follow import replay_many
from nafaudit.auditor.replay import ReplayTask, ReplayWithLaws
from nafaudit.auditor.sampler import ALPHA, SamplerTests, StepScores
from nafaudit.core.draws import sound_stream, uniforms, words
from nafaudit.core.finding import CheckWord, Fault, Finding, Kept
from nafaudit.core.trajectory import Key, Replayed, Trajectory
from nafaudit.measures.context import RunContext
from nafaudit.measures.table import Measures
from nafaudit.measures.verdicts import judge
from nafaudit.mechanisms.registry import mechanism
from nafaudit.protocols import Output, Request, World
from nafaudit.runner.outputs import read_output
from nafaudit.runner.worker import plain

# Steps that are scored together, to stay in a processor's cache.
_ROWS = 1600


@dataclass(frozen=True)
class Asked:
    """A request, and the name under which its output is recorded."""

    key: Key
    request: Request


@dataclass(frozen=True, eq=False)
class Exhibit:
    """All that an audit knows of one output.

    Attributes:
        key: Which one.
        claimed: The record of the decoder's claims; None if there is nothing to record.
        replayed: The second record.
        scores: What the sampler tests need.
        faults: What was wrong with the output itself.
    """

    key: Key
    claimed: Trajectory | None
    replayed: Replayed | None
    scores: StepScores | None
    faults: tuple[Fault, ...]


def examine(world: World, asked: Sequence[Asked], outputs: Sequence[Output]) -> list[Exhibit]:
    """Reads, replays and scores outputs; how many at once changes nothing but the time."""
    readings = [
        read_output(plain(output), one.key, one.request, world.size, world.stops)
        for one, output in zip(asked, outputs, strict=True)
    ]
    tasks = [
        ReplayTask(
            r.trajectory.key,
            one.request.prompt,
            r.trajectory.steps.token,
            r.trajectory.stopped,
            theta=r.trajectory.steps.theta,
        )
        for one, r in zip(asked, readings, strict=True)
        if r.trajectory is not None
    ]
    again = replay_many(world, mechanism("anchored", world.debt), tasks) if tasks else []
    scores = dict(zip([task.key for task in tasks], _scores(world, tasks, again), strict=True))
    second = {one.replayed.trajectory.key: one.replayed for one in again}
    return [
        Exhibit(one.key, r.trajectory, second.get(one.key), scores.get(one.key), r.faults)
        for one, r in zip(asked, readings, strict=True)
    ]


def _scores(
    world: World, tasks: Sequence[ReplayTask], again: Sequence[ReplayWithLaws]
) -> list[StepScores]:
    """The scores of every trajectory; steps of several are worked on together."""
    if not again:
        return []
    columns = [torch.cat([getattr(a, name) for a in again]) for name in ("law", "safe", "risky")]
    steps = [a.replayed.trajectory.steps for a in again]
    theta = torch.from_numpy(np.concatenate([s.theta for s in steps]).astype(np.float64))
    token = np.concatenate([s.token for s in steps])
    own = np.concatenate([_own_draws(a.replayed.trajectory.key, len(a.law)) for a in again])
    sets = [
        token_sets(a.law, task.prompt, task.tokens, 0, world.stops)
        for task, a in zip(tasks, again, strict=True)
    ]
    joined = {name: torch.cat([each[name] for each in sets]) for name in SET_NAMES}
    blocks = []
    for start in range(0, len(token), _ROWS):
        part = slice(start, start + _ROWS)
        law, safe, risky = (column[part] for column in columns)
        some = {name: column[part] for name, column in joined.items()}
        blocks.append(step_scores(law, safe, risky, theta[part], token[part], own[part], some))
    ends = np.cumsum([len(s) for s in steps])[:-1]
    names = ("logp", "ratios", "tilts", "surprisal", "gain", "pit")
    split = {n: np.split(np.concatenate([getattr(b, n) for b in blocks]), ends) for n in names}
    return [StepScores(**{n: split[n][i] for n in names}) for i in range(len(again))]


def _own_draws(key: Key, count: int) -> np.ndarray:
    stream = sound_stream(0, "rank-pit", key.prompt, key.trajectory)
    return uniforms(words(stream, 0, count))


def findings(
    world: World, exhibits: Sequence[Exhibit], limit: int, alpha: float = ALPHA
) -> list[Finding]:
    """What every check says of some outputs of one arm.

    Args:
        world: Where they were written.
        exhibits: The outputs.
        limit: Length limit T.
        alpha: Level of the sampler tests together.
    """
    promise = mechanism("anchored", world.debt)
    context = RunContext(
        promise.ledger,
        foreign=True,
        max_new_tokens=limit,
        stops=world.stops,
        faults=[fault for one in exhibits for fault in one.faults],
        claimed=True,
    )
    claimed = (one.claimed for one in exhibits if one.claimed is not None)
    arms = judge(Measures.of(claimed, context))
    comparison = ClaimComparison(levels({}, foreign=True), world.stops, limit, own=False)
    tests = SamplerTests(list(ALTERNATIVES), alpha)
    for one in exhibits:
        if one.claimed is not None and one.replayed is not None and one.scores is not None:
            comparison.add(one.claimed, one.replayed)
            tests.add(one.key, one.claimed.steps.token, one.scores)
    return [*(f for arm in arms for f in arm.findings), *comparison.findings(), *tests.findings()]


def alarms(found: Iterable[Finding]) -> tuple[str, ...]:
    """Names of the checks that fail: what a sound decoder does not get."""
    return tuple(dict.fromkeys(f.check for f in found if _fails(f)))


def warnings(found: Iterable[Finding]) -> tuple[str, ...]:
    """Names of the checks that only warn: between noise and refutation."""
    return tuple(dict.fromkeys(f.check for f in found if _warns(f)))


def _warns(finding: Finding) -> bool:
    return finding.verdict == CheckWord.SUSPECT and finding.check.startswith("replay: ")


def _fails(finding: Finding) -> bool:
    bad = (Kept.VIOLATED, CheckWord.FAILED, CheckWord.SUSPECT)
    return finding.verdict in bad and not _warns(finding)
