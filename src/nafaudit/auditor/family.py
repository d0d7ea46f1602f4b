"""The laws that a silent decoder's tokens are compared with, listed before any audit.

A decoder that shows nothing of what it served is judged by which laws its tokens fit. A law here is
a whole decoder: a rule (a mixture of the two models, or what is left of it after a temperature), a
ledger, a debt, and the mistakes that decoders make with them. Some keep the budget at every prefix
and some do not: what each spends is computed along the very tokens that were written.

Ledgers need no law of the whole vocabulary: the log-normaliser of the geometric mixture and its
slopes at a few weights (`StepTable`) give the charge and the probability of the token at any
weight. Laws after the solve need the laws themselves, and are computed only where no ledger fits.

psi(theta) = log sum_v p_s(v) exp(theta l(v)) with l = log p_r - log p_s over the common support;
D(theta) = theta psi'(theta) - psi(theta). The root of D is nearly a line in theta, so the weight
that an allowance pays for is read off by Hermite interpolation of theta over sqrt(D).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nafaudit.core.trajectory import Key

Array = NDArray[np.float64]

_KNOTS = 25
WEIGHTS: Array = np.linspace(0.0, 1.0, _KNOTS) ** 1.5
"""Weights at which the geometric mixture is tabulated."""
SHARES: Array = np.concatenate([[0.0], np.geomspace(1e-5, 1.0, _KNOTS - 1)])
"""Weights at which the arithmetic mixture is."""
# An allowance below this counts as none.
_NOTHING = 1e-10
# Below this vocabulary size sums are taken in float64; above it float32 changes nothing.
_DOUBLE_UPTO = 1024


@dataclass(frozen=True, eq=False)
class StepTable:
    """What the laws need of the steps of one answer; one row a step.

    Attributes:
        psi: Log-normaliser of the geometric mixture at `WEIGHTS` [steps, knots].
        slope: Its first derivative.
        bend: Its second derivative.
        mixed: KL of the arithmetic mixture from the safe law at `SHARES`.
        mixed_slope: Its derivative.
        cost: KL of the risky law from the safe one [steps].
        safe: log p_safe of the token that was written.
        risky: log p_risky of it.
    """

    psi: Array
    slope: Array
    bend: Array
    mixed: Array
    mixed_slope: Array
    cost: Array
    safe: Array
    risky: Array

    def __len__(self) -> int:
        return len(self.safe)

    @staticmethod
    def joined(blocks: Sequence[StepTable]) -> StepTable:
        """Joins consecutive blocks of steps of one answer."""
        names = [one.name for one in fields(StepTable)]
        return StepTable(**{n: np.concatenate([getattr(b, n) for b in blocks]) for n in names})


def step_table(safe: Tensor, risky: Tensor, tokens: NDArray[np.integer]) -> StepTable:
    """Tabulates some steps of an answer.

    Args:
        safe: Log-laws of the safe model [steps, vocabulary].
        risky: Log-laws of the risky model.
        tokens: The tokens that were written.
    """
    kind = torch.float64 if safe.shape[-1] <= _DOUBLE_UPTO else torch.float32
    base, other = safe.to(kind), risky.to(kind)
    ratio = other - base
    served = torch.isfinite(other)
    if not torch.isfinite(ratio.sum()):
        shared = torch.isfinite(base) & served
        base = torch.where(shared, base, -torch.inf)
        ratio = torch.where(shared, ratio, 0.0)
    columns: list[list[Tensor]] = [[], [], []]
    for weight in WEIGHTS.tolist():
        mass = torch.exp(torch.add(base, ratio, alpha=weight))
        total = mass.sum(dim=-1)
        weighted = mass.mul_(ratio)
        mean = weighted.sum(dim=-1) / total
        square = torch.linalg.vecdot(weighted, ratio) / total
        columns[0].append(torch.log(total))
        columns[1].append(mean)
        columns[2].append((square - mean * mean).clamp_min(0.0))
    psi, slope, bend = (torch.stack(one, dim=-1) for one in columns)
    whole_safe, whole_risky = torch.exp(safe.to(kind)), torch.exp(other)
    gain = whole_risky - whole_safe
    odds = torch.exp(torch.where(served, risky.to(kind) - safe.to(kind), -torch.inf)) - 1
    mixed, mixed_slope = [torch.zeros_like(psi[:, 0])], [torch.zeros_like(psi[:, 0])]
    for share in SHARES[1:].tolist():
        grown = torch.log1p(share * odds)
        law = torch.add(whole_safe, gain, alpha=share)
        # Tokens that neither law serves cost nothing; one that only the risky law serves, all.
        mixed.append(torch.where(law > 0, law * grown, 0.0).sum(dim=-1))
        mixed_slope.append(torch.where(gain != 0, gain * grown, 0.0).sum(dim=-1))
    drawn = torch.from_numpy(np.asarray(tokens, np.int64)).to(safe.device).unsqueeze(-1)
    cost = torch.where(whole_risky > 0, whole_risky * (other - safe.to(kind)), 0.0).sum(dim=-1)
    return StepTable(
        psi=_numpy(psi),
        slope=_numpy(slope),
        bend=_numpy(bend),
        mixed=_numpy(torch.stack(mixed, dim=-1)),
        mixed_slope=_numpy(torch.stack(mixed_slope, dim=-1)),
        cost=_numpy(cost.clamp_min(0.0)),
        safe=_numpy(_at(safe, drawn)),
        risky=_numpy(_at(risky, drawn)),
    )


def _numpy(x: Tensor) -> Array:
    return x.to(torch.float64).cpu().numpy()


@dataclass(frozen=True)
class Ledger:
    """One decoder of the family: how it grants, solves, serves and books.

    Attributes:
        name: As it is listed and said: "0.8 k".
        rule: geodesic, arithmetic, jump (the risky law where it is paid for, else the safe one),
            arithmetic-weight (the arithmetic mixture at the geodesic's weight), safe, or risky.
        budget: What k is multiplied by.
        solve: What the allowance is multiplied by before the solve.
        book: What is booked: true (the charge), solved (the charge of what was solved for, before
            the weight was moved), clipped (at most the allowance), lagged (one step late), never,
            twice, realised (log q / p_safe of the token), reverse (KL the other way).
        debt: Whose debt is paid (`DEBTS`).
        owed: What the debt is multiplied by.
        pool: Whose spend is taken off: own, mean (that of the batch's answers), or first (that of
            the first open answer of its batch, with its debt).
        ahead: Steps that are granted early; negative for late.
        forgets: Every so many steps what was spent is forgotten; 0 for never.
        refills: Every so many steps the bank holds as many times k again; 0 for never.
        forgives: After so many steps the debt is forgotten; 0 for never.
        banks: False if what a step does not spend lapses.
        inherits: True if an answer begins with what the prompt's last answer left.
        shift: Added to a weight above 0 after the solve.
        always: True if it is added to a weight of 0 too.
        rounds: Weights are rounded to tenths: up, down, or not at all.
        first: Steps at the beginning that the risky law writes.
        last: Share of T at the end that the risky law writes.
        late: Steps at the beginning that the safe law writes.
        most: Largest weight.
    """

    name: str
    rule: str = "geodesic"
    budget: float = 1.0
    solve: float = 1.0
    book: str = "true"
    debt: str = "own"
    owed: float = 1.0
    pool: str = "own"
    ahead: int = 0
    forgets: int = 0
    refills: int = 0
    forgives: int = 0
    banks: bool = True
    inherits: bool = False
    shift: float = 0.0
    always: bool = False
    rounds: str = ""
    first: int = 0
    last: float = 0.0
    late: int = 0
    most: float = 1.0


DEBTS = ("own", "next", "previous", "batch", "first", "common")
"""Whose debt an answer pays: its prompt's, that of the next or the previous request, the mean of
its batch, the first of its batch, the mean of all."""


def _ledgers() -> tuple[Ledger, ...]:
    found = [Ledger("1 k")]
    for times in (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5):
        found.append(Ledger(f"{times:g} k", budget=times))
    found += [Ledger(f"{times:g} k", budget=times) for times in (1.75, 2.0, 2.5, 3.0, 4.0)]
    for times in (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95):
        found.append(Ledger(f"{times:g} of each allowance", solve=times))
    for times in (1.03, 1.1, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0):
        said = f"{times:g} times each allowance, booked as one"
        found.append(Ledger(said, solve=times, book="clipped"))
    for times in (0.0, 0.25, 0.5, 0.75, 1.25, 1.5, 2.0, 3.0, 5.0):
        said = "no debt" if times == 0 else f"{times:g} times the debt"
        found.append(Ledger(said, owed=times))
    found.append(Ledger("the debt added", owed=-1.0))
    words = {
        "next": "the next request's debt", "previous": "the previous request's debt",
        "batch": "the mean debt of its batch", "first": "the debt of its batch's first row",
        "common": "one debt for all prompts",
    }  # fmt: skip
    found += [Ledger(said, debt=whose) for whose, said in words.items()]
    return (
        *found,
        Ledger("a budget that its batch shares", pool="mean"),
        Ledger("the spend of its batch's first row", pool="first"),
        Ledger("charges booked one step late", book="lagged"),
        Ledger("charges never booked", book="never"),
        Ledger("charges booked twice", book="twice"),
        Ledger("charges booked as the token's log-ratio", book="realised"),
        Ledger("KL of the safe law from the served one", book="reverse"),
        Ledger("budget one step early", ahead=1),
        Ledger("budget two steps early", ahead=2),
        Ledger("budget one step late", ahead=-1),
        *(Ledger(f"spend forgotten every {n} steps", forgets=n) for n in (5, 10, 20)),
        *(Ledger(f"bank refilled every {n} steps", refills=n) for n in (5, 10, 20)),
        Ledger("debt forgotten after ten steps", forgives=10),
        Ledger("no bank", banks=False),
        Ledger("no bank and no debt", banks=False, owed=0.0),
        Ledger("the last answer's bank inherited", inherits=True),
        Ledger("weights rounded up to tenths", rounds="up", book="solved"),
        Ledger("weights rounded down to tenths", rounds="down", book="solved"),
        *(
            Ledger(f"weight {shift:+g}", shift=shift, book="solved")
            for shift in (-0.1, -0.05, 0.025, 0.05, 0.1)
        ),
        *(
            Ledger(f"weight {shift:+g} at every step", shift=shift, always=True, book="solved")
            for shift in (0.05, 0.1)
        ),
        *(Ledger(f"weight {shift:+g}, paid for", shift=shift) for shift in (-0.1, -0.05)),
        Ledger("the first token risky", first=1),
        Ledger("the last tenth risky", last=0.1),
        Ledger("safe for ten steps, then 1 k", late=10),
        Ledger("weights up to 0.5", most=0.5),
        *(
            Ledger(f"arithmetic mixture, {times:g} k", "arithmetic", budget=times)
            for times in (0.8, 0.9, 1.0, 1.15, 1.3, 1.5, 2.0)
        ),
        Ledger("arithmetic mixture at the geometric weight", "arithmetic-weight"),
        *(
            Ledger(f"all or nothing, {times:g} k", "jump", budget=times)
            for times in (1.0, 1.15, 1.3, 1.5, 2.0)
        ),
        Ledger("the safe model alone", "safe"),
        Ledger("the risky model alone", "risky"),
    )


LEDGERS = _ledgers()
"""The first group of the family: every law that a `StepTable` is enough for."""
GEOMETRIC = frozenset(law.name for law in LEDGERS if law.rule in ("geodesic", "safe", "risky"))
"""Those that serve a geometric mixture, or one of its ends."""


def _kind(law: Ledger) -> str:
    """Returns which family of laws a ledger belongs to."""
    plain = Ledger(law.name)
    differs = {
        one.name for one in fields(Ledger) if getattr(law, one.name) != getattr(plain, one.name)
    }
    if law.rule != "geodesic":
        return law.rule.partition("-")[0]
    for kind, names in _KINDS.items():
        if differs & names:
            return kind
    return "budgets"


_KINDS = {
    "allowances": {"solve"},
    "debts": {"debt", "owed", "forgives"},
    "weights": {"shift", "rounds", "most", "first", "last", "late"},
    "books and banks": {"book", "pool", "ahead", "forgets", "refills", "banks", "inherits"},
}


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers that are looked at, side by side; shorter ones are padded.

    Attributes:
        tables: One per answer.
        k: Budget of each.
        debt: Prefix debt of each, ours.
        prompt: Number of the prompt of each.
        debts: Other debts of each that a mistaken decoder may pay, by whose they are.
        before: Number of the prompt's answer before each, at its budget; -1 if there is none.
        limit: Length limit T.
        keys: Their keys, if they have any.
        rank: Their order, in which more of them may come; as they stand if it is empty.
        batch: Number of the batch of each; all are one batch if it is empty.
    """

    tables: Sequence[StepTable] = field(repr=False)
    k: Array
    debt: Array
    prompt: NDArray[np.int64]
    debts: Mapping[str, Array]
    before: NDArray[np.int64]
    limit: int
    keys: Sequence[Key] = ()
    rank: NDArray[np.int64] = field(default_factory=lambda: np.array([], np.int64))
    batch: NDArray[np.int64] = field(default_factory=lambda: np.array([], np.int64))

    def __post_init__(self) -> None:
        if not len(self.rank):
            object.__setattr__(self, "rank", np.arange(len(self.tables)))
        if not len(self.batch):
            object.__setattr__(self, "batch", np.zeros(len(self.tables), np.int64))

    def __len__(self) -> int:
        return len(self.tables)

    def some(self, rows: NDArray[np.int64]) -> Answers:
        """Returns some of the answers; none says which came before it."""
        return replace(
            self,
            tables=[self.tables[row] for row in rows.tolist()],
            k=self.k[rows],
            debt=self.debt[rows],
            prompt=self.prompt[rows],
            debts={name: column[rows] for name, column in self.debts.items()},
            before=np.full(len(rows), -1),
            keys=[self.keys[row] for row in rows.tolist()] if self.keys else (),
            rank=self.rank[rows],
            batch=self.batch[rows],
        )

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each."""
        return np.array([len(table) for table in self.tables], np.int64)

    def stacked(self, name: str) -> Array:
        """Stacks one column of the tables [answers, steps, ...]; padded with the last row."""
        longest = int(self.lengths.max())
        parts = []
        for table in self.tables:
            column = getattr(table, name)
            rest = longest - len(column)
            parts.append(np.concatenate([column, np.repeat(column[-1:], rest, axis=0)]))
        return np.stack(parts)

    def moments(
        self, alive: NDArray[np.bool_], usable: NDArray[np.bool_], theta: Array
    ) -> tuple[Array, Array]:
        """Returns mean and standard deviation of log p_risky / p_safe at weights of some steps.

        Args:
            alive: Steps that there are [answers, steps].
            usable: Which of these are meant.
            theta: Weight of the geometric mixture at each of them.
        """
        slope, bend = (self.stacked(name)[alive][usable] for name in ("slope", "bend"))
        at = np.clip(np.searchsorted(WEIGHTS, theta, side="right") - 1, 0, _KNOTS - 2)
        rows = np.arange(len(theta))
        part = (theta - WEIGHTS[at]) / (WEIGHTS[at + 1] - WEIGHTS[at])
        low, high = (1 - part), part
        mean = low * slope[rows, at] + high * slope[rows, at + 1]
        return mean, np.sqrt(low * bend[rows, at] + high * bend[rows, at + 1])

    @property
    def alive(self) -> NDArray[np.bool_]:
        """Which steps are there [answers, steps]."""
        return np.arange(int(self.lengths.max())) < self.lengths[:, None]

    @property
    def grants(self) -> Array:
        """What is granted up to each step, max(0, (t+1) k - debt) [answers, steps]."""
        steps = np.arange(1, int(self.lengths.max()) + 1)
        return np.maximum(0.0, steps * self.k[:, None] - self.debt[:, None])


@dataclass(frozen=True, eq=False)
class Followed:
    """What laws make of some answers.

    Attributes:
        names: Of the laws.
        logp: log q of each token [laws, answers, steps]; 0 after the end of an answer.
        theta: Weight of the geometric mixture, or share of the arithmetic one.
        charge: KL of each step's law from the safe law; 0 after the end.
    """

    names: tuple[str, ...]
    logp: Array
    theta: Array
    charge: Array

    def excess(self, answers: Answers) -> Array:
        """Returns by how much the worst prefix exceeds its grant [laws, answers]."""
        over = np.cumsum(self.charge, axis=-1) - answers.grants
        return np.asarray(np.where(answers.alive, over, -np.inf).max(axis=-1))

    def totals(self) -> Array:
        """Returns what each answer costs in all [laws, answers]."""
        return np.asarray(self.charge.sum(axis=-1))

    @staticmethod
    def joined(parts: Sequence[Followed]) -> Followed:
        """Puts laws side by side."""
        names = tuple(name for part in parts for name in part.names)
        columns = ("logp", "theta", "charge")
        return Followed(names, *(np.concatenate([getattr(p, c) for p in parts]) for c in columns))


def _hermite(x: Array, knots: Array, values: Array, slopes: Array, at: NDArray[np.int64]) -> Array:
    """Interpolates between knots `at` and `at + 1`; tables are [rows, knots], x is [laws, rows]."""
    rows = np.arange(knots.shape[0])[None, :]
    left, right = knots[rows, at], knots[rows, at + 1]
    width = right - left
    u = np.clip((x - left) / np.where(width > 0, width, 1.0), 0.0, 1.0)
    low, high = values[rows, at], values[rows, at + 1]
    begin, end = slopes[rows, at] * width, slopes[rows, at + 1] * width
    gap = high - low
    # A slope that overshoots is held so that the curve stays monotone.
    begin, end = np.minimum(begin, 3 * gap), np.minimum(end, 3 * gap)
    v = 1 - u
    return np.asarray(low + gap * (u * u * (3 - 2 * u)) + begin * u * v * v - end * u * u * v)


def _curve(x: Array, knots: Array, values: Array, slopes: Array, at: NDArray[np.int64]) -> Array:
    """Interpolates a function that need not be monotone."""
    rows = np.arange(values.shape[0])[None, :]
    left, width = knots[at], knots[at + 1] - knots[at]
    u = np.clip((x - left) / width, 0.0, 1.0)
    low, high = values[rows, at], values[rows, at + 1]
    begin, end = slopes[rows, at] * width, slopes[rows, at + 1] * width
    v = 1 - u
    smooth = u * u * (3 - 2 * u)
    return np.asarray(low + (high - low) * smooth + begin * u * v * v - end * u * u * v)


class _Step:
    """The tables of one step of all answers, ready to be solved."""

    def __init__(self, columns: Mapping[str, Array], step: int) -> None:
        one = {name: column[:, step] for name, column in columns.items()}
        self.safe, self.risky, self.cost = one["safe"], one["risky"], one["cost"]
        self._psi, self._slope = one["psi"], one["slope"]
        spent = np.maximum(WEIGHTS * one["slope"] - one["psi"], 0.0)
        self.root = np.maximum.accumulate(np.sqrt(spent), axis=-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            rise = np.where(
                self.root > 1e-9,
                WEIGHTS * one["bend"] / (2 * np.maximum(self.root, 1e-12)),
                np.sqrt(one["bend"] / 2),
            )
        self.rise = rise
        self.run = 1 / np.maximum(rise, 1e-9)
        self.mean = one["slope"][:, 0]
        self._backward: tuple[Array, Array] | None = None
        self._mixed, self._mixed_slope = one["mixed"], one["mixed_slope"]

    @property
    def first(self) -> Array:
        """What the smallest weight costs: nothing, unless the laws share too few tokens."""
        return np.asarray(self.root[:, 0] ** 2)

    def weight(self, allowance: Array) -> Array:
        """Returns the geometric weight that costs an allowance [laws, answers]."""
        wanted = np.sqrt(np.maximum(allowance, 0.0))
        at = (self.root[None, :, :] <= wanted[..., None]).sum(axis=-1) - 1
        at = np.clip(at, 0, _KNOTS - 2)
        knots = np.broadcast_to(WEIGHTS, self.root.shape)
        theta = _hermite(wanted, self.root, knots, self.run, at)
        theta = np.where(wanted <= self.root[:, 0], 0.0, theta)
        theta = np.where(allowance < _NOTHING, 0.0, theta)
        return np.asarray(np.where((self.cost <= allowance) & (allowance >= _NOTHING), 1.0, theta))

    def spent(self, theta: Array) -> Array:
        """Returns what a geometric weight costs."""
        at = np.clip(np.searchsorted(WEIGHTS, theta, side="right") - 1, 0, _KNOTS - 2)
        root = _curve(theta, WEIGHTS, self.root, self.rise, at)
        spent = np.where(theta <= 0, 0.0, root * root)
        return np.asarray(np.where(theta >= 1, self.cost, spent))

    def logp(self, theta: Array) -> Array:
        """Returns log p_theta of the token."""
        at = np.clip(np.searchsorted(WEIGHTS, theta, side="right") - 1, 0, _KNOTS - 2)
        psi = _curve(theta, WEIGHTS, self._psi, self._slope, at)
        with np.errstate(invalid="ignore"):
            mixed = (1 - theta) * self.safe + theta * self.risky - psi
        mixed = np.where(np.isnan(mixed), -np.inf, mixed)
        ends = np.where(theta >= 1, self.risky, self.safe)
        return np.asarray(np.where((theta > 0) & (theta < 1), mixed, ends))

    def backward(self, allowance: Array) -> Array:
        """Returns the weight whose KL(safe || served) = psi - theta psi'(0) is an allowance."""
        if self._backward is None:
            cost = np.maximum(self._psi - WEIGHTS * self.mean[:, None], 0.0)
            root = np.maximum.accumulate(np.sqrt(cost), axis=-1)
            gain = self._slope - self.mean[:, None]
            rise = np.where(root > 1e-9, gain / (2 * np.maximum(root, 1e-12)), self.rise)
            self._backward = root, 1 / np.maximum(rise, 1e-9)
        root, run = self._backward
        wanted = np.sqrt(np.maximum(allowance, 0.0))
        at = np.clip((root[None, :, :] <= wanted[..., None]).sum(axis=-1) - 1, 0, _KNOTS - 2)
        theta = _hermite(wanted, root, np.broadcast_to(WEIGHTS, root.shape), run, at)
        theta = np.where(allowance < _NOTHING, 0.0, theta)
        return np.asarray(np.where(wanted >= root[:, -1], 1.0, theta))

    def backward_cost(self, theta: Array) -> Array:
        """Returns KL(safe || served) at a weight."""
        at = np.clip(np.searchsorted(WEIGHTS, theta, side="right") - 1, 0, _KNOTS - 2)
        psi = _curve(theta, WEIGHTS, self._psi, self._slope, at)
        return np.asarray(np.maximum(psi - theta * self.mean, 0.0))

    def share(self, allowance: Array) -> Array:
        """Returns the share of the risky law in an arithmetic mixture that costs an allowance."""
        with np.errstate(divide="ignore", invalid="ignore"):
            cost = np.log(np.maximum(np.maximum.accumulate(self._mixed[:, 1:], axis=-1), 1e-300))
            knots = np.broadcast_to(np.log(SHARES[1:]), cost.shape)
            steep = SHARES[1:] * self._mixed_slope[:, 1:] / np.maximum(self._mixed[:, 1:], 1e-300)
            run = 1 / np.maximum(steep, 1e-9)
            wanted = np.log(np.maximum(allowance, 1e-300))
            at = np.clip((cost[None, :, :] <= wanted[..., None]).sum(axis=-1) - 1, 0, _KNOTS - 3)
            share = np.exp(_hermite(wanted, cost, knots, run, at))
            below = wanted < cost[:, 0]
            # Near nothing the cost grows with the square of the share.
            share = np.where(below, SHARES[1] * np.exp((wanted - cost[:, 0]) / 2), share)
        share = np.where(allowance < _NOTHING, 0.0, share)
        return np.asarray(np.where((self.cost <= allowance) & (allowance >= _NOTHING), 1.0, share))

    def mixed_cost(self, share: Array) -> Array:
        """Returns what a share of the arithmetic mixture costs."""
        with np.errstate(divide="ignore", invalid="ignore"):
            at = np.clip(np.searchsorted(SHARES[1:], share, side="right") - 1, 0, _KNOTS - 3)
            cost = np.log(np.maximum(self._mixed[:, 1:], 1e-300))
            steep = SHARES[1:] * self._mixed_slope[:, 1:] / np.maximum(self._mixed[:, 1:], 1e-300)
            found = np.exp(
                _curve(np.log(np.maximum(share, 1e-30)), np.log(SHARES[1:]), cost, steep, at)
            )
            small = self._mixed[:, 1] * (share / SHARES[1]) ** 2
        found = np.where(share < SHARES[1], small, found)
        # Where the safe law forbids what the risky one serves, even the slope is infinite.
        found = np.where(share <= 0, 0.0, found)
        return np.asarray(np.where(share >= 1, self.cost, found))

    def mixed_logp(self, share: Array) -> Array:
        """Returns the log-probability of the token in an arithmetic mixture."""
        with np.errstate(divide="ignore"):
            one = np.log1p(-share) + self.safe
            other = np.log(share) + self.risky
        return np.logaddexp(one, other)


def follow(answers: Answers, laws: Sequence[Ledger] = LEDGERS) -> Followed:
    """Follows the tokens of all answers under each law, step by step."""
    plain = [law for law in laws if not law.inherits]
    parts = [_follow(answers, plain)]
    for law in laws:
        if law.inherits:
            parts.append(_inherited(answers, law))
    found = Followed.joined(parts)
    order = [found.names.index(law.name) for law in laws]
    return Followed(
        tuple(law.name for law in laws), found.logp[order], found.theta[order], found.charge[order]
    )


def _inherited(answers: Answers, law: Ledger) -> Followed:
    """Follows a law whose answers begin with what the one before them left."""
    left = np.zeros(len(answers))
    done = np.zeros(len(answers), bool)
    steps = int(answers.lengths.max())
    whole = {name: np.zeros((1, len(answers), steps)) for name in ("logp", "theta", "charge")}
    while not done.all():
        ready = ~done & ((answers.before < 0) | done[answers.before])
        if not ready.any():
            break
        some = np.flatnonzero(ready).tolist()
        bank = np.where(answers.before[some] >= 0, left[answers.before[some]], 0.0)
        part = replace(answers.some(np.array(some)), debts={"own": answers.debt[some] - bank})
        found = _follow(part, [replace(law, inherits=False)])
        for name, column in whole.items():
            value = getattr(found, name)
            column[:, some, : value.shape[-1]] = value
        owed = answers.debt[some] - bank
        spent = found.charge[0].sum(axis=-1)
        left[some] = np.maximum(0.0, answers.lengths[some] * answers.k[some] - owed - spent)
        done[some] = True
    return Followed((law.name,), **whole)


def _follow(answers: Answers, laws: Sequence[Ledger]) -> Followed:
    """Follows laws that need nothing of other answers."""
    columns = {one.name: answers.stacked(one.name) for one in fields(StepTable)}
    alive = answers.alive
    count, steps = len(answers), alive.shape[1]
    shape = (len(laws), count, steps)
    logp, theta, charge = np.zeros(shape), np.zeros(shape), np.zeros(shape)

    def of(name: str, kind: type = float) -> NDArray[Any]:
        return np.array([getattr(law, name) for law in laws], kind)[:, None]

    budget, solve, owed, ahead = of("budget"), of("solve"), of("owed"), of("ahead")
    forgets, refills, forgives = (of(n, int) for n in ("forgets", "refills", "forgives"))
    banks, shift, most = of("banks", bool), of("shift"), of("most")
    always = of("always", bool)
    first, last, late = of("first", int), of("last"), of("late", int)
    rounds = np.array([law.rounds for law in laws])[:, None]
    book = np.array([law.book for law in laws])
    rule = np.array([law.rule for law in laws])
    debts = np.stack([answers.debts.get(law.debt, answers.debt) for law in laws])
    # A prompt that the safe model forbids owes without end, but nothing of no debt.
    debts = np.where(owed == 0, 0.0, debts * np.where(owed == 0, 1.0, owed))
    k = answers.k[None, :] * budget
    booked, pending = np.zeros((len(laws), count)), np.zeros((len(laws), count))
    granted = np.zeros_like(booked)
    arithmetic = np.flatnonzero(rule == "arithmetic")
    weighted = np.flatnonzero(rule == "arithmetic-weight")
    jump = rule == "jump"
    reverse = np.flatnonzero(book == "reverse")
    geometric = np.flatnonzero((rule == "geodesic") | (rule == "arithmetic-weight"))
    pools = [(at, law.pool) for at, law in enumerate(laws) if law.pool != "own"]
    member = answers.batch[:, None] == np.unique(answers.batch)
    for step in range(steps):
        here = _Step(columns, step)
        owes = np.where((forgives > 0) & (step >= forgives), 0.0, debts)
        taken = booked.copy() if pools else booked
        for at, pool in pools:
            if pool == "mean":
                taken[at] = member @ (booked[at] @ member / member.sum(axis=0))
                continue
            # The first answer of each batch that still goes on; of the ended ones it is no matter.
            open_ = alive[:, step, None] & member
            first_ = np.where(open_.any(axis=0), open_.argmax(axis=0), 0)
            leader = first_[member.argmax(axis=1)]
            taken[at], owes[at] = booked[at, leader], debts[at, leader]
        granted = (step + 1 + ahead) * k - owes
        with np.errstate(invalid="ignore"):
            # Where debt and spend are both without end, nothing is granted.
            allowance = np.nan_to_num(np.maximum(0.0, granted - taken), nan=0.0, posinf=np.inf)
        allowance = np.where(banks, allowance, np.minimum(allowance, k))
        weight = np.zeros_like(allowance)
        weight[geometric] = here.weight(solve[geometric] * allowance[geometric])
        if reverse.size:
            weight[reverse] = here.backward(allowance[reverse])
        if arithmetic.size:
            weight[arithmetic] = here.share(allowance[arithmetic])
        if jump.any():
            fits = (here.cost <= allowance[jump]) & (allowance[jump] >= _NOTHING)
            weight[jump] = fits.astype(float)
        weight[rule == "risky"] = 1.0
        solved = here.spent(weight)
        moved = (shift != 0) & (always | (weight > 0))
        weight = np.where(moved, np.clip(weight + shift, 0.0, 1.0), weight)
        weight = np.where(rounds == "up", np.ceil(weight * 10 - 1e-9) / 10, weight)
        weight = np.where(rounds == "down", np.floor(weight * 10 + 1e-9) / 10, weight)
        weight = np.minimum(weight, most)
        risky = (step < first) | (step >= answers.limit * (1 - last))
        weight = np.where(risky & (last + first > 0), 1.0, weight)
        weight = np.where(step < late, 0.0, weight)
        spent, drawn = here.spent(weight), here.logp(weight)
        for some in (arithmetic, weighted):
            if some.size:
                spent[some] = here.mixed_cost(weight[some])
                drawn[some] = here.mixed_logp(weight[some])
        # Whoever serves the arithmetic mixture at the geometric weight books the latter's cost.
        paid = here.spent(weight) if weighted.size else spent.copy()
        paid[arithmetic] = spent[arithmetic]
        paid[book == "solved"] = solved[book == "solved"]
        paid[book == "clipped"] = np.minimum(spent, allowance)[book == "clipped"]
        paid[book == "twice"] *= 2
        paid[book == "never"] = 0.0
        if reverse.size:
            paid[reverse] = here.backward_cost(weight[reverse])
        with np.errstate(invalid="ignore"):
            gained = np.nan_to_num(drawn - here.safe, nan=0.0, posinf=1e6, neginf=-1e6)
        paid[book == "realised"] = gained[book == "realised"]
        on = alive[:, step]
        paid = np.where(on, paid, 0.0)  # an answer that has ended pays nothing
        slow = book == "lagged"
        booked[~slow] += paid[~slow]
        booked[slow] += pending[slow]
        pending[slow] = paid[slow]
        booked = np.where((forgets > 0) & ((step + 1) % np.maximum(forgets, 1) == 0), 0.0, booked)
        full = (step + 1) * k - owes - refills * k
        now = (refills > 0) & ((step + 1) % np.maximum(refills, 1) == 0)
        booked = np.where(now, np.minimum(booked, full), booked)
        logp[:, :, step] = np.where(on, drawn, 0.0)
        theta[:, :, step] = weight
        charge[:, :, step] = np.where(on, spent, 0.0)
    return Followed(tuple(law.name for law in laws), logp, theta, charge)


# Laws after the solve.

# Of a law that forbids tokens, this much is the law that it was made of: a token at the very edge
# of a set may be in it by rounding.
_EDGE = 1e-5
# Weights at which the cost of what is paid for is known exactly; between them it is interpolated.
_TRIED = np.array([0.02, 0.06, 0.13, 0.24, 0.38, 0.55, 0.75, 1.0])


@dataclass(frozen=True)
class Shape:
    """What is done to a law before it is sampled.

    Attributes:
        kind: temperature, top-p, top-k, min-p, penalty or greedy.
        value: Temperature, mass, count, share of the largest probability, penalty, or the share of
            tokens that are the likeliest.
    """

    kind: str
    value: float

    @property
    def name(self) -> str:
        """As it is said."""
        if self.kind == "greedy":
            return "greedy choice" if self.value > 0.99 else f"{self.value:.0%} greedy choice"
        return f"{self.kind} {self.value:g}"


SHAPES = (
    *(Shape("temperature", t) for t in (0.5, 0.7, 0.8, 0.9, 1.1, 1.2, 1.3, 1.5)),
    *(Shape("top-p", p) for p in (0.8, 0.9, 0.95, 0.99)),
    *(Shape("top-k", k) for k in (10, 50)),
    *(Shape("min-p", p) for p in (0.05, 0.1)),
    *(Shape("penalty", p) for p in (1.1, 1.2, 1.3)),
    *(Shape("greedy", p) for p in (0.05, 0.3, 0.999)),
)
"""What acts after the solve in decoders that people run."""
COMMON = tuple(
    SHAPES.index(Shape(kind, value))
    for kind, value in (
        ("temperature", 0.7), ("temperature", 1.3), ("top-p", 0.9), ("top-p", 0.95),
        ("top-k", 50), ("min-p", 0.05), ("penalty", 1.2),
    )
)  # fmt: skip
"""Numbers of those that are tried on other laws than that of 1 k, and as paid for."""
BASES = ("1 k", "0.8 k", "1.3 k", "the safe model alone", "the risky model alone")
"""Ledgers of `LEDGERS` on whose law a shape acts: all of them on the first."""


def paid_name(shape: Shape) -> str:
    """Returns the name of a law whose shape is paid for."""
    return f"{shape.name}, paid for"


_ALL = tuple(range(len(SHAPES)))
_ON = (_ALL, *((COMMON,) * (len(BASES) - 1)))
AFTER = (
    *(
        f"{SHAPES[at].name} after {base}"
        for base, some in zip(BASES, _ON, strict=True)
        for at in some
    ),
    *(paid_name(SHAPES[at]) for at in COMMON),
)
"""Names of the second group: shapes that the ledger knows nothing of, then those that it pays."""
AFTER_SOLVE = frozenset(AFTER[: -len(COMMON)])
"""The first kind of these: something acts after the solve, and nobody pays for it."""
STRENGTHS: Mapping[str, tuple[float, ...]] = {
    "temperature": (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5),
    "greedy": (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.999),
    "top-p": (0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.995),
    "top-k": (5, 10, 15, 20, 30, 50, 100),
    "min-p": (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15),
    "penalty": (1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.5),
}
"""Strengths at which a shape may be paid for: the third group of the family."""
# Shapes that look alike: what sharpens, and what cuts off.
_ALIKE = (("temperature", "greedy", "min-p", "top-k", "top-p"), ("penalty",))


def paid_twins(names: Iterable[str]) -> tuple[Shape, ...]:
    """Returns shapes at many strengths that may be paid for where laws after the solve are left.

    A decoder that pays for its shape keeps the budget. Before it is said of tokens that nobody paid
    for their shape, all of these are looked at: the third group of the family.
    """
    left = {shape.kind for name in names for shape in SHAPES if name.startswith(shape.name)}
    return tuple(
        Shape(kind, strength)
        for kinds in _ALIKE
        if left & set(kinds)
        for kind in kinds
        for strength in STRENGTHS[kind]
    )


FAMILIES: Mapping[str, frozenset[str]] = {
    **{
        kind: frozenset(law.name for law in LEDGERS if _kind(law) == kind)
        for kind in dict.fromkeys(map(_kind, LEDGERS))
    },
    "after the solve": AFTER_SOLVE,
    "paid for": frozenset(AFTER) - AFTER_SOLVE,
}
"""Names of the known laws by what they have in common, to leave out a family at a time."""


class _Shaped:
    """Laws of some steps, and what shapes make of them, without a law of each shape.

    Args:
        law: Log-laws that are solved for [steps, vocabulary].
        safe: Log-laws of the safe model.
        drawn: The tokens that were written [steps, 1].
        seen: Ids that stand anywhere in prompt and answer.
        before: Which of them stand before each step [steps, ids].
    """

    def __init__(
        self, law: Tensor, safe: Tensor, drawn: Tensor, seen: Tensor, before: Tensor
    ) -> None:
        self._law, self._drawn, self._seen, self._before = law, drawn, seen, before
        self._gap = torch.where(torch.isfinite(law), law - safe, 0.0)
        self._mass = torch.exp(law)
        # Of a forbidden token nothing is served, whatever the temperature.
        self._bounded = torch.where(torch.isfinite(law), law, -1e4)
        self._anchor = torch.where(torch.isfinite(safe), safe, -1e4)
        self._own = _at(law, drawn)
        self._kl = torch.linalg.vecdot(self._mass, self._gap)
        self._ordered: Tensor | None = None

    def of(self, shape: Shape) -> tuple[Tensor, Tensor]:
        """Returns log q of the tokens and the KL from the safe law, both [steps]."""
        made: tuple[Tensor, Tensor] = getattr(self, "_" + shape.kind.replace("-", "_"))(shape.value)
        return made[0], made[1].clamp_min(0.0)

    def _temperature(self, value: float) -> tuple[Tensor, Tensor]:
        mass = torch.exp(self._bounded / value)
        total = mass.sum(dim=-1)
        mean = torch.linalg.vecdot(mass, self._bounded) / total
        anchor = torch.linalg.vecdot(mass, self._anchor) / total
        logs = torch.log(total)
        return self._own / value - logs, mean / value - logs - anchor

    def _penalty(self, value: float) -> tuple[Tensor, Tensor]:
        law, gap = self._bounded[:, self._seen], self._gap[:, self._seen]
        old = torch.where(self._before, self._mass[:, self._seen], 0.0)
        lowered = law * value
        new = torch.where(self._before, torch.exp(lowered), 0.0)
        total = 1 - old.sum(dim=-1) + new.sum(dim=-1)
        anchor = self._anchor[:, self._seen]
        paid = self._kl - (old * gap).sum(dim=-1) + (new * (lowered - anchor)).sum(dim=-1)
        hit = (self._before & (self._seen == self._drawn)).any(dim=-1)
        logp = torch.where(hit, self._own * value, self._own)
        return logp - torch.log(total), paid / total - torch.log(total)

    def _greedy(self, share: float) -> tuple[Tensor, Tensor]:
        top, best = self._mass.max(dim=-1, keepdim=True)
        gap, top = _at(self._gap, best), top.squeeze(-1)
        keep = math.log1p(-share)
        grown = torch.log1p(share / ((1 - share) * top)) + keep
        paid = (1 - share) * (self._kl - top * gap + keep * (1 - top))
        paid = paid + ((1 - share) * top + share) * (gap + grown)
        logp = torch.where((best == self._drawn).squeeze(-1), self._own + grown, self._own + keep)
        return logp, paid

    def _top_k(self, count: float) -> tuple[Tensor, Tensor]:
        ordered = self._descending()
        return self._cut(ordered[:, min(int(count), ordered.shape[-1]) - 1])

    def _top_p(self, share: float) -> tuple[Tensor, Tensor]:
        ordered = self._descending()
        # A token belongs if those before it have less than the share.
        count = (torch.cumsum(ordered, dim=-1) - ordered < share).sum(dim=-1)
        return self._cut(_at(ordered, (count - 1).unsqueeze(-1)))

    def _min_p(self, share: float) -> tuple[Tensor, Tensor]:
        return self._cut(share * self._mass.max(dim=-1).values)

    def _cut(self, least: Tensor) -> tuple[Tensor, Tensor]:
        kept = torch.where(self._mass >= least.unsqueeze(-1), self._mass, 0.0)
        total = kept.sum(dim=-1)
        paid = torch.linalg.vecdot(kept, self._gap) / total - torch.log(total)
        inside = torch.exp(self._own) >= least
        logp = self._own + torch.where(inside, -torch.log(total), math.log(_EDGE))
        return logp, paid

    def _descending(self) -> Tensor:
        if self._ordered is None:
            if self._mass.device.type != "cpu":
                self._ordered = torch.sort(self._mass, dim=-1, descending=True).values
            else:
                # NumPy sorts by vector instructions, several times as fast.
                ordered = np.sort(self._mass.numpy(), axis=-1)[..., ::-1].copy()
                self._ordered = torch.from_numpy(ordered)
        return self._ordered


def _at(x: Tensor, token: Tensor) -> Tensor:
    return x.gather(-1, token).squeeze(-1)


@dataclass(frozen=True, eq=False)
class Text:
    """One answer, as laws after the solve need it.

    Attributes:
        prompt: Token ids before it.
        tokens: Its token ids.
        k: Its budget.
        debt: Its prefix debt.
        theta: Weights of each of `BASES` at every step [bases, steps]; more of them do not count.
    """

    prompt: Sequence[int]
    tokens: NDArray[np.integer]
    k: float
    debt: float
    theta: Array

    def __len__(self) -> int:
        return len(self.tokens)


class AfterSolve:
    """Follows the tokens of answers under the second group: one block by block, or several at once.

    Args:
        texts: The answers.
        twins: Shapes that are paid for, in the place of the second group.
    """

    def __init__(self, *texts: Text, twins: Sequence[Shape] = ()) -> None:
        self._texts = texts
        self._paying = list(twins) or [SHAPES[at] for at in COMMON]
        self._bases = () if twins else _ON
        self._spent = np.zeros((len(self._paying), len(texts)))
        self._fed = 0
        self._logp: list[Array] = []
        self._charge: list[Array] = []

    def feed(self, safe: Tensor, risky: Tensor) -> None:
        """Takes the next steps' log-laws [steps, vocabulary]; of several answers all at once."""
        kind = torch.float64 if safe.shape[-1] <= _DOUBLE_UPTO else torch.float32
        safe, risky = safe.to(kind), risky.to(kind)
        part = slice(self._fed, self._fed + len(safe))
        answer = np.repeat(np.arange(len(self._texts)), [len(one) for one in self._texts])[part]
        step = np.concatenate([np.arange(len(one)) for one in self._texts])[part]
        tokens = np.concatenate([one.tokens for one in self._texts])[part].astype(np.int64)
        theta = np.concatenate([one.theta[:, : len(one)] for one in self._texts], axis=1)[:, part]
        drawn = torch.from_numpy(tokens).to(safe.device).unsqueeze(-1)
        seen, before = (torch.from_numpy(x).to(safe.device) for x in self._before(answer, step))

        def shaped(weight: Array) -> _Shaped:
            law = _geometric(safe, risky, torch.from_numpy(weight).to(safe))
            return _Shaped(law, safe, drawn, seen, before)

        found: list[tuple[Tensor, Tensor]] = []
        for base, some in enumerate(self._bases):
            laws = shaped(theta[base])
            found += [laws.of(SHAPES[at]) for at in some]
        costs = []
        for tried in _TRIED:
            laws = shaped(np.full(len(safe), tried))
            costs.append(np.stack([_numpy(laws.of(shape)[1]) for shape in self._paying]))
        weights, paid = self._paid(np.stack(costs, axis=-1), answer, step)
        for number, shape in enumerate(self._paying):
            logp, _ = shaped(np.maximum(weights[number], 0.0)).of(shape)
            alone = torch.from_numpy(weights[number] < 0).to(logp.device)
            # Interpolated, the weight costs a little more or less than what is paid for it.
            charge = torch.from_numpy(paid[number]).to(logp)
            found.append((torch.where(alone, _at(safe, drawn), logp), charge))
        self._logp.append(np.stack([_numpy(logp) for logp, _ in found]))
        self._charge.append(np.stack([_numpy(charge) for _, charge in found]))
        self._fed = part.stop

    def results(self) -> list[tuple[Array, Array]]:
        """Returns log q of the tokens and the charges [laws, steps], by answer."""
        ends = np.cumsum([len(one) for one in self._texts])[:-1]
        columns = (np.concatenate(one, axis=1) for one in (self._logp, self._charge))
        return list(zip(*(np.split(one, ends, axis=1) for one in columns), strict=True))

    def _before(
        self, answer: NDArray[np.integer], step: NDArray[np.integer]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Returns the ids of all texts, and which stand before each step of its own text."""
        whole = [np.array([*one.prompt, *one.tokens.tolist()], np.int64) for one in self._texts]
        ids = np.unique(np.concatenate(whole))
        first = np.full((len(whole), len(ids)), np.iinfo(np.int64).max)
        for row, text in enumerate(whole):
            held, place = np.unique(text, return_index=True)
            first[row, np.searchsorted(ids, held)] = place
        at = np.array([len(one.prompt) for one in self._texts])[answer] + step
        return ids, first[answer] < at[:, None]

    def _paid(
        self, costs: Array, answer: NDArray[np.integer], step: NDArray[np.integer]
    ) -> tuple[Array, Array]:
        """Returns the weight of each shape that is paid for at each step, and what is booked.

        Args:
            costs: Of each shape at each step and tried weight [shapes, steps, weights].
            answer: Whose step it is.
            step: Its number.

        Returns:
            Weights and charges [shapes, steps]; a weight is -1 where not even the smallest is paid
            for and the safe law is served.
        """
        roots = np.sqrt(costs)
        k, debt = (np.array([getattr(one, n) for one in self._texts]) for n in ("k", "debt"))
        theta, booked = np.full(costs.shape[:2], -1.0), np.zeros(costs.shape[:2])
        for number in range(int(step.min()), int(step.max()) + 1):
            rows = np.flatnonzero(step == number)
            whose = answer[rows]
            allowance = np.maximum(
                0.0, (number + 1) * k[whose] - debt[whose] - self._spent[:, whose]
            )
            theta[:, rows], booked[:, rows] = _largest(roots[:, rows], allowance)
            self._spent[:, whose] += booked[:, rows]
        return theta, booked


def _largest(roots: Array, allowance: Array) -> tuple[Array, Array]:
    """Finds the largest weights whose costs are at most allowances, and these costs.

    Args:
        roots: Square roots of the costs at `_TRIED` [..., weights]; not always rising.
        allowance: In nats [...].
    """
    wanted = np.sqrt(allowance)
    fits = roots <= wanted[..., None]
    # The last tried weight that is paid for; the next one is not.
    place = np.clip(roots.shape[-1] - 1 - np.argmax(fits[..., ::-1], axis=-1), 0, len(_TRIED) - 2)
    low, high = (np.take_along_axis(roots, (place + i)[..., None], axis=-1)[..., 0] for i in (0, 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        part = (wanted - low) / (high - low)
        theta = _TRIED[place] + part * (_TRIED[place + 1] - _TRIED[place])
        # Below the first weight: a shape that costs something even of the safe law may never fit.
        slope = (roots[..., 1] - roots[..., 0]) / (_TRIED[1] - _TRIED[0])
        start = roots[..., 0] - slope * _TRIED[0]
        never = (start > wanted) | (roots[..., 0] <= start)
        floor = np.maximum(start, 0.0)
        small = _TRIED[0] * (wanted - floor) / (roots[..., 0] - floor)
    paid = allowance
    some = fits.any(axis=-1)
    theta = np.where(some, theta, np.where(never, -1.0, small))
    paid = np.where(some | ~never, paid, 0.0)
    whole, nothing = roots[..., -1] ** 2 <= allowance, allowance < _NOTHING
    theta = np.where(nothing, -1.0, np.where(whole, 1.0, theta))
    return theta, np.where(nothing, 0.0, np.where(whole, roots[..., -1] ** 2, paid))


def _geometric(safe: Tensor, risky: Tensor, theta: Tensor) -> Tensor:
    """Returns the geometric mixtures of log-laws, row by row; weights 0 and 1 are the laws."""
    weight = theta.unsqueeze(-1)
    mixed = (1 - weight) * safe + weight * risky
    law = torch.log_softmax(torch.nan_to_num(mixed, nan=-torch.inf, neginf=-torch.inf), dim=-1)
    law = torch.where(weight <= 0, safe, law)
    return torch.where(weight >= 1, risky, law)
