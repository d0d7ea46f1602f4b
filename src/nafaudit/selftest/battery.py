"""One audit of a decoder in a small world, judged as `nafaudit run --decoder` judges one.

A real audit takes minutes and this a second, so that it can be repeated until one knows how often
the auditor is right. Outputs are read as claims and replayed; what they show, and which laws their
tokens fit, is judged over all budgets together, whichever decoder wrote them. `lab_world` is the
place of the same audits on the lab pair, which has real models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nafaudit.auditor.alternatives import ALTERNATIVES, SET_NAMES, step_scores, token_sets
from nafaudit.auditor.claims import ClaimComparison, levels
from nafaudit.auditor.evidence import LEVEL, LOOKS, SHARES
from nafaudit.auditor.family import AfterSolve, Shape, StepTable, Text, step_table
from nafaudit.auditor.follow import replay_many
from nafaudit.auditor.replay import ReplayTask, ReplayWithLaws
from nafaudit.auditor.sampler import ALPHA, SamplerTests, StepScores
from nafaudit.auditor.shadow import divergence
from nafaudit.auditor.spend import (
    GEOMETRIC,
    Judged,
    SecondLook,
    Seen,
    Shown,
    SpendAudit,
    conformity,
)
from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.core.draws import sound_stream, uniforms, words
from nafaudit.core.finding import CheckWord, Fault, Finding, Overall
from nafaudit.core.ledger import Banking, is_baseline
from nafaudit.core.promise import Promise
from nafaudit.core.text import plain
from nafaudit.core.trajectory import STEP_TYPES, Arm, Key, Trajectory
from nafaudit.engine.world import PairWorld
from nafaudit.lab.prompts import prompts as lab_prompts
from nafaudit.measures.context import RunContext
from nafaudit.measures.table import Measures
from nafaudit.measures.verdicts import ArmVerdict, judge, overall_of
from nafaudit.mechanisms.registry import mechanism
from nafaudit.models.pair import load_pair
from nafaudit.protocols import STEP_CLAIMS, Output, Request, World
from nafaudit.runner.outputs import read_output
from nafaudit.runner.pairs import named_pair
from nafaudit.runner.worker import plain as as_sent
from nafaudit.store.artifacts import ArmFinding

# Steps that are scored together, to stay in a processor's cache.
_ROWS = 1600
# Outputs whose laws after the solve are computed together.
_TOGETHER = 24


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
        faults: What is wrong with the output itself.
        claimed: The record of the decoder's claims; None if there is nothing to record.
        replayed: The record of its replay, with both models' laws.
        shown: What it shows of the laws that it served.
        seen: What the judgement needs of the laws.
        scores: What the tests of the promised law need.
        task: What was replayed.
    """

    key: Key
    faults: tuple[Fault, ...]
    claimed: Trajectory | None = None
    replayed: ReplayWithLaws | None = None
    shown: Shown | None = None
    seen: Seen | None = None
    scores: StepScores | None = None
    task: ReplayTask | None = None

    def silenced(self) -> AuditedOutput:
        """Returns the same tokens as those of a decoder that claims nothing."""
        if self.claimed is None or self.seen is None:
            return self
        nothing = np.full(len(self.claimed), math.nan)
        columns: dict[str, Any] = {n: nothing.astype(STEP_TYPES[n]) for n in STEP_CLAIMS}
        steps = replace(self.claimed.steps, **columns)
        tokens = replace(self.claimed, steps=steps, debt=math.nan, logged=None, shown=None)
        return replace(self, claimed=tokens, shown=Shown(nothing), seen=Seen(self.seen.table))


def examine(
    world: World, asked: Sequence[KeyedRequest], outputs: Sequence[Output]
) -> list[AuditedOutput]:
    """Reads, replays and scores outputs; their number at once changes only the time."""
    found = []
    for one, output in zip(asked, outputs, strict=True):
        read = read_output(as_sent(output), one.key, one.request, world.size, world.stops)
        found.append(AuditedOutput(one.key, read.faults, read.trajectory))
    there = [at for at, one in enumerate(found) if one.claimed is not None]
    if not there:
        return found
    records = [record for at in there if (record := found[at].claimed) is not None]
    tasks = [
        ReplayTask(r.key, asked[at].request.prompt, r.steps.token, r.stopped, theta=r.steps.theta)
        for at, r in zip(there, records, strict=True)
    ]
    again = replay_many(world, mechanism("anchored", world.debt), tasks)
    shown = [shown_of(record) for record in records]
    thetas = [one.replayed.trajectory.steps.theta for one in again]
    promised = _scores(world, tasks, again, [one.law for one in again], thetas)
    seen = _seen(world, tasks, again, shown)
    for at, *parts in zip(there, again, shown, seen, promised, tasks, strict=True):
        replayed, show, see, scores, task = parts
        found[at] = replace(
            found[at], replayed=replayed, shown=show, seen=see, scores=scores, task=task
        )
    return found


def shown_of(record: Trajectory) -> Shown:
    """Returns what a record, as it came from the decoder, shows of its laws."""
    said = record.shown
    laws = None if said is None or said.laws is None else partial(np.asarray, said.laws)
    family = (said.family if said is not None else "") or GEOMETRIC
    return Shown(record.steps.theta, family, laws)


def _split(values: NDArray[np.float64], tasks: Sequence[ReplayTask]) -> list[NDArray[np.float64]]:
    return np.split(values, np.cumsum([len(task.tokens) for task in tasks])[:-1])


def _seen(
    world: World,
    tasks: Sequence[ReplayTask],
    again: Sequence[ReplayWithLaws],
    shown: Sequence[Shown],
) -> list[Seen]:
    """Returns what the judgement keeps of every output; steps of several are tabulated together."""
    safe, risky = (torch.cat([getattr(one, name) for one in again]) for name in ("safe", "risky"))
    token = np.concatenate([task.tokens for task in tasks])
    blocks = [
        step_table(safe[at], risky[at], token[at])
        for at in (slice(start, start + _ROWS) for start in range(0, len(token), _ROWS))
    ]
    whole = StepTable.joined(blocks)
    columns = {one.name: _split(getattr(whole, one.name), tasks) for one in fields(StepTable)}
    tables = [StepTable(**{n: c[i] for n, c in columns.items()}) for i in range(len(tasks))]
    priced = [at for at, one in enumerate(shown) if one.prices]
    found = [
        Seen(None if is_baseline(task.key.k) else table)
        for task, table in zip(tasks, tables, strict=True)
    ]
    if not priced:
        return found
    laws: list[Tensor] = []
    for at in priced:
        load, one = shown[at].laws, again[at]
        if load is None:
            laws.append(shown[at].law(slice(0, len(one.safe)), one.safe, one.risky))
        else:
            given = torch.from_numpy(np.asarray(load(), np.float64))
            laws.append(torch.log_softmax(given, dim=-1))
    some, known = [tasks[at] for at in priced], [again[at] for at in priced]
    law = torch.cat(laws)
    charge = divergence(law, torch.cat([one.safe for one in known])).numpy()
    drawn = torch.from_numpy(np.concatenate([task.tokens for task in some]).astype(np.int64))
    logp = law.gather(-1, drawn.unsqueeze(-1)).squeeze(-1).numpy()
    scores = _scores(world, some, known, laws, [shown[at].theta for at in priced])
    parts = zip(priced, _split(charge, some), _split(logp, some), scores, strict=True)
    for at, cost, own, score in parts:
        found[at] = replace(found[at], charge=cost, logp=own, scores=score)
    return found


def _scores(
    world: World,
    tasks: Sequence[ReplayTask],
    again: Sequence[ReplayWithLaws],
    laws: Sequence[Tensor],
    thetas: Sequence[NDArray[np.floating]],
) -> list[StepScores]:
    """Returns the scores of every output against laws; steps of several are scored together."""
    columns = [torch.cat(list(laws))]
    columns += [torch.cat([getattr(one, name) for one in again]) for name in ("safe", "risky")]
    theta = torch.from_numpy(np.concatenate(list(thetas)).astype(np.float64))
    token = np.concatenate([task.tokens for task in tasks])
    own = np.concatenate([pit_draws(task.key, len(task.tokens)) for task in tasks])
    sets = [
        token_sets(law, task.prompt, task.tokens, 0, world.stops)
        for task, law in zip(tasks, laws, strict=True)
    ]
    joined = {name: torch.cat([each[name] for each in sets]) for name in SET_NAMES}
    blocks = []
    for start in range(0, len(token), _ROWS):
        part = slice(start, start + _ROWS)
        law, safe, risky = (column[part] for column in columns)
        some = {name: column[part] for name, column in joined.items()}
        blocks.append(step_scores(law, safe, risky, theta[part], token[part], own[part], some))
    names = ("logp", "ratios", "tilts", "surprisal", "gain", "pit")
    split = {n: _split(np.concatenate([getattr(b, n) for b in blocks]), tasks) for n in names}
    return [StepScores(**{n: split[n][i] for n in names}) for i in range(len(tasks))]


def pit_draws(key: Key, count: int) -> np.ndarray:
    """Returns the auditor's own draws for the rank test of an output's first steps."""
    stream = sound_stream(0, "rank-pit", key.prompt, key.trajectory)
    return uniforms(words(stream, 0, count))


@dataclass(frozen=True)
class AuditAnswer:
    """The answer of an audit.

    Attributes:
        overall: The verdict, as `nafaudit run` gives it.
        arms: The verdicts by budget.
        judged: What the auditor found; None if there was nothing to replay.
        conforms: Whether it is the promised mechanism itself, in words.
    """

    overall: Overall
    arms: tuple[ArmVerdict, ...] = ()
    judged: Judged | None = None
    conforms: str = ""

    @property
    def findings(self) -> list[Finding]:
        """What every check says, of every budget."""
        return [one for arm in self.arms for one in arm.findings]

    @property
    def accused(self) -> bool:
        """True if the audit ends with status 1."""
        return self.overall.exit_status == 1

    @property
    def by(self) -> tuple[str, ...]:
        """Names of what accuses, the deciding verdict first; empty if nothing does."""
        found = [one.check for one in self.findings if one.verdict in ("VIOLATED", "FAILED")]
        return tuple(dict.fromkeys(found)) if self.accused else ()

    @property
    def noted(self) -> tuple[str, ...]:
        """Names of what is remarkable without an accusation."""
        found = [one.check for one in self.findings if one.verdict == CheckWord.SUSPECT]
        return tuple(dict.fromkeys(found))


def audit(
    world: World,
    outputs: Sequence[AuditedOutput],
    limit: int,
    *,
    promise: Promise = Promise.BANKED,
    order: Mapping[Key, Any] | None = None,
    without: frozenset[str] = frozenset(),
) -> AuditAnswer:
    """Judges outputs as a run's verification and its checks judge them.

    Args:
        world: Where they were written.
        outputs: The outputs of one decoder, of any budgets.
        limit: Length limit T.
        promise: What the decoder is held to; banked or k-naf.
        order: Place of each output among all requests; as they stand if None.
        without: Names of known laws that are left out.
    """
    places = {one.key: at for at, one in enumerate(outputs)} if order is None else order
    tolerances = levels({}, foreign=True)
    spending = SpendAudit(
        tolerances, world.stops, limit, places.__getitem__, keeps_prefixes=promise != Promise.K_NAF,
        without=without, lost=any(fault.lost for one in outputs for fault in one.faults),
    )  # fmt: skip
    claims = ClaimComparison(tolerances, world.stops, limit, own=False)
    tests: dict[Arm, SamplerTests] = {}
    by_key: dict[Key, AuditedOutput] = {}
    seen: dict[Arm, int] = {}
    for one in sorted(outputs, key=lambda one: (one.key.trajectory, places[one.key])):
        if one.claimed is None or one.replayed is None or one.shown is None or one.seen is None:
            continue
        by_key[one.key] = one
        arm = one.key.arm
        seen[arm] = seen.get(arm, 0) + 1
        kept = one.seen if seen[arm] <= LOOKS[-1] else replace(one.seen, table=None, scores=None)
        spending.add(one.claimed, one.replayed.replayed, one.shown, kept)
        claims.add(one.claimed, one.replayed.replayed)
        if one.scores is not None and seen[arm] <= LOOKS[-1]:
            alpha = LEVEL * SHARES["safe"] if arm.k == 0 else ALPHA
            battery = tests.setdefault(arm, SamplerTests(list(ALTERNATIVES), alpha))
            battery.add(one.key, one.claimed.steps.token, one.scores)

    def look(
        theta: Mapping[Key, NDArray[np.float64]], twins: Sequence[Shape] = ()
    ) -> dict[Key, tuple[NDArray[np.float64], NDArray[np.float64]]]:
        keys, texts, laws = list(theta), [], []
        for key in keys:
            one = by_key[key]
            assert one.task is not None and one.replayed is not None
            debt = one.replayed.replayed.trajectory.debt
            texts.append(Text(one.task.prompt, one.task.tokens, key.k, debt, theta[key]))
            laws.append((one.replayed.safe, one.replayed.risky))
        found: dict[Key, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
        for start in range(0, len(keys), _TOGETHER):
            some = slice(start, start + _TOGETHER)
            after = AfterSolve(*texts[some], twins=twins)
            after.feed(*(torch.cat(each) for each in zip(*laws[some], strict=True)))
            found |= dict(zip(keys[some], after.results(), strict=True))
        return found

    faults = [fault for one in outputs for fault in one.faults]
    context = RunContext(
        Banking(), foreign=True, max_new_tokens=limit, stops=world.stops, faults=faults,
        held_to=promise,
    )  # fmt: skip
    return answer_of(spending, tests, claims, look, context)


def answer_of(
    spending: SpendAudit,
    tests: Mapping[Arm, SamplerTests],
    claims: ClaimComparison,
    look: SecondLook,
    context: RunContext,
) -> AuditAnswer:
    """Judges what was replayed, as a run's verification and its checks judge it.

    Args:
        spending: The replayed outputs.
        tests: Their tokens against the promised law.
        claims: Their claims against the promised rule.
        look: Computes the second group of laws.
        context: What is known of the outputs beyond their records.
    """
    if not spending.answers:
        return AuditAnswer(overall_of(judge(Measures.of((), context))))
    sampled = {arm: battery.findings() for arm, battery in tests.items()}
    judged = spending.judged(sampled, look)
    differs = [ArmFinding(None, one) for one in claims.findings()]
    differs += [ArmFinding(arm, one) for arm, found in sampled.items() for one in found]
    conforms = conformity(differs, judged, Promise.ANCHORED)
    said = [one.finding.to_json(one.arm) for one in judged.findings()]
    said.append(conforms.to_json(None))
    context = replace(
        context,
        verified={"findings": said, "deviation": plain(judged.books.deviation)},
        failed=[one for one in said if one["verdict"] == CheckWord.FAILED],
        suspected=[one for one in said if one["verdict"] == CheckWord.SUSPECT],
    )
    arms = judge(Measures.of(spending.truths(judged.open), context))
    return AuditAnswer(overall_of(arms), arms, judged, conforms.text)


def lab_world(prompts: int, length: int, batch: int) -> tuple[PairWorld, list[tuple[int, ...]]]:
    """Returns the lab pair as a world, and the prompts that a run takes first.

    Args:
        prompts: How many.
        length: Length limit T.
        batch: Rows of a pass.
    """
    paths = named_pair("lab").locate()
    pair = load_pair(*paths)
    # In the order of a run, which takes turns between the classes.
    chosen = lab_prompts()[:prompts]
    tokens = [tuple(pair.tokenizer(prompt.text)["input_ids"]) for prompt in chosen]
    world = PairWorld(
        pair,
        Decoding(max_new_tokens=length),
        DebtRule(),
        width=max(map(len, tokens)) + length,
        batch=batch,
        checkpoints=paths,
    )
    return world, tokens
