"""Verifies a run: every number again from the models, the tokens from the draws.

records -> laws -> replay -> comparison: this file is that line, in order. It shares the models'
forward pass with the decoder and nothing else.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from nafaudit.checks.check import Facts
from nafaudit.checks.invariant import is_over
from nafaudit.checks.replayed import Comparison, Levels, deviations, levels
from nafaudit.checks.sampled import SamplerTests, joined
from nafaudit.checks.sampler import ALPHA, Scores
from nafaudit.checks.verification import ArmFinding, Verification
from nafaudit.core import trust as trusts
from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding, differences
from nafaudit.core.draws import row_stream, sound_stream, uniforms, words
from nafaudit.core.errors import InputError
from nafaudit.core.finding import Answer, Finding, Kept
from nafaudit.core.ledger import (
    Banking,
    Bucket,
    currency_of,
    is_baseline,
    ledger_of,
    recorded_currency,
)
from nafaudit.core.ledger import replay as ledger_replay
from nafaudit.core.trajectory import Arm, Key, Replayed, Trajectory
from nafaudit.core.trust import Trust
from nafaudit.engine.laws import Reader
from nafaudit.engine.replay import Written, replay_written
from nafaudit.mechanisms.alternatives import ALTERNATIVES, step_scores, token_sets
from nafaudit.mechanisms.anchored import Anchored
from nafaudit.mechanisms.registry import recorded_mechanism
from nafaudit.mechanisms.shadows import shadow_rule
from nafaudit.models.checkpoints import repository, weights_hash
from nafaudit.models.pair import Pair, load_pair
from nafaudit.protocols import Mechanism, Served
from nafaudit.runner.material import material_of
from nafaudit.runner.pairs import known_checkpoints, named_pair
from nafaudit.runner.unaltered import lost, require_unaltered
from nafaudit.store.gaps import missing_of
from nafaudit.store.run import Run

# Records held in memory at once, with what their replay needs.
_GROUP = 256
# Trajectories on which the noise of the pair is measured, and positions per pass there.
_CALIBRATED = 6
_CALIBRATION_CHUNK = 8
# Trajectories per budget for the sampler tests, unless told.
SCORED_OWN, SCORED_FOREIGN = 20, 60


@dataclass(frozen=True)
class VerifyOptions:
    """What `nafaudit verify` can be told.

    Attributes:
        sample: How many trajectories are replayed; 0 for all.
        scored: Trajectories of each budget that the sampler tests look at; 0 for none. Unless
            told, few where draws are our own, as every token is recomputed there anyway.
        pair: A registered pair, if the run's own place is not to be used.
        safe: Safe checkpoint, with `risky`.
        risky: Risky checkpoint.
        device: Torch device.
        trust: What the checkpoints are permitted.
        debt: The debt that an imported log's decoder promised.
        decoding: Warps of an imported log's decoder.
        plugin: File with the source of the plug-in that a run was made by; without it no code
            that the run names is run.
        mechanism: Specification that the user gave for the run just now, whose code may run.
    """

    sample: int = 0
    scored: int | None = None
    pair: str | None = None
    safe: str | None = None
    risky: str | None = None
    device: str = "cpu"
    trust: Trust = trusts.NONE
    debt: DebtRule = field(default_factory=DebtRule)
    decoding: Decoding = field(default_factory=Decoding)
    plugin: Path | None = None
    mechanism: str | None = None

    def __post_init__(self) -> None:
        if self.sample < 0 or (self.scored is not None and self.scored < 0):
            raise InputError("sample and sampler must be at least 0 (sample 0: all).")
        if (self.safe is None) != (self.risky is None):
            raise InputError("safe and risky belong together: give both, or neither.")


def verify_run(
    run: Run, options: VerifyOptions, report: Callable[[int, int], None] = lambda done, of: None
) -> Verification:
    """Replays a run and compares.

    Args:
        run: Whose records to check.
        options: How much, and where the models are.
        report: Called with the trajectories done and to do.
    """
    require_unaltered(run)
    promise = _promise(run, options)
    pair = _load(run, promise, options)
    own = next((s["pair"] for s in run.sessions if s.get("pair")), None)
    ready = promise.mechanism.bind(material_of(pair.tokenizer, run.prompts(), own))
    promise = replace(promise, mechanism=ready)
    start = time.monotonic()
    keys = _choose(run, options.sample)
    verifier = _Verifier(run, pair, promise, keys, options)
    done = 0
    for group in _groups(run, keys):
        verifier.see(group)
        done += len(group)
        report(done, len(keys))
    return verifier.result(time.monotonic() - start)


def decides(run: Run, options: VerifyOptions) -> bool:
    """True if the result may be kept: verdicts on a black box rest on a whole verification.

    One that looks at less, or does not test the tokens, must not take the place of one that did.
    """
    boxed = bool(run.design["identity"].get("promise"))
    less = options.scored is not None and options.scored < SCORED_FOREIGN
    return not boxed or not (options.sample or less)


@dataclass(frozen=True)
class _Promise:
    """What the replay is held to.

    Attributes:
        mechanism: Rule, ledger and debt.
        decoding: Warps.
        own: True for records of our own engine: nothing is left out, and draws are known.
        imported: True for a log whose models only the user knows.
        limit: Length limit T; 0 if not known.
        notes: What is weaker than it could be.
    """

    mechanism: Mechanism
    decoding: Decoding
    own: bool
    imported: bool
    limit: int
    notes: tuple[str, ...] = ()


def _promise(run: Run, options: VerifyOptions) -> _Promise:
    """Reads the promise off the design, before any model loads."""
    identity = run.design["identity"]
    if identity["protocol"] == "imported":
        return _imported_promise(run, options)
    boxed = bool(identity.get("promise"))
    mechanism = recorded_mechanism(
        identity["promise"] if boxed else identity["mechanism"],
        plugin=options.plugin,
        typed=options.mechanism,
    )
    decoding = Decoding(**identity["decoding"])
    notes = []
    if boxed:
        notes.append(
            f"a black box, held to {identity['promise']}; its draws are not known, so tokens are "
            "tested, not recomputed"
        )
    if not shadow_rule(mechanism.rule)[1]:
        notes.append(
            f"{mechanism.name} has no second implementation here: its own rule was asked "
            "again, on recomputed laws and allowances"
        )
    if not isinstance(mechanism.ledger, Banking | Bucket):
        notes.append(f"allowances by the ledger's own code ({identity['ledger']})")
    return _Promise(mechanism, decoding, not boxed, False, decoding.max_new_tokens, tuple(notes))


def _imported_promise(run: Run, options: VerifyOptions) -> _Promise:
    """An imported log is held to KL-anchored decoding, with what the user says of the rest."""
    identity = run.design["identity"]
    if options.plugin is not None:
        raise InputError(f"{run.path} is an imported log, which no plug-in made; leave out plugin.")
    ledger = ledger_of(identity["ledger"])
    if ledger is None:
        raise InputError(
            f"{run.path} is an imported log whose budget rule is not known "
            f"({identity['ledger']!r}), so no allowance can be recomputed. Import it again with "
            "--ledger banking if that is its rule; nafaudit check judges it as logged."
        )
    if options.pair is None and options.safe is None:
        raise InputError(
            f"{run.path} is an imported log, which does not say where its models are. Give "
            "--safe and --risky, or --pair."
        )
    rule = options.debt
    name = f"anchored:debt={rule.definition},n={rule.n}"
    notes = (
        f"an imported log, held to KL-anchored decoding with debt {rule.definition}, n = "
        f"{rule.n}, temperature {options.decoding.temperature:g}, penalty "
        f"{options.decoding.repetition_penalty:g}; its draws are not known, so tokens are "
        "tested, not recomputed",
    )
    mechanism = Mechanism(name, Anchored(), ledger, rule)
    limit = identity["decoding"]["max_new_tokens"]
    return _Promise(mechanism, options.decoding, False, True, limit, notes)


def _load(run: Run, promise: _Promise, options: VerifyOptions) -> Pair:
    """Loads the pair and makes sure that it is the run's."""
    recorded = run.design["identity"]["pair"]
    safe, risky = _locate(run, options)
    if promise.imported:
        stops = run.stops or None
        return load_pair(safe, risky, device=options.device, stop_ids=stops, trust=options.trust)
    pair = load_pair(
        safe,
        risky,
        dtype=recorded["dtype"],
        device=options.device,
        stop_ids=recorded["stop_ids"],
        trust=options.trust,
    )
    if found := differences(dict(pair.fingerprint), recorded):
        raise InputError(
            f"the models at {safe} and {risky} are not those of {run.path}; they differ in\n  "
            + "\n  ".join(found)
            + "\nGive the run's own checkpoints with --safe and --risky."
        )
    return pair


def _locate(run: Run, options: VerifyOptions) -> tuple[str, str]:
    """Where the checkpoints are: as told, as recorded, or a registered pair with their hashes."""
    if options.safe is not None and options.risky is not None:
        return options.safe, options.risky
    if options.pair is not None:
        return named_pair(options.pair).locate()
    recorded = run.design["identity"]["pair"]
    said = [tuple(s["checkpoints"]) for s in run.sessions if s.get("checkpoints")]
    for safe, risky in itertools.chain(reversed(said), known_checkpoints()):
        if _is(safe, recorded["safe"]) and _is(risky, recorded["risky"]):
            return _pinned(safe, recorded["safe"]), _pinned(risky, recorded["risky"])
    places = f" (last at {' and '.join(said[-1])})" if said else ""
    raise InputError(
        f"the models of {run.path}{places} are not there, or their weights changed: no checkpoint "
        f"with the recorded hashes was found. Give them with --safe and --risky."
    )


def _is(path: str, recorded: str) -> bool:
    """True if a checkpoint has the recorded hash; asks no hub."""
    if recorded.startswith("hub:"):
        return recorded.startswith(f"hub:{repository(path)}@")
    try:
        return Path(path).is_dir() and weights_hash(path) == recorded
    except (OSError, InputError):  # not there, or not whole
        return False


def _pinned(path: str, recorded: str) -> str:
    """A hub id at the recorded commit, whatever its branches did since."""
    return recorded.removeprefix("hub:") if recorded.startswith("hub:") else path


def _choose(run: Run, sample: int) -> set[Key]:
    """All trajectories, or so many, the same ones every time."""
    keys = sorted(run.keys())
    if not sample or sample >= len(keys):
        return set(keys)

    def order(key: Key) -> bytes:
        return hashlib.blake2b(repr((run.design["hash"], *key)).encode()).digest()

    return set(sorted(keys, key=order)[:sample])


def _groups(run: Run, keys: set[Key]) -> Iterator[list[Trajectory]]:
    chosen = (t for t in run.trajectories() if t.key in keys)
    while group := list(itertools.islice(chosen, _GROUP)):
        yield group


class _Verifier:
    """Holds what a verification adds up."""

    def __init__(
        self, run: Run, pair: Pair, promise: _Promise, keys: set[Key], options: VerifyOptions
    ) -> None:
        self.pair = pair
        self.promise = promise
        self.recorded = len(run.keys())
        self.gaps = missing_of(run)
        self.notes = [*promise.notes, *lost(run, self.recorded, self.gaps)]
        self.tokens = 0
        self._identity = run.design["identity"]
        self._prompts = {p.prompt.id: self._ids(p.prompt.text, p.tokens) for p in run.prompts()}
        self._comparison: Comparison | None = None
        usual = SCORED_OWN if promise.own else SCORED_FOREIGN
        self._scored = _scored(keys, usual if options.scored is None else options.scored)
        arms = sorted({key.arm for key in self._scored})
        alpha = ALPHA / max(1, len(arms))
        self._tests = {arm: SamplerTests(list(ALTERNATIVES), alpha) for arm in arms}
        self._blocks: dict[Key, list[Scores]] = {}
        self._written: dict[Key, Written] = {}
        self._unread: dict[str, int] = {}
        self._boxed = not promise.own and not promise.imported
        self._truth: list[Trajectory] = []
        ledger = ledger_of(self._identity["ledger"], run.pieces)
        self._facts = Facts(ledger, foreign=True, max_new_tokens=promise.limit)
        self._facts = replace(self._facts, currency=recorded_currency(self._identity))

    def see(self, group: Sequence[Trajectory]) -> None:
        """Replays some records and compares them."""
        claimed = {t.key: t for t in group}
        written = [w for t in group if (w := self._as_written(t)) is not None]
        self._written = {w.key: w for w in written}
        if not written:
            return
        if self._comparison is None:
            stops = self.pair.vocabulary.stops
            self._comparison = Comparison(
                self._levels(written, claimed),
                stops,
                self.promise.limit,
                self.promise.own,
                currency_of(self.promise.mechanism.currency).promised,
                self.promise.mechanism.debt,
                counting=self.promise.imported,
            )
        reader = Reader(self.pair, self.promise.decoding)
        for second in replay_written(reader, self.promise.mechanism, written, self._look):
            key = second.trajectory.key
            self._comparison.see(claimed[key], second)
            self.tokens += len(second.trajectory)
            if self._boxed:
                self._truth.append(true_record(claimed[key], second, self.promise.mechanism))
                self._count(self._comparison, claimed[key], second)
            if (blocks := self._blocks.pop(key, None)) is not None:
                self._tests[key.arm].see(key, claimed[key].steps.token, joined(blocks))

    def result(self, seconds: float) -> Verification:
        """Everything that was found."""
        for reason, count in self._unread.items():
            self.notes.append(f"{count} trajectories could not be replayed: {reason}")
        if self._comparison is None:
            reason = "; ".join(self.notes) if self.recorded else "no trajectory is recorded"
            finding = Finding("replay", Kept.INCONCLUSIVE, math.nan, reason)
            return Verification(
                [ArmFinding(None, finding)], {}, 0, self.recorded, 0, seconds, self.notes
            )
        found = list(self._compared(self._comparison))
        for arm, tests in self._tests.items():
            found += [ArmFinding(arm, finding) for finding in tests.findings()]
        return Verification(
            found,
            self._comparison.deviation,
            self._comparison.trajectories,
            self.recorded,
            self.tokens,
            seconds,
            self.notes,
            self._truth,
            self.gaps is not None,
        )

    def _compared(self, comparison: Comparison) -> Iterator[ArmFinding]:
        """What holds of all records; what is refuted, arm by arm."""
        for finding in comparison.findings():
            if finding.verdict == Kept.WITHIN and self.gaps is not None:
                text = f"{finding.text}; the run is unfinished: {self.gaps.brief}"
                finding = replace(finding, verdict=Kept.INCONCLUSIVE, text=text)
            if finding.verdict != Answer.FAILED:
                yield ArmFinding(None, finding)
        for arm in sorted(comparison.by_arm):
            yield from (ArmFinding(arm, finding) for finding in comparison.failures(arm))
        for arm, counts in sorted(comparison.counts.items()):
            if counts.text:
                yield ArmFinding(arm, counts.finding())

    def _count(self, comparison: Comparison, claimed: Trajectory, second: Replayed) -> None:
        """Judges what a black box did by both counts of the debt, as its verdict will."""
        if second.other_debt is None:
            return
        verified = {"deviation": comparison.deviation}
        facts = replace(self._facts, verified=verified).of_budget(claimed.key.k)
        mechanism = self.promise.mechanism
        over = [
            is_over(true_record(claimed, second, mechanism, debt), facts)
            for debt in (second.trajectory.debt, second.other_debt)
        ]
        comparison.count(claimed, second, *over)

    def _ids(self, text: str, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """A log may know a prompt by its text alone."""
        if tokens or not self.promise.imported or not text:
            return tokens
        note = "prompts were split into tokens again, as the log has only their text"
        if note not in self.notes:
            self.notes.append(note)
        return tuple(self.pair.tokenizer(text)["input_ids"])

    def _as_written(self, record: Trajectory) -> Written | None:
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
        if self.promise.own:
            protocol, seed, purpose = (self._identity[n] for n in ("protocol", "seed", "purpose"))
            stream = row_stream(protocol, seed, purpose, key.prompt, key.trajectory)
        return Written(key, prompt, tokens, record.stopped, stream, record.steps.theta)

    def _levels(self, written: Sequence[Written], claimed: dict[Key, Trajectory]) -> Levels:
        """Replays a few texts twice, in passes of other shapes, and sees how far they differ."""
        few = sorted(written, key=lambda w: (-len(w.tokens), w.key))[:_CALIBRATED]
        shapes: tuple[dict[str, Any], ...] = ({}, {"numbers": 1, "chunk": _CALIBRATION_CHUNK})
        first, second = (
            {
                r.trajectory.key: r
                for r in replay_written(
                    Reader(self.pair, self.promise.decoding, **shape), self.promise.mechanism, few
                )
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
        return levels(noise, foreign=not self.promise.own, dtype=dtype)

    def _look(self, key: Key, first: int, served: Served, safe: Tensor, risky: Tensor) -> None:
        if key not in self._scored:
            return
        tokens = self._written[key].tokens
        part = slice(first, first + len(safe))
        # Numbers of the auditor's own: another purpose, so other draws than the run's.
        stream = sound_stream(0, "rank-pit", key.prompt, key.trajectory)
        own = uniforms(words(stream, 0, len(tokens)))[part]
        stops = self.pair.vocabulary.stops
        sets = token_sets(served.law, self._written[key].prompt, tokens, first, stops)
        scores = step_scores(served.law, safe, risky, served.theta, tokens[part], own, sets)
        self._blocks.setdefault(key, []).append(scores)


def true_record(
    claimed: Trajectory, second: Replayed, mechanism: Mechanism, debt: float | None = None
) -> Trajectory:
    """What a black box really did: its tokens at the weights it claims, truly charged.

    Where it claims no weight, the replay stands for it, and the sampler tests say whether its
    tokens can come from there.

    Args:
        claimed: Its record.
        second: The replay of its tokens.
        mechanism: The promise.
        debt: What the prompt owes; as promised unless told.
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
    allowance = ledger_replay(ledger, again.key.k, again.debt, steps)
    return replace(again, steps=replace(steps, allowance=allowance))


def _scored(keys: Iterable[Key], most: int) -> set[Key]:
    """The first trajectories of each arm, from as many prompts as there are."""
    found: set[Key] = set()
    arms: dict[Arm, list[Key]] = {}
    for key in keys:
        arms.setdefault(key.arm, []).append(key)
    for members in arms.values():
        found.update(sorted(members, key=lambda key: (key.trajectory, key.prompt))[:most])
    return found
