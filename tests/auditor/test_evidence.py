"""Which laws are put out, and what follows: fair bets, their level, and each verdict.

All seeds are fixed. Each random test says what the chance of its failure was before they were.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp

from nafaudit.auditor import evidence as module
from nafaudit.auditor.evidence import (
    CLAIMED,
    FITS,
    LEAST_ANSWERS,
    LEVEL,
    MOST_EXCESS,
    SHARES,
    TIMES,
    Evidence,
    Reason,
    certificate,
    copies,
    decide,
    log_e_values,
    out_at,
    shared_noise,
    smallest_seen,
    with_parts,
)
from nafaudit.auditor.family import (
    AFTER,
    AFTER_SOLVE,
    BASES,
    LEDGERS,
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
from nafaudit.mechanisms.reference import AnchoredDecoder
from nafaudit.protocols import Law, Request, debt_of
from nafaudit.selftest import careful
from nafaudit.selftest.careful import divergences, geodesics
from nafaudit.selftest.faults import accounts, banks, sampling
from nafaudit.selftest.worlds import ToyWorld, toy_prompts, toy_world, truth
from tests.auditor.test_family import shaped

Array = NDArray[np.float64]
Rows = NDArray[np.int64]

LIMIT = 12
WORLD = toy_world(1, size=16, contexts=37, gap=1.4, stop=0.02)
BUDGETS = (0.15, 0.4)
LEDGER = {law.name: law for law in LEDGERS}
MODELS = ("safe", "risky")


# Many answers at once, drawn from laws of the family.


@dataclass(frozen=True)
class Asked:
    """What is asked for in some audits side by side, each in rows of its own.

    Attributes:
        world: The two models.
        prompts: Prompts of an audit.
        budgets: Each is asked for at each of these.
        each: So many times.
        limit: The length limit.
        audits: How many audits there are.
    """

    world: ToyWorld = WORLD
    prompts: tuple[tuple[int, ...], ...] = tuple(toy_prompts(WORLD, 3, 4))
    budgets: tuple[float, ...] = BUDGETS
    each: int = 3
    limit: int = LIMIT
    audits: int = 1

    @property
    def size(self) -> int:
        """Answers of one audit."""
        return len(self.prompts) * len(self.budgets) * self.each

    @property
    def places(self) -> tuple[Rows, Rows, Rows]:
        """Numbers of prompt, budget and answer, of every row."""
        shape = len(self.prompts), len(self.budgets), self.each
        one = np.unravel_index(np.arange(self.size), shape)
        prompt, budget, number = (np.tile(column, self.audits) for column in one)
        return prompt, budget, number

    @property
    def owed(self) -> Array:
        """Debts of the prompts."""
        return np.array([debt_of(self.world, prompt) for prompt in self.prompts])

    def contexts(self, tokens: Rows) -> Rows:
        """Returns which of the world's laws comes at each step [rows, steps]."""
        text = np.concatenate([np.array(self.prompts)[self.places[0]], tokens], axis=1)
        steps = tokens.shape[1]
        last, before = text[:, -steps - 1 : -1], text[:, -steps - 2 : -2]
        pairs = zip(before, last, strict=True)
        return np.array([self.world._contexts(*pair) for pair in pairs])


def weights_for(law: Ledger, safe: Law, risky: Law, allowance: Array) -> Array:
    """Returns the largest weights that allowances pay for, by bisection."""
    if law.rule in ("safe", "risky"):
        return np.full(len(allowance), float(law.rule == "risky"))
    low, high = np.zeros(len(allowance)), np.ones(len(allowance))
    for _ in range(26):
        middle = (low + high) / 2
        fits = divergences(mixed(law, safe, risky, middle), safe) <= allowance
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    low[divergences(risky, safe) <= allowance] = 1.0
    return np.where(allowance < 1e-10, 0.0, low)


def mixed(law: Ledger, safe: Law, risky: Law, weight: Array) -> Law:
    """Returns the laws that a rule makes of weights."""
    if law.rule != "arithmetic":
        return geodesics(safe, risky, weight)
    with np.errstate(divide="ignore"):
        parts = safe + np.log1p(-weight)[:, None], risky + np.log(weight)[:, None]
    return np.asarray(np.logaddexp(*parts))


def drawn(asked: Asked, law: Ledger, seed: int, shape: Shape | None = None) -> Rows:
    """Writes all answers as a law of the family does, and maybe with a shape after the solve.

    Returns:
        Tokens [rows, steps], -1 after the end of an answer.
    """
    draw = np.random.default_rng(seed)
    prompt, budget, _ = asked.places
    k, debt = law.budget * np.array(asked.budgets)[budget], law.owed * asked.owed[prompt]
    text = np.array(asked.prompts)[prompt]
    booked, going = np.zeros(len(k)), np.ones(len(k), bool)
    tokens = np.full((len(k), asked.limit), -1)
    for step in range(asked.limit):
        safe, risky = asked.world.laws(text[:, -2:].tolist())
        allowance = np.maximum(0.0, (step + 1 + law.ahead) * k - debt - booked)
        allowance = allowance if law.banks else np.minimum(allowance, k)
        weight = weights_for(law, safe, risky, law.solve * allowance)
        served = mixed(law, safe, risky, weight)
        charge = divergences(served, safe)
        if shape is not None:
            pairs = zip(served, text, strict=True)
            served = np.array([shaped(shape, one, before) for one, before in pairs])
        token = np.argmax(served + draw.gumbel(size=served.shape), axis=1)
        ratio = np.take_along_axis(served - safe, token[:, None], axis=1)[:, 0]
        paid = {"true": charge, "realised": ratio, "clipped": np.minimum(charge, allowance)}
        booked += paid[law.book]
        tokens[going, step] = token[going]
        going &= ~np.isin(token, list(asked.world.stops))
        text = np.concatenate([text, token[:, None]], axis=1)
    return tokens


def evidence_of(
    asked: Asked, tokens: Rows, laws: Sequence[Ledger] = LEDGERS, *, after: bool = False
) -> Evidence:
    """Follows written answers under the ledgers of the family, and maybe under its shapes."""
    prompt, budget, number = asked.places
    world, k, debt = asked.world, np.array(asked.budgets)[budget], asked.owed[prompt]
    models = torch.from_numpy(world.safe), torch.from_numpy(world.risky)
    every = step_table(*models, np.zeros(len(world.safe), np.int64))
    columns = {name: column for name, column in vars(every).items() if name not in MODELS}
    tables = []
    for line, place in zip(tokens, asked.contexts(tokens), strict=True):
        token = line[line >= 0]
        at = place[: len(token)]
        some = {name: column[at] for name, column in columns.items()}
        tables.append(StepTable(**some, safe=world.safe[at, token], risky=world.risky[at, token]))
    owed = asked.owed
    debts = {
        "own": debt,
        "next": np.roll(owed, -1)[prompt],
        "previous": np.roll(owed, 1)[prompt],
        "batch": np.full(len(k), owed.mean()),
        "first": np.full(len(k), owed[0]),
        "common": np.full(len(k), np.median(owed)),
    }
    before = np.where(number > 0, np.arange(len(k)) - 1, -1)
    answers = Answers(tables, k, debt, prompt, debts, before, asked.limit, rank=number)
    found = follow(answers, laws)
    if after:
        found = Followed.joined([found, _after(asked, tokens, answers, found)])
    return Evidence.of(answers, found)


def _after(asked: Asked, tokens: Rows, answers: Answers, found: Followed) -> Followed:
    rows = [found.names.index(base) for base in BASES]
    prompt, there = asked.places[0], tokens >= 0
    owed = zip(answers.k.tolist(), answers.debt.tolist(), strict=True)
    texts = [
        Text(asked.prompts[prompt[at]], line[line >= 0], k, debt, found.theta[rows, at])
        for at, (line, (k, debt)) in enumerate(zip(tokens, owed, strict=True))
    ]
    laws, at = AfterSolve(*texts), asked.contexts(tokens)[there]
    laws.feed(torch.from_numpy(asked.world.safe[at]), torch.from_numpy(asked.world.risky[at]))
    shape = (len(AFTER), *found.logp.shape[1:])
    logp, charge = np.zeros(shape), np.zeros(shape)
    for row, (one, cost) in enumerate(laws.results()):
        logp[:, row, : one.shape[1]], charge[:, row, : one.shape[1]] = one, cost
    return Followed(AFTER, logp, np.zeros(shape), charge)


def rows_of(evidence: Evidence, rows: Rows) -> Evidence:
    """Returns the evidence of some answers alone."""
    laws, answers = evidence.laws, evidence.answers.some(rows)
    steps = int(answers.lengths.max())
    columns = (column[:, rows, :steps] for column in (laws.logp, laws.theta, laws.charge))
    unpaid, binding = (column[rows, :steps] for column in (evidence.unpaid, evidence.binding))
    return Evidence(answers, Followed(laws.names, *columns), unpaid, binding)


def one_by_one(asked: Asked, whole: Evidence, *, parts: bool = True) -> Iterator[Evidence]:
    """Takes audits side by side apart, and adds laws that are another one in some answers."""
    for start in range(0, asked.audits * asked.size, asked.size):
        one = rows_of(whole, np.arange(start, start + asked.size))
        yield with_parts(one) if parts else one


def audits_of(asked: Asked, law: Ledger, seed: int, shape: Shape | None = None) -> list[Evidence]:
    """Returns audits of a decoder of the family."""
    whole = evidence_of(asked, drawn(asked, law, seed, shape), after=shape is not None)
    return list(one_by_one(asked, whole))


# What the bets are.


def mean(values: Array) -> float:
    """Averages e-values, given by their logarithms."""
    return float(logsumexp(values)) - math.log(values.size)


def slow_log_e(evidence: Evidence, law: int) -> float:
    """The whole bet against one law, as design/promise.md lists it, in loops over labels."""
    answers, limit = evidence.answers, evidence.answers.limit
    logp = np.maximum(evidence.laws.logp, -700.0)
    alive = answers.alive
    gain = np.where(alive, logp - logp[law], 0.0)
    places = np.indices(alive.shape)
    answer, step = places[0], places[1]
    budget, prompt = answers.k[answer], answers.prompt[answer]
    state = np.where(evidence.unpaid, 0, np.where(evidence.binding, 1, 2))
    block = step * 4 // limit

    def by(*labels: NDArray[Any]) -> Array:
        """Adds up gains by label [laws, labels]."""
        keys = list(zip(*(label[alive].tolist() for label in labels), strict=True))
        return np.array(
            [
                gain[:, alive][:, [key == one for key in keys]].sum(axis=1)
                for one in sorted(set(keys))
            ]
        ).T

    def some(gains: Array) -> float:
        """Each label is of another law with a chance of 0.02, 0.1 or 0.3."""
        mixed = [np.log1p(-s + s * np.exp(gains)).sum(axis=1) for s in (0.02, 0.1, 0.3)]
        return mean(np.array(mixed))

    def own(gains: Array) -> float:
        """Each label has a law of its own."""
        return float(sum(mean(column) for column in gains.T))

    steps = by(step)
    windows, width = [], limit
    while True:
        for start in range(0, limit, width):
            windows.append(steps[:, start : start + width].sum(axis=1))
        if width == 1:
            break
        width = math.ceil(width / 2)
    apart = (own(by(*one)) for one in ((state,), (state, budget), (block,), (block, budget)))
    # Where a state does not occur, the bet on it stays where it was.
    states = np.concatenate([by(state), np.zeros((len(gain), 3 - len(set(state[alive]))))], axis=1)
    bets = {
        0.4: [mean(gain.sum(axis=(1, 2)))],
        0.1: [
            some(by(answer)),
            some(by(answer, step)),
            mean(np.array(windows)),
            mean(states),
            mean(np.array(list(apart))),
        ],
        0.05: [some(by(prompt)), mean(by(budget))],
    }
    assert sum(share * len(each) for share, each in bets.items()) == pytest.approx(1)
    return float(logsumexp([math.log(s) + e for s, each in bets.items() for e in each]))


@pytest.mark.parametrize(
    ("asked", "law", "shape"),
    [
        (Asked(each=2), "1 k", None),
        (Asked(each=2), "arithmetic mixture, 1 k", Shape("top-p", 0.95)),
        (Asked(prompts=Asked().prompts[:1], budgets=(0.1,), limit=5), "1 k", None),
    ],
    ids=["ledgers", "shapes", "one state of the debt"],
)
def test_e_values_are_their_slow_twins(asked: Asked, law: str, shape: Shape | None) -> None:
    """To 1e-9; the largest difference is 7e-14. What is far out is only bounded from below."""
    (found,) = audits_of(asked, LEDGER[law], 1, shape)
    fast = log_e_values(found)[::3]
    slow = np.array([slow_log_e(found, 3 * at) for at in range(len(fast))])
    far = fast >= 12
    assert far.sum() < len(fast) - 10
    assert np.allclose(fast[~far], slow[~far], rtol=0, atol=1e-9)
    assert (fast[far] <= slow[far] + 1e-9).all()


def test_a_law_under_which_the_tokens_cannot_be_is_out() -> None:
    (found,) = audits_of(Asked(each=1), LEDGER["1 k"], 1)
    logp = found.laws.logp.copy()
    logp[3, 0, 0] = logp[4, 1, 0] = -math.inf
    odd = replace(found, laws=replace(found.laws, logp=logp))
    log_e = log_e_values(odd)
    assert np.isposinf(log_e[3:5]).all() and np.isfinite(np.delete(log_e, [3, 4])).all()


# Laws against which bets are summed over all that can be written; some are made of four of them.
SEVERAL = (
    "1 k",
    "2 k",
    "no debt",
    "charges booked one step late",
    "charges booked as the token's log-ratio",
    "the last answer's bank inherited",
    "arithmetic mixture, 1 k",
    "weights rounded up to tenths",
    "the safe model alone",
    "3 k",
    "1.3 times each allowance, booked as one",
    "the risky model alone",
)
TINY = toy_world(5, size=3, contexts=5, gap=1.2, stop=0.2)


def every_answer(world: ToyWorld, limit: int) -> Rows:
    """Returns all that can be written, -1 after the end [answers, steps]."""
    found: list[tuple[int, ...]] = []
    open_: list[tuple[int, ...]] = [()]
    for _ in range(limit):
        grown = [(*text, token) for text in open_ for token in range(world.size)]
        found += [text for text in grown if text[-1] in world.stops]
        open_ = [text for text in grown if text[-1] not in world.stops]
    whole = found + open_
    return np.array([(*text, *[-1] * (limit - len(text))) for text in whole])


def bets_summed(asked: Asked, names: Sequence[str], *, parts: bool) -> tuple[Array, Array]:
    """Sums over all that can be written: what each law gives it, and that times the bet on it."""
    single = every_answer(asked.world, asked.limit)
    many = np.array(list(itertools.product(range(len(single)), repeat=asked.size)))
    asked = replace(asked, audits=len(many))
    whole = evidence_of(asked, single[many.ravel()], [LEDGER[name] for name in names])
    total, bet = np.zeros((2, len(names) + 8 * parts))
    for one in one_by_one(asked, whole, parts=parts):
        chance = np.exp(one.laws.logp.sum(axis=(1, 2)))
        total += chance
        bet += chance * np.exp(log_e_values(one))
    return total, bet


@pytest.mark.parametrize(
    ("asked", "parts"),
    [
        (Asked(TINY, ((1, 2, 1, 2),), (0.4,), 1, 4), True),
        (Asked(TINY, ((1, 2, 1, 2),), (0.4,), 2, 2), True),
        (Asked(TINY, ((1, 2, 1, 2),), (0.2, 0.6), 1, 2), True),
        # The first owes, the second is limited, the third is free.
        (Asked(TINY, ((2, 2), (2, 1), (1, 1)), (0.3,), 1, 2), False),
    ],
    ids=["one answer", "two answers of a prompt", "two budgets", "three prompts"],
)
def test_every_bet_is_fair(asked: Asked, parts: bool) -> None:
    """Exactly: under each law the mean of the bet against it is 1, over all that can be written.

    Some answers end early. The largest difference is 2e-7, of the interpolated laws' own sums.
    """
    total, bet = bets_summed(asked, SEVERAL if parts else SEVERAL[::2], parts=parts)
    assert np.allclose(total, 1, rtol=0, atol=1e-6)
    assert np.allclose(bet, 1, rtol=0, atol=1e-6)


# The level.

LEVELS = (0.5, 0.2, 0.05, LEVEL * SHARES["laws"])
MANY = Asked(prompts=Asked().prompts[:3], audits=40)
TRUE: tuple[tuple[str, Shape | None], ...] = (
    ("1 k", None),
    ("0.8 k", None),
    ("1.3 k", None),
    ("0.9 of each allowance", None),
    ("1.3 times each allowance, booked as one", None),
    ("no debt", None),
    ("no bank", None),
    ("arithmetic mixture, 1 k", None),
    ("1 k", Shape("temperature", 0.7)),
    ("the risky model alone", Shape("top-p", 0.95)),
)


def called(name: str, shape: Shape | None) -> str:
    return name if shape is None else f"{shape.name} after {name}"


def largest_log_e(audits: Sequence[Evidence], name: str) -> Array:
    """Returns the largest evidence against one law after one, two and three answers, by audit.

    Of the true law alone, as the bets against all the others take a hundred times as long.
    """
    found = []
    for one in audits:
        law, rank = one.laws.names.index(name), one.answers.rank
        looks = [rows_of(one, np.flatnonzero(rank < count)) for count in (1, 2, 3)]
        found.append(max(module._Bets(look).log_e(law) for look in looks))
    return np.array(found)


def too_often(log_e: Array) -> list[float]:
    """Returns the levels at which evidence against the truth is too frequent, by three sigma."""
    found = []
    for level in LEVELS:
        most = level + 3 * math.sqrt(level * (1 - level) / len(log_e))
        if (log_e >= -math.log(level)).mean() > most:
            found.append(level)
    return found


@pytest.mark.parametrize(
    ("name", "shape"), [TRUE[0], TRUE[7], ("1 k", Shape("top-p", 0.95))], ids=lambda one: str(one)
)
def test_the_true_law_is_seldom_put_out(name: str, shape: Shape | None) -> None:
    """40 audits, at four levels: by chance less than 0.01, at the nominal rates.

    The rates are about a fifth of that. Were the bets worth e^3 times as much, it would be seen.
    """
    log_e = largest_log_e(audits_of(MANY, LEDGER[name], 7, shape), called(name, shape))
    assert not too_often(log_e)
    assert too_often(log_e + 3)


@pytest.mark.full
@pytest.mark.parametrize(("name", "shape"), TRUE, ids=[called(*one) for one in TRUE])
def test_the_level_holds_for_each_true_law(name: str, shape: Shape | None) -> None:
    """2,000 audits of each, at four levels: by chance less than 0.02 each, at the nominal rates."""
    many = replace(MANY, audits=200)
    chunks = (audits_of(many, LEDGER[name], 100 + seed, shape) for seed in range(10))
    log_e = np.concatenate([largest_log_e(one, called(name, shape)) for one in chunks])
    assert len(log_e) == 2000
    assert not too_often(log_e)
    assert too_often(log_e + 3)
    if name == "1 k" and shape is None:
        # Twice doubled, it would be seen where the bets lose least.
        assert too_often(log_e + math.log(4))


def test_a_law_that_was_once_out_stays_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first 30 answers speak against the law, the next 60 for it."""
    monkeypatch.setattr(module, "LOOKS", (30, 60))
    gain = np.where(np.arange(90) < 30, 0.6, -0.6)
    odd = made({"1 k": 1.0, "2 k": 2.0}, 90, logp={"2 k": gain})
    late = log_e_values(odd)
    monkeypatch.setattr(module, "LOOKS", (240,))
    assert log_e_values(odd)[0] < 0 < out_at() <= late[0]
    assert late[0] == pytest.approx(log_e_values(odd.first(30))[0])
    assert late[1] == pytest.approx(log_e_values(odd)[1])
    # The order is that of the answers' numbers, whatever row they stand in.
    rank = np.argsort(np.random.default_rng(1).permutation(90))
    back = np.empty(90, np.int64)
    back[rank] = np.arange(90)
    mixed = made({"1 k": 1.0, "2 k": 2.0}, 90, logp={"2 k": gain[rank]}, rank=rank)
    monkeypatch.setattr(module, "LOOKS", (30, 60))
    assert np.allclose(log_e_values(mixed), late)


def test_of_answers_that_share_their_draws_e_values_are_averaged() -> None:
    (found,) = audits_of(Asked(each=2), LEDGER["2 k"], 1)
    joint = log_e_values(found, independent=False)
    logp = found.laws.logp.sum(axis=2)
    for law in range(0, len(joint), 5):
        each = [np.exp(logp[:, a] - logp[law, a]).mean() for a in range(logp.shape[1])]
        assert joint[law] == pytest.approx(math.log(np.mean(each)))
    honest = found.laws.names.index("1 k")
    assert joint[honest] < log_e_values(found)[honest]


# The verdict.


def made(
    charges: dict[str, float],
    answers: int = LEAST_ANSWERS,
    *,
    logp: dict[str, Array] | None = None,
    rank: Rows | None = None,
) -> Evidence:
    """Makes evidence by hand: answers of 4 tokens at k = 1, laws that charge so much for each."""
    steps, nothing = 4, np.zeros((4, 25))
    table = StepTable(*(nothing,) * 5, *(np.zeros(steps),) * 3)
    order = np.arange(answers) if rank is None else rank
    debt, number = np.zeros(answers), np.arange(answers)
    group = Answers(
        [table] * answers, np.ones(answers), debt, number, {"own": debt}, -1 - number, steps,
        rank=order,
    )  # fmt: skip
    shape = (len(charges), answers, steps)
    gains, theta, charge = np.zeros(shape), np.full(shape, 0.5), np.zeros(shape)
    for at, (name, cost) in enumerate(charges.items()):
        charge[at] = cost
        gains[at] = (logp or {}).get(name, np.zeros(answers))[:, None] / steps
    return Evidence.of(group, Followed(tuple(charges), gains, theta, charge))


CHARGES = {
    "1 k": 1.0,
    "0.8 k": 0.8,
    "1.005 k": 1.005,
    "1.05 k": 1.05,
    "1.15 k": 1.15,
    "2 k": 2.0,
    "temperature 0.7 after 1 k": 1.3,
    CLAIMED: 0.9,
}
OUT = 30.0
"""What it takes: laws that are not named are out by this much."""
LEFT = (FITS + out_at()) / 2
"""What neither fits nor is out."""


@pytest.mark.parametrize(
    ("log_e", "answers", "reason", "law", "other", "excess"),
    [
        # Nothing is left, or nothing that is left fits: also where all of it breaks.
        ({}, 60, Reason.NO_LAW, "", "", math.nan),
        ({"1 k": LEFT}, 60, Reason.NO_LAW, "", "", math.nan),
        ({"2 k": LEFT, "1.15 k": FITS + 0.1}, 60, Reason.NO_LAW, "", "", math.nan),
        # All that is left breaks: the smallest excess counts, of laws that fit or not.
        ({"2 k": 0.0}, 60, Reason.BREAKS, "2 k", "1 k", 1.0),
        ({"2 k": 0.0, "1.15 k": LEFT}, 60, Reason.BREAKS, "2 k", "1 k", 0.15),
        ({"2 k": FITS, "1.05 k": -1.0}, 60, Reason.BREAKS, "1.05 k", "1 k", 0.05),
        # Too few answers, or too small an excess.
        ({"2 k": 0.0}, 59, Reason.UNSURE, "2 k", "1 k", 1.0),
        ({"2 k": 0.0, "1.005 k": LEFT}, 60, Reason.UNSURE, "2 k", "1 k", 0.005),
        # A law that keeps the budget fits, and nothing that is left exceeds it by much.
        ({"1 k": 0.0}, 60, Reason.KEEPS, "1 k", "", 0.0),
        ({"0.8 k": 0.0}, 5, Reason.KEEPS, "0.8 k", "", 0.0),
        ({"0.8 k": -1.0, "1 k": FITS}, 60, Reason.KEEPS, "1 k", "", 0.0),
        ({"1 k": 0.0, "1.05 k": LEFT}, 60, Reason.KEEPS, "1 k", "1.05 k", 0.05),
        ({"0.8 k": 0.0, "1.05 k": -1.0}, 60, Reason.KEEPS, "0.8 k", "1.05 k", 0.05),
        ({"0.8 k": 0.0, CLAIMED: -1.0}, 60, Reason.KEEPS, "0.8 k", "", 0.0),
        ({CLAIMED: -1.0}, 60, Reason.KEEPS, CLAIMED, "", 0.0),
        # Something that is left exceeds it by more, or what keeps it is left and does not fit.
        ({"1 k": 0.0, "1.15 k": LEFT}, 60, Reason.OPEN, "1 k", "1.15 k", 0.15),
        ({"1 k": 0.0, "1.05 k": 1.0, "2 k": 2.0}, 60, Reason.OPEN, "1 k", "2 k", 1.0),
        ({"1 k": LEFT, "1.05 k": 0.0}, 60, Reason.OPEN, "1.05 k", "1 k", 0.05),
        ({"0.8 k": LEFT, "2 k": 0.0}, 60, Reason.OPEN, "2 k", "0.8 k", 1.0),
    ],
)  # fmt: skip
def test_what_follows_from_the_laws_that_are_left(
    log_e: dict[str, float], answers: int, reason: Reason, law: str, other: str, excess: float
) -> None:
    found = made(CHARGES, answers)
    values = np.array([log_e.get(name, OUT - (name == "1 k")) for name in CHARGES])
    fit = decide(found, values)
    assert (fit.reason, fit.law, fit.other) == (reason, law, other)
    assert fit.excess == pytest.approx(excess, nan_ok=True)
    if reason != Reason.NO_LAW:
        assert fit.nats == pytest.approx(4 * excess)
    assert fit.answers == answers
    left = sorted((v, n) for n, v in log_e.items() if v < out_at())
    assert [name for name, _ in fit.left] == [name for _, name in left]
    assert (fit.more > 0) == (reason == Reason.OPEN)


def test_excesses_at_the_edges_decide() -> None:
    """Just at the least excess it is refuted; just at the most that is left, the budget is kept."""
    for cost, below, above in (
        (1.01, Reason.UNSURE, Reason.BREAKS),
        (1 + MOST_EXCESS, Reason.KEEPS, Reason.OPEN),
    ):
        for off, reason in ((-1e-4, below), (1e-4, above)):
            found = made({"1 k": 1.0, "other": cost + off})
            kept = OUT if above == Reason.BREAKS else 0.0
            assert decide(found, np.array([kept, 0.0])).reason == reason
    assert out_at() == pytest.approx(-math.log(3e-4))
    for value, reason in ((out_at() - 1e-6, Reason.OPEN), (out_at(), Reason.BREAKS)):
        assert decide(made({"1 k": 1.0, "2 k": 2.0}), np.array([value, 0.0])).reason == reason


def test_what_acts_after_the_solve_is_named_where_it_fits_best() -> None:
    found, shape = made(CHARGES), "temperature 0.7 after 1 k"
    assert shape in AFTER_SOLVE
    values = dict.fromkeys(CHARGES, OUT) | {shape: -1.0, "2 k": 0.0}
    fit = decide(found, np.array(list(values.values())))
    assert (fit.reason, fit.law, fit.kind) == (Reason.BREAKS, shape, "sampling")
    assert fit.fits.startswith(f"its tokens look like {shape}: check the generation config")
    fit = decide(found, np.array(list((values | {"1 k": FITS}).values())))
    assert (fit.law, fit.kind) == ("1 k", "budget")


def test_mean_spend_of_a_prompt_is_what_the_paper_promises() -> None:
    """A decoder that books log-ratios exceeds prefixes by chance, and no prompt's mean.

    Three audits with 60 answers per budget; the decoder's law is in the family, so that it is
    accused with a chance below 1e-3 each.
    """
    name = "charges booked as the token's log-ratio"
    for seed in range(3):
        (found,) = audits_of(Asked(each=15), LEDGER[name], seed)
        log_e = log_e_values(found)
        assert decide(found, log_e).reason == Reason.BREAKS
        fit = decide(found, log_e, keeps_prefixes=False)
        assert fit.reason != Reason.BREAKS and fit.law == name


def test_a_mean_above_k_is_refuted_where_only_the_mean_is_promised() -> None:
    """Every prompt's mean must be surely above K; the seed is fixed, and two of three are."""
    (found,) = audits_of(Asked(each=40), LEDGER["3 k"], 1)
    fit = decide(found, log_e_values(found), keeps_prefixes=False)
    assert fit.reason == Reason.BREAKS and fit.law == "3 k"
    # A law that spends everything early, and less in all, breaks prefixes and no mean.
    steps = {"1 k": 1.0, "early": 0.0}
    early = made(steps)
    early.laws.charge[1, :, 0] = 4.0
    values = np.array([OUT, 0.0])
    assert decide(early, values).reason == Reason.BREAKS
    assert decide(early, values, keeps_prefixes=False).reason == Reason.KEEPS


# Whatever the law.


def written(asked: Asked, decoder: AnchoredDecoder, seed: int) -> Rows:
    """Returns what a decoder writes, asked for all answers at once, -1 after the end."""
    prompt, budget, _ = asked.places
    seeds = np.random.default_rng(seed).integers(2**40, size=len(prompt)).tolist()
    pairs = zip(prompt.tolist(), budget.tolist(), seeds, strict=True)
    requests = [Request(asked.prompts[p], asked.budgets[b], s, asked.limit) for p, b, s in pairs]
    lines = [list(one.tokens) for one in decoder.decode(requests)]
    return np.array([line + [-1] * (asked.limit - len(line)) for line in lines])


class OneToken(AnchoredDecoder):
    """Writes the risky model's likeliest token where that is paid for, else a safe one."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """Serves a law of one token, or the safe one."""
        rows, best = np.arange(len(safe)), risky.argmax(axis=1)
        cost = -safe[rows, best]
        paid = cost <= allowance
        sharp = np.full_like(safe, -np.inf)
        sharp[rows, best] = 0.0
        law = np.where(paid[:, None], sharp, safe)
        return law, np.where(paid, cost, 0.0), np.full(len(safe), np.nan)


SOUND: tuple[type[AnchoredDecoder], ...] = (
    AnchoredDecoder,
    careful.AllOrNothing,
    careful.Arithmetic,
    careful.MeteredTopP,
    OneToken,
)


def test_the_certificate_is_evidence_by_exact_sums() -> None:
    """Over all pairs of answers it reaches a factor c with a chance of at most 1 / c, if sound.

    The debt is paid late in these answers, and some end before.
    """
    prompt, limit = (1, 2, 1, 2), 3
    single = every_answer(TINY, limit)
    many = np.array(list(itertools.product(range(len(single)), repeat=2)))
    for k in (0.3, 0.4):
        asked = Asked(TINY, (prompt,), (k,), 2, limit, len(many))
        whole = evidence_of(asked, single[many.ravel()], [LEDGER[name] for name in SEVERAL])
        pairs = one_by_one(asked, whole, parts=False)
        log_e = np.array([certificate(one).log_e for one in pairs])
        assert log_e.max() > 0.5
        for kind in SOUND:
            leaves = truth(kind(TINY), Request(prompt, k, 0, limit)).leaves
            chances = {leaf.tokens: math.exp(leaf.served) for leaf in leaves}
            each = [chances.get(tuple(line[line >= 0].tolist()), 0.0) for line in single]
            assert sum(each) == pytest.approx(1)
            both = np.array(each)[many].prod(axis=1)
            for value in log_e[log_e > 0].tolist():
                assert both[log_e >= value].sum() <= math.exp(-value)


STOPPING = toy_world(4, size=16, contexts=37, gap=1.4, stop=0.12)
SHORT = Asked(STOPPING, tuple(toy_prompts(STOPPING, 5, 4)), each=10)


@pytest.mark.parametrize("kind", SOUND)
def test_the_certificate_spares_sound_decoders(kind: type[AnchoredDecoder]) -> None:
    """Four audits of 80 answers, half of which end early: by chance one gains e^6 in 100 tests.

    It must gain e^9.2 to accuse.
    """
    for seed in range(2):
        for asked in (SHORT, Asked(each=10)):
            found = evidence_of(asked, written(asked, kind(asked.world), seed))
            sure = certificate(found)
            assert not sure.fires and sure.log_e < 6


@pytest.mark.parametrize("law", ["no debt", "2 k", "the risky model alone"])
def test_the_certificate_accuses_who_spends_before_the_debt_is_paid(law: str) -> None:
    """Three audits of 120 answers each; they gain e^40 and more, where e^9.2 is enough."""
    for seed in range(3):
        (found,) = audits_of(Asked(each=15), LEDGER[law], seed)
        sure = certificate(found)
        assert sure.fires and sure.log_e > 20


def test_the_least_spend_is_below_the_true_one() -> None:
    """Of 20 bounds with 97.5 % confidence for each law 2 may fail, but for a chance of 0.02.

    None does: they are a tenth to a half of what is truly spent.
    """
    for law in ("1 k", "2 k", "the risky model alone"):
        audits = audits_of(Asked(each=5, audits=10), LEDGER[law], 3)
        bounds = [certificate(one) for one in audits]
        missed = 0
        for at, k in enumerate(BUDGETS):
            rows = audits[0].answers.k == k
            number = audits[0].laws.names.index(law)
            true = np.mean([one.laws.totals()[number, rows] for one in audits])
            least = [one.spends[at][1] for one in bounds]
            missed += sum(value > true for value in least)
            assert np.median(least) > 0.05 * true
            for one, sure in zip(audits, bounds, strict=True):
                assert sure.spends[at][0] == sure.granted[at][0] == k
                granted = np.maximum(0.0, one.answers.lengths * k - one.answers.debt)
                assert sure.granted[at][1] == pytest.approx(granted[rows].mean())
        assert missed <= 2


FEW = Asked(each=6)


@pytest.mark.parametrize("kind", [sampling.FewSeeds, sampling.NoiseReused, sampling.BatchNoise])
def test_answers_from_a_few_seeds_are_copies(kind: type[AnchoredDecoder]) -> None:
    """Six answers of a prompt at two small budgets: e^20 or more, where e^9.2 accuses."""
    for seed in range(3):
        tokens = written(FEW, kind(WORLD), seed)
        found = copies(evidence_of(FEW, tokens), [line[line >= 0] for line in tokens])
        assert found > 12


@pytest.mark.parametrize("kind", SOUND)
def test_answers_of_sound_decoders_are_no_copies(kind: type[AnchoredDecoder]) -> None:
    """Also where most answers of a prompt are the same, as far as that is paid for.

    Six audits: one gains e^6 by chance in less than 70 tests.
    """
    sharp = replace(FEW, budgets=(1.5, 4.0))
    for asked in (FEW, sharp):
        for seed in range(3):
            tokens = written(asked, kind(WORLD), seed)
            found = evidence_of(asked, tokens)
            assert copies(found, [line[line >= 0] for line in tokens]) < 6
    if kind is OneToken:
        texts = {(p, *line) for p, line in zip(sharp.places[0], tokens.tolist(), strict=True)}
        assert len(texts) < 0.7 * len(tokens)


def test_copies_are_evidence_by_exact_sums() -> None:
    """Over two answers it reaches a factor c with a chance of at most 1 / c, if sound.

    Only answers that are the same gain anything. The largest chance times c is 0.21 for sound
    decoders, and 3.5 for one that draws from the risky model at a small budget.
    """
    single, limit = every_answer(TINY, 4), 4
    largest = dict.fromkeys((*SOUND, sampling.SampleRisky), 0.0)
    for k, prompt in itertools.product((0.05, 0.2), ((1, 2, 1, 2), (1, 1))):
        asked = Asked(TINY, (prompt,), (k,), 2, limit, len(single))
        whole = evidence_of(asked, np.repeat(single, 2, axis=0), [LEDGER[n] for n in SEVERAL])
        pairs = zip(single, one_by_one(asked, whole, parts=False), strict=True)
        log_e = np.array([copies(one, [line[line >= 0]] * 2) for line, one in pairs])
        assert log_e.max() > 0.9
        for kind in largest:
            leaves = truth(kind(TINY), Request(prompt, k, 0, limit)).leaves
            chances = {leaf.tokens: math.exp(leaf.served) for leaf in leaves}
            twice = np.array([chances.get(tuple(x[x >= 0].tolist()), 0.0) for x in single]) ** 2
            reached = [twice[log_e >= c].sum() * math.exp(c) for c in log_e[log_e > 0].tolist()]
            largest[kind] = max(largest[kind], *reached)
    assert largest.pop(sampling.SampleRisky) > 2
    assert max(largest.values()) <= 1


def test_beginnings_that_were_paid_for_may_repeat() -> None:
    """Of the same texts what is paid for is no evidence, and what is not is."""
    tokens = np.tile(written(FEW, AnchoredDecoder(WORLD), 1)[:1], (6, 1))
    lines = [line[line >= 0] for line in tokens]
    logs = []
    for k in (0.1, 1.0, 5.0):
        asked = replace(FEW, prompts=FEW.prompts[:1], budgets=(k,))
        logs.append(copies(evidence_of(asked, tokens), lines))
    assert logs[0] > logs[1] > logs[2] == 0
    other = replace(FEW, prompts=FEW.prompts[:1] * 6, budgets=(0.1,), each=1)
    # Answers of other prompts, or at other budgets, may be the same.
    assert copies(evidence_of(other, tokens), lines) == 0


@pytest.mark.parametrize("kind", [sampling.BatchNoise, sampling.NoiseReused])
def test_answers_that_share_their_noise_lean_alike(kind: type[AnchoredDecoder]) -> None:
    asked = Asked(each=6)
    for seed in range(3):
        found = evidence_of(asked, written(asked, kind(WORLD), seed))
        assert shared_noise(found, "1 k") < 1e-6
        # Without a law that fits the steps at which nothing is granted tell it.
        assert shared_noise(found, "") < 1e-3
        few = found.rows(np.arange(len(found.answers)) < 4)
        assert math.isnan(shared_noise(few, ""))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("1 k", AnchoredDecoder),
        ("0.8 k", careful.SmallerBudget),
        ("no debt", accounts.NoDebt),
        ("2 k", banks.TwiceTheBudget),
    ],
)
def test_answers_of_their_own_noise_do_not(name: str, kind: type[AnchoredDecoder]) -> None:
    """Four audits each, whether sound or not: p below 0.01 by chance in one test of 25."""
    for seed in range(4):
        asked = Asked(each=6)
        found = evidence_of(asked, written(asked, kind(WORLD), seed))
        assert shared_noise(found, name) > 0.01


# How small an overspend would have been seen.

SIXTY = Asked(each=15)


def refuted(times: float, seeds: range) -> int:
    """Counts audits of a decoder with a larger budget that refute it."""
    law, count = LEDGER[f"{times:g} k"], 0
    for seed in seeds:
        (found,) = audits_of(SIXTY, law, seed)
        count += decide(found, log_e_values(found)).reason == Reason.BREAKS
    return count


def test_too_few_answers_see_no_overspend() -> None:
    assert smallest_seen(audits_of(Asked(each=14), LEDGER["1 k"], 1)[0]) == math.inf
    assert smallest_seen(audits_of(SIXTY, LEDGER["1 k"], 1)[0]) in TIMES


def test_the_smallest_overspend_that_is_seen_is_seen() -> None:
    """Of six audits five are refuted; at a rate of 95 % fewer are by chance in 3 of 100 tests."""
    (sound,) = audits_of(SIXTY, LEDGER["1 k"], 1)
    assert refuted(smallest_seen(sound), range(100, 106)) >= 5


@pytest.mark.full
def test_a_smaller_overspend_is_not_stated_and_not_seen() -> None:
    """Of 40 audits 95 % are refuted as stated, fewer than 34 by chance in 7 of 10,000 tests.

    Of a decoder with the next smaller multiple less than 34 are, and of one with a tenth less
    again hardly any.
    """
    stated = [smallest_seen(audits_of(SIXTY, LEDGER["1 k"], seed)[0]) for seed in range(5)]
    assert len(set(stated)) == 1
    at = TIMES.index(stated[0])
    assert at > 1
    seen = [refuted(times, range(200, 240)) for times in TIMES[at - 2 : at + 1]]
    assert seen[2] >= 34 > seen[1] > seen[0] and seen[0] <= 4
