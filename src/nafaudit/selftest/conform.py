"""Tests whether a decoder keeps the contract: one plain answer per item, for CI.

Trials (`selftest.trials`) are what was asked of the decoder and what came back; every item reads
its answer off them. `nafaudit conform` prints the answers; `DecoderConformance` has a pytest test
for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any, ClassVar

import numpy as np

from nafaudit.auditor.alternatives import other_promise
from nafaudit.core.debt import DebtRule
from nafaudit.core.errors import InputError, reject_unknown
from nafaudit.core.finding import CheckWord, Finding, Kept, Outcome, Overall
from nafaudit.core.trajectory import Trajectory
from nafaudit.mechanisms.cards import parse
from nafaudit.mechanisms.registry import SequenceMechanism, mechanism
from nafaudit.selftest.battery import AuditAnswer
from nafaudit.selftest.trials import ACTIVE, SLACK, LabBench, Trials, run_trials
from nafaudit.store.artifacts import cause_of

# Parts of a promise that can be given, in the names of `RunSettings`.
PROMISE = (
    *("mechanism", "promise", "k", "temperature", "repetition_penalty"),
    *("prefix_n", "prefix_debt", "debt"),
)
# Outputs of different seeds that agree although they had this many nats of choice are copies.
_CHOICE = 20.0


class Conforms(StrEnum):
    """Answers for an item."""

    YES = "YES"
    NO = "NO"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True)
class ConformanceItem:
    """One item of the contract, and whether it is kept.

    Attributes:
        name: Short name.
        answer: Kept, broken, or unknown from what the decoder shows.
        text: What was seen, in plain words.
    """

    name: str
    answer: Conforms
    text: str


@dataclass(frozen=True)
class Conformance:
    """The promise that a decoder was held to, and the answers.

    Attributes:
        promise: The tested promise, in words.
        decoder: Its name, as it was given.
        conforms: False if an item is broken.
        items: One answer per item.
        cause: What is wrong, if it is the budget, the sampling or the bookkeeping; else empty.
        likeness: Whether it is the promised mechanism itself, where that is not demanded.
    """

    promise: str
    decoder: str
    conforms: bool = field(init=False)
    items: list[ConformanceItem]
    cause: str = ""
    likeness: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "conforms", all(item.answer is not Conforms.NO for item in self.items)
        )

    @property
    def overall(self) -> Overall:
        """Returns which items are broken, and which are not known."""
        broken = ", ".join(one.name for one in self.items if one.answer is Conforms.NO)
        unknown = ", ".join(one.name for one in self.items if one.answer is Conforms.UNKNOWN)
        why = f"breaks {broken or 'none'} of {len(self.items)} items"
        why += f"; not known: {unknown}" if unknown else ""
        why = f"{self.cause}; {why}" if broken and self.cause else why
        return Overall(Outcome.BROKEN, why, 1) if broken else Overall(Outcome.CONFORMS, why, 0)


def conform(
    spec: str,
    *,
    python: str | None = None,
    timeout: float = 120.0,
    promise: Mapping[str, Any] | None = None,
) -> list[ConformanceItem]:
    """Returns the items of `examine`, which has the same arguments."""
    return examine(spec, python=python, timeout=timeout, promise=promise).items


def examine(
    spec: str,
    *,
    python: str | None = None,
    timeout: float = 120.0,
    promise: Mapping[str, Any] | None = None,
    on_stage: Callable[[str], None] = lambda text: None,
) -> Conformance:
    """Tries a decoder on the lab pair, answers for every item, and says what it was held to.

    A mechanism that chooses among whole outputs is tried in small exact worlds instead
    (`selftest.choosing`), and has items of its own.

    Args:
        spec: `package.module:Class`, `file.py:Class`, or the name of a known decoder or mechanism.
        python: Interpreter that runs it; ours if None.
        timeout: Seconds that an answer may take.
        promise: What is promised: any of `PROMISE`; None counts as not given.
        on_stage: Called with what is tried next, in words.

    Raises:
        InputError: It cannot be built, or cannot be held to this promise.
    """
    given = {name: value for name, value in (promise or {}).items() if value is not None}
    reject_unknown(given, PROMISE, "the promise")
    budgets = given.pop("k", ACTIVE)
    if bad := [k for k in budgets if not 0 < k < math.inf]:
        raise InputError(
            f"k must be above 0 and finite here, got {bad[0]:g}: 0 and inf are always tried."
        )
    active = tuple(sorted(set(budgets)))
    if parse(spec) is not None and isinstance(mechanism(spec, DebtRule(0)), SequenceMechanism):
        return _whole_outputs(spec, promise)
    on_stage("loading the lab pair and the decoder")
    with LabBench(spec, python=python, timeout=timeout, promise=given) as bench:
        if bench.chooses:
            return _whole_outputs(spec, promise)
        said, debt = bench.promise_text(active), bench.promised.debt
        trials = run_trials(
            bench,
            promises=bench.promises,
            active=active,
            debt=debt,
            held_to=bench.held_to,
            on_stage=on_stage,
        )
        answer = trials.answer
        likeness = "" if answer is None else answer.conforms
        return Conformance(said, spec, judge(trials), _cause(answer), likeness)


def _cause(answer: AuditAnswer | None) -> str:
    """Returns what is wrong with the budget, the sampling or the bookkeeping of a decoder."""
    if answer is None:
        return ""
    if answer.accused:
        return answer.overall.why
    noted = [one for one in answer.findings if one.check.startswith("bookkeeping: ")]
    return f"bookkeeping: {noted[0].text}" if noted else ""


def _whole_outputs(spec: str, promise: Mapping[str, Any] | None) -> Conformance:
    """Tests a mechanism that chooses among whole outputs, which no replay can judge."""
    from nafaudit.selftest.choosing import conform_choosing

    if given := [name for name, value in (promise or {}).items() if value is not None]:
        raise InputError(
            f"{spec} chooses among whole outputs and is tried in small worlds of its own, where "
            f"{given[0].replace('_', '-')} has no meaning; leave it out."
        )
    made = mechanism(spec, DebtRule(0))
    assert isinstance(made, SequenceMechanism)
    said = f"{spec}, over whole outputs, no prefix debt"
    return Conformance(said, spec, conform_choosing(made, spec))


def judge(trials: Trials) -> list[ConformanceItem]:
    """Returns the answers that follow from the trials."""
    return [ConformanceItem(name, *item(trials)) for name, item in ITEMS.items()]


Answered = tuple[Conforms, str]
_NO_DEBT = ". If its promise has none: run it with --no-prefix-debt"
_NOTHING = "no output that could be used came back"


def _terminates(trials: Trials) -> Answered:
    names = ("hang", "died", "raised", "garbled", "count", "length", "exit")
    if found := trials.fault(*names):
        if any(fault.name in ("hang", "died", "garbled") for fault in trials.faults):
            found += f"; {trials.came} of {trials.asked} outputs came before it stopped answering"
        return Conforms.NO, found
    unusable = "" if trials.main or not trials.asked else ", but none could be used"
    return Conforms.YES, f"all {trials.asked} outputs came back, none longer than asked{unusable}"


def _normalises(trials: Trials) -> Answered:
    if found := trials.fault("law", "nan"):
        return Conforms.NO, found
    if found := trials.fault("shape", "token", "empty"):
        return Conforms.NO, f"what it returns is not an output: {found}"
    claimed = [t for t in trials.main if not np.isnan(t.steps.served).all()]
    for record in claimed:
        if (record.steps.served > SLACK).any():
            at = int(np.argmax(record.steps.served))
            return Conforms.NO, f"it claims a probability above 1{_where(record, at)}"
    if not claimed:
        return Conforms.UNKNOWN, "it shows neither a law nor the probability of a token"
    text = (
        f"no probability above 1 in {len(claimed)} outputs, and every law that is shown sums to 1"
    )
    return Conforms.YES, text


def _stops(trials: Trials) -> Answered:
    if found := trials.fault("after-stop", "short"):
        return Conforms.NO, found
    stopped = sum(record.stopped for record in trials.main)
    if not stopped:
        return Conforms.UNKNOWN, "no output came to a stop token"
    rest = len(trials.main) - stopped
    return Conforms.YES, f"{stopped} outputs end at a stop token, {rest} at the length limit"


def _repeats(trials: Trials) -> Answered:
    return _same(trials.first, trials.again, "asked again with the same seeds, it wrote otherwise")


def _differs(trials: Trials) -> Answered:
    judged = False
    for outputs in trials.by_prompt(0.0):
        surprisal = -float(trials.replayed[outputs[0].key].trajectory.steps.served.sum())
        choice = surprisal > _CHOICE and len(outputs) > 1
        judged |= choice
        if choice and len({o.steps.token.tobytes() for o in outputs}) == 1:
            return Conforms.NO, f"{len(outputs)} seeds gave the same {len(outputs[0])} tokens"
    if trials.copies:
        return Conforms.NO, trials.copies
    if not trials.main:
        return Conforms.UNKNOWN, _NOTHING
    if not judged:
        return Conforms.UNKNOWN, "no prompt left enough choice"
    return Conforms.YES, "different seeds gave different outputs"


def _batch(trials: Trials) -> Answered:
    repeats, why = _repeats(trials)
    if repeats is Conforms.NO:
        why = "equal seeds give other tokens, so an effect of the batch could not be seen"
    if repeats is not Conforms.YES:
        return Conforms.UNKNOWN, why
    return _same(trials.first, trials.alone, "alone it writes other tokens than in a batch")


def _padding(trials: Trials) -> Answered:
    batch, why = _batch(trials)
    if batch is Conforms.NO:
        why = "its outputs depend on their batch already"
    elif _repeats(trials)[0] is Conforms.NO:
        why = "equal seeds give other tokens, so an effect of other lengths could not be seen"
    if batch is not Conforms.YES:
        return Conforms.UNKNOWN, why
    text = "beside prompts of other lengths it writes other tokens"
    return _same(trials.first, trials.mixed, text)


def _place(finding: Finding) -> str:
    """Says where a finding is; empty if it has no place."""
    if finding.witness is None:
        return ""
    key = finding.witness.key
    where = f"prompt {key.prompt!r}, k = {key.k:g}, seed {key.trajectory}"
    step = "" if finding.witness.step is None else f", step {finding.witness.step}"
    return f" ({where}{step})"


_COPIES = "copies of one output say little about its law"
# Claims that other items are about.
_ELSEWHERE = ("bookkeeping: end", "bookkeeping: debt", "bookkeeping: stated overspend")


def _charges_shown(trials: Trials, answer: AuditAnswer) -> Answered:
    """Are its claims true, and are its tokens drawn from the laws that it shows?"""
    active = [t for t in trials.main if t.key.k in trials.active]
    if _differs(trials)[0] is Conforms.NO:
        return Conforms.UNKNOWN, _COPIES
    books = [one for one in answer.findings if one.check.startswith("bookkeeping: ")]
    wrong = [one for one in books if one.check not in _ELSEWHERE]
    wrong += [one for one in answer.findings if one.check == "sampling: claims"]
    if wrong:
        return Conforms.NO, wrong[0].text + _place(wrong[0])
    if not active:
        return Conforms.UNKNOWN, _NOTHING
    if not any(not np.isnan(t.steps.charge).all() for t in active):
        return Conforms.UNKNOWN, "it claims no charge, so none can be held against its law"
    if not any(arm.tokens is not None and not arm.silent for arm in answer.arms):
        return Conforms.UNKNOWN, "it shows no law of its steps, so what they cost is not known"
    return Conforms.YES, f"{len(active)} outputs are charged what the laws that it shows cost"


def _budget_shown(trials: Trials, answer: AuditAnswer) -> Answered:
    """Does what it spends stay in its budget, whatever its rule?"""
    arms = [arm for arm in answer.arms if not arm.baseline]
    if _differs(trials)[0] is Conforms.NO:
        return Conforms.UNKNOWN, _COPIES
    fits = answer.judged.fits if answer.judged is not None else ""
    hint = _NO_DEBT if fits == "no debt" else ""
    if trials.counts_otherwise:
        other = trials.debt.other
        hint = f"; none is over if the debt is counted from {other.laws}"
        hint += f". If its promise is that: --debt {other.definition}"
    if bad := [arm for arm in arms if arm.kept == Kept.VIOLATED]:
        found = bad[0].finding("invariant")
        told = f"; {bad[0].fits.text}" if bad[0].fits is not None else ""
        return Conforms.NO, f"{found.text}{_place(found)}{told}{hint}"
    accused = [one for arm in arms for one in arm.findings if one.verdict == CheckWord.FAILED]
    if by := [one for one in accused if one.check != "sampling: claims"]:
        return Conforms.NO, f"{cause_of((one.check, one.text) for one in by)}{hint}"
    if accused:
        text = (
            "its tokens are not drawn from the laws that it shows, so what it spends is not known"
        )
        return Conforms.UNKNOWN, text
    stated = [one for one in answer.findings if one.check == "bookkeeping: stated overspend"]
    if stated:  # of the decoder's books, not of what it spends
        return Conforms.UNKNOWN, stated[0].text + _place(stated[0])
    if arms and all(arm.kept == Kept.WITHIN and not arm.silent for arm in arms):
        return Conforms.YES, "by the laws that it shows, no prefix costs more than it was granted"
    return Conforms.UNKNOWN, answer.overall.why


def _charges(trials: Trials) -> Answered:
    if trials.answer is not None:
        return _charges_shown(trials, trials.answer)
    active = [t for t in trials.main if t.key.k in trials.active]
    claimed = [t for t in active if not np.isnan(t.steps.charge).all()]
    # Over budget, the replayed law is not the one that was served: claimed weights alone say more.
    in_budget = _budget(trials)[0] is not Conforms.NO
    judged = 0
    for record in claimed:
        again = trials.replayed[record.key]
        # At the claimed weight where there is one; `_budget` says whether it may be served.
        owed = again.trajectory.steps.charge if in_budget else math.nan
        true = np.where(np.isnan(again.implied), owed, again.implied)
        gap = np.abs(record.steps.charge - true) / (1 + np.abs(true))
        if np.isnan(gap).all():
            continue
        judged += 1
        if (worst := float(np.nanmax(gap))) > SLACK:
            at = int(np.nanargmax(gap))
            said, is_ = record.steps.charge[at], true[at]
            text = f"it charges {said:.4g} nats for a law that costs {is_:.4g}"
            return Conforms.NO, f"{text}{_where(record, at)} (off by {worst:.2g})"
    for k in trials.active:
        if in_budget and _differs(trials)[0] is not Conforms.NO and (alarm := trials.alarms.get(k)):
            if factors := trials.other_promises:
                other = other_promise(factors, trials.largest_debt)
                return Conforms.NO, other if factors == (1,) else f"{other}: {alarm}"
            return Conforms.NO, f"its tokens are not drawn from the law it owes: {alarm}"
    if not active:
        return Conforms.UNKNOWN, _NOTHING
    if not claimed:
        few = "it claims no charge, and these few tokens do not tell its law from the one it owes"
        return Conforms.UNKNOWN, f"{few}; `nafaudit run --decoder` draws more"
    if not judged:
        return Conforms.UNKNOWN, "it spends too much and claims no weights, so no law is known"
    return Conforms.YES, f"{judged} outputs are charged what the laws they claim to serve cost"


def _budget(trials: Trials) -> Answered:
    if not trials.promises:
        return Conforms.UNKNOWN, "it promises no budget, so there is none to keep"
    if trials.answer is not None:
        return _budget_shown(trials, trials.answer)
    if (found := trials.overspent()) is not None:
        where = _where(found.record, found.step)
        text = f"{found.spent:.4g} nats are spent where {found.granted:.4g} were granted"
        debt = trials.replayed[found.record.key].trajectory.debt
        owing = f"{text} after a prefix debt of {debt:.4g}{where}"
        if trials.counts_otherwise:
            other = trials.debt.other
            owing += f"; none is over if the debt is counted from {other.laws}"
            return Conforms.NO, f"{owing}. If its promise is that: --debt {other.definition}"
        match trials.other_promises:
            case (1.0,):
                return Conforms.NO, f"{owing}; without the debt none is over{_NO_DEBT}"
            case (1.0, factor):
                return Conforms.NO, f"{owing}; none is over without it, or at {factor:g} times k"
            case (factor,):
                return Conforms.NO, f"{text}{where}; none is over at {factor:g} times k"
        return Conforms.NO, text + where
    if not trials.shows_spend:
        return Conforms.UNKNOWN, "it claims neither weights nor charges"
    return Conforms.YES, "no prefix of an output costs more than it was granted"


def _model(trials: Trials, k: float, name: str, weight: float) -> Answered:
    outputs = [t for t in trials.main if t.key.k == k]
    if not outputs:
        return Conforms.UNKNOWN, "no output came back"
    if _differs(trials)[0] is Conforms.NO:
        return Conforms.UNKNOWN, _COPIES
    if alarm := trials.alarms.get(k):
        return Conforms.NO, f"its tokens are not the {name} model's: {alarm}"
    for record in outputs:
        claimed = record.steps.theta[~np.isnan(record.steps.theta)]
        if (np.abs(claimed - weight) > SLACK).any():
            return Conforms.NO, f"it claims another weight than {weight:g}{_where(record, 0)}"
    steps = sum(map(len, outputs))
    return Conforms.YES, f"{steps} tokens fit the {name} model's law"


ITEMS: dict[str, Callable[[Trials], Answered]] = {
    "terminates": _terminates,
    "normalises": _normalises,
    "stop tokens": _stops,
    "repeats": _repeats,
    "differs": _differs,
    "batch": _batch,
    "padding": _padding,
    "charges": _charges,
    "budget": _budget,
    "k = 0": lambda trials: _model(trials, 0.0, "safe", 0.0),
    "k = inf": lambda trials: _unlimited(trials),
    "conforms": lambda trials: _likeness(trials),
}


def _likeness(trials: Trials) -> Answered:
    """Is it the promised mechanism itself? Only where that is demanded is it a broken item."""
    if trials.answer is not None:
        said = trials.answer.conforms
        if ": NO" in said:
            return Conforms.UNKNOWN, f"not demanded (--promise anchored demands it); {said}"
        return Conforms.YES, said
    if not trials.main:
        return Conforms.UNKNOWN, _NOTHING
    if Conforms.NO in (_charges(trials)[0], _budget(trials)[0]):
        return Conforms.UNKNOWN, "what it charges or spends is not as promised already"
    if trials.unlike:
        first = trials.unlike[0]
        names = ", ".join(one.check.removeprefix("replay: ") for one in trials.unlike)
        return Conforms.NO, f"it differs from the promised mechanism in {names}{_place(first)}"
    return Conforms.YES, "nothing that it claims or draws differs from the promised mechanism"


def _unlimited(trials: Trials) -> Answered:
    """Without a budget nothing is promised, unless it is a mechanism that is promised."""
    answer, text = _model(trials, math.inf, "risky", 1.0)
    if answer is Conforms.NO and trials.answer is not None:
        return Conforms.UNKNOWN, f"nothing is promised without a budget, and {text}"
    return answer, text


def _same(
    ours: Sequence[Trajectory | None], theirs: Sequence[Trajectory | None], text: str
) -> Answered:
    pairs = list(zip(ours, theirs, strict=True))
    if not pairs or any(one is None or other is None for one, other in pairs):
        return Conforms.UNKNOWN, "an output is missing"
    for one, other in pairs:
        assert one is not None and other is not None
        if one.steps.token.tolist() != other.steps.token.tolist():
            longest = min(len(one), len(other))
            differ = one.steps.token[:longest] != other.steps.token[:longest]
            at = int(np.argmax(differ)) if differ.any() else longest
            return Conforms.NO, text + _where(one, at)
    return Conforms.YES, f"{len(pairs)} outputs are the same, token for token"


def _where(record: Trajectory, step: int) -> str:
    key = record.key
    return f" (prompt {key.prompt!r}, k = {key.k:g}, seed {key.trajectory}, step {step})"


class DecoderConformance:
    """The items as pytest tests: subclass it, name your decoder, and pytest collects them.

        class TestMine(DecoderConformance):
            decoder = "my_package.my_module:MyDecoder"
            promise = {"prefix_debt": False}  # any of `PROMISE`; leave it out for the usual one

    An item that stays unknown from what the decoder shows does not fail.
    """

    decoder: str = ""
    timeout: float = 120.0
    promise: ClassVar[Mapping[str, Any]] = {}

    def test_terminates(self) -> None:
        """Every output comes back, none longer than asked."""
        self._check("terminates")

    def test_normalises(self) -> None:
        """What it shows is a law."""
        self._check("normalises")

    def test_stop_tokens(self) -> None:
        """An output ends at its stop token, and only there or at the limit."""
        self._check("stop tokens")

    def test_repeats(self) -> None:
        """The same seed gives the same tokens."""
        self._check("repeats")

    def test_differs(self) -> None:
        """Another seed gives other tokens."""
        self._check("differs")

    def test_batch(self) -> None:
        """The tokens do not depend on the batch."""
        self._check("batch")

    def test_padding(self) -> None:
        """The tokens do not depend on the lengths of the neighbours."""
        self._check("padding")

    def test_charges(self) -> None:
        """A step is charged what its law costs."""
        self._check("charges")

    def test_budget(self) -> None:
        """No prefix spends more than it was granted."""
        self._check("budget")

    def test_safe(self) -> None:
        """With k = 0 it is the safe model."""
        self._check("k = 0")

    def test_risky(self) -> None:
        """With k = inf it is the risky model."""
        self._check("k = inf")

    def test_conforms(self) -> None:
        """It is the promised mechanism, where that is demanded."""
        self._check("conforms")

    def _check(self, name: str) -> None:
        items = _conformed(self.decoder, self.timeout, tuple(sorted(self.promise.items())))
        item = next(item for item in items if item.name == name)
        assert item.answer is not Conforms.NO, item.text


@cache
def _conformed(
    decoder: str, timeout: float, promise: tuple[tuple[str, Any], ...]
) -> list[ConformanceItem]:
    return conform(decoder, timeout=timeout, promise=dict(promise))
