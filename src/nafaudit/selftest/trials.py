"""What conformance asks a decoder, and where the decoder is tried.

Some prompts at k = 0, at two budgets that bind and at k = inf, then the same few requests again,
alone, and beside prompts of other lengths. A bench is where it answers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nafaudit.auditor.alternatives import ALTERNATIVES, step_scores, token_sets
from nafaudit.auditor.laws import Reader
from nafaudit.auditor.replay import OnSteps, ReplayTask, replay_in, replay_texts
from nafaudit.auditor.sampler import SamplerTests, StepScores, joined
from nafaudit.core.debt import DebtRule
from nafaudit.core.draws import sound_stream, uniforms, words
from nafaudit.core.errors import InputError
from nafaudit.core.finding import FAULTS, CheckWord, Fault
from nafaudit.core.options import load
from nafaudit.core.settings import RunSettings
from nafaudit.core.trajectory import Key, Replayed, Trajectory
from nafaudit.lab.prompts import prompts as lab_prompts
from nafaudit.mechanisms.cards import parse
from nafaudit.mechanisms.registry import mechanism
from nafaudit.models.pair import Pair, load_pair
from nafaudit.protocols import BlackBox, Mechanism, Request, Served, World
from nafaudit.runner.blackbox import OFFICIAL, DecoderError, Session, launch_of
from nafaudit.runner.outputs import read_output
from nafaudit.runner.pairs import checkpoints_of
from nafaudit.runner.workbench import mechanism_of
from nafaudit.runner.worker import answer, registered

# Budgets that bind, unless told.
ACTIVE = (0.25, 1.0)
SEEDS = 4
MOST_TOKENS = 32
BATCH = 32
# Replayed and claimed numbers may differ by this much, relative to 1 + their size.
SLACK = 1e-3
# How often a sound decoder may be called broken by its tokens, over all budgets.
ALPHA = 1e-5
# Tests whether outputs are independent, given their law; the others ask for the law, given that
# they are. What one of them says is only heard where the other is content.
_INDEPENDENCE = ("repeats", "shared-noise")

Tokens = tuple[int, ...]


@dataclass
class Trials:
    """What was asked and what came back.

    Attributes:
        asked: How many outputs were asked for.
        faults: What went wrong, by name.
        main: Every output that could be recorded of the prompts and budgets.
        replayed: The same, recomputed, by key.
        first: A few outputs of one prompt, asked for together; None where one is missing.
        again: The same call again.
        alone: The same outputs, one by one.
        mixed: The same outputs beside prompts of other lengths.
        alarms: By budget, what the sampler tests of the law say; nothing if they are content.
        copies: What the tests of independence say, at any budget.
        promises: False for a mechanism that promises no budget.
        active: The budgets that bind.
        debt: The debt that is promised.
        free: If something is wrong and a prefix debt is promised, the outputs of these budgets
            recomputed without the debt, by key.
        free_alarms: What the sampler tests say then, by budget.
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
    free: dict[Key, Replayed] = field(default_factory=dict)
    free_alarms: dict[float, str] = field(default_factory=dict)

    @property
    def budgets(self) -> tuple[float, ...]:
        """The budgets that bind, and both baselines."""
        return (0.0, *self.active, math.inf)

    def overspent(self, *, free: bool = False, otherwise: bool = False) -> Overspent | None:
        """The first output that costs more than it was granted, as claimed or as it implies.

        Args:
            free: True to take no prefix debt off the grants.
            otherwise: True to take off the debt counted in the other laws, where there are others.
        """
        for record in (t for t in self.main if t.key.k in self.active):
            again = (self.free if free else self.replayed)[record.key]
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
    def owes_nothing(self) -> bool:
        """True if all that is wrong under the binding budgets is gone without the debt."""
        if not self.free or self.overspent(free=True) is not None:
            return False
        return not any(k in self.free_alarms for k in self.active)

    @property
    def counts_otherwise(self) -> bool:
        """True if outputs are over budget, and none is by the debt counted in the other laws."""
        return self.overspent() is not None and self.overspent(otherwise=True) is None

    @property
    def largest_debt(self) -> float:
        """Of the outputs of the binding budgets, in nats."""
        active = (r for key, r in self.replayed.items() if key.k in self.active)
        return max((again.trajectory.debt for again in active), default=0.0)

    def fault(self, *names: str) -> str:
        """The first fault of some names, in words; nothing if there is none."""
        found = [fault for fault in self.faults if fault.name in names]
        if not found:
            return ""
        times = f" ({len(found)} faults of this kind)" if len(found) > 1 else ""
        return f"{FAULTS[found[0].name]}: {found[0].text}{times}"

    def alarm(self, k: float) -> str:
        """What the sampler tests hold against the outputs of a budget."""
        return self.alarms.get(k, "")

    def by_prompt(self, k: float) -> list[list[Trajectory]]:
        """The outputs of a budget, prompt by prompt."""
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
    """The charges of an output: of the weights that it claims, and those that it claims."""
    return [c for c in (again.implied, record.steps.charge) if not np.isnan(c).any()]


class Bench(Protocol):
    """Where a decoder is tried: who answers, on which prompts, and how outputs are replayed."""

    @property
    def prompts(self) -> dict[str, Tokens]:
        """Prompts by name, of several lengths."""
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
        """Raw outputs; raises `DecoderError` if there are none."""
        ...

    def close(self) -> None:
        """Lets the decoder end; raises `DecoderError` if it does not end well."""
        ...

    def replay(
        self, written: Sequence[ReplayTask], look: OnSteps, *, indebted: bool = True
    ) -> Iterator[Replayed]:
        """Recomputes outputs, and shows `look` every law on the way; without a debt if told."""
        ...


def run_trials(
    bench: Bench,
    *,
    promises: bool = True,
    active: tuple[float, ...] = ACTIVE,
    debt: DebtRule | None = None,
) -> Trials:
    """Asks a decoder everything the items need; stops asking if it hangs or dies.

    Args:
        bench: Where it is tried.
        promises: False for a mechanism that promises no budget.
        active: Budgets that bind.
        debt: The debt that is promised; the usual one unless told.
    """
    asker = _Asker(bench)
    asker.trials.promises, asker.trials.active = promises, active
    asker.trials.debt = debt or DebtRule()
    _ask_everything(asker)
    try:
        bench.close()
    except DecoderError as error:
        asker.trials.faults.append(Fault(error.name, str(error)))
    trials = asker.trials
    again = _replay(trials, bench, trials.main)
    trials.replayed, trials.alarms, trials.copies = again.replayed, again.alarms, again.copies
    wrong = any(k in trials.alarms for k in active) or trials.overspent() is not None
    if wrong and trials.largest_debt > 0:
        # Is it the debt that it does not charge?
        paid = [record for record in trials.main if record.key.k in active]
        free = _replay(trials, bench, paid, indebted=False)
        trials.free, trials.free_alarms = free.replayed, free.alarms
    return trials


class _Asker:
    """Asks, reads what comes back, and notes what is wrong with it."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.trials = bench, Trials()
        self._broken = False

    def __call__(self, wanted: Sequence[tuple[Key, Request]]) -> list[Trajectory | None]:
        """One call; None for every output that could not be recorded."""
        self.trials.asked += len(wanted)
        if self._broken:
            return [None] * len(wanted)
        try:
            outputs = self.bench.ask([request for _, request in wanted])
        except DecoderError as error:
            self.trials.faults.append(Fault(error.name, str(error), wanted[0][0], lost=True))
            # Whoever hangs or dies once is not waited for again.
            self._broken = error.name in ("hang", "died", "garbled")
            return [None] * len(wanted)
        answered = zip(wanted, outputs, strict=True)
        return [self._read(key, request, raw) for (key, request), raw in answered]

    def _read(self, key: Key, request: Request, raw: Any) -> Trajectory | None:
        reading = read_output(raw, key, request, self.bench.size, self.bench.stops)
        self.trials.faults += reading.faults
        return reading.trajectory


def _ask_everything(ask: _Asker) -> None:
    trials, prompts = ask.trials, ask.bench.prompts
    everything = [
        _request(name, tokens, k, seed)
        for k in trials.budgets
        for name, tokens in prompts.items()
        for seed in range(SEEDS)
    ]
    for start in range(0, len(everything), BATCH):
        part = everything[start : start + BATCH]
        trials.main += [record for record in ask(part) if record is not None]
    name = list(prompts)[len(prompts) // 2]
    k = trials.active[-1]
    few = [_request(name, prompts[name], k, seed) for seed in range(SEEDS)]
    others = [
        _request(other, tokens, k, 7)
        for other, tokens in prompts.items()
        if len(tokens) != len(prompts[name])
    ]
    trials.first = ask(few)
    trials.again = ask(few)
    trials.alone = [ask([one])[0] for one in few]
    trials.mixed = ask([*few, *others])[: len(few)]


def _request(name: str, tokens: Tokens, k: float, seed: int) -> tuple[Key, Request]:
    # Another number for every prompt and seed, the same for every budget.
    number = sound_stream(seed, "conformance", name, 0).key % 2**63
    return Key(name, "decoder", k, seed), Request(tokens, k, number, MOST_TOKENS)


@dataclass
class _Again:
    """Outputs recomputed, and what the sampler tests hold against them."""

    replayed: dict[Key, Replayed] = field(default_factory=dict)
    alarms: dict[float, str] = field(default_factory=dict)
    copies: str = ""


def _replay(
    trials: Trials, bench: Bench, outputs: Sequence[Trajectory], *, indebted: bool = True
) -> _Again:
    """Recomputes outputs, and tests whether their tokens were drawn from the promised law."""
    again = _Again()
    blocks: dict[Key, list[StepScores]] = {}
    records = {record.key: record for record in outputs}

    def look(key: Key, first: int, served: Served, safe: Tensor, risky: Tensor) -> None:
        tokens = records[key].steps.token
        stream = sound_stream(0, "rank-pit", key.prompt, key.trajectory)
        own = uniforms(words(stream, 0, len(tokens)))
        part = slice(first, first + len(safe))
        sets = token_sets(served.law, bench.prompts[key.prompt], tokens, first, bench.stops)
        scores = step_scores(served.law, safe, risky, served.theta, tokens[part], own[part], sets)
        blocks.setdefault(key, []).append(scores)

    written = [
        ReplayTask(
            r.key, bench.prompts[r.key.prompt], r.steps.token, r.stopped, None, r.steps.theta
        )
        for r in outputs
    ]
    for second in bench.replay(written, look, indebted=indebted):
        again.replayed[second.trajectory.key] = second
    for k in trials.budgets:
        tests = SamplerTests(list(ALTERNATIVES), ALPHA / len(trials.budgets))
        for key, parts in blocks.items():
            if key.k == k:
                tests.add(key, records[key].steps.token, joined(parts))
        for finding in tests.findings():
            if finding.verdict != CheckWord.FAILED:
                continue
            name = finding.check.removeprefix("sampler: ")
            if name not in _INDEPENDENCE:
                again.alarms.setdefault(k, finding.text)
            elif name == "repeats" and k not in again.alarms:
                again.copies = finding.text
    return again


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
        self._told = dict(promise or {})
        self._settings = load(RunSettings, None, given | shape | self._told)
        mechanism_of(self._settings)  # a wrong promise is said before a model loads
        checkpoints = checkpoints_of(self._settings)
        self._pair = load_pair(*checkpoints)
        self.size = len(self._pair.vocabulary)
        self.prompts = _prompts(self._pair)
        # The published decoder cannot take two stop tokens, so it gets the frequent one alone.
        own = frozenset() if spec == OFFICIAL else self._pair.vocabulary.stops
        self.stops = own | {_stop_token(self._pair)}
        launch = launch_of(self._settings, self._pair, checkpoints, WIDTH, rules=True)
        hello = {**launch.hello, "stops": sorted(self.stops)}
        self._session = Session(replace(launch, hello=hello))
        self._stack = ExitStack()

    def __enter__(self) -> LabBench:
        self._stack.enter_context(self._session)
        self._session.start()
        if self._is_rule and "mechanism" in self._told:
            raise InputError(
                f"{self._settings.decoder} is a rule and is held to itself; leave out --mechanism."
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

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
        """True for somebody's rule that chooses among whole outputs; it decodes nothing here."""
        return bool(self._session.ready.get("kind") == "sequence")

    def close(self) -> None:
        """Ends the decoder's process."""
        self._session.close()

    @property
    def promise(self) -> str:
        """What the decoder is held to, in words: rule, ledger and debt."""
        promised, debt = self._promised, self._promised.debt
        owed = f"prefix debt {debt.definition} (n = {debt.n})" if debt.n else "no prefix debt"
        return f"{self._rule}, ledger {promised.ledger.spec}, {owed}"

    @property
    def debt(self) -> DebtRule:
        """The debt that is promised."""
        return self._promised.debt

    @property
    def warps(self) -> str:
        """Temperature and penalty, in words; nothing if there are none."""
        decoding = self._settings.decoding
        said = {
            "temperature": decoding.temperature,
            "repetition penalty": decoding.repetition_penalty,
        }
        return "".join(f", {name} {value:g}" for name, value in said.items() if value != 1.0)

    @property
    def _is_rule(self) -> bool:
        return bool(self._session.ready.get("kind") == "rule")

    @property
    def _rule(self) -> str:
        """A rule is held to itself, a decoder to what is promised for it."""
        return (self._settings.decoder if self._is_rule else None) or self._settings.mechanism

    @cached_property
    def _promised(self) -> Mechanism:
        debt = self._settings.debt_rule
        made = registered(self._rule, debt, checkpoints_of(self._settings)[0])
        return made or mechanism(self._rule, debt)

    def replay(
        self, written: Sequence[ReplayTask], look: OnSteps, *, indebted: bool = True
    ) -> Iterator[Replayed]:
        """One teacher-forced pass of both models."""
        promised = self._promised if indebted else replace(self._promised, debt=DebtRule(0))
        return replay_texts(Reader(self._pair, self._settings.decoding), promised, written, look)


def _prompts(pair: Pair) -> dict[str, Tokens]:
    """Prompts of the lab, spread over their lengths."""
    tokenized = [(p.id, tuple(pair.tokenizer(p.text)["input_ids"])) for p in lab_prompts()]
    fitting = [t for t in tokenized if len(t[1]) + MOST_TOKENS <= WIDTH]
    fitting.sort(key=lambda prompt: (len(prompt[1]), prompt[0]))
    places = np.linspace(0, len(fitting) - 1, _PROMPTS).round().astype(int)
    return dict(fitting[place] for place in places)


def _stop_token(pair: Pair) -> int:
    """A token of ordinary text, about as frequent as the end of a sentence."""
    counts: Counter[int] = Counter(
        token for p in lab_prompts() for token in pair.tokenizer(p.text)["input_ids"]
    )
    known = {t: n for t, n in counts.items() if t not in pair.vocabulary.special}
    total = sum(known.values())
    return min(known, key=lambda token: (abs(known[token] / total - _STOP_SHARE), token))


@dataclass(frozen=True)
class WorldBench:
    """A world of tables, and a decoder in this process: fast, and with nothing to wait for."""

    world: World
    decoder: BlackBox
    prompts: dict[str, Tokens]

    @property
    def size(self) -> int:
        """Number of token ids."""
        return self.world.size

    @property
    def stops(self) -> frozenset[int]:
        """Ids that end an output."""
        return self.world.stops

    def ask(self, requests: Sequence[Request]) -> list[Any]:
        """Asks the decoder itself."""
        said = answer(self.decoder, [vars(request) for request in requests])
        if "fault" in said:
            raise DecoderError(said["fault"]["name"], said["fault"]["text"])
        outputs: list[Any] = said["outputs"]
        if len(outputs) != len(requests):
            raise DecoderError("count", f"{len(outputs)} outputs for {len(requests)} requests")
        return outputs

    def close(self) -> None:
        """Nothing to end."""

    def replay(
        self, written: Sequence[ReplayTask], look: OnSteps, *, indebted: bool = True
    ) -> Iterator[Replayed]:
        """Feeds the world's laws to the replay, one output at a time."""
        promised = mechanism("anchored", self.world.debt if indebted else DebtRule(0))
        for one in written:
            again = replay_in(self.world, promised, one)
            steps = again.replayed.trajectory.steps
            charge, theta = (
                torch.tensor(x, dtype=torch.float64) for x in (steps.charge, steps.theta)
            )
            look(one.key, 0, Served(again.law, charge, theta), again.safe, again.risky)
            yield again.replayed
