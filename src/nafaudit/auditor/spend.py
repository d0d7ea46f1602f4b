"""Judges what a decoder that is not ours spends, whatever its rule.

A decoder that shows the law of each step (weights, or the distributions themselves) is judged by
that: its charges are recomputed there, and its tokens are tested against it. What it shows is set
aside where it contradicts itself; then, as where nothing is shown, the decoder is judged by which
laws of a family its tokens fit (`nafaudit.auditor.evidence`). Showing more switches off no test.

Findings begin with what is wrong: `budget`, `sampling` or `bookkeeping`. Conformity with a
mechanism is another question, and none of these.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nafaudit.auditor.alternatives import ALTERNATIVES
from nafaudit.auditor.claims import ClaimComparison, Levels
from nafaudit.auditor.evidence import (
    CLAIMED,
    LEAST_ANSWERS,
    LEVEL,
    PROBABILITY,
    SHARES,
    TIMES,
    Certificate,
    Evidence,
    Fit,
    Reason,
    certificate,
    copies,
    decide,
    log_e_values,
    shared_noise,
    smallest_seen,
    with_law,
    with_parts,
)
from nafaudit.auditor.family import (
    AFTER,
    AFTER_SOLVE,
    BASES,
    LEDGERS,
    Answers,
    Followed,
    Shape,
    StepTable,
    follow,
    paid_name,
    paid_twins,
    step_table,
)
from nafaudit.auditor.replay import ReplayTask
from nafaudit.auditor.sampler import INDEPENDENCE, SamplerTests, StepScores, joined, repeats
from nafaudit.auditor.sampler import SHARES as TESTS
from nafaudit.auditor.shadow import divergence
from nafaudit.core.finding import CheckWord, Finding, Kept, Witness, replayed_tolerance
from nafaudit.core.ledger import Banking, allowances, is_baseline
from nafaudit.core.trajectory import WEIGHT_SLACK, Arm, Key, Replayed, Steps, Trajectory
from nafaudit.protocols import Served
from nafaudit.store.artifacts import CONFORMS, FITS, TOKENS, ArmFinding

Array = NDArray[np.float64]

GEOMETRIC, ARITHMETIC = "geometric", "arithmetic"
"""What a claimed weight may be the weight of."""
# At this level tests of the promised law have the second group of the family looked at.
_DOUBTED = 0.05


@dataclass(frozen=True, eq=False)
class Shown:
    """What a decoder shows of the laws of one answer.

    Attributes:
        theta: Weight of the risky law at each step; NaN where none is claimed.
        family: What it is the weight of.
        laws: Reads the served log-laws themselves [steps, vocabulary], which come before weights.
    """

    theta: NDArray[np.floating]
    family: str = GEOMETRIC
    laws: Callable[[], NDArray[np.floating]] | None = None

    @property
    def prices(self) -> bool:
        """True if every step has a law, so that its charge can be recomputed."""
        if self.laws is not None:
            return True
        low, high = -WEIGHT_SLACK, 1 + WEIGHT_SLACK
        return bool(self.theta.size and ((self.theta >= low) & (self.theta <= high)).all())

    @property
    def partly(self) -> bool:
        """True if some steps have a weight."""
        return bool((~np.isnan(self.theta)).any())

    def law(self, part: slice, safe: Tensor, risky: Tensor) -> Tensor:
        """Returns the log-laws of some steps that the weights stand for [steps, vocabulary]."""
        weight = torch.from_numpy(np.clip(self.theta[part].astype(np.float64), 0.0, 1.0))
        weight = weight.to(safe.device).unsqueeze(-1)
        if self.family == ARITHMETIC:
            law = torch.logaddexp(torch.log1p(-weight) + safe, torch.log(weight) + risky)
        else:
            mixed = torch.nan_to_num(
                (1 - weight) * safe + weight * risky, nan=-torch.inf, neginf=-torch.inf
            )
            law = torch.log_softmax(mixed, dim=-1)
        law = torch.where(weight <= 0, safe, law)
        return torch.where(weight >= 1, risky, law)


@dataclass(frozen=True, eq=False)
class Seen:
    """What an audit keeps of one answer once its laws are gone.

    Attributes:
        table: For laws of ledgers; None where the tokens are not looked at.
        charge: What the shown laws cost; None where none is shown.
        logp: Their log-probabilities of the tokens.
        scores: For tests of the tokens against them.
    """

    table: StepTable | None = None
    charge: Array | None = None
    logp: Array | None = None
    scores: StepScores | None = None


@dataclass
class _Answer:
    """One answer: its record, its replay under the promised rule, and what was seen of it."""

    claimed: Trajectory
    replayed: Replayed
    shown: Shown
    seen: Seen

    @property
    def key(self) -> Key:
        return self.claimed.key

    def at_shown(self) -> Replayed:
        """Returns the replay at the laws that are shown, to hold other claims against."""
        again = self.replayed.trajectory
        charge, logp = self.seen.charge, self.seen.logp
        if charge is None or logp is None:
            nothing = np.full(len(again), math.nan)
            charge, logp = nothing, nothing
        # The allowance is the promised rule's, which nobody is held to here.
        steps = replace(
            again.steps,
            charge=charge,
            served=logp.astype(np.float32),
            theta=self.claimed.steps.theta,
            allowance=self.claimed.steps.allowance,
        )
        return replace(
            self.replayed,
            trajectory=replace(again, steps=steps),
            implied=charge,
            shortfall=np.full(len(again), math.nan),
        )


# Scores steps of an answer from one on, against laws that were served there.
ScoreSteps = Callable[[ReplayTask, int, Served, Tensor, Tensor], StepScores]
# Looks at the laws once more: weights of `BASES` by answer in, numbers of `AFTER` out, or those of
# shapes that are paid for.
SecondLook = Callable[[Mapping[Key, Array], Sequence[Shape]], Mapping[Key, tuple[Array, Array]]]


class Watch:
    """Looks at the laws of answers as they are replayed, and keeps what the judgement needs.

    Args:
        scores: Scores steps of an answer against laws [steps, vocabulary].
    """

    def __init__(self, scores: ScoreSteps) -> None:
        self._scores = scores
        self._tables: dict[Key, list[StepTable]] = {}
        self._laws: dict[Key, NDArray[np.floating]] = {}
        self._shown: dict[Key, list[tuple[Array, Array]]] = {}
        self._blocks: dict[Key, list[StepScores]] = {}

    def feed(
        self,
        task: ReplayTask,
        shown: Shown,
        first: int,
        laws: tuple[Tensor, Tensor],
        *,
        scored: bool,
    ) -> None:
        """Takes the steps of one answer from `first` on, in order.

        Args:
            task: The answer.
            shown: What is shown of it.
            first: Number of the first step.
            laws: Log-laws of the safe and the risky model.
            scored: True if its tokens are looked at.
        """
        safe, risky = laws
        part = slice(first, first + len(safe))
        if scored and not is_baseline(task.key.k):
            table = step_table(safe, risky, task.tokens[part])
            self._tables.setdefault(task.key, []).append(table)
        if not shown.prices:
            return
        if shown.laws is None:
            law = shown.law(part, safe, risky)
        else:
            if task.key not in self._laws:
                self._laws[task.key] = shown.laws()
            given = torch.from_numpy(np.asarray(self._laws[task.key][part], np.float64))
            law = torch.log_softmax(given.to(safe.device), dim=-1)
        charge = divergence(law, safe)
        drawn = torch.from_numpy(task.tokens[part].astype(np.int64)).to(law.device).unsqueeze(-1)
        logp = law.gather(-1, drawn).squeeze(-1)
        self._shown.setdefault(task.key, []).append((charge.cpu().numpy(), logp.cpu().numpy()))
        if scored:
            weight = torch.from_numpy(shown.theta[part].astype(np.float64)).to(law)
            served = Served(law, charge, weight)
            block = self._scores(task, first, served, safe, risky)
            self._blocks.setdefault(task.key, []).append(block)

    def pop(self, key: Key) -> Seen:
        """Removes and returns what is kept of an answer."""
        tables, shown = self._tables.pop(key, None), self._shown.pop(key, None)
        blocks = self._blocks.pop(key, None)
        self._laws.pop(key, None)
        return Seen(
            None if tables is None else StepTable.joined(tables),
            None if shown is None else np.concatenate([charge for charge, _ in shown]),
            None if shown is None else np.concatenate([logp for _, logp in shown]),
            None if blocks is None else joined(blocks),
        )


@dataclass
class SpendAudit:
    """Gathers the answers of one decoder, and judges what they cost.

    Attributes:
        levels: What is noise of a replay and what is not.
        stops: Ids that end an answer.
        limit: Length limit T.
        order: Place of an answer among all requests, for mistakes that look at a neighbour.
        batch: Answers that were asked for together.
        keeps_prefixes: False where only the mean total of a prompt is promised (Eq. 1).
        without: Names of known laws that are left out, to see what becomes of a decoder whose law
            is not known.
        lost: True if outputs never came: those that did were chosen, so that tokens refute nothing.
    """

    levels: Levels
    stops: frozenset[int]
    limit: int
    order: Callable[[Key], Any] = lambda key: key
    batch: int = 32
    keeps_prefixes: bool = True
    without: frozenset[str] = frozenset()
    lost: bool = False
    answers: dict[Key, _Answer] = field(default_factory=dict)

    def add(self, claimed: Trajectory, replayed: Replayed, shown: Shown, seen: Seen) -> None:
        """Takes one answer."""
        self.answers[claimed.key] = _Answer(claimed, replayed, shown, seen)

    def judged(self, promised: Mapping[Arm, Sequence[Finding]], look: SecondLook) -> Judged:
        """Judges all answers.

        Args:
            promised: Findings of the tests of the tokens against the promised law, by arm.
            look: Computes the second group of the family, if it is needed.
        """
        arms: dict[Arm, list[_Answer]] = {}
        for key in sorted(self.answers):
            arms.setdefault(key.arm, []).append(self.answers[key])
        books = ClaimComparison(self.levels, self.stops, self.limit, own=False)
        for one in itertools.chain.from_iterable(arms.values()):
            books.add(one.claimed, one.at_shown())
        found: list[ArmFinding] = []
        open_: set[Arm] = set()
        aside: set[Arm] = set()
        level = LEVEL * SHARES["claims"] / len(arms)
        read = {arm: _Claims.of(arm, answers, books, level) for arm, answers in arms.items()}
        # One program makes all claims: where some contradict each other, none counts.
        doubted = any(one.contradicts for arm, one in read.items() if not is_baseline(arm.k))
        for arm, claims in read.items():
            # At k = inf nothing is promised that could be refuted.
            if claims.refuted is not None and not math.isinf(arm.k) and not self.lost:
                found.append(ArmFinding(arm, claims.refuted))
            if claims.shared is not None:
                noted = replace(
                    claims.shared, check="sampling: independence", verdict=CheckWord.SUSPECT
                )
                found.append(ArmFinding(arm, noted))
            if doubted and claims.prices and not is_baseline(arm.k):
                aside.add(arm)
            elif claims.open:
                open_.add(arm)
            elif (stated := _states_overspend(arms[arm], self.levels)) is not None:
                found.append(ArmFinding(arm, stated))
            tested = promised.get(arm, ()) if arm.k == 0 and not self.lost else ()
            failed, alike = _judge_tests(tested)
            if failed is not None:
                check = "budget: safe model"
                text = "at k = 0 nothing may be spent, and its tokens are not the safe model's"
                if alike is not None:
                    check = "sampling: safe model"
                    text = "at k = 0 its tokens are not independent draws from the safe model"
                unlike = replace(failed, check=check, text=f"{text}: {failed.text}")
                found.append(ArmFinding(arm, unlike))
        spent = ClaimComparison(self.levels, self.stops, self.limit, own=False)
        for arm in sorted(open_):
            for one in arms[arm]:
                spent.add(one.claimed, one.at_shown())
        audited = [arm for arm in arms if not is_baseline(arm.k)]
        evidence = self._evidence(open_)
        if evidence is None:
            return Judged(found, books, spent, None, open_)
        # Where everything is shown, and what is shown overspends, nothing is left to be found out.
        settled = self.keeps_prefixes and spent.overspent > 0 and open_ >= set(audited)
        shared = next((one.shared.text for one in read.values() if one.shared is not None), "")
        doubtful = _doubtful(promised, audited)
        tokens = self._of_tokens(
            evidence, None if settled else look, doubtful=doubtful, shared=shared
        )
        for arm in audited:
            said = [] if settled or self.lost else tokens.accusations(arm.k)
            found += [ArmFinding(arm, one) for one in said]
        for arm in audited:
            partly = not read[arm].prices and any(one.shown.partly for one in arms[arm])
            fit = tokens.finding(arm, shown=arm in open_, aside=arm in aside, partly=partly)
            found.append(ArmFinding(arm, fit))
        if tokens.fit.law not in ("", "1 k", CLAIMED):
            found.append(ArmFinding(None, Finding(FITS, CheckWord.INFO, math.nan, tokens.fit.fits)))
        return Judged(found, books, spent, tokens, open_, self.keeps_prefixes)

    def truths(self, open_: set[Arm]) -> list[Trajectory]:
        """Returns the records that verdicts rest on."""
        return [self.truth(one, one.key.arm in open_) for _, one in sorted(self.answers.items())]

    def truth(self, answer: _Answer, open_: bool) -> Trajectory:
        """Returns the record that a verdict rests on: at the laws that are shown, if they count."""
        again = answer.replayed.trajectory
        if not open_ or answer.seen.charge is None or answer.seen.logp is None:
            return again
        steps = again.steps
        shown = answer.shown
        theta = steps.theta
        if shown.laws is not None or shown.family != GEOMETRIC:
            # A weight of another family says nothing of how often the limit acted.
            nothing = not answer.seen.charge.any()
            theta = np.full(len(again), 0.0 if nothing else math.nan, np.float32)
        else:
            theta = answer.claimed.steps.theta
        made = Steps(
            token=steps.token,
            allowance=steps.allowance,
            charge=answer.seen.charge,
            theta=theta,
            served=answer.seen.logp.astype(np.float32),
            safe=steps.safe,
            risky=steps.risky,
        )
        left = allowances(Banking(), again.key.k, again.debt, made)
        return replace(again, steps=replace(made, allowance=left))

    def _evidence(self, open_: set[Arm]) -> Evidence | None:
        """Puts the answers that are looked at side by side, in the order of their requests."""
        every = sorted(self.answers, key=self.order)
        debts = np.array([self.answers[key].replayed.trajectory.debt for key in every])
        other = _other_debts(debts, self.batch)
        rows = [
            row
            for row, key in enumerate(every)
            if not is_baseline(key.k) and self.answers[key].seen.table is not None
        ]
        if not rows:
            return None
        keys = [every[row] for row in rows]
        prompts = {name: n for n, name in enumerate(dict.fromkeys(key.prompt for key in keys))}
        before = np.full(len(keys), -1)
        last: dict[tuple[str, Arm], int] = {}
        for at, key in enumerate(keys):
            before[at] = last.get((key.prompt, key.arm), -1)
            last[key.prompt, key.arm] = at
        tables = [table for key in keys if (table := self.answers[key].seen.table) is not None]
        answers = Answers(
            tables,
            np.array([key.k for key in keys]),
            debts[rows],
            np.array([prompts[key.prompt] for key in keys]),
            {name: column[rows] for name, column in other.items()},
            before,
            self.limit or max(len(table) for table in tables),
            keys,
            np.array([key.trajectory for key in keys]),
            np.array(rows) // self.batch,
        )
        evidence = with_parts(Evidence.of(answers, follow(answers, LEDGERS)))
        if open_:
            evidence = with_law(evidence, self._claimed_law(evidence, open_))
            slack = self.levels["spend"].fail, self.levels["charge"].fail
            evidence = replace(evidence, slack=slack)
        return evidence

    def _claimed_law(self, evidence: Evidence, open_: set[Arm]) -> Followed:
        """Returns the law that the decoder claims; that of the promise where it claims none."""
        answers, laws = evidence.answers, evidence.laws
        base = laws.names.index("1 k")
        logp, charge = laws.logp[base].copy(), laws.charge[base].copy()
        for row, key in enumerate(answers.keys):
            seen = self.answers[key].seen
            if key.arm in open_ and seen.logp is not None and seen.charge is not None:
                count = len(seen.logp)
                logp[row, :count], charge[row, :count] = seen.logp, seen.charge
        return Followed((CLAIMED,), logp[None], laws.theta[base][None], charge[None])

    def _of_tokens(
        self, evidence: Evidence, look: SecondLook | None, *, doubtful: bool, shared: str
    ) -> TokenEvidence:
        """Judges by the tokens.

        Args:
            evidence: The answers and the first group of the family.
            look: Computes the second group; None if nothing depends on it.
            doubtful: True if the tokens may not be draws of the promised law, by tests that see
                more than ledgers do: then the second group is looked at in any case.
            shared: Why its draws depend on each other by the laws that it shows; empty if they
                seem not to.
        """
        # Its bets are on the first group alone, whatever is looked at later.
        first = evidence
        fit = self._fit(evidence)
        if look is not None and (doubtful or fit.reason != Reason.KEEPS):
            evidence = self._with_after(evidence, look)
            fit = self._fit(evidence)
            if twins := paid_twins(name for name, _ in fit.left if name in AFTER_SOLVE):
                evidence = self._with_after(evidence, look, twins)
                fit = self._fit(evidence)
        # Whether draws are independent is told by a law that fits, or while the debt is owed.
        dependent = shared or self._dependence(evidence, fit.best)
        if dependent:
            fit = self._fit(evidence, independent=False)
        sure, repeated = Certificate(0.0, fires=False), 0.0
        if self.keeps_prefixes:
            if not dependent:  # all that it says is of independent answers
                sure = certificate(first)
            tokens = [self.answers[key].claimed.steps.token for key in evidence.answers.keys]
            repeated = copies(evidence, tokens)
        asked = self.keeps_prefixes and fit.reason == Reason.KEEPS
        seen = smallest_seen(evidence) if asked else math.nan
        return TokenEvidence(evidence, fit, sure, repeated, dependent, seen)

    def _fit(self, evidence: Evidence, *, independent: bool = True) -> Fit:
        """Returns what follows from the known laws."""
        known = evidence.without(self.without)
        log_e = log_e_values(known, independent=independent)
        return decide(known, log_e, self.keeps_prefixes)

    @staticmethod
    def _with_after(evidence: Evidence, look: SecondLook, twins: Sequence[Shape] = ()) -> Evidence:
        """Adds the second group of the family, or shapes that are paid for."""
        answers, laws = evidence.answers, evidence.laws
        rows = [laws.names.index(base) for base in BASES]
        numbers = look({key: laws.theta[rows, at] for at, key in enumerate(answers.keys)}, twins)
        names = tuple(map(paid_name, twins)) or AFTER
        new = [at for at, name in enumerate(names) if name not in laws.names]
        shape = (len(names), *laws.logp.shape[1:])
        logp, charge = np.zeros(shape), np.zeros(shape)
        for at, key in enumerate(answers.keys):
            one, cost = numbers[key]
            logp[:, at, : one.shape[1]], charge[:, at, : one.shape[1]] = one, cost
        added = (logp[new], np.zeros(shape)[new], charge[new])
        return with_law(evidence, Followed(tuple(names[at] for at in new), *added))

    def _dependence(self, evidence: Evidence, best: str) -> str:
        """Says why the draws seem not to be independent; empty if they seem so.

        Two answers of a prompt begin alike, by the law that makes that likeliest; or answers lean
        the same way at the same steps, by a law that fits.
        """
        answers, laws = evidence.answers, evidence.laws
        most = np.minimum(laws.logp.max(axis=0), 0.0)
        names = [(key.prompt, key.arm) for key in answers.keys]
        tokens = [self.answers[key].claimed.steps.token for key in answers.keys]
        logp = [most[at, : len(one)] for at, one in enumerate(tokens)]
        level = LEVEL * SHARES["repeats"]
        repeat = repeats(names, tokens, logp)
        if repeat.p <= level:
            return (
                f"two answers of a prompt begin with the same {repeat.length} tokens, which no law "
                f"we know draws twice (p = {max(repeat.p, 1e-300):.2g})"
            )
        if (p := shared_noise(evidence, best)) <= level:
            return f"answers lean the same way at the same steps (p = {max(p, 1e-300):.2g})"
        # Without a law that fits, and where nothing is owed, it cannot be told.
        return _UNTESTED if math.isnan(p) and not best else ""


_UNTESTED = "too few tokens tell whether its answers were drawn independently"


def _doubtful(promised: Mapping[Arm, Sequence[Finding]], audited: Sequence[Arm]) -> bool:
    """Says whether a test of the promised law finds anything at a level that accuses nobody."""
    return any(
        one.value <= _DOUBTED * TESTS[name]
        for arm in audited
        for one in promised.get(arm, ())
        if (name := one.check.removeprefix("sampler: ")) in TESTS and name not in INDEPENDENCE
    )


def _other_debts(debts: Array, batch: int) -> dict[str, Array]:
    """Returns the debts that a mistaken decoder may pay, of answers in the order of requests."""
    found = {name: np.empty_like(debts) for name in ("next", "previous", "batch", "first")}
    for start in range(0, len(debts), batch):
        part = slice(start, min(start + batch, len(debts)))
        here = debts[part]
        found["next"][part], found["previous"][part] = np.roll(here, -1), np.roll(here, 1)
        found["batch"][part], found["first"][part] = here.mean(), here[0]
    common = np.full(len(debts), debts.mean() if len(debts) else 0.0)
    return {"own": debts, **found, "common": common}


@dataclass(frozen=True)
class _Claims:
    """How far what an arm shows can be believed.

    Attributes:
        prices: True if every step of every answer has a law.
        contradicts: True if its probabilities are not those of the laws that it shows.
        refuted: The test by which its tokens are not drawn from what it shows; None if they fit.
        shared: The test by which answers share their draws; None if they seem independent.
    """

    prices: bool
    contradicts: bool
    refuted: Finding | None
    shared: Finding | None = None

    @property
    def open(self) -> bool:
        """True if the arm is judged by what it shows."""
        return self.prices and not self.contradicts and self.refuted is None

    @staticmethod
    def of(arm: Arm, answers: Sequence[_Answer], books: ClaimComparison, level: float) -> _Claims:
        """Reads the claims of one arm; its tokens are tested against them at a level."""
        prices = all(one.shown.prices for one in answers)
        failed = {one.check for one in books.failures(arm)}
        contradicts = "replay: served" in failed
        if not prices or contradicts:
            return _Claims(prices, contradicts, None)
        tests = SamplerTests(list(ALTERNATIVES), level)
        for one in answers:
            if one.seen.scores is not None:
                tests.add(one.key, one.claimed.steps.token, one.seen.scores)
        accusing, shared = _judge_tests(tests.findings() if tests.seen else [])
        if accusing is None:
            return _Claims(prices, contradicts, None, shared)
        # Where draws depend on each other, that may be all that is wrong.
        drawn = "independent draws" if shared is not None else "drawn"
        text = f"its tokens are not {drawn} from the laws that it claims: {accusing.text}"
        return _Claims(prices, contradicts, replace(accusing, check="sampling: claims", text=text))


def _states_overspend(answers: Sequence[_Answer], levels: Levels) -> Finding | None:
    """Returns what charges say that are stated without a law at which they could be recomputed."""
    over: list[tuple[float, Key, int]] = []
    for one in answers:
        charge, granted = one.claimed.steps.charge, np.maximum(one.replayed.granted, 0.0)
        excess = np.cumsum(charge) - granted
        excess -= replayed_tolerance(granted, levels["spend"].fail, levels["charge"].fail)
        if math.isfinite(one.key.k) and one.key.k > 0 and (excess > 0).any():
            at = int(np.nanargmax(excess))
            over.append((float(np.cumsum(charge)[at] - granted[at]), one.key, at))
    if not over:
        return None
    worst, key, step = max(over)
    text = (
        f"by the charges that it states itself {len(over)} of {len(answers)} answers exceed their "
        f"budget, by up to {worst:.3g} nats; it shows no law at which they could be recomputed"
    )
    check = "bookkeeping: stated overspend"
    return Finding(check, CheckWord.SUSPECT, worst, text, Witness(key, step))


_REPEATS = "sampler: repeats"


def _judge_tests(tests: Sequence[Finding]) -> tuple[Finding | None, Finding | None]:
    """Returns which test of tokens against one law accuses, and which says that draws depend.

    Each test has its level if tokens are independent draws from that law; by a law that is known it
    is known how often answers may repeat each other. That answers lean alike accuses nobody.
    """
    failed = {one.check: one for one in tests if one.verdict == CheckWord.FAILED}
    dependent = [failed[f"sampler: {n}"] for n in INDEPENDENCE if f"sampler: {n}" in failed]
    law = [one for one in failed.values() if one not in dependent]
    accusing = next(iter([*law, *(one for one in dependent if one.check == _REPEATS)]), None)
    return accusing, dependent[0] if dependent else None


_BOOKED = {
    "debt": "the prefix debt that it states",
    "charge": "the charges that it states, by the laws that it shows,",
    "theta": "the weights that it states",
    "served": "the probabilities that it states, by the laws that it shows,",
    "safe": "the safe model's probabilities that it states",
    "risky": "the risky model's probabilities that it states",
    "spend": "the spend that it states, by the laws that it shows,",
}


def _as_bookkeeping(one: Finding) -> Finding:
    """Returns a claim that is not true as what it is: wrong books, not a broken budget."""
    name = one.check.removeprefix("replay: ")
    text = one.text
    if name in _BOOKED:
        verb = "differs" if name in ("debt", "spend") else "differ"
        text = f"{_BOOKED[name]} {verb} from ours by up to {one.value:.2g}, relative to 1 + ours"
    return replace(one, check=f"bookkeeping: {name}", verdict=CheckWord.SUSPECT, text=text)


@dataclass(frozen=True)
class TokenEvidence:
    """What the tokens say, whatever was shown.

    Attributes:
        evidence: The answers and the family.
        fit: What follows from the laws that are left.
        sure: What follows whatever the law.
        copies: Logarithm of the e-value of answers that repeat each other, whatever the law.
        dependent: Why its draws seem not to be independent, so that no evidence of several answers
            may be multiplied; empty if they seem so.
        seen: The smallest multiple of k that would have been refuted with 95 % probability.
    """

    evidence: Evidence
    fit: Fit
    sure: Certificate
    copies: float
    dependent: str = ""
    seen: float = math.nan

    def accusations(self, k: float) -> list[Finding]:
        """Returns what refutes the decoder, by its answers under a budget or under all together."""
        found = []
        if self.sure.fires and k in self.sure.at:
            text = (
                "whatever its rule: by a bet on its tokens, more is spent than was granted "
                f"(e-value e^{self.sure.log_e:.1f})"
            )
            numbers = {"log_e": self.sure.log_e}
            found.append(
                Finding(
                    "budget: certificate", CheckWord.FAILED, self.sure.log_e, text, None, numbers
                )
            )
        if self.fit.reason == Reason.BREAKS and not self.dependent:
            found.append(self._fit_finding(f"{self.fit.kind}: tokens", CheckWord.FAILED))
        if self.copies >= -math.log(LEVEL * SHARES["repeats"]):
            text = (
                "whatever its rule: its answers repeat each other more often than those of any "
                "decoder that keeps the budget and draws each answer by itself (e-value "
                f"e^{self.copies:.1f})"
            )
            numbers = {"log_e": self.copies}
            check = "sampling: copies"
            found.append(Finding(check, CheckWord.FAILED, self.copies, text, None, numbers))
        return found

    def finding(self, arm: Arm, *, shown: bool, aside: bool, partly: bool) -> Finding:
        """Returns what the tokens fit.

        Args:
            arm: For which budget that is said.
            shown: True if it is judged by what it shows, whatever its tokens fit.
            aside: True if what it shows contradicts itself, and does not count.
            partly: True if only some of its steps show a weight, so that it does not count.
        """
        words = {
            Reason.KEEPS: Kept.WITHIN,
            Reason.BREAKS: Kept.REFUTED,
            Reason.OPEN: Kept.INCONCLUSIVE,
            Reason.UNSURE: Kept.INCONCLUSIVE,
            Reason.NO_LAW: Kept.INCONCLUSIVE,
        }
        verdict = CheckWord.INFO if shown else words[self.fit.reason]
        said = self._fit_finding(TOKENS, verdict)
        if self.dependent not in ("", _UNTESTED) and not shown:
            text = f"sampling: {self.dependent}: its draws are not independent, so they show little"
            said = replace(said, verdict=Kept.INCONCLUSIVE, text=text)
        # What is shown needs no law that fits; that there is none is no fault of its tokens.
        text = "" if shown else said.text
        if not shown and not self.dependent and not math.isnan(self.seen):
            surely = f"would have been refuted with {PROBABILITY:.0%} probability"
            if not math.isinf(self.seen):
                text += f"; anchored decoding at {self.seen:g} k {surely}"
            elif self.fit.answers < LEAST_ANSWERS:
                text += f"; fewer than {LEAST_ANSWERS} answers per budget refute no law"
            else:
                text += f"; not even anchored decoding at {TIMES[-1]:g} k {surely}"
        least, granted = (dict(pairs).get(arm.k) for pairs in (self.sure.spends, self.sure.granted))
        numbers = {
            **said.numbers,
            "shown": float(shown),
            "aside": float(aside),
            "partly": float(partly),
            "as_promised": float(self.fit.law == "1 k"),
            "seen": self.seen,
        }
        if least is not None and granted is not None:
            numbers |= {"spends_at_least": least, "granted": granted}
        return replace(said, text=text, numbers=numbers)

    def _fit_finding(self, check: str, verdict: str) -> Finding:
        fit = self.fit
        numbers = {
            "executions": float(fit.answers),
            "excess": fit.excess,
            "excess_nats": fit.nats,
            "gap": fit.gap,
            "more": float(fit.more),
            "laws_left": float(len(fit.left)),
        }
        return Finding(check, verdict, fit.excess, fit.text, None, numbers)


@dataclass(frozen=True)
class Judged:
    """What was found of a decoder.

    Attributes:
        accused: By arm: what refutes it, and what its tokens fit.
        books: Its claims, held against the laws that it shows and against our own numbers.
        spent: Its answers, held against their budgets, where it shows what it served.
        tokens: What the tokens say; None if none were looked at.
        open: Arms that are judged by what they show.
        keeps_prefixes: False where only the mean total of a prompt is promised.
    """

    accused: list[ArmFinding]
    books: ClaimComparison
    spent: ClaimComparison
    tokens: TokenEvidence | None
    open: set[Arm]
    keeps_prefixes: bool = True

    @property
    def fits(self) -> str:
        """Name of the law that its tokens fit; empty if none is known."""
        return "" if self.tokens is None else self.tokens.fit.law

    def findings(self) -> list[ArmFinding]:
        """Returns what was found of spend and tokens, then of what is claimed, as `replay: ...`.

        A claim that is not true is a matter of bookkeeping: it refutes no budget.
        """
        rows = [one for one in self.books.findings() if one.check != "replay: budget"]
        budget = self.spent.findings()[-1]
        if not self.open:
            text = "no law of its steps is shown, so that no charge was recomputed"
            budget = replace(budget, text=text)
        if not self.keeps_prefixes:
            # Eq. 1 is about means, which the audit of the records judges.
            budget = replace(budget, verdict=CheckWord.INFO)
        found = [ArmFinding(None, budget)]
        found += [ArmFinding(None, one) for one in rows if one.verdict != CheckWord.FAILED]
        for arm in sorted(self.books.by_arm):
            # Where an answer ends is a matter of its own (`decoder: short`, `after-stop`, ...).
            failures = [one for one in self.books.failures(arm) if one.check != "replay: end"]
            found += [ArmFinding(arm, _as_bookkeeping(one)) for one in failures]
        return [*self.accused, *found]


def conformity(found: Sequence[ArmFinding], judged: Judged, promise: str) -> Finding:
    """Says whether a decoder is the promised mechanism itself: a question of its own.

    Args:
        found: What the comparison with the promised rule, and the tests against it, find.
        judged: What was found of its spend.
        promise: Name of the mechanism.
    """
    failed = [one.finding for one in found if one.finding.verdict == CheckWord.FAILED]
    name, tokens = promise.partition(":debt=")[0], judged.tokens
    excluded = tokens is not None and "1 k" not in [law for law, _ in tokens.fit.left]
    if not failed and not excluded:
        n = 0 if tokens is None else tokens.fit.answers
        said = f" in {n} answers per budget" if n else ""
        return Finding(
            CONFORMS, CheckWord.INFO, 1.0, f"conforms to {name}: YES, no difference was found{said}"
        )
    why = ""
    if tokens is not None and tokens.fit.law not in ("", "1 k", CLAIMED):
        why = tokens.fit.fits
    elif excluded and not failed:
        why = "its tokens do not fit that rule's law"
    differs = ", ".join(dict.fromkeys(one.check.partition(": ")[2] for one in failed))
    why = why or f"what it shows or draws differs from that rule's ({differs})"
    if judged.open and not judged.spent.overspent and judged.spent.budgeted:
        why += "; at the laws that it shows, each prefix keeps the banked budget"
    numbers = {"failed": float(len(failed))}
    return Finding(CONFORMS, CheckWord.INFO, 0.0, f"conforms to {name}: NO, {why}", None, numbers)
