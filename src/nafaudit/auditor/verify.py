"""Verifies a run: every number again from the models, the tokens from the draws.

records -> laws -> replay -> comparison: this file is that line, in order. It shares the models'
forward pass with the decoder and nothing else; mechanism and pair are handed in.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nafaudit.auditor.alternatives import (
    ALTERNATIVES,
    step_scores,
    token_sets,
)
from nafaudit.auditor.claims import UNDECLARED, ClaimComparison, Levels, deviations, levels
from nafaudit.auditor.evidence import LEVEL, LOOKS, SHARES
from nafaudit.auditor.family import AfterSolve, Shape, Text
from nafaudit.auditor.replay import ReplayTask, replay_texts
from nafaudit.auditor.sampler import ALPHA, INDEPENDENCE, SamplerTests, StepScores, joined
from nafaudit.auditor.spend import (
    GEOMETRIC,
    Judged,
    Seen,
    Shown,
    SpendAudit,
    TokenEvidence,
    Watch,
    conformity,
)
from nafaudit.auditor.teacher_forcing import Reader
from nafaudit.core.design import Decoding
from nafaudit.core.draws import request_place, row_stream, sound_stream, uniforms, words
from nafaudit.core.errors import StoreError
from nafaudit.core.finding import CheckWord, Finding, Kept
from nafaudit.core.ledger import (
    Banking,
    Bucket,
    allowances,
    currency_of,
    is_baseline,
    ledger_of,
    recorded_currency,
)
from nafaudit.core.processes import Crew, prompt_names, workers_of
from nafaudit.core.progress import OnProgress, Progress
from nafaudit.core.promise import Promise, judged_by
from nafaudit.core.settings import VerifySettings
from nafaudit.core.trajectory import Arm, Key, Replayed, Trajectory
from nafaudit.measures.context import RunContext
from nafaudit.measures.measure import measure
from nafaudit.models.pair import Pair
from nafaudit.protocols import Mechanism, Served
from nafaudit.store.artifacts import (
    OTHER_PROMISE,
    TOKENS,
    ArmFinding,
    Verification,
    read_verification,
)
from nafaudit.store.missing import missing_of, same_prompts
from nafaudit.store.run import Run
from nafaudit.store.shown import shown_families, shown_laws
from nafaudit.workload.prompts import batch_leaders

Array = NDArray[np.float64]

# Records that are replayed at once, to bound memory.
_GROUP = 1024
# Records of a unit of work, at least; a prompt is never split. Units do not depend on the number of
# processes, so neither do the last bits of results.
_UNIT = 48
# Tokens that make a process worth its start, and the memory that it takes for itself.
_PAYING_TOKENS = 2048
_WORKER_BYTES = 256 << 20
# Trajectories on which the noise of the pair is measured, and positions per pass there.
_CALIBRATED = 6
_CALIBRATION_CHUNK = 8
# Trajectories per budget for the sampler tests, unless the user says.
SCORED_OWN, SCORED_FOREIGN = 20, 60


def why_not_kept(run: Run, options: VerifySettings) -> str:
    """Says why the result of a verification may not be kept; empty if it may.

    One that looks at less, or does not test the tokens, must not take the place of one that did.
    """
    identity = run.design["identity"]
    boxed = bool(identity.get("promise"))
    recorded = identity.get("held_to", "")
    if recorded and judged_by(identity, options.promise) != recorded:
        return f"the run is held to {recorded}, and this answer is about {options.promise}"
    less = options.scored is not None and options.scored < SCORED_FOREIGN
    if boxed and (options.sample or less):
        return "verdicts on a black box need a verification without --sample or a small --sampler"
    try:
        before = read_verification(run) if options.sample else None
    except StoreError:  # a damaged one is replaced
        before = None
    if before is not None and before["current"] and options.sample < before["replayed"]:
        return f"{before['replayed']} trajectories were replayed before, more than these"
    return ""


def check_integrity(run: Run) -> None:
    """Raises a `StoreError` if a run's prompts were edited; an edited design cannot be read.

    Records are replayed against the prompts beside them: an edited prompt would change what their
    true numbers are said to be about.
    """
    if not same_prompts(run.prompts(), run.design):
        raise StoreError(
            f"{run.path / 'prompts.jsonl'} is not what was written, by the hash in the run's "
            "design: it was damaged or edited. Restore it, or make the run again with another "
            "--out."
        )


def verify(
    run: Run,
    promise: Mechanism,
    pair: Pair,
    options: VerifySettings,
    on_progress: OnProgress = lambda progress: None,
) -> Verification:
    """Replays a run and compares.

    Args:
        run: Whose records to check; see `check_integrity` for the rest of it.
        promise: What the replay is held to, bound to the run's resources.
        pair: The run's two models.
        options: How much is replayed; what an imported log does not say itself.
        on_progress: Called as trajectories are replayed.
    """
    start = time.monotonic()
    keys = sorted(run.keys())
    if 0 < options.sample < len(keys):  # the same ones every time
        design = run.design["hash"]
        keys.sort(key=lambda key: hashlib.blake2b(repr((design, *key)).encode()).digest())
        del keys[options.sample :]
    wanted = set(keys)
    verifier = _Verifier(run, pair, promise, wanted, options)
    chosen = (record for record in run.trajectories() if record.key in wanted)
    done = 0
    while group := list(itertools.islice(chosen, _GROUP)):
        verifier.replay(group)
        done += len(group)
        seconds = time.monotonic() - start
        unit = "trajectories replayed"
        on_progress(Progress("", done, len(wanted), verifier.tokens, seconds, unit=unit))
    return verifier.result(time.monotonic() - start)


def true_record(
    claimed: Trajectory, second: Replayed, mechanism: Mechanism, debt: float | None = None
) -> Trajectory:
    """Returns the record that a black box is judged by: its tokens at the weights that it claims.

    Charges are recomputed at these weights. A step without one has the replay's weight and charge,
    and the sampler tests say whether the tokens fit these.

    Args:
        claimed: Its record.
        second: The replay of its tokens.
        mechanism: The promise.
        debt: What the prompt owes; as promised unless given.
    """
    again = second.trajectory
    if debt is not None:
        again = replace(again, debt=debt)
    known = ~np.isnan(second.implied)
    steps = replace(
        again.steps,
        charge=np.where(known, second.implied, again.steps.charge),
        theta=np.where(known, claimed.steps.theta, again.steps.theta).astype(np.float32),
    )
    ledger = Banking() if is_baseline(again.key.k) else mechanism.ledger
    allowance = allowances(ledger, again.key.k, again.debt, steps)
    return replace(again, steps=replace(steps, allowance=allowance))


class _Second(NamedTuple):
    """A second record, its scores for the sampler tests, and what judges its spend."""

    replayed: Replayed
    blocks: list[StepScores]
    seen: Seen


_Found = TypeVar("_Found")


def _names(units: Sequence[Sequence[ReplayTask]]) -> str:
    return prompt_names(task.key.prompt for unit in units for task in unit)


class _Verifier:
    """The sums of a verification.

    Attributes:
        own: True for records of our own engine: nothing is left out, and draws are known.
        imported: True for a log whose models and warps only the user knows.
        limit: Length limit T; 0 if not known.
        notes: What is weaker than it could be.
    """

    def __init__(
        self, run: Run, pair: Pair, promise: Mechanism, keys: set[Key], options: VerifySettings
    ) -> None:
        self.pair = pair
        self.promise = promise
        self.recorded = len(run.keys())
        self.missing = missing_of(run)
        self._faults = run.faults()
        self.tokens = 0
        identity = self._identity = run.design["identity"]
        self.imported = identity["protocol"] == "imported"
        self._boxed = not self.imported and bool(identity.get("promise"))
        self.own = not self.imported and not self._boxed
        self._declared = run.decoder_dtype if self._boxed else ""
        self.decoding = options.decoding if self.imported else Decoding(**identity["decoding"])
        self.limit: int = identity["decoding"]["max_new_tokens"]
        # What is not ours is judged by what it spends, unless conformity is demanded.
        self.held_to = "" if self.own else judged_by(identity, options.promise)
        self.notes = self._weaknesses()
        lacking = run.asked - self.recorded
        if self.missing is not None:
            self.notes.append(self.missing.text)
        elif lacking > 0:
            self.notes.append(
                f"{lacking} of the {run.asked} trajectories that were asked for are not recorded"
            )
        self._prompts: dict[str, tuple[int, ...]] = {}
        for item in run.prompts():
            tokens = item.tokens
            if self.imported and item.prompt.text and not tokens:
                note = "prompts were split into tokens again, as the log has only their text"
                if note not in self.notes:
                    self.notes.append(note)
                tokens = tuple(pair.tokenizer(item.prompt.text)["input_ids"])
            self._prompts[item.prompt.id] = tokens
        coupled = self._identity.get("coupled", False)
        self._leaders = batch_leaders(run.prompts()) if coupled else {}
        self._comparison: ClaimComparison | None = None
        # Which laws its tokens fit is said whatever it is held to, where they are known: of KL on
        # the banking ledger.
        known = promise.shadow == "kl" and isinstance(promise.ledger, Banking)
        by_spend = known and self.held_to in (Promise.BANKED, Promise.K_NAF)
        usual = SCORED_OWN if self.own else LOOKS[-1] if by_spend else SCORED_FOREIGN
        most = usual if options.scored is None else options.scored
        most = min(most, LOOKS[-1]) if by_spend else most
        # The first trajectories of each arm, from as many prompts as there are.
        members: dict[Arm, list[Key]] = {}
        # Rows that share their draws are one sample: only the first of each batch is tested.
        firsts = (key for key in keys if self._leaders.get(key.prompt, key.prompt) == key.prompt)
        for key in sorted(firsts, key=lambda key: (key.trajectory, key.prompt)):
            members.setdefault(key.arm, []).append(key)
        self._scored = {key for each in members.values() for key in each[:most]}
        arms = sorted({key.arm for key in self._scored})
        nothing = sum(arm.k == 0 for arm in arms)
        # Where conformity is demanded, the known laws have their share of the level too.
        whole = ALPHA * (1 - SHARES["laws"]) if known and not self.own and not by_spend else ALPHA
        alpha = {arm: whole / len(arms) for arm in arms}
        if by_spend:  # then only those of the safe model alone accuse
            alpha |= {arm: LEVEL * SHARES["safe"] / nothing for arm in arms if arm.k == 0}
        self._tests = {arm: SamplerTests(list(ALTERNATIVES), alpha[arm]) for arm in arms}
        self._blocks: dict[Key, list[StepScores]] = {}
        self._workers = options.workers
        # Forks lose the threads of their parent: none where torch has several, or a plug-in may.
        one_thread = options.device == "cpu" and torch.get_num_threads() == 1
        self._may_fork = one_thread and ":" not in promise.name
        self._by_spend = by_spend
        self._watch = Watch(self._scores) if known and not self.own else None
        self._shown: dict[Key, Shown] = {}
        self._laws, self._families = shown_laws(run), shown_families(run)
        self._claiming = False
        self._tasks: dict[Key, ReplayTask] = {}
        self._spending: SpendAudit | None = None
        self._unread: dict[str, int] = {}
        self._truth: list[Trajectory] = []
        ledger = ledger_of(identity["ledger"], run.pieces)
        self._context = RunContext(ledger, foreign=True, max_new_tokens=self.limit)
        self._context = replace(self._context, currency=recorded_currency(identity))

    def _weaknesses(self) -> list[str]:
        """States what of the promise is not known, or not recomputed independently."""
        unknown = "its draws are not known, so tokens are tested, not recomputed"
        debt = self.promise.debt
        if self.imported:
            return [
                f"an imported log, held to KL-anchored decoding with debt {debt.definition}, n = "
                f"{debt.n}, temperature {self.decoding.temperature:g}, penalty "
                f"{self.decoding.repetition_penalty:g}; {unknown}"
            ]
        notes = []
        if self._boxed:
            counted = f"debt and budget as {self._identity['promise']}"
            notes.append(f"a black box, held to {self.held_to}, {counted}; {unknown}")
        if not self.promise.shadow:
            notes.append(
                f"{self.promise.name} has no second implementation here: its own rule was asked "
                "again, on recomputed laws and allowances"
            )
        if not isinstance(self.promise.ledger, Banking | Bucket):
            notes.append(f"allowances by the ledger's own code ({self._identity['ledger']})")
        return notes

    def replay(self, group: Sequence[Trajectory]) -> None:
        """Replays some records and compares them."""
        claimed = {t.key: t for t in group}
        tasks = [task for t in group if (task := self._task(t)) is not None]
        if not tasks:
            return
        for t in group:
            load = partial(self._laws.__getitem__, t.key) if t.key in self._laws else None
            self._shown[t.key] = Shown(t.steps.theta, self._families.get(t.key, GEOMETRIC), load)
            claims = (t.steps.charge, t.steps.theta, t.steps.served)
            self._claiming |= not all(np.isnan(values).all() for values in claims)
        self._tasks |= {task.key: task for task in tasks if task.key in self._scored}
        if self._comparison is None:
            found = self._levels(tasks)
            if self._watch is not None:
                self._spending = SpendAudit(
                    found,
                    self.pair.vocabulary.stops,
                    self.limit,
                    self._place,
                    keeps_prefixes=self.held_to != Promise.K_NAF,
                    lost=any(fault.lost for fault in self._faults),
                )
            self._comparison = ClaimComparison(
                found,
                self.pair.vocabulary.stops,
                self.limit,
                self.own,
                currency_of(self.promise.currency).promised,
                self.promise.debt,
                counting=self.imported,
            )
        for second, blocks, seen in self._replayed(tasks):
            key = second.trajectory.key
            self._comparison.add(claimed[key], second)
            self.tokens += len(second.trajectory)
            if self._spending is not None:
                self._spending.add(claimed[key], second, self._shown[key], seen)
            if self._boxed:
                if not self._by_spend:  # else what judges the spend has the records
                    self._truth.append(true_record(claimed[key], second, self.promise))
                self._count(self._comparison, claimed[key], second)
            if blocks:
                self._tests[key.arm].add(key, claimed[key].steps.token, joined(blocks))

    def _replayed(self, tasks: Sequence[ReplayTask]) -> Iterator[_Second]:
        """Yields second records with their scores, in the order of the tasks."""
        answers = self._worked(tasks, self._unit)
        found = {second.replayed.trajectory.key: second for second in answers}
        return (found[task.key] for task in tasks)

    def _worked(
        self, tasks: Sequence[ReplayTask], work: Callable[[Sequence[ReplayTask]], list[_Found]]
    ) -> Iterator[_Found]:
        """Yields what is found of each task, in several processes where that pays."""
        by_prompt: dict[tuple[int, ...], list[ReplayTask]] = {}
        for task in tasks:
            by_prompt.setdefault(task.prompt, []).append(task)
        units: list[list[ReplayTask]] = [[]]
        for of_prompt in by_prompt.values():
            if len(units[-1]) >= _UNIT:
                units.append([])
            units[-1] += of_prompt
        tokens = sum(len(task.tokens) for task in tasks)
        useful = min(len(units), tokens // _PAYING_TOKENS) if self._may_fork else 1
        workers = min(len(units), workers_of(self._workers, useful, _WORKER_BYTES))
        if workers == 1:
            return itertools.chain.from_iterable(map(work, units))

        def serve(
            drawn: Iterator[tuple[int, list[ReplayTask]]], say: object
        ) -> Iterator[tuple[int, list[_Found]]]:
            """Works on the units that a process draws."""
            torch.set_num_threads(1)
            return ((number, work(unit)) for number, unit in drawn)

        crew = Crew(workers, serve, lambda unit, done: None, _names)
        return (one for _, done in crew.results(units) for one in done)

    def _unit(self, tasks: Sequence[ReplayTask]) -> list[_Second]:
        """Replays some texts together."""
        seconds = replay_texts(Reader(self.pair, self.decoding), self.promise, tasks, self._score)
        nothing = Seen()
        return [
            _Second(
                one, self._blocks.pop(key, []), self._watch.pop(key) if self._watch else nothing
            )
            for one in seconds
            for key in (one.trajectory.key,)
        ]

    def _look(
        self, theta: Mapping[Key, Array], twins: Sequence[Shape] = ()
    ) -> dict[Key, tuple[Array, Array]]:
        """Computes the laws that act after the solve, from one more pass."""
        debts = {key: one.replayed.trajectory.debt for key, one in self._spent().answers.items()}

        def work(tasks: Sequence[ReplayTask]) -> list[tuple[Key, tuple[Array, Array]]]:
            laws = {
                task.key: AfterSolve(
                    Text(task.prompt, task.tokens, task.key.k, debts[task.key], theta[task.key]),
                    twins=twins,
                )
                for task in tasks
            }

            def on_steps(
                task: ReplayTask, first: int, served: Served, safe: Tensor, risky: Tensor
            ) -> None:
                laws[task.key].feed(safe, risky)

            silent = [replace(task, theta=None) for task in tasks]
            reader = Reader(self.pair, self.decoding)
            list(replay_texts(reader, self.promise, silent, on_steps))
            return [(key, one.results()[0]) for key, one in laws.items()]

        return dict(self._worked([self._tasks[key] for key in theta], work))

    def _spent(self) -> SpendAudit:
        assert self._spending is not None
        return self._spending

    def _place(self, key: Key) -> Any:
        """Returns the place of an answer among the requests, as far as it is known."""
        if self.imported:
            return key
        protocol, seed, purpose = (self._identity[n] for n in ("protocol", "seed", "purpose"))
        stream = row_stream(protocol, seed, purpose, key.prompt, key.trajectory)
        return request_place(stream, key.prompt, key.k, key.trajectory)

    def result(self, seconds: float) -> Verification:
        """Returns everything that was found."""
        if self._boxed and self._claiming and not self._declared:
            self.notes.append(UNDECLARED)
        for reason, count in self._unread.items():
            self.notes.append(f"{count} trajectories could not be replayed: {reason}")
        if self._comparison is None:
            reason = "; ".join(self.notes) if self.recorded else "no trajectory is recorded"
            finding = Finding("replay", Kept.INCONCLUSIVE, math.nan, reason)
            return Verification(
                [ArmFinding(None, finding)], {}, 0, self.recorded, 0, seconds, self.notes
            )
        sampled = {arm: tests.findings() for arm, tests in self._tests.items()}
        found = list(self._compared(self._comparison))
        found += [ArmFinding(arm, one) for arm, tests in sampled.items() for one in tests]
        deviation = self._comparison.deviation
        if self._spending is not None:
            judged = self._spending.judged(sampled, self._look)
            conforms = conformity(found, judged, self.promise.name)
            if self._by_spend:
                deviation = judged.books.deviation
                found = judged.findings()
                if self.imported:
                    found = [_of_log(one) for one in found]
                if self._boxed:
                    self._truth = self._spending.truths(judged.open)
            elif judged.tokens is not None:
                found += _unlike(found, judged, conforms)
                found += _explained(found, judged.tokens)
            found += [ArmFinding(None, conforms)]
        found += self._counted(self._comparison)
        refuted = {one.arm for one in found if one.finding.verdict == CheckWord.FAILED}
        if refuted and not self.own and not self._by_spend:
            # Replayed weights keep the budget by construction, and they are not what was served.
            found = [self._of_refuted(one) for one in found]
        return Verification(
            found,
            deviation,
            self._comparison.trajectories,
            self.recorded,
            self.tokens,
            seconds,
            self.notes,
            self._truth,
            self.missing is not None or any(fault.lost for fault in self._faults),
        )

    @staticmethod
    def _of_refuted(one: ArmFinding) -> ArmFinding:
        """Replaces WITHIN by UNKNOWN in the budget finding of a refuted decoder."""
        if one.finding.check != "replay: budget" or one.finding.verdict != Kept.WITHIN:
            return one
        text = "what was spent is not known, as the replay is refuted"
        unknown = replace(one.finding, verdict=CheckWord.UNKNOWN, value=math.nan, text=text)
        return ArmFinding(one.arm, unknown)

    def _compared(self, comparison: ClaimComparison) -> Iterator[ArmFinding]:
        """Yields what holds of all records, then what is refuted, arm by arm."""
        for finding in comparison.findings():
            if finding.verdict == Kept.WITHIN and self.missing is not None:
                text = f"{finding.text}; the run is unfinished: {self.missing.brief}"
                finding = replace(finding, verdict=Kept.INCONCLUSIVE, text=text)
            if finding.verdict != CheckWord.FAILED:
                yield ArmFinding(None, finding)
        for arm in sorted(comparison.by_arm):
            yield from (ArmFinding(arm, finding) for finding in comparison.failures(arm))

    @staticmethod
    def _counted(comparison: ClaimComparison) -> list[ArmFinding]:
        """Returns how the two counts of a debt judge the answers, where there are two."""
        counts = sorted(comparison.counts.items())
        return [ArmFinding(arm, one.finding()) for arm, one in counts if one.text]

    def _count(self, comparison: ClaimComparison, claimed: Trajectory, second: Replayed) -> None:
        """Judges an output by both counts of the debt, with the measure of the verdict."""
        shown = self._shown[claimed.key]
        # Charges by both counts are those at geometric weights.
        if second.other_debt is None or shown.laws is not None or shown.family != GEOMETRIC:
            return
        verified = {"deviation": comparison.deviation}
        context = replace(self._context, verified=verified)
        over = [
            measure(true_record(claimed, second, self.promise, debt), context).violated
            for debt in (second.trajectory.debt, second.other_debt)
        ]
        comparison.count(claimed, second, *over)

    def _task(self, record: Trajectory) -> ReplayTask | None:
        """Returns what is to be replayed of a record, or None and notes why it cannot be."""
        key, tokens = record.key, record.steps.token
        prompt = self._prompts.get(key.prompt, ())
        reason = ""
        if not prompt:
            reason = "their prompt is not recorded"
        elif not tokens.size or (tokens < 0).any() or (tokens >= len(self.pair.vocabulary)).any():
            reason = "their tokens are not recorded, or are not the pair's"
        elif len(prompt) + tokens.size > self.pair.context:
            reason = "they do not fit the pair's context"
        if reason:
            self._unread[reason] = self._unread.get(reason, 0) + 1
            return None
        stream = None
        if self.own:
            protocol, seed, purpose = (self._identity[n] for n in ("protocol", "seed", "purpose"))
            leader = self._leaders.get(key.prompt, key.prompt)
            stream = row_stream(protocol, seed, purpose, leader, key.trajectory)
        return ReplayTask(key, prompt, tokens, record.stopped, stream, record.steps.theta)

    def _levels(self, tasks: Sequence[ReplayTask]) -> Levels:
        """Replays a few texts twice, in passes of other shapes, and sees how far they differ."""
        few = sorted(tasks, key=lambda task: (-len(task.tokens), task.key))[:_CALIBRATED]
        shapes: tuple[dict[str, Any], ...] = ({}, {"numbers": 1, "chunk": _CALIBRATION_CHUNK})
        first, second = (
            {
                r.trajectory.key: r
                for r in replay_texts(Reader(self.pair, self.decoding, **shape), self.promise, few)
            }
            for shape in shapes
        )
        noise: dict[str, float] = {}
        for key, one in first.items():
            # The weights of the one are what the other is charged for.
            gaps = deviations(one.trajectory, second[key], stops=self.pair.vocabulary.stops)
            for name, values in gaps.items():
                known = values[np.isfinite(values)]
                noise[name] = max(noise.get(name, 0.0), float(known.max(initial=0.0)))
        dtype = self.pair.fingerprint["dtype"]
        return levels(noise, foreign=not self.own, dtype=dtype, declared=self._declared)

    def _score(
        self, task: ReplayTask, first: int, served: Served, safe: Tensor, risky: Tensor
    ) -> None:
        scored = task.key in self._scored
        if self._watch is not None:
            self._watch.feed(task, self._shown[task.key], first, (safe, risky), scored=scored)
        if scored:
            scores = self._scores(task, first, served, safe, risky)
            self._blocks.setdefault(task.key, []).append(scores)

    def _scores(
        self, task: ReplayTask, first: int, served: Served, safe: Tensor, risky: Tensor
    ) -> StepScores:
        """Scores steps of an output against what is served there."""
        key, tokens = task.key, task.tokens
        part = slice(first, first + len(safe))
        # Numbers of the auditor's own: another purpose, so other draws than the run's.
        stream = sound_stream(0, "rank-pit", key.prompt, key.trajectory)
        own = uniforms(words(stream, 0, len(tokens)))[part]
        sets = token_sets(served.law, task.prompt, tokens, first, self.pair.vocabulary.stops)
        return step_scores(served.law, safe, risky, served.theta, tokens[part], own, sets)


def _of_log(one: ArmFinding) -> ArmFinding:
    """Returns a finding about a log: wrong books refute it, as its verdict rests on them."""
    finding = one.finding
    # Probabilities that contradict a weight are of another reading of that weight.
    books = finding.check.startswith("bookkeeping: ") and finding.check != "bookkeeping: served"
    if books and finding.verdict == CheckWord.SUSPECT:
        return ArmFinding(one.arm, replace(finding, verdict=CheckWord.FAILED))
    return one


def _unlike(found: Sequence[ArmFinding], judged: Judged, conforms: Finding) -> list[ArmFinding]:
    """Says of a decoder that is to be the promised mechanism that the joint test excludes it."""
    if conforms.value or any(one.finding.verdict == CheckWord.FAILED for one in found):
        return []
    told = replace(conforms, check="sampling: conformity", verdict=CheckWord.FAILED)
    return [ArmFinding(one.arm, told) for one in judged.accused if one.finding.check == TOKENS]


def _explained(found: Sequence[ArmFinding], tokens: TokenEvidence) -> list[ArmFinding]:
    """Says which law the tokens fit, where the tests refute the promised one."""
    if not tokens.fit.law or tokens.fit.law == "1 k":
        return []
    arms = {
        one.arm
        for one in found
        if one.arm is not None
        and not is_baseline(one.arm.k)
        and one.finding.verdict == CheckWord.FAILED
        and one.finding.check.startswith("sampler: ")
        and one.finding.check.removeprefix("sampler: ") not in INDEPENDENCE
    }
    told = Finding(OTHER_PROMISE, CheckWord.FAILED, math.nan, tokens.fit.fits)
    return [ArmFinding(arm, told) for arm in sorted(arms)]
