"""What a conformance suite asks a decoder on the lab pair, and what comes back.

One worker answers a handful of calls: some prompts at k = 0, at two budgets that bind and at
k = inf, then the same few requests again, alone, and beside prompts of other lengths. One
frequent token is declared a stop token, so that outputs do stop.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from nafaudit.audit.blackbox import DecoderError, Launch, Session
from nafaudit.audit.decoder import launch_of
from nafaudit.audit.official import NAME as OFFICIAL
from nafaudit.audit.outputs import read_output
from nafaudit.audit.pairs import checkpoints_of, named_pair
from nafaudit.checks.sampled import SamplerTests, joined
from nafaudit.checks.sampler import Scores
from nafaudit.core.draws import sound_stream, uniforms, words
from nafaudit.core.fault import FAULTS, Fault
from nafaudit.core.finding import Answer
from nafaudit.core.replayed import Replayed
from nafaudit.core.settings import Settings, load_settings
from nafaudit.core.trajectory import Arm, Key, Trajectory
from nafaudit.engine.laws import Reader
from nafaudit.engine.replay import Written, replay_written
from nafaudit.mechanisms.alternatives import ALTERNATIVES, step_scores
from nafaudit.mechanisms.doors import Request
from nafaudit.mechanisms.protocols import Mechanism, Served
from nafaudit.mechanisms.registry import mechanism
from nafaudit.models.pair import Pair, load_pair

ACTIVE = (0.25, 1.0)
BUDGETS = (0.0, *ACTIVE, math.inf)
PROMPTS = 6
SEEDS = 4
MOST_TOKENS = 32
WIDTH = 192
_BATCH = 32
# How often a sound decoder may be called broken by its tokens, over all budgets.
ALPHA = 1e-5
# A stop token about this frequent lets some outputs stop and others reach the limit.
_STOP_SHARE = 0.03

_Tokens = tuple[int, ...]


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
        alarms: By budget, what the sampler tests say; nothing if they are content.
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


def run_trials(spec: str, *, python: str | None = None, timeout: float = 120.0) -> Trials:
    """Asks a decoder everything the items need; stops early if it does not answer."""
    given = {"decoder": spec, "decoder_python": python, "decoder_timeout": timeout}
    settings = load_settings(None, {**given, "max_new_tokens": MOST_TOKENS, "batch": _BATCH})
    safe, risky = checkpoints_of(settings)
    pair = load_pair(safe, risky)
    prompts = _prompts(pair)
    stop = _stop_token(pair, prompts)
    # The published decoder cannot take two stop tokens, so it gets the frequent one alone.
    stops = {stop} if spec == OFFICIAL else pair.vocabulary.stops | {stop}
    launch = launch_of(settings, pair, (safe, risky), WIDTH)
    launch = replace(launch, hello={**launch.hello, "stops": sorted(stops)})
    trials = Trials()
    with Session(launch) as session:
        session.start()
        _ask_everything(_Asker(session, launch, trials), prompts)
    _replay(trials, pair, mechanism(settings.mechanism, settings.debt_rule), settings, prompts)
    return trials


class _Asker:
    """Asks, reads what comes back, and notes what is wrong with it."""

    def __init__(self, session: Session, launch: Launch, trials: Trials) -> None:
        self.session, self.trials = session, trials
        self._size, self._stops = launch.hello["size"], frozenset(launch.hello["stops"])
        self.broken = False

    def __call__(self, wanted: Sequence[tuple[Key, Request]]) -> list[Trajectory | None]:
        """One call; None for every output that could not be recorded."""
        self.trials.asked += len(wanted)
        if self.broken:
            return [None] * len(wanted)
        try:
            outputs = self.session.ask([request for _, request in wanted])
        except DecoderError as error:
            self.trials.faults.append(Fault(error.name, str(error), wanted[0][0], lost=True))
            # Whoever hangs or dies once is not waited for again.
            self.broken = error.name in ("hang", "died", "garbled")
            return [None] * len(wanted)
        return [self._read(key, request, raw) for (key, request), raw in self._zip(wanted, outputs)]

    def _zip(
        self, wanted: Sequence[tuple[Key, Request]], outputs: Sequence[Any]
    ) -> Iterable[tuple[tuple[Key, Request], Any]]:
        return zip(wanted, outputs, strict=True)

    def _read(self, key: Key, request: Request, raw: Any) -> Trajectory | None:
        reading = read_output(raw, key, request, self._size, self._stops)
        self.trials.faults += reading.faults
        return reading.trajectory


def _ask_everything(ask: _Asker, prompts: dict[str, _Tokens]) -> None:
    trials = ask.trials
    everything = [
        _request(name, tokens, k, seed)
        for k in BUDGETS
        for name, tokens in prompts.items()
        for seed in range(SEEDS)
    ]
    for start in range(0, len(everything), _BATCH):
        part = everything[start : start + _BATCH]
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
    try:
        ask.session.close()
    except DecoderError as error:
        trials.faults.append(Fault(error.name, str(error)))


def _request(name: str, tokens: _Tokens, k: float, seed: int) -> tuple[Key, Request]:
    # Another number for every prompt and seed, the same for every budget.
    number = sound_stream(seed, "conformance", name, 0).key % 2**63
    return Key(name, "decoder", k, seed), Request(tokens, k, number, MOST_TOKENS)


def _prompts(pair: Pair) -> dict[str, _Tokens]:
    """Prompts of the lab, spread over their lengths."""
    tokenized = [(p.id, tuple(pair.tokenizer(p.text)["input_ids"])) for p in _lab_prompts()]
    fitting = sorted((t for t in tokenized if len(t[1]) + MOST_TOKENS <= WIDTH), key=_by_length)
    places = np.linspace(0, len(fitting) - 1, PROMPTS).round().astype(int)
    return dict(fitting[place] for place in places)


def _lab_prompts() -> Sequence[Any]:
    return named_pair("lab").prompts()


def _by_length(prompt: tuple[str, _Tokens]) -> tuple[int, str]:
    return len(prompt[1]), prompt[0]


def _stop_token(pair: Pair, prompts: dict[str, _Tokens]) -> int:
    """A token of ordinary text, about as frequent as the end of a sentence."""
    counts = Counter(t for p in _lab_prompts() for t in pair.tokenizer(p.text)["input_ids"])
    known = {t: n for t, n in counts.items() if t not in pair.vocabulary.special}
    total = sum(known.values())
    return min(known, key=lambda token: (abs(known[token] / total - _STOP_SHARE), token))


def _replay(
    trials: Trials,
    pair: Pair,
    promised: Mechanism,
    settings: Settings,
    prompts: dict[str, _Tokens],
) -> None:
    """Recomputes every output, and tests whether its tokens were drawn from the promised law."""
    blocks: dict[Key, list[Scores]] = {}
    records = {record.key: record for record in trials.main}

    def look(key: Key, first: int, served: Served, safe: Tensor, risky: Tensor) -> None:
        tokens = records[key].steps.token
        stream = sound_stream(0, "rank-pit", key.prompt, key.trajectory)
        own = uniforms(words(stream, 0, len(tokens)))
        part = slice(first, first + len(safe))
        scores = step_scores(served.law, safe, risky, served.theta, tokens[part], own[part])
        blocks.setdefault(key, []).append(scores)

    written = [
        Written(r.key, prompts[r.key.prompt], r.steps.token, r.stopped, None, r.steps.theta)
        for r in trials.main
    ]
    reader = Reader(pair, settings.decoding)
    for second in replay_written(reader, promised, written, look):
        trials.replayed[second.trajectory.key] = second
    for k in BUDGETS:
        tests = SamplerTests(list(ALTERNATIVES), ALPHA / len(BUDGETS))
        for key, parts in blocks.items():
            if key.arm == Arm("decoder", k):
                tests.see(key, records[key].steps.token, joined(parts))
        fired = [f for f in tests.findings() if f.verdict == Answer.FAILED]
        if fired:
            trials.alarms[k] = fired[0].text
