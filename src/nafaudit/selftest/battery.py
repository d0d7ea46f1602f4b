"""One audit of a decoder in a small world, by the checks of `nafaudit run --decoder`.

A real audit takes minutes and this a fraction of a second, so that it can be repeated until one
knows how often the auditor is right. Outputs are read as claims, replayed, tested and judged,
whichever decoder wrote them. `lab_audits` holds the same audit on the lab pair.
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
from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.core.draws import sound_stream, uniforms, words
from nafaudit.core.finding import CheckWord, Fault, Finding, Kept
from nafaudit.core.trajectory import Key, Replayed, Trajectory
from nafaudit.engine.world import PairWorld
from nafaudit.lab.prompts import prompts as lab_prompts
from nafaudit.measures.context import RunContext
from nafaudit.measures.table import Measures
from nafaudit.measures.verdicts import judge
from nafaudit.mechanisms.registry import mechanism
from nafaudit.models.pair import load_pair
from nafaudit.protocols import Output, Request, World
from nafaudit.runner.outputs import read_output
from nafaudit.runner.pairs import named_pair
from nafaudit.runner.worker import plain
from nafaudit.selftest.faults import FaultCase

# Steps that are scored together, to stay in a processor's cache.
_ROWS = 1600
_LAB_PROMPTS, _LAB_EACH, _LAB_LENGTH = 4, 2, 64
# At this budget most steps on the lab pair serve neither model alone.
_LAB_K = 0.2


@dataclass(frozen=True)
class KeyedRequest:
    """A request, and the key under which its output is recorded."""

    key: Key
    request: Request


@dataclass(frozen=True, eq=False)
class AuditedOutput:
    """One output, and what an audit knows of it.

    Attributes:
        key: Which output.
        claimed: The record of the decoder's claims; None if there is nothing to record.
        replayed: The record of its replay.
        scores: What the sampler tests need.
        faults: What is wrong with the output itself.
    """

    key: Key
    claimed: Trajectory | None
    replayed: Replayed | None
    scores: StepScores | None
    faults: tuple[Fault, ...]


def examine(
    world: World, asked: Sequence[KeyedRequest], outputs: Sequence[Output]
) -> list[AuditedOutput]:
    """Reads, replays and scores outputs; their number at once changes only the time."""
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
        AuditedOutput(one.key, r.trajectory, second.get(one.key), scores.get(one.key), r.faults)
        for one, r in zip(asked, readings, strict=True)
    ]


def _scores(
    world: World, tasks: Sequence[ReplayTask], again: Sequence[ReplayWithLaws]
) -> list[StepScores]:
    """Returns the scores of every trajectory; steps of several are scored together."""
    if not again:
        return []
    columns = [torch.cat([getattr(a, name) for a in again]) for name in ("law", "safe", "risky")]
    steps = [a.replayed.trajectory.steps for a in again]
    theta = torch.from_numpy(np.concatenate([s.theta for s in steps]).astype(np.float64))
    token = np.concatenate([s.token for s in steps])
    own = np.concatenate([pit_draws(a.replayed.trajectory.key, len(a.law)) for a in again])
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


def pit_draws(key: Key, count: int) -> np.ndarray:
    """Returns the auditor's own draws for the rank test of an output's first steps."""
    stream = sound_stream(0, "rank-pit", key.prompt, key.trajectory)
    return uniforms(words(stream, 0, count))


def findings(
    world: World, outputs: Sequence[AuditedOutput], limit: int, alpha: float = ALPHA
) -> list[Finding]:
    """Returns what every check says of some outputs of one arm.

    Args:
        world: Where they were written.
        outputs: The outputs.
        limit: Length limit T.
        alpha: Level of all sampler tests together.
    """
    promise = mechanism("anchored", world.debt)
    context = RunContext(
        promise.ledger,
        foreign=True,
        max_new_tokens=limit,
        stops=world.stops,
        faults=[fault for one in outputs for fault in one.faults],
        claimed=True,
    )
    claimed = (one.claimed for one in outputs if one.claimed is not None)
    arms = judge(Measures.of(claimed, context))
    comparison = ClaimComparison(levels({}, foreign=True), world.stops, limit, own=False)
    tests = SamplerTests(list(ALTERNATIVES), alpha)
    for one in outputs:
        if one.claimed is not None and one.replayed is not None and one.scores is not None:
            comparison.add(one.claimed, one.replayed)
            tests.add(one.key, one.claimed.steps.token, one.scores)
    return [*(f for arm in arms for f in arm.findings), *comparison.findings(), *tests.findings()]


def alarms(found: Iterable[Finding]) -> tuple[str, ...]:
    """Returns the names of the checks that fail, as none does for a sound decoder."""
    bad = (Kept.VIOLATED, CheckWord.FAILED, CheckWord.SUSPECT)
    return tuple(dict.fromkeys(f.check for f in found if f.verdict in bad and not _warns(f)))


def warnings(found: Iterable[Finding]) -> tuple[str, ...]:
    """Returns the names of the checks that only warn, between noise and refutation."""
    return tuple(dict.fromkeys(f.check for f in found if _warns(f)))


def _warns(finding: Finding) -> bool:
    return finding.verdict == CheckWord.SUSPECT and finding.check.startswith("replay: ")


def lab_audits(cases: Sequence[FaultCase], seed: int, level: float) -> list[tuple[str, ...]]:
    """Audits each fault once on the lab pair, which has real models.

    Args:
        cases: The faults.
        seed: Seed of the requests.
        level: Level of the sampler tests.

    Returns:
        For each fault, the names of the checks that failed or, if it is harmless, warned.
    """
    paths = named_pair("lab").locate()
    pair = load_pair(*paths)
    texts = [prompt.text for prompt in lab_prompts()]
    chosen = texts[:: max(1, len(texts) // _LAB_PROMPTS)][:_LAB_PROMPTS]
    prompts = [tuple(pair.tokenizer(text)["input_ids"]) for text in chosen]
    world = PairWorld(
        pair,
        Decoding(max_new_tokens=_LAB_LENGTH),
        DebtRule(),
        width=max(map(len, prompts)) + _LAB_LENGTH,
        batch=_LAB_PROMPTS * _LAB_EACH,
        checkpoints=paths,
    )
    asked = [
        KeyedRequest(
            Key(str(number), "decoder", _LAB_K, index),
            Request(prompt, _LAB_K, (seed * 100 + number) * 16 + index, _LAB_LENGTH),
        )
        for number, prompt in enumerate(prompts)
        for index in range(_LAB_EACH)
    ]
    fired = []
    for case in cases:
        outputs = case.decoder(world).decode([one.request for one in asked])
        found = findings(world, examine(world, asked, outputs), _LAB_LENGTH, level)
        fired.append(alarms(found) or (warnings(found) if case.harmless else ()))
    return fired
