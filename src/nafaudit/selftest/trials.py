"""Trials of a decoder: what conformance asks it, where it runs, and what came back.

It is asked for some prompts at k = 0, at two budgets that bind and at k = inf, then for the same
few requests again, one by one, and beside prompts of other lengths. A bench is where it answers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nafaudit.auditor.alternatives import (
    ALTERNATIVES,
    OTHER_K,
    likeliest,
    step_scores,
    token_sets,
)
from nafaudit.auditor.claims import ClaimComparison, levels
from nafaudit.auditor.family import AfterSolve, Shape, Text
from nafaudit.auditor.replay import OnSteps, ReplayTask, replay_texts
from nafaudit.auditor.sampler import INDEPENDENCE, SamplerTests, StepScores, joined
from nafaudit.auditor.spend import SpendAudit, Watch
from nafaudit.auditor.teacher_forcing import Reader
from nafaudit.core.debt import DebtRule
from nafaudit.core.draws import request_seed, sound_stream
from nafaudit.core.errors import InputError
from nafaudit.core.finding import FAULTS, CheckWord, Fault, Finding
from nafaudit.core.ledger import Banking, budget_name
from nafaudit.core.options import load
from nafaudit.core.promise import Promise
from nafaudit.core.settings import RunSettings
from nafaudit.core.trajectory import Arm, Key, Replayed, Trajectory, budget_text
from nafaudit.lab.prompts import prompts as lab_prompts
from nafaudit.measures.context import RunContext
from nafaudit.mechanisms.cards import parse
from nafaudit.mechanisms.registry import mechanism
from nafaudit.models.pair import load_pair
from nafaudit.protocols import Mechanism, Request, Served
from nafaudit.runner.blackbox import OFFICIAL, DecoderError, launch_of, session_of
from nafaudit.runner.outputs import read_output
from nafaudit.runner.pairs import checkpoints_of
from nafaudit.runner.workbench import mechanism_of
from nafaudit.runner.worker import registered
from nafaudit.selftest.battery import AuditAnswer, answer_of, pit_draws, shown_of

# Budgets that bind, unless others are given.
ACTIVE = (0.25, 1.0)
SEEDS = 4
MOST_TOKENS = 32
BATCH = 32
# Replayed and claimed numbers may differ by this much, relative to 1 + their size.
SLACK = 1e-3
# How often a sound decoder may be called broken by its tokens, over all budgets.
ALPHA = 1e-5

Tokens = tuple[int, ...]


@dataclass
class Trials:
    """Requests of a conformance test, and what came back.

    Attributes:
        asked: Number of outputs that were asked for.
        faults: What went wrong, by name.
        main: Every output of the prompts and budgets that could be recorded.
        replayed: These outputs recomputed, by key.
        first: A few outputs of one prompt, asked for together; None where one is missing.
        again: The outputs of the same requests, asked for a second time.
        alone: The outputs of the same requests, asked for one by one.
        mixed: The outputs of the same requests beside prompts of other lengths.
        alarms: What the sampler tests of the law hold against the outputs, by budget.
        copies: What the tests of independence say, at any budget; empty if they pass.
        promises: False for a mechanism that promises no budget.
        active: The budgets that bind.
        debt: The debt that is promised.
        fitting: Other promises that the outputs fit, filled only if they do not fit the tested one:
            multiple of k to log-probability of the tokens. 1 stands for the promise without debt.
        came: Outputs that came before the decoder hung, died or could not be read any more.
        unlike: Which claims under binding budgets are not those of the promised mechanism.
        scores: What the tests of the promised law need of each output.
        answer: How outputs under binding budgets are judged by what they spend; None where
            conformity with a mechanism is demanded.
    """

    asked: int = 0
    faults: list[Fault] = field(default_factory=list)
    main: list[Trajectory] = field(default_factory=list)
    replayed: dict[Key, Replayed] = field(default_factory=dict)
    first: list[Trajectory | None] = field(default_factory=list)
    again: list[Trajectory | None] = field(default_factory=list)
    alone: list[Trajectory | None] = field(default_factory=list)
    mixed: list[Trajectory | None] = field(default_factory=list)
    alarms: dict[float, str] = field(default_factory=dict)
    copies: str = ""
    promises: bool = True
    active: tuple[float, ...] = ACTIVE
    debt: DebtRule = field(default_factory=DebtRule)
    fitting: dict[float, float] = field(default_factory=dict)
    came: int = 0
    unlike: list[Finding] = field(default_factory=list)
    scores: dict[Key, StepScores] = field(default_factory=dict)
    answer: AuditAnswer | None = None

    @property
    def budgets(self) -> tuple[float, ...]:
        """Returns the budgets that bind, and both baselines."""
        return (0.0, *self.active, math.inf)

    def overspent(
        self, replayed: Mapping[Key, Replayed] | None = None, *, otherwise: bool = False
    ) -> Overspent | None:
        """Returns the first output that costs more than it was granted, as claimed or as implied.

        Args:
            replayed: The outputs recomputed under another promise; the tested one if None.
            otherwise: True to take off the debt as the other definition counts it, if it can.
        """
        for record in (t for t in self.main if t.key.k in self.active):
            again = (self.replayed if replayed is None else replayed)[record.key]
            other = again.granted_otherwise if otherwise else None
            granted = np.maximum(again.granted if other is None else other, 0.0)
            for charge in _spendings(record, again):
                over = np.cumsum(charge) - granted - SLACK * (1 + granted)
                if (over > 0).any():
                    at = int(np.argmax(over > 0))
                    return Overspent(record, at, float(np.cumsum(charge)[at]), float(granted[at]))
        return None

    @property
    def shows_spend(self) -> bool:
        """True if weights or charges are claimed, so that spend is known."""
        active = (t for t in self.main if t.key.k in self.active)
        return any(_spendings(record, self.replayed[record.key]) for record in active)

    @property
    def other_promises(self) -> tuple[float, ...]:
        """Which other promises the tokens speak for, by what k is multiplied by; 1: no debt."""
        return likeliest(self.fitting)

    def fits(self, replayed: Mapping[Key, Replayed], alarms: Mapping[float, str]) -> bool:
        """Says whether nothing is wrong under the binding budgets of another promise."""
        if self.overspent(replayed) is not None:
            return False
        return not any(k in alarms for k in self.active)

    @property
    def counts_otherwise(self) -> bool:
        """True if outputs are over budget, but none with the debt of the other definition."""
        return self.overspent() is not None and self.overspent(otherwise=True) is None

    @property
    def largest_debt(self) -> float:
        """Returns the largest debt of an output under a binding budget, in nats."""
        active = (r for key, r in self.replayed.items() if key.k in self.active)
        return max((again.trajectory.debt for again in active), default=0.0)

    def fault(self, *names: str) -> str:
        """Returns the first fault of some names in words; an empty text if there is none."""
        found = [fault for fault in self.faults if fault.name in names]
        if not found:
            return ""
        found = [fault for fault in found if fault.name == found[0].name]
        times = f" ({len(found)} faults of this kind)" if len(found) > 1 else ""
        return f"{FAULTS[found[0].name]}: {found[0].text}{times}"

    def by_prompt(self, k: float) -> list[list[Trajectory]]:
        """Returns the outputs of a budget, prompt by prompt."""
        groups: dict[str, list[Trajectory]] = {}
        for record in self.main:
            if record.key.k == k:
                groups.setdefault(record.key.prompt, []).append(record)
        return list(groups.values())


@dataclass(frozen=True)
class Overspent:
    """An output that costs more than it was granted, and the first step at which it does."""

    record: Trajectory
    step: int
    spent: float
    granted: float


def _spendings(record: Trajectory, again: Replayed) -> list[NDArray[np.float64]]:
    """Returns the charges of an output: those that its weights imply, and those that it claims."""
    return [c for c in (again.implied, record.steps.charge) if not np.isnan(c).any()]


class Bench(Protocol):
    """The place of a trial: it has prompts, asks the decoder, and replays its outputs."""

    @property
    def prompts(self) -> dict[str, Tokens]:
        """Returns prompts by name, of several lengths."""
        ...

    @property
    def size(self) -> int:
        """Number of token ids."""
        ...

    @property
    def stops(self) -> frozenset[int]:
        """Ids that end an output."""
        ...

    def ask(self, requests: Sequence[Request]) -> list[Any]:
        """Returns raw outputs; raises `DecoderError` if there are none."""
        ...

    def close(self) -> None:
        """Ends the decoder; raises `DecoderError` if it does not end cleanly."""
        ...

    def replay(
        self, written: Sequence[ReplayTask], on_steps: OnSteps, *, indebted: bool = True
    ) -> Iterator[Replayed]:
        """Recomputes outputs.

        Args:
            written: The outputs.
            on_steps: Called with every law on the way.
            indebted: False to leave the prefix debt out.
        """
        ...


def run_trials(
    bench: Bench,
    *,
    promises: bool = True,
    active: tuple[float, ...] = ACTIVE,
    debt: DebtRule | None = None,
    held_to: str = Promise.BANKED,
    on_stage: Callable[[str], None] = lambda text: None,
) -> Trials:
    """Asks a decoder everything the items need; stops asking if it hangs or dies.

    Args:
        bench: Where it is tried.
        promises: False for a mechanism that promises no budget.
        active: Budgets that bind.
        debt: The debt that is promised; the usual one if None.
        held_to: What it is judged by (`nafaudit.core.promise`).
        on_stage: Called with what is tried next, in words.
    """
    trials = Trials(promises=promises, active=active, debt=debt or DebtRule())
    prompts, broken = bench.prompts, False

    def keyed(name: str, k: float, seed: int) -> tuple[Key, Request]:
        # Another number for every prompt, seed and budget, as in a run.
        number = request_seed(sound_stream(seed, "conformance", name, 0), budget_text(k))
        return Key(name, "decoder", k, seed), Request(prompts[name], k, number, MOST_TOKENS)

    def ask(wanted: Sequence[tuple[Key, Request]]) -> list[Trajectory | None]:
        """Makes one call; returns None for every output that could not be recorded."""
        nonlocal broken
        trials.asked += len(wanted)
        if broken:
            return [None] * len(wanted)
        try:
            outputs = bench.ask([request for _, request in wanted])
        except DecoderError as error:
            trials.faults.append(Fault(error.name, str(error), wanted[0][0], lost=True))
            # A decoder that hangs or dies once is not waited for again.
            broken = error.name in ("hang", "died", "garbled")
            return [None] * len(wanted)
        trials.came += len(wanted)
        found = []
        for (key, request), raw in zip(wanted, outputs, strict=True):
            read = read_output(raw, key, request, bench.size, bench.stops)
            trials.faults += read.faults
            found.append(read.trajectory)
        return found

    everything = [
        keyed(name, k, seed) for k in trials.budgets for name in prompts for seed in range(SEEDS)
    ]
    for start in range(0, len(everything), BATCH):
        part = everything[start : start + BATCH]
        on_stage(
            f"terminates, stop tokens, differs: {start}/{len(everything)} outputs, "
            f"{budget_name(part[0][0].k)}"
        )
        trials.main += [record for record in ask(part) if record is not None]
    name, k = list(prompts)[len(prompts) // 2], active[-1]
    few = [keyed(name, k, seed) for seed in range(SEEDS)]
    others = [keyed(o, k, 7) for o in prompts if len(prompts[o]) != len(prompts[name])]
    on_stage("repeats: the same seeds again")
    trials.first, trials.again = ask(few), ask(few)
    on_stage("batch: each output alone")
    trials.alone = [ask([one])[0] for one in few]
    on_stage("padding: beside prompts of other lengths")
    trials.mixed = ask([*few, *others])[: len(few)]
    try:
        bench.close()
    except DecoderError as error:
        trials.faults.append(Fault(error.name, str(error)))
    on_stage(f"charges, budget, k = 0, k = inf, conforms: replaying {len(trials.main)} outputs")
    if held_to in (Promise.BANKED, Promise.K_NAF) and trials.main:
        trials.answer = _spent(trials, bench, Promise(held_to))
        return trials
    trials.replayed, trials.alarms, trials.copies = _replay(trials, bench, trials.main)
    claims = ClaimComparison(levels({}, foreign=True), bench.stops, MOST_TOKENS, own=False)
    for record in trials.main:
        if record.key.k in active:
            claims.add(record, trials.replayed[record.key])
    trials.unlike = [one for one in claims.findings() if one.verdict == CheckWord.FAILED]
    if trials.fits(trials.replayed, trials.alarms):
        return trials
    paid = [record for record in trials.main if record.key.k in active]
    # Is it the debt that it does not charge, or another budget that it keeps?
    tried: dict[float, str] = {1.0: "without debt"} if trials.largest_debt > 0 else {}
    if trials.promises and not trials.counts_otherwise:
        tried |= {factor: f"at {factor:g} times k" for factor in OTHER_K}
    for factor, name in tried.items():
        on_stage(f"something does not fit; trying the promise {name}")
        again, alarms, _ = _replay(trials, bench, paid, indebted=factor != 1, factor=factor)
        if trials.fits(again, alarms):
            served = (one.trajectory.steps.served.sum() for one in again.values())
            trials.fitting[factor] = float(sum(served))
    return trials


def _spent(trials: Trials, bench: Bench, promise: Promise) -> AuditAnswer:
    """Judges outputs under binding budgets by what they spend, as a run would.

    The tests of the promised law are kept too: at k = 0 and inf there is but one law.
    """
    tolerances = levels({}, foreign=True)
    spending = SpendAudit(
        tolerances, bench.stops, MOST_TOKENS, keeps_prefixes=promise != Promise.K_NAF
    )
    claims = ClaimComparison(tolerances, bench.stops, MOST_TOKENS, own=False)
    paid = [record for record in trials.main if record.key.k in trials.active]
    shown = {record.key: shown_of(record) for record in trials.main}
    watch = Watch(
        lambda task, first, served, safe, risky: _scored(bench, task, first, served, safe, risky)
    )

    def feed(task: ReplayTask, first: int, served: Served, safe: Tensor, risky: Tensor) -> None:
        if task.key.k in trials.active:
            watch.feed(task, shown[task.key], first, (safe, risky), scored=True)

    found = _replay(trials, bench, trials.main, also=feed)
    trials.replayed, trials.alarms, trials.copies = found
    for record in paid:
        again = trials.replayed[record.key]
        spending.add(record, again, shown[record.key], watch.pop(record.key))
        claims.add(record, again)

    def look(
        theta: Mapping[Key, NDArray[np.float64]], twins: Sequence[Shape] = ()
    ) -> dict[Key, tuple[NDArray[np.float64], NDArray[np.float64]]]:
        laws = {}
        for record in paid:
            key, debt = record.key, trials.replayed[record.key].trajectory.debt
            text = Text(bench.prompts[key.prompt], record.steps.token, key.k, debt, theta[key])
            laws[key] = AfterSolve(text, twins=twins)

        def after(
            task: ReplayTask, first: int, served: Served, safe: Tensor, risky: Tensor
        ) -> None:
            laws[task.key].feed(safe, risky)

        list(bench.replay([_task(bench, record) for record in paid], after))
        return {key: one.results()[0] for key, one in laws.items()}

    tests: dict[Arm, SamplerTests] = {}
    for record in paid:
        battery = tests.setdefault(record.key.arm, SamplerTests(list(ALTERNATIVES), ALPHA))
        battery.add(record.key, record.steps.token, trials.scores[record.key])
    context = RunContext(
        Banking(), foreign=True, max_new_tokens=MOST_TOKENS, stops=bench.stops, held_to=promise
    )
    return answer_of(spending, tests, claims, look, context)


def _task(bench: Bench, record: Trajectory, key: Key | None = None) -> ReplayTask:
    prompt, steps = bench.prompts[record.key.prompt], record.steps
    return ReplayTask(key or record.key, prompt, steps.token, record.stopped, None, steps.theta)


def _scored(
    bench: Bench, task: ReplayTask, first: int, served: Served, safe: Tensor, risky: Tensor
) -> StepScores:
    """Scores steps of an output against the law that was served there."""
    tokens = task.tokens
    own, part = pit_draws(task.key, len(tokens)), slice(first, first + len(safe))
    sets = token_sets(served.law, task.prompt, tokens, first, bench.stops)
    return step_scores(served.law, safe, risky, served.theta, tokens[part], own[part], sets)


def _replay(
    trials: Trials,
    bench: Bench,
    outputs: Sequence[Trajectory],
    *,
    indebted: bool = True,
    factor: float = 1.0,
    also: OnSteps | None = None,
) -> tuple[dict[Key, Replayed], dict[float, str], str]:
    """Recomputes outputs, and tests whether their tokens were drawn from the promised law.

    Args:
        trials: What is promised.
        bench: Where they were written.
        outputs: The outputs.
        indebted: False to leave the prefix debt out.
        factor: What binding budgets are multiplied by.
        also: Called with every law on the way too.

    Returns:
        Replays, alarms and copies, as `Trials` has them.
    """
    blocks: dict[Key, list[StepScores]] = {}
    # Replayed under another budget, an output keeps its own key here.
    keys = {r.key._replace(k=factor * r.key.k): r.key for r in outputs}
    records = {record.key: record for record in outputs}

    def on_steps(task: ReplayTask, first: int, served: Served, safe: Tensor, risky: Tensor) -> None:
        own = replace(task, key=keys[task.key])
        blocks.setdefault(own.key, []).append(_scored(bench, own, first, served, safe, risky))
        if also is not None:
            also(task, first, served, safe, risky)

    written = [_task(bench, record, key) for key, record in zip(keys, outputs, strict=True)]
    again = bench.replay(written, on_steps, indebted=indebted)
    replayed = {keys[second.trajectory.key]: second for second in again}
    trials.scores = {key: joined(parts) for key, parts in blocks.items()}
    alarms: dict[float, str] = {}
    copies = ""
    for k in trials.budgets:
        tests = SamplerTests(list(ALTERNATIVES), ALPHA / len(trials.budgets))
        for key, scores in trials.scores.items():
            if key.k == k:
                tests.add(key, records[key].steps.token, scores)
        for finding in tests.findings():
            if finding.verdict != CheckWord.FAILED:
                continue
            name = finding.check.removeprefix("sampler: ")
            # Where both fail, the law alone is blamed: a wrong one can make outputs look copied.
            if name not in INDEPENDENCE:
                alarms.setdefault(k, finding.text)
            elif name == "repeats" and k not in alarms:
                copies = finding.text
    return replayed, alarms, copies


WIDTH = 192
_PROMPTS = 6
# A stop token about this frequent lets some outputs stop and others reach the limit.
_STOP_SHARE = 0.03


class LabBench:
    """The lab pair, and a decoder in a process of its own; use it as a context manager.

    One frequent token is declared a stop token, so that outputs do stop.

    Args:
        spec: Which decoder.
        python: Interpreter that runs it; ours if None.
        timeout: Seconds that an answer may take.
        promise: What a decoder promises, in the names of `RunSettings`.
    """

    def __init__(
        self,
        spec: str,
        *,
        python: str | None = None,
        timeout: float = 120.0,
        promise: Mapping[str, Any] | None = None,
    ) -> None:
        given = {"decoder": spec, "decoder_python": python, "decoder_timeout": timeout}
        shape = {"max_new_tokens": MOST_TOKENS, "batch": BATCH}
        self._promise = dict(promise or {})
        self._settings = load(RunSettings, None, given | shape | self._promise)
        mechanism_of(self._settings)  # a wrong promise is refused before a model loads
        if parse(spec) is not None:
            self._refuse_promise()
        checkpoints = checkpoints_of(self._settings)
        self._pair = load_pair(*checkpoints)
        self.size = len(self._pair.vocabulary)
        split = self._pair.tokenizer
        every = {p.id: tuple(split(p.text)["input_ids"]) for p in lab_prompts()}
        # Spread over their lengths.
        fitting = [(len(t), name) for name, t in every.items() if len(t) + MOST_TOKENS <= WIDTH]
        places = np.linspace(0, len(fitting) - 1, _PROMPTS).round().astype(int)
        names = [name for _, name in sorted(fitting)]
        self.prompts: dict[str, Tokens] = {names[i]: every[names[i]] for i in places}
        # A token of ordinary text, about as frequent as the end of a sentence.
        special = self._pair.vocabulary.special
        counts = Counter(t for tokens in every.values() for t in tokens if t not in special)
        total = counts.total()
        stop = min(counts, key=lambda t: (abs(counts[t] / total - _STOP_SHARE), t))
        # The published decoder cannot take two stop tokens, so it gets the frequent one alone.
        own = frozenset() if spec == OFFICIAL else self._pair.vocabulary.stops
        self.stops = own | {stop}
        launch = launch_of(self._settings, self._pair, checkpoints, WIDTH, rules=True)
        hello = {**launch.hello, "stops": sorted(self.stops)}
        self._session = session_of(replace(launch, hello=hello))

    def __enter__(self) -> LabBench:
        self._session.start()
        if self._session.ready.get("kind") == "rule":
            self._refuse_promise()
        return self

    def _refuse_promise(self) -> None:
        """Raises if a rule is to be held to something else than itself."""
        if given := [name for name in ("mechanism", "promise") if name in self._promise]:
            raise InputError(
                f"{self._settings.decoder} is a rule and is held to itself; leave out --{given[0]}."
            )

    def __exit__(self, *_: object) -> None:
        self._session.__exit__()

    def ask(self, requests: Sequence[Request]) -> list[Any]:
        """Asks the decoder's process."""
        return self._session.ask(requests)

    @property
    def promises(self) -> bool:
        """False for a mechanism of ours that promises no budget."""
        found = parse(self._settings.decoder or "")
        return found is None or found.card.promise.divergence != "none"

    @property
    def chooses(self) -> bool:
        """True for a plug-in that chooses among whole outputs; it decodes nothing here."""
        return bool(self._session.ready.get("kind") == "sequence")

    def close(self) -> None:
        """Ends the decoder's process."""
        self._session.close()

    @cached_property
    def promised(self) -> Mechanism:
        """Returns what the decoder is held to: a rule to itself, a decoder to the promise."""
        debt = self._settings.debt_rule
        made = registered(self._rule, debt, checkpoints_of(self._settings)[0])
        return made or mechanism(self._rule, debt)

    @property
    def held_to(self) -> str:
        """What it is judged by: the words of `nafaudit.core.promise`; a rule by its own name."""
        is_rule = self._session.ready.get("kind") == "rule"
        return self.promised.name if is_rule else self._settings.held_to(self.promised.name)

    @property
    def _rule(self) -> str:
        is_rule = self._session.ready.get("kind") == "rule"
        return (self._settings.decoder if is_rule else None) or self._settings.mechanism

    def promise_text(self, budgets: Sequence[float]) -> str:
        """Returns what the decoder is held to, in words: rule, ledger, debt, budgets, warps."""
        debt, decoding = self.promised.debt, self._settings.decoding
        owed = f"prefix debt {debt.definition} (n = {debt.n})" if debt.n else "no prefix debt"
        held = f"{self.held_to}; " if self.held_to in (Promise.BANKED, Promise.K_NAF) else ""
        text = f"{held}{self._rule}, ledger {self.promised.ledger.spec}, {owed}, k = "
        text += ", ".join(f"{k:g}" for k in budgets)
        if decoding.temperature != 1.0:
            text += f", temperature {decoding.temperature:g}"
        if decoding.repetition_penalty != 1.0:
            text += f", repetition penalty {decoding.repetition_penalty:g}"
        return text

    def replay(
        self, written: Sequence[ReplayTask], on_steps: OnSteps, *, indebted: bool = True
    ) -> Iterator[Replayed]:
        """Recomputes outputs in one teacher-forced pass of both models."""
        promised = self.promised if indebted else replace(self.promised, debt=DebtRule(0))
        return replay_texts(
            Reader(self._pair, self._settings.decoding), promised, written, on_steps
        )
