"""The laws that silent decoders are compared with: their slow twins, and the decoders themselves.

Interpolation moves a weight by up to 5e-5 or so: what was measured is said at each tolerance. All
seeds are fixed, and nothing here is tested against chance.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax

from nafaudit.auditor import family
from nafaudit.auditor.evidence import CLAIMED, PARTLY, TIMES, Evidence, with_parts
from nafaudit.auditor.family import (
    AFTER,
    AFTER_SOLVE,
    BASES,
    COMMON,
    FAMILIES,
    GEOMETRIC,
    LEDGERS,
    SHAPES,
    SHARES,
    STRENGTHS,
    WEIGHTS,
    AfterSolve,
    Answers,
    Followed,
    Ledger,
    Shape,
    StepTable,
    Text,
    follow,
    step_table,
)
from nafaudit.core.trajectory import Key
from nafaudit.mechanisms.reference import AnchoredDecoder, ReferenceRow
from nafaudit.protocols import Law, Request, debt_of
from nafaudit.selftest import careful
from nafaudit.selftest.faults import accounts, banks, sampling, serving
from nafaudit.selftest.faults.tools import blend, divergence, mixture, only
from nafaudit.selftest.worlds import ToyWorld, toy_prompts, toy_world

Array = NDArray[np.float64]
Numbers = tuple[Array, Array]

LIMIT = 24
WORLD = toy_world(5, size=16, contexts=37, gap=1.4, stop=0.03)
LEDGER = {law.name: law for law in LEDGERS}


def forbidding(world: ToyWorld, *models: str) -> ToyWorld:
    """Returns a world where some of the models never write a fifth of the ids, at chance."""
    banned = np.random.default_rng(5).random(world.safe.shape) < 0.2
    banned[:, :2] = False
    safe, risky = (
        np.asarray(log_softmax(np.where(banned & (name in models), -np.inf, law), axis=1))
        for name, law in (("safe", world.safe), ("risky", world.risky))
    )
    return replace(world, safe=safe, risky=risky)


WORLDS = {
    "every id": WORLD,
    "ids that neither serves": forbidding(WORLD, "safe", "risky"),
    "ids that the risky model does not serve": forbidding(WORLD, "risky"),
}


@dataclass(frozen=True)
class Case:
    """One answer, as a decoder was asked for it."""

    prompt: tuple[int, ...]
    tokens: NDArray[np.int64]
    k: float
    debt: float
    safe: Law
    risky: Law

    @property
    def table(self) -> StepTable:
        """Its table."""
        return step_table(torch.from_numpy(self.safe), torch.from_numpy(self.risky), self.tokens)


def case_of(world: ToyWorld, request: Request, tokens: Sequence[int]) -> Case:
    text = [*request.prompt, *tokens]
    prefixes = [text[: len(request.prompt) + step] for step in range(len(tokens))]
    debt = debt_of(world, request.prompt)
    return Case(request.prompt, np.array(tokens), request.k, debt, *world.laws(prefixes))


def answers_of(cases: Sequence[Case], debts: dict[str, Array] | None = None) -> Answers:
    """Puts answers side by side; those of one prompt and budget come one after the other."""
    owed = np.array([case.debt for case in cases])
    names = {prompt: n for n, prompt in enumerate(dict.fromkeys(case.prompt for case in cases))}
    last: dict[tuple[tuple[int, ...], float], int] = {}
    before = []
    for at, case in enumerate(cases):
        before.append(last.get((case.prompt, case.k), -1))
        last[case.prompt, case.k] = at
    return Answers(
        [case.table for case in cases],
        np.array([case.k for case in cases]),
        owed,
        np.array([names[case.prompt] for case in cases]),
        {"own": owed} if debts is None else debts,
        np.array(before),
        LIMIT,
    )


# The tables.


@pytest.mark.parametrize("size", [16, 1100], ids=["float64", "float32"])
def test_a_table_is_what_whole_laws_give(size: int) -> None:
    """Also with tokens that one model, or both, never write; above 1,024 ids in float32.

    Largest differences: 7e-16 in float64, 5e-7 in float32.
    """
    world = toy_world(3, size=size, contexts=12, zeros=0.1)
    both = np.random.default_rng(1).random(world.safe.shape) < 0.1
    both[:, :2] = False
    safe, risky = (
        log_softmax(np.where(both, -np.inf, law), 1) for law in (world.safe, world.risky)
    )
    tokens = np.random.default_rng(2).integers(0, size, len(safe))
    table = step_table(torch.from_numpy(safe), torch.from_numpy(risky), tokens)
    limit = 1e-12 if size == 16 else 1e-5
    for row in range(len(table)):
        shared = np.isfinite(safe[row]) & np.isfinite(risky[row])
        base, gap = safe[row, shared], risky[row, shared] - safe[row, shared]
        for at, weight in enumerate(WEIGHTS):
            mass = np.exp(base + weight * gap)
            mean = (mass * gap).sum() / mass.sum()
            spread = (mass * (gap - mean) ** 2).sum() / mass.sum()
            found = [getattr(table, name)[row, at] for name in ("psi", "slope", "bend")]
            assert np.allclose(found, [np.log(mass.sum()), mean, spread], rtol=0, atol=limit)
        for at, share in enumerate(SHARES.tolist()):
            cost = divergence(blend(safe[row], risky[row], share), safe[row]) if share else 0.0
            assert table.mixed[row, at] == pytest.approx(cost, rel=1e-9, abs=limit)
        assert table.cost[row] == pytest.approx(divergence(risky[row], safe[row]), abs=5e-5)
        assert table.safe[row] == safe[row, tokens[row]]
        assert table.risky[row] == risky[row, tokens[row]]


def test_the_slope_of_the_arithmetic_mixtures_cost_is_its_slope() -> None:
    safe, risky = WORLD.safe[:9], WORLD.risky[:9]
    table = step_table(torch.from_numpy(safe), torch.from_numpy(risky), np.zeros(9, np.int64))
    for row in range(len(table)):
        for at, share in enumerate(SHARES.tolist()):
            grown = blend(safe[row], risky[row], share) - safe[row]
            slope = ((np.exp(risky[row]) - np.exp(safe[row])) * grown).sum()
            assert table.mixed_slope[row, at] == pytest.approx(slope, rel=1e-9, abs=1e-12)


def test_blocks_of_steps_are_joined() -> None:
    case = cases_in("every id")[0]
    safe, risky = torch.from_numpy(case.safe), torch.from_numpy(case.risky)
    parts = [slice(0, 1), slice(1, 4), slice(4, None)]
    whole = case.table
    joined = StepTable.joined([step_table(safe[p], risky[p], case.tokens[p]) for p in parts])
    assert len(joined) == len(case.tokens)
    for name in vars(whole):
        assert np.array_equal(getattr(joined, name), getattr(whole, name))


# The ledgers.


@cache
def cases_in(name: str) -> tuple[Case, ...]:
    """Answers of three prompts at two budgets, some of them short; all prompts owe something."""
    world = WORLDS[name]
    found = []
    for number, prompt in enumerate(toy_prompts(world, 4, 3)):
        for k, count in ((0.15, 1), (0.4, 2)):
            requests = [Request(prompt, k, 10 * number + n, LIMIT) for n in range(count)]
            outputs = AnchoredDecoder(world).decode(requests)
            pairs = zip(requests, outputs, strict=True)
            found += [case_of(world, request, output.tokens) for request, output in pairs]
    lengths = [len(case.tokens) for case in found]
    assert min(lengths) < LIMIT // 2 and max(lengths) == LIMIT
    assert min(case.debt for case in found) > 0.1
    return tuple(found)


def largest(cost: Callable[[float], float], allowance: float) -> float:
    """Returns the largest weight that costs at most an allowance, by bisection."""
    if allowance < 1e-10:
        return 0.0
    if cost(1.0) <= allowance:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(36):
        middle = (low + high) / 2
        low, high = (middle, high) if cost(middle) <= allowance else (low, middle)
    return low


def weight_for(law: Ledger, safe: Law, risky: Law, allowance: float) -> float:
    """Returns the weight that a rule gives the risky law for an allowance."""
    if law.rule in ("safe", "risky"):
        return float(law.rule == "risky")
    if law.rule == "jump":
        return float(divergence(risky, safe) <= allowance and allowance >= 1e-10)
    if law.rule == "arithmetic":
        return largest(lambda share: divergence(blend(safe, risky, share), safe), allowance)
    if law.book == "reverse":
        return largest(lambda theta: divergence(safe, mixture(safe, risky, theta)), allowance)
    return largest(lambda theta: divergence(mixture(safe, risky, theta), safe), allowance)


class Twin:
    """Follows one answer under one law, a step and a whole law at a time.

    Attributes:
        booked: What it has booked.
        rows: Log-probability of the token, weight and charge of each step so far.
    """

    def __init__(self, law: Ledger, case: Case, debt: float) -> None:
        self.law, self.case, self.debt = law, case, debt
        self.booked = self.pending = 0.0
        self.rows: list[tuple[float, float, float]] = []

    @property
    def over(self) -> bool:
        """True if the answer has ended."""
        return len(self.rows) == len(self.case.tokens)

    @property
    def owed(self) -> float:
        """Returns what it owes at its next step."""
        law = self.law
        forgiven = law.forgives and len(self.rows) >= law.forgives
        return 0.0 if forgiven else law.owed * self.debt

    def walk(self, spent: float, owed: float) -> None:
        """Makes one step, with what is said to be spent and owed."""
        law, step = self.law, len(self.rows)
        safe, risky, drawn = (getattr(self.case, n)[step] for n in ("safe", "risky", "tokens"))
        k = law.budget * self.case.k
        allowed = max(0.0, (step + 1 + law.ahead) * k - owed - spent)
        allowed = allowed if law.banks else min(allowed, k)
        weight = weight_for(law, safe, risky, law.solve * allowed)
        solved = divergence(mixture(safe, risky, weight), safe)
        if weight > 0 or law.always:
            weight = min(1.0, max(0.0, weight + law.shift))
        if law.rounds:
            weight = (math.ceil if law.rounds == "up" else math.floor)(weight * 10) / 10
        weight = min(weight, law.most)
        if step < law.first or (law.last and step >= (1 - law.last) * LIMIT):
            weight = 1.0
        if step < law.late:
            weight = 0.0
        mixed = blend if law.rule.startswith("arithmetic") and 0 < weight < 1 else mixture
        served = mixed(safe, risky, weight)
        charge = divergence(served, safe)
        # At the geometric weight it is the geometric mixture that is paid for.
        true = divergence(mixture(safe, risky, weight), safe) if "weight" in law.rule else charge
        self.booked += {
            "true": true,
            "solved": solved,
            "clipped": min(charge, allowed),
            "lagged": self.pending,
            "never": 0.0,
            "twice": 2 * charge,
            "realised": served[drawn] - safe[drawn],
            "reverse": divergence(safe, served) if law.book == "reverse" else 0.0,
        }[law.book]
        self.pending = charge
        if law.forgets and (step + 1) % law.forgets == 0:
            self.booked = 0.0
        if law.refills and (step + 1) % law.refills == 0:
            bank = (step + 1) * k - owed - self.booked
            self.booked = (step + 1) * k - owed - max(bank, law.refills * k)
        self.rows.append((served[drawn], weight, charge))


def together(law: Ledger, answers: Sequence[tuple[Case, float]]) -> list[Array]:
    """Follows the answers of one batch side by side, each with the debt that it pays."""
    batch = [Twin(law, case, debt) for case, debt in answers]
    while open_ := [one for one in batch if not one.over]:
        shared, first = mean(one.booked for one in batch), (open_[0].booked, open_[0].owed)
        told = [
            {"mean": (shared, one.owed), "first": first}.get(law.pool, (one.booked, one.owed))
            for one in open_
        ]
        for one, (spent, owed) in zip(open_, told, strict=True):
            one.walk(spent, owed)
    return [np.array(one.rows).T for one in batch]


def twins(law: Ledger, cases: Sequence[Case], answers: Answers) -> list[Array]:
    """Follows all answers under one law, those that inherit a bank after those that leave it."""
    debts = [float(debt) for debt in answers.debts[law.debt]]
    found: list[Array] = []
    if law.pool != "own":
        found = [np.empty(0)] * len(cases)
        for batch in np.unique(answers.batch):
            rows = np.flatnonzero(answers.batch == batch).tolist()
            several = together(law, [(cases[row], debts[row]) for row in rows])
            for row, one in zip(rows, several, strict=True):
                found[row] = one
        return found
    owed: list[float] = []
    for at, (case, debt) in enumerate(zip(cases, debts, strict=True)):
        earlier = int(answers.before[at])
        if law.inherits and earlier >= 0:
            spent = found[earlier][2].sum()
            debt -= max(0.0, len(cases[earlier].tokens) * case.k - owed[earlier] - spent)
        owed.append(debt)
        found += together(law, [(case, debt)])
    return found


@cache
def followed_in(name: str) -> tuple[Answers, Followed]:
    cases = cases_in(name)
    rng = np.random.default_rng(3)
    owed = np.array([case.debt for case in cases])
    names = ("next", "previous", "batch", "first", "common")
    answers = answers_of(cases, {"own": owed} | {n: rng.uniform(0, 2, len(owed)) for n in names})
    answers = replace(answers, batch=np.arange(len(cases)) // 5)
    return answers, follow(answers)


@pytest.mark.parametrize("name", WORLDS)
def test_every_ledger_is_its_slow_twin(name: str) -> None:
    """Log-probabilities, weights and charges of every token of nine answers.

    Largest differences of geometric mixtures: 4e-3, 1e-3 (where next to nothing is allowed) and
    6e-6. Of arithmetic ones, whose cost bends sharply near the risky law: 0.02, 5e-3 and 7e-3.
    """
    cases = cases_in(name)
    answers, found = followed_in(name)
    assert found.names == tuple(law.name for law in LEDGERS)
    for number, law in enumerate(LEDGERS):
        arithmetic = law.rule.startswith("arithmetic")
        if name.startswith("ids that the risky") and (arithmetic or law.book == "reverse"):
            continue
        limits = (0.05, 0.01, 0.02) if arithmetic else (0.01, 2e-3, 5e-5)
        for at, numbers in enumerate(twins(law, cases, answers)):
            steps = numbers.shape[1]
            columns = found.logp, found.theta, found.charge
            for column, wanted, limit in zip(columns, numbers, limits, strict=True):
                assert np.allclose(column[number, at, :steps], wanted, rtol=0, atol=limit), law.name
            for column in (found.logp, found.charge):
                assert not column[number, at, steps:].any()


def test_ids_that_only_the_risky_model_serves_leave_every_law_a_number() -> None:
    """Any share of them costs without end, and a share of nothing costs nothing."""
    world = forbidding(WORLD, "safe")
    requests = [
        Request(prompt, k, 10 * n, LIMIT)
        for n, prompt in enumerate(toy_prompts(world, 4, 3))
        for k in (0.15, 0.4)
    ]
    outputs = careful.SafeAlone(world).decode(requests)
    cases = [case_of(world, r, out.tokens) for r, out in zip(requests, outputs, strict=True)]
    found = follow(answers_of(cases))
    assert not np.isnan(found.logp).any() and not np.isnan(found.theta).any()
    for name in ("arithmetic mixture, 1 k", "all or nothing, 1 k", "1 k"):
        law = found.names.index(name)
        alone = found.names.index("the safe model alone")
        nothing = found.theta[law] == 0
        assert nothing.any() and not found.charge[law][nothing].any()
        assert np.array_equal(found.logp[law][nothing], found.logp[alone][nothing])


def test_the_order_of_laws_and_answers_changes_nothing() -> None:
    answers, found = followed_in("every id")
    laws = LEDGERS[::-7]
    again = follow(answers, laws)
    assert again.names == tuple(law.name for law in laws)
    for name in ("logp", "theta", "charge"):
        assert np.array_equal(getattr(again, name), getattr(found, name)[::-7])
    rows = np.array([7, 2, 5])
    alone = [law for law in laws if not law.inherits and law.pool == "own"]
    part = follow(answers.some(rows), alone)
    for at, law in enumerate(part.names):
        steps = part.logp.shape[2]
        assert np.allclose(part.logp[at], found.logp[found.names.index(law), rows, :steps])


class Watched:
    """A decoder that notes which laws it really draws from."""

    def __init__(self, decoder: AnchoredDecoder) -> None:
        self.decoder, self._sampled = decoder, decoder.sampled
        self._laws: dict[int, tuple[ReferenceRow, list[Law]]] = {}
        setattr(decoder, "sampled", self._note)  # noqa: B010  one decoder, not its class

    def _note(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        drawn_from = self._sampled(row, law, safe, risky)
        self._laws.setdefault(id(row), (row, []))[1].append(drawn_from)
        return drawn_from

    def written(self, requests: Sequence[Request]) -> list[tuple[Case, Array]]:
        """Returns each answer with the log-laws that it was drawn from [steps, vocabulary]."""
        outputs = self.decoder.decode(requests)
        laws = {row.request: np.array(laws) for row, laws in self._laws.values()}
        return [
            (case_of(WORLD, request, output.tokens), laws[request])
            for request, output in zip(requests, outputs, strict=True)
        ]


def written_by(kind: type[AnchoredDecoder]) -> tuple[Answers, list[tuple[Case, Array]]]:
    """What a decoder writes in one call, two answers of a kind; and whose debts there are."""
    asked = [(prompt, k) for prompt in toy_prompts(WORLD, 7, 4) for k in (0.2, 0.4)]
    requests = [Request(*each, 100 + i, LIMIT) for i, each in enumerate(asked * 2)]
    written = Watched(kind(WORLD)).written(requests)
    owed = np.array([case.debt for case, _ in written])
    debts = {
        "own": owed,
        "next": np.roll(owed, -1),
        "previous": np.array([0.0, *owed[:-1]]),
        "batch": np.full(len(owed), owed.mean()),
        "first": np.full(len(owed), owed[0]),
    }
    return answers_of([case for case, _ in written], debts), written


KINDS: tuple[tuple[str, type[AnchoredDecoder]], ...] = (
    ("1 k", AnchoredDecoder),
    ("0.8 k", careful.SmallerBudget),
    ("0.9 of each allowance", careful.SpendsNineTenths),
    ("0.8 of each allowance", careful.SpendsFourFifths),
    ("no bank", careful.StepByStep),
    ("no bank", accounts.NoBank),
    ("2 times the debt", careful.DebtPaidTwice),
    ("the safe model alone", careful.SafeAlone),
    ("safe for ten steps, then 1 k", careful.LateStart),
    ("weights up to 0.5", careful.Capped),
    ("all or nothing, 1 k", careful.AllOrNothing),
    ("arithmetic mixture, 1 k", careful.Arithmetic),
    ("no debt", accounts.NoDebt),
    ("no debt", accounts.NoDebtStated),
    ("the debt added", accounts.DebtAdded),
    ("0.5 times the debt", accounts.DebtHalved),
    ("2 times the debt", accounts.DebtDoubled),
    ("debt forgotten after ten steps", accounts.DebtForgiven),
    ("the mean debt of its batch", accounts.DebtOfTheBatch),
    ("budget one step early", accounts.OneStepAhead),
    ("budget one step late", accounts.OneStepBehind),
    ("spend forgotten every 10 steps", accounts.ForgetsItsSpend),
    ("1.05 k", accounts.LargerBudget),
    ("the first token risky", accounts.FirstStepFree),
    ("KL of the safe law from the served one", accounts.ReverseDivergence),
    ("charges booked as the token's log-ratio", accounts.ChargesTheDraw),
    ("charges booked twice", accounts.ChargesTwice),
    ("budget two steps early", banks.TwoStepsAhead),
    ("spend forgotten every 10 steps", banks.BankReset),
    ("bank refilled every 10 steps", banks.BankRefilled),
    ("1.15 k", banks.FifteenPercentMore),
    ("2 k", banks.TwiceTheBudget),
    ("the previous request's debt", banks.PreviousDebt),
    ("the next request's debt", banks.NeighboursDebt),
    ("the debt of its batch's first row", banks.FirstRowsDebt),
    ("the last answer's bank inherited", banks.InheritsTheRest),
    ("charges booked one step late", banks.BooksLate),
    ("1.3 times each allowance, booked as one", banks.ClipsItsCharge),
    ("charges booked as the token's log-ratio", banks.BooksTheDraw),
    ("the last tenth risky", banks.LateCheat),
    ("the risky model alone", sampling.SampleRisky),
    ("the safe model alone", sampling.SampleSafe),
    ("weights rounded up to tenths", sampling.ThetaRoundedUp),
    ("weight +0.05", sampling.ThetaPlusTwentieth),
    ("weight +0.1 at every step", sampling.ThetaPlus),
    ("arithmetic mixture at the geometric weight", sampling.ArithmeticServed),
)


@pytest.mark.parametrize(("name", "kind"), KINDS, ids=[kind.__name__ for _, kind in KINDS])
def test_a_ledger_is_the_decoder_that_it_is_named_after(
    name: str, kind: type[AnchoredDecoder]
) -> None:
    """The law of the family, along a decoder's tokens, is what the decoder drew them from.

    Largest differences: see the slow twins.
    """
    answers, written = written_by(kind)
    found = follow(answers, [LEDGER["1 k"], LEDGER[name]])
    moved = [np.ptp(column, axis=0).max() for column in (found.charge, found.logp)]
    assert name == "1 k" or max(moved) > 0.03
    arithmetic = LEDGER[name].rule.startswith("arithmetic")
    assert answers.lengths.max() > 20
    for at, (case, laws) in enumerate(written):
        steps = np.arange(len(laws))
        charges = [divergence(*pair) for pair in zip(laws, case.safe, strict=True)]
        limit = 0.02 if arithmetic else 1e-4
        assert np.allclose(found.charge[1, at, : len(laws)], charges, rtol=0, atol=limit)
        limit = 0.05 if arithmetic else 0.01
        logp = laws[steps, case.tokens]
        assert np.allclose(found.logp[1, at, : len(laws)], logp, rtol=0, atol=limit)


# What acts after the solve.


def shaped(shape: Shape, law: Law, seen: NDArray[np.int64]) -> Law:
    """Returns what a shape makes of a whole log-law."""
    if shape.kind == "temperature":
        return np.asarray(log_softmax(law / shape.value))
    if shape.kind == "penalty":
        old = np.isin(np.arange(len(law)), seen)
        return np.asarray(log_softmax(np.where(old, law * shape.value, law)))
    if shape.kind == "min-p":
        return only(law, np.flatnonzero(law >= law.max() + math.log(shape.value)))
    order = np.argsort(-law, kind="stable")
    if shape.kind == "top-k":
        return only(law, order[: int(shape.value)])
    if shape.kind == "top-p":
        before = np.cumsum(np.exp(law[order])) - np.exp(law[order])
        return only(law, order[before < shape.value])
    assert shape.kind == "greedy"
    return blend(law, only(law, order[:1]), shape.value)


def edged(shape: Shape, law: Law, seen: NDArray[np.int64], token: int) -> float:
    """Returns log q of a token; one that is cut off keeps a hundred-thousandth of its law."""
    found = float(shaped(shape, law, seen)[token])
    return found if found > -math.inf else float(law[token]) + math.log(1e-5)


def text_of(name: str, at: int) -> Text:
    """Returns an answer with the weights of the laws that shapes act on."""
    _, found = followed_in(name)
    case = cases_in(name)[at]
    rows = [found.names.index(base) for base in BASES]
    return Text(case.prompt, case.tokens, case.k, case.debt, found.theta[rows, at])


def after(name: str, numbers: Sequence[int], blocks: Sequence[int] = ()) -> list[Numbers]:
    """Follows some answers under the second group, in blocks that begin at some steps."""
    cases = [cases_in(name)[at] for at in numbers]
    found = AfterSolve(*(text_of(name, at) for at in numbers))
    safe, risky = (np.concatenate([getattr(one, n) for one in cases]) for n in ("safe", "risky"))
    for start, end in zip([0, *blocks], [*blocks, len(safe)], strict=True):
        found.feed(torch.from_numpy(safe[start:end]), torch.from_numpy(risky[start:end]))
    return found.results()


SHAPED = [(shape, base) for shape in SHAPES for base in BASES]
UNPAID = [
    (number, *next((s, b) for s, b in SHAPED if f"{s.name} after {b}" == name))
    for number, name in enumerate(AFTER)
    if name in AFTER_SOLVE
]
PAID = [(AFTER.index(f"{SHAPES[at].name}, paid for"), SHAPES[at]) for at in COMMON]


@pytest.mark.parametrize("name", ["every id", "ids that neither serves"])
def test_a_shape_after_the_solve_is_what_it_makes_of_the_whole_law(name: str) -> None:
    """Largest differences: 4e-14; the share of a greedy choice is never quite 1."""
    cases = cases_in(name)
    results = after(name, range(len(cases)))
    for at, (case, (logp, charge)) in enumerate(zip(cases, results, strict=True)):
        assert logp.shape == charge.shape == (len(AFTER), len(case.tokens))
        theta, text = text_of(name, at).theta, np.array([*case.prompt, *case.tokens])
        for step, (safe, risky) in enumerate(zip(case.safe, case.risky, strict=True)):
            seen, token = text[: len(case.prompt) + step], int(case.tokens[step])
            laws = [mixture(safe, risky, weight) for weight in theta[:, step].tolist()]
            for number, shape, base in UNPAID:
                law = laws[BASES.index(base)]
                wanted = edged(shape, law, seen, token)
                assert logp[number, step] == pytest.approx(wanted, abs=1e-9), AFTER[number]
                cost = divergence(shaped(shape, law, seen), safe)
                assert charge[number, step] == pytest.approx(cost, abs=1e-9), AFTER[number]


def test_blocks_and_neighbours_change_nothing_after_the_solve() -> None:
    cases = cases_in("every id")
    together = after("every id", range(len(cases)))
    for at, (case, whole) in enumerate(zip(cases, together, strict=True)):
        steps = len(case.tokens)
        for blocks in ([], [*range(5, steps, 8)], [*range(1, steps)]):
            for one, other in zip(after("every id", [at], blocks)[0], whole, strict=True):
                assert np.allclose(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["every id", "ids that neither serves"])
def test_what_is_paid_for_after_the_solve_costs_about_what_is_booked(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No prefix books more than its grant; what it truly costs is a little off.

    The weight is interpolated between eight, and what a cut law costs jumps between them: a step
    truly costs up to 0.15 nats more than is booked, and a prefix up to 0.19 nats more than it was
    granted, of 9.
    """
    weights: list[Array] = []
    solve = family._largest

    def noted(roots: Array, allowance: Array) -> Numbers:
        found = solve(roots, allowance)
        weights.append(found[0][:, 0])
        return found

    monkeypatch.setattr(family, "_largest", noted)
    for at, case in enumerate(cases_in(name)):
        weights.clear()
        ((logp, charge),) = after(name, [at])
        steps = 1 + np.arange(len(case.tokens))
        grants = np.maximum(0.0, steps * case.k - case.debt)
        text = np.array([*case.prompt, *case.tokens])
        for place, (number, shape) in enumerate(PAID):
            assert (np.cumsum(charge[number]) <= grants + 1e-9).all()
            costs = np.zeros(len(steps))
            for step, (safe, risky) in enumerate(zip(case.safe, case.risky, strict=True)):
                theta, token = float(weights[step][place]), int(case.tokens[step])
                if theta < 0:
                    assert (logp[number, step], charge[number, step]) == (safe[token], 0.0)
                    continue
                law, seen = mixture(safe, risky, theta), text[: len(case.prompt) + step]
                wanted = edged(shape, law, seen, token)
                assert logp[number, step] == pytest.approx(wanted, abs=1e-9)
                costs[step] = divergence(shaped(shape, law, seen), safe)
            assert (np.abs(costs - charge[number]) < 0.2).all()
            assert (np.cumsum(costs) < grants + 0.25).all()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("temperature 0.8 after 1 k", sampling.Tempered),
        ("top-p 0.95 after 1 k", serving.TopP),
        ("top-p 0.99 after 1 k", serving.LooseTopP),
        ("min-p 0.05 after 1 k", serving.MinP),
        ("penalty 1.2 after 1 k", serving.RepetitionPenalty),
        ("5% greedy choice after 1 k", serving.SometimesGreedy),
        ("temperature 0.7, paid for", careful.MeteredCooling),
        ("temperature 1.3, paid for", careful.MeteredHeating),
        ("top-p 0.95, paid for", careful.MeteredTopP),
    ],
)
def test_a_shape_is_the_decoder_that_it_is_named_after(
    name: str, kind: type[AnchoredDecoder]
) -> None:
    """What nobody pays for is exact to 5e-6, as its weights are; what is paid for, to 0.1.

    Of what is paid for and cut, a token at the very edge may be in one set and not in the other:
    that is so of 1 token in 244 here.
    """
    answers, written = written_by(kind)
    found = follow(answers, [LEDGER[base] for base in BASES])
    cases = [case for case, _ in written]
    numbers = enumerate(cases)
    texts = [Text(c.prompt, c.tokens, c.k, c.debt, found.theta[:, at]) for at, c in numbers]
    laws = AfterSolve(*texts)
    safe, risky = (np.concatenate([getattr(one, n) for one in cases]) for n in ("safe", "risky"))
    laws.feed(torch.from_numpy(safe), torch.from_numpy(risky))
    paid, number, misses = name.endswith("paid for"), AFTER.index(name), []
    for (case, served), (logp, charge) in zip(written, laws.results(), strict=True):
        costs = [divergence(*pair) for pair in zip(served, case.safe, strict=True)]
        assert np.allclose(charge[number], costs, rtol=0, atol=0.15 if paid else 1e-4)
        # What a step leaves unspent is there at the next, so that totals agree.
        assert charge[number].sum() == pytest.approx(sum(costs), abs=0.02)
        drawn = served[np.arange(len(costs)), case.tokens]
        misses.append(np.abs(logp[number] - drawn))
    off = np.concatenate(misses) > (0.15 if paid else 1e-4)
    assert off.mean() <= (0.01 if "top-p" in name and paid else 0)


# Names, and what holds answers and laws.


def test_no_two_laws_have_a_name() -> None:
    answers, found = followed_in("every id")
    whole = with_parts(Evidence.of(answers, found)).laws.names
    names = (*whole, *AFTER, CLAIMED)
    assert len(set(names)) == len(names) > 150
    assert LEDGERS[0] == Ledger("1 k") and set(BASES) < set(LEDGER)
    assert {f"{times:g} k" for times in TIMES} <= GEOMETRIC < set(LEDGER)
    assert len(UNPAID) == len(AFTER_SOLVE) and len(UNPAID) + len(PAID) == len(AFTER)


def test_the_page_lists_every_law(pytestconfig: pytest.Config) -> None:
    """`--update-snapshots` writes the list anew."""
    groups: dict[str, Iterable[str]] = {
        name: [law for law in (*LEDGER, *AFTER) if law in laws] for name, laws in FAMILIES.items()
    }
    assert sorted(itertools.chain(*groups.values())) == sorted((*LEDGER, *AFTER))
    groups["in some answers, or on some prompts; 1 k in the others"] = PARTLY
    for kind, values in STRENGTHS.items():
        strengths = [Shape(kind, value).name for value in values]
        groups[f"{kind}, paid for, before an unpaid shape is named"] = strengths
    said = "".join(f"\n- **{head}**: {'; '.join(names)}.\n" for head, names in groups.items())
    page = Path(__file__).parents[2] / "docs" / "kept.md"
    text = page.read_text(encoding="utf-8")
    begin, end = "<!-- laws -->\n", "\n<!-- end of laws -->"
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(end)
    wanted = f"{head}{begin}{said}{end}{tail}"
    if pytestconfig.getoption("--update-snapshots"):
        page.write_text(wanted, encoding="utf-8")
    assert text == wanted or pytestconfig.getoption("--update-snapshots")


def test_answers_side_by_side() -> None:
    answers, _ = followed_in("every id")
    cases = cases_in("every id")
    assert answers.lengths.tolist() == [len(case.tokens) for case in cases]
    assert answers.alive.sum(axis=1).tolist() == answers.lengths.tolist()
    for at, case in enumerate(cases):
        for step in range(len(case.tokens)):
            granted = max(0.0, (step + 1) * case.k - case.debt)
            assert answers.grants[at, step] == pytest.approx(granted)
        for name in ("psi", "safe", "cost"):
            column, padded = getattr(case.table, name), answers.stacked(name)[at]
            assert np.array_equal(padded[: len(column)], column)
            assert (padded[len(column) :] == column[-1]).all()
    assert answers.rank.tolist() == list(range(len(answers)))


def test_some_answers_are_those() -> None:
    answers, _ = followed_in("every id")
    keys = [Key(f"p{n}", "box", 0.4, n) for n in range(len(answers))]
    rows = np.array([6, 0, 3])
    for whole in (answers, replace(answers, keys=keys)):
        some = whole.some(rows)
        assert all(one is whole.tables[row] for one, row in zip(some.tables, rows, strict=True))
        for name in ("k", "debt", "prompt", "rank"):
            assert np.array_equal(getattr(some, name), getattr(whole, name)[rows])
        assert set(some.debts) == set(whole.debts)
        assert np.array_equal(some.debts["next"], whole.debts["next"][rows])
        assert some.limit == whole.limit and (some.before == -1).all()
        assert list(some.keys) == ([keys[row] for row in rows] if whole.keys else [])


def test_laws_are_put_side_by_side() -> None:
    answers, found = followed_in("every id")
    parts = [
        Followed(found.names[p], found.logp[p], found.theta[p], found.charge[p])
        for p in (slice(0, 4), slice(4, 5), slice(5, None))
    ]
    joined = Followed.joined(parts)
    assert joined.names == found.names
    for name in ("logp", "theta", "charge"):
        assert np.array_equal(getattr(joined, name), getattr(found, name))
    for at, case in enumerate(cases_in("every id")):
        spent = np.cumsum(found.charge[:, at, : len(case.tokens)], axis=1)
        worst = (spent - answers.grants[at, : len(case.tokens)]).max(axis=1)
        assert np.allclose(found.excess(answers)[:, at], worst)
        assert np.allclose(found.totals()[:, at], spent[:, -1])


def test_moments_are_those_of_the_mixture() -> None:
    """Of log p_risky / p_safe; between knots they are on a line, which is off by 0.1 % here."""
    answers, found = followed_in("every id")
    theta = found.theta[found.names.index("1 k")]
    usable = np.ones(answers.alive.sum(), bool)
    usable[::3] = False
    mean, spread = answers.moments(answers.alive, usable, theta[answers.alive][usable])
    wanted = []
    for at, case in enumerate(cases_in("every id")):
        for step, (safe, risky) in enumerate(zip(case.safe, case.risky, strict=True)):
            mass = np.exp(mixture(safe, risky, float(theta[at, step])))
            middle = (mass * (risky - safe)).sum()
            wanted.append((middle, math.sqrt((mass * (risky - safe - middle) ** 2).sum())))
    middles, spreads = np.array(wanted)[usable].T
    assert np.allclose(mean, middles, rtol=0, atol=0.01)
    assert np.allclose(spread, spreads, rtol=0.01)
