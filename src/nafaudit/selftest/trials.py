"""What a conformance suite asks a decoder, and what comes back.

Some prompts at k = 0, at two budgets that bind and at k = inf, then the same few requests again,
alone, and beside prompts of other lengths. `selftest.bench` says who answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from nafaudit.audit.blackbox import DecoderError
from nafaudit.audit.outputs import read_output
from nafaudit.checks.sampled import SamplerTests, joined
from nafaudit.checks.sampler import Scores
from nafaudit.core.draws import sound_stream, uniforms, words
from nafaudit.core.fault import FAULTS, Fault
from nafaudit.core.finding import Answer
from nafaudit.core.replayed import Replayed
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.engine.replay import Seen, Written
from nafaudit.mechanisms.alternatives import ALTERNATIVES, step_scores, token_sets
from nafaudit.mechanisms.doors import Request
from nafaudit.mechanisms.protocols import Served

ACTIVE = (0.25, 1.0)
BUDGETS = (0.0, *ACTIVE, math.inf)
SEEDS = 4
MOST_TOKENS = 32
BATCH = 32
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

    def replay(self, written: Sequence[Written], look: Seen) -> Iterator[Replayed]:
        """Recomputes outputs, and shows `look` every law on the way."""
        ...


def run_trials(bench: Bench, *, promises: bool = True) -> Trials:
    """Asks a decoder everything the items need; stops asking if it hangs or dies.

    Args:
        bench: Where it is tried.
        promises: False for a mechanism that promises no budget.
    """
    asker = _Asker(bench)
    asker.trials.promises = promises
    _ask_everything(asker)
    try:
        bench.close()
    except DecoderError as error:
        asker.trials.faults.append(Fault(error.name, str(error)))
    _replay(asker.trials, bench)
    return asker.trials


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
        for k in BUDGETS
        for name, tokens in prompts.items()
        for seed in range(SEEDS)
    ]
    for start in range(0, len(everything), BATCH):
        part = everything[start : start + BATCH]
        trials.main += [record for record in ask(part) if record is not None]
    name = list(prompts)[len(prompts) // 2]
    few = [_request(name, prompts[name], 1.0, seed) for seed in range(SEEDS)]
    others = [
        _request(other, tokens, 1.0, 7)
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


def _replay(trials: Trials, bench: Bench) -> None:
    """Recomputes every output, and tests whether its tokens were drawn from the promised law."""
    blocks: dict[Key, list[Scores]] = {}
    records = {record.key: record for record in trials.main}

    def look(key: Key, first: int, served: Served, safe: Tensor, risky: Tensor) -> None:
        tokens = records[key].steps.token
        stream = sound_stream(0, "rank-pit", key.prompt, key.trajectory)
        own = uniforms(words(stream, 0, len(tokens)))
        part = slice(first, first + len(safe))
        sets = token_sets(served.law, bench.prompts[key.prompt], tokens, first, bench.stops)
        scores = step_scores(served.law, safe, risky, served.theta, tokens[part], own[part], sets)
        blocks.setdefault(key, []).append(scores)

    written = [
        Written(r.key, bench.prompts[r.key.prompt], r.steps.token, r.stopped, None, r.steps.theta)
        for r in trials.main
    ]
    for second in bench.replay(written, look):
        trials.replayed[second.trajectory.key] = second
    for k in BUDGETS:
        tests = SamplerTests(list(ALTERNATIVES), ALPHA / len(BUDGETS))
        for key, parts in blocks.items():
            if key.k == k:
                tests.see(key, records[key].steps.token, joined(parts))
        for finding in tests.findings():
            if finding.verdict != Answer.FAILED:
                continue
            name = finding.check.removeprefix("sampler: ")
            if name not in _INDEPENDENCE:
                trials.alarms.setdefault(k, finding.text)
            elif name == "repeats" and k not in trials.alarms:
                trials.copies = finding.text
