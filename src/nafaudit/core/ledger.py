"""Budgets: ledgers, accounts, and the currencies that charges are counted in.

A design records ledger and currency beside the mechanism's name, so that records can be checked
without the mechanism and no check takes another currency for nats of KL.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.errors import InputError
from nafaudit.core.text import counted
from nafaudit.core.trajectory import Steps

RISKY_ONLY = math.inf
SAFE_ONLY = 0.0


def is_baseline(k: float) -> bool:
    """Returns True for the budgets that mean one model alone."""
    return k in (SAFE_ONLY, RISKY_ONLY)


def as_budget(k: float) -> float:
    """Returns k as used in records: -1, the decoders' word for risky-only, becomes infinity."""
    if k == -1:
        return RISKY_ONLY
    if math.isnan(k) or k < 0:
        raise InputError(
            f"k must be at least 0 (0: safe model only), or -1 or inf (risky model only), got {k}."
        )
    return float(k)


def budget_word(k: float) -> str:
    """Writes a budget as the paper's file names do; in full where that would be another budget."""
    short = f"{k:g}"
    return short if float(short) == k else repr(float(k))


def budget_name(k: float) -> str:
    """Writes a budget in the few words that fit a table."""
    return {SAFE_ONLY: "safe only", RISKY_ONLY: "risky only"}.get(k, f"k = {budget_word(k)}")


def budgets_and_baselines(ks: Iterable[float]) -> str:
    """Counts budgets, and apart from them the models alone: 3 budgets and 2 baselines."""
    every = list(ks)
    alone = sum(map(is_baseline, every))
    counts = {"budget": len(every) - alone, "baseline": alone}
    return " and ".join(counted(n, word) for word, n in counts.items() if n) or "no budget"


def half_digit(k: object, least: int = 2) -> float:
    """Returns half a unit of the last digit of a rate as written; 0 for one that looks exact.

    A third that is logged as 0.33 may be up to 0.005 more; 2 and 0.5 are taken for what they are.

    Args:
        k: As written.
        least: How many decimals a rounded number has.
    """
    word = str(k).strip().lower()
    try:
        is_whole = float(word).is_integer()
    except (ValueError, OverflowError):
        return 0.0
    decimals = len(word.partition(".")[2])
    if is_whole or decimals < least or "e" in word or "n" in word:
        return 0.0
    return float(0.5 * 10.0**-decimals)


def rate_behind(k: float, budget: float, debt: float, lengths: Sequence[float]) -> float:
    """Returns the rate that a logged budget shows if k may be that rate rounded; else k.

    Args:
        k: As logged.
        budget: As logged, at one of the lengths.
        debt: What was taken off the budget.
        lengths: In tokens; 0 or NaN if not known.
    """
    known = [length for length in lengths if length > 0]
    inexact = half_digit(k)
    # A budget that follows from k as it is written shows no other rate.
    if not inexact or any(abs(budget + debt - k * length) <= 1e-3 for length in known):
        return k
    slack = max(1e-3, half_digit(budget, least=1) or 0.5)
    for length in known:
        if k * length < budget + debt <= (k + inexact) * length + slack:
            return (budget + debt) / length
    return k


@dataclass(frozen=True)
class Payment:
    """The cost of one step.

    Attributes:
        charge: The mechanism's own charge for the law it served.
        ratio: Realised log p_served(y) - log p_safe(y) of the token that was drawn.
        token: The token that was drawn.
        gap: log p_risky(y) - log p_safe(y) of it, as the record keeps them (float32), so that a
            ledger that adds them up can be replayed to the last bit.
    """

    charge: float
    ratio: float
    token: int
    gap: float = math.nan


def recorded_gap(risky: float, safe: float) -> float:
    """Returns log p_risky - log p_safe of a token, from the numbers that the record keeps."""
    return float(np.float32(risky)) - float(np.float32(safe))


class Account(Protocol):
    """One trajectory's open budget. Asked for an allowance, then paid, once per step."""

    def allowance(self) -> float:
        """Returns what the next step may be charged, in nats."""
        ...

    def pay(self, payment: Payment) -> None:
        """Books one step."""
        ...


class Ledger(Protocol):
    """A budget rule. Another rule is another small class with its own `Account`.

    Attributes:
        spec: Name and options, as the design records them; `ledger_of` maps it back.
    """

    @property
    def spec(self) -> str:
        """Name and options."""
        ...

    def open(self, k: float, debt: float) -> Account:
        """Opens the account of a new trajectory."""
        ...

    def accrued(self, k: float, debt: float, tokens: NDArray[np.int32]) -> NDArray[np.float64]:
        """Returns the budget B_t granted up to and including each step, whatever was spent."""
        ...


@dataclass
class _BankAccount:
    k: float
    debt: float
    steps: int = 0
    spent: float = 0.0

    def allowance(self) -> float:
        if self.k == RISKY_ONLY:
            return math.inf
        return max(0.0, (self.steps + 1) * self.k - self.spent - self.debt)

    def pay(self, payment: Payment) -> None:
        self.steps += 1
        self.spent += payment.charge


@dataclass(frozen=True)
class Banking:
    """k_t = max(0, (t+1) k - sum of charges - debt): what is not spent is kept for later.

    Reference: He et al., Anchored Decoding.
    """

    spec: ClassVar[str] = "banking"

    def open(self, k: float, debt: float) -> Account:
        """Opens an account that owes `debt` and earns `k` a step."""
        return _BankAccount(k, debt)

    def accrued(self, k: float, debt: float, tokens: NDArray[np.int32]) -> NDArray[np.float64]:
        """Returns B_t = (t+1) k - debt."""
        return np.asarray(np.arange(1, tokens.size + 1) * k - debt)


@dataclass
class _FixedAccount:
    left: float

    def allowance(self) -> float:
        return max(0.0, self.left)

    def pay(self, payment: Payment) -> None:
        self.left -= payment.charge


@dataclass(frozen=True)
class FixedBudget:
    """K = kT, granted at once: the budget of a mechanism that chooses whole outputs.

    Attributes:
        length: The length limit T.
    """

    length: int

    @property
    def spec(self) -> str:
        """Name and options."""
        return f"whole:{self.length}"

    def open(self, k: float, debt: float) -> Account:
        """Opens an account that holds everything from the start."""
        return _FixedAccount(k * self.length - debt)

    def accrued(self, k: float, debt: float, tokens: NDArray[np.int32]) -> NDArray[np.float64]:
        """Returns B_t = kT - debt, at every step."""
        return np.full(tokens.size, k * self.length - debt)


# A token that one model forbids leaves the paths this far apart, not infinitely.
_FARTHEST = 1e6


@dataclass
class _LeadAccount:
    lead: float = 0.0

    def allowance(self) -> float:
        return min(max(self.lead, -_FARTHEST), _FARTHEST)

    def pay(self, payment: Payment) -> None:
        self.lead = self.allowance() - payment.gap


@dataclass(frozen=True)
class LikelihoodLead:
    """Keeps no budget, but how much likelier the safe model finds the text than the risky one.

    What it hands a rule in the place of an allowance is log p_s(y_<t) - log p_r(y_<t), the state
    that CP-Fuse balances. k is only what its cost is compared with.
    """

    spec: ClassVar[str] = "paths"

    def open(self, k: float, debt: float) -> Account:
        """Opens an account of two equally likely texts."""
        return _LeadAccount()

    def accrued(self, k: float, debt: float, tokens: NDArray[np.int32]) -> NDArray[np.float64]:
        """Returns (t+1) k, for comparison."""
        return np.asarray(np.arange(1, tokens.size + 1) * k - debt)


@dataclass
class _BucketAccount:
    bucket: Bucket
    k: float
    held: float

    def allowance(self) -> float:
        return max(0.0, self.held)

    def pay(self, payment: Payment) -> None:
        earned = self.bucket.earned(self.k, payment.token)
        self.held = min(self.held - payment.charge + earned, self.bucket.cap)


@dataclass(frozen=True)
class Bucket:
    """A token bucket: bank <- min(bank + refill, cap), k_t = max(0, bank), then the charge is paid.

    Without a cap and a start this is `Banking`. With a cap, any W steps cost at most
    cap + (W-1) k. What a character earns is there once it is written, so the first token of a
    bucket that is refilled by characters has the start alone.

    Attributes:
        cap: Most that can be banked, in nats.
        bank: What is there at the start, before the debt is taken off.
        refill: What earns k nats: a `token` or a `character`.
        characters: How many characters each token id is; needed to refill by them.
    """

    cap: float = math.inf
    bank: float = 0.0
    refill: Literal["token", "character"] = "token"
    characters: tuple[int, ...] = field(default=(), compare=False, repr=False)

    @property
    def spec(self) -> str:
        """Name and options."""
        return f"bucket:cap={self.cap!r},bank={self.bank!r},refill={self.refill}"

    def of_pieces(self, pieces: Sequence[bytes | None]) -> Bucket:
        """Returns this ledger with the number of characters of each token."""
        return replace(self, characters=tuple(map(characters, pieces)))

    def earned(self, k: float, token: int) -> float:
        """Returns what a written token adds to the next step's allowance."""
        return k if self.refill == "token" else k * self.characters[token]

    def open(self, k: float, debt: float) -> Account:
        """Opens an account that holds the start, less the debt."""
        first = k if self.refill == "token" else 0.0
        return _BucketAccount(self, k, min(self.bank - debt + first, self.cap))

    def accrued(self, k: float, debt: float, tokens: NDArray[np.int32]) -> NDArray[np.float64]:
        """Returns the most that can be spent up to each step; negative while debt is owed."""
        account = self.open(k, debt)
        assert isinstance(account, _BucketAccount)
        spent, most = 0.0, np.empty(tokens.size)
        for step, token in enumerate(tokens.tolist()):
            most[step] = spent + account.held
            spent += (charge := account.allowance())
            account.pay(Payment(charge, charge, token))
        return most

    def most(self, k: float, debt: float, length: int) -> float:
        """Returns the most that `length` tokens can spend: the longest ones, if characters earn."""
        longest = int(np.argmax(self.characters)) if self.characters else 0
        return float(self.accrued(k, debt, np.full(length, longest, np.int32))[-1])


def characters(piece: bytes | None) -> int:
    """Counts the characters that begin in a token: its bytes that continue none (UTF-8)."""
    return sum(byte & 0xC0 != 0x80 for byte in piece or b"")


LEDGERS: dict[str, Ledger] = {"banking": Banking(), "paths": LikelihoodLead()}


def ledger_of(spec: str, pieces: Sequence[bytes | None] = ()) -> Ledger | None:
    """Returns the ledger that a design names, or None for one from outside the package.

    Args:
        spec: As recorded.
        pieces: What each token id stands for; a ledger that counts characters needs it.
    """
    name, _, rest = spec.partition(":")
    if name == "whole" and rest.isdecimal():
        return FixedBudget(int(rest))
    if found := re.fullmatch(r"bucket:cap=([^,]+),bank=([^,]+),refill=(token|character)", spec):
        bucket = Bucket(float(found[1]), float(found[2]), found[3])  # type: ignore[arg-type]
        if bucket.refill == "token":
            return bucket
        return bucket.of_pieces(pieces) if pieces else None
    return LEDGERS.get(spec)


def most_granted(ledger: Ledger, k: float, debt: float, length: int) -> float:
    """Returns the largest budget that an output of `length` tokens can be granted."""
    if isinstance(ledger, Bucket):
        return ledger.most(k, debt, length)
    if isinstance(ledger, Banking):
        return float(length * k - debt)  # the last of `accrued`, by the same operations
    return float(ledger.accrued(k, debt, np.zeros(length, np.int32))[-1])


def allowances(ledger: Ledger, k: float, debt: float, steps: Steps) -> NDArray[np.float64]:
    """Returns the allowance of every step, by paying the recorded charges to a new account."""
    charge = steps.charge
    if isinstance(ledger, Banking):
        # Equal sums in equal order, without a call per step.
        if k == RISKY_ONLY:
            return np.full(charge.size, math.inf)
        spent = np.concatenate(([0.0], np.cumsum(charge)[:-1]))
        return np.asarray(np.maximum(0.0, np.arange(1, charge.size + 1) * k - spent - debt))
    account = ledger.open(k, debt)
    allowances = np.empty(charge.size)
    ratio = steps.served.astype(np.float64) - steps.safe.astype(np.float64)
    gap = steps.risky.astype(np.float64) - steps.safe.astype(np.float64)
    paid = zip(charge.tolist(), ratio.tolist(), steps.token.tolist(), gap.tolist(), strict=True)
    for step, payment in enumerate(paid):
        allowances[step] = account.allowance()
        account.pay(Payment(*payment))
    return allowances


KL = "kl"
REALISED = "realised"
NONE = "none"
WHOLE = "whole"
# What a design need not say: it follows from the ledger.
UNSAID = (KL, WHOLE)


@dataclass(frozen=True)
class Currency:
    """The unit of a mechanism's charges, and what a kept budget of them says.

    Attributes:
        spec: As a design records it.
        words: The currency in words.
        order: Rényi order of what a kept budget K bounds: 1 the KL of the output's law from the
            safe model's, inf its largest log-ratio; NaN if nothing is said.
        signed: True if a charge may be negative: what is not spent by a step is given back.
        promised: False if the mechanism promises no budget, and KL is charged to inform.
    """

    spec: str
    words: str
    order: float = math.nan
    signed: bool = False
    promised: bool = True

    @property
    def is_kl(self) -> bool:
        """True if a charge is the KL of the step's law from the safe law."""
        return self.spec in (KL, NONE)


def renyi_spec(alpha: float) -> str:
    """Returns the specification of a Rényi divergence as a currency."""
    return f"renyi:{alpha:g}"


def recorded_currency(identity: Mapping[str, Any]) -> Currency:
    """Returns the currency of a design's records."""
    whole = str(identity["ledger"]).startswith("whole:")
    return currency_of(identity.get("currency", WHOLE if whole else KL))


def currency_of(spec: str) -> Currency:
    """Reads a specification; an unknown word is a mechanism's own.

    Raises:
        InputError: A Rényi divergence of no order above 0.
    """
    if spec == KL:
        return Currency(KL, "KL of the step's law from the safe law", order=1.0)
    if spec == REALISED:
        words = "log p_served - log p_safe of the token that was drawn"
        return Currency(spec, words, order=math.inf, signed=True)
    if spec == WHOLE:
        return Currency(spec, "the most that choosing can add to a log-ratio", order=math.inf)
    if spec == NONE:
        return Currency(spec, "KL, to inform: no budget is promised", promised=False)
    name, _, order = spec.partition(":")
    if name == "renyi":
        if not _is_order(order):
            raise InputError(
                f"currency {spec!r}: the order of a Rényi divergence is a number above 0, or inf."
            )
        words = f"Rényi divergence of order {order} of the step's law from the safe law"
        return Currency(spec, words, order=float(order))
    return Currency(spec, f"{spec}, a currency of the mechanism's own")


def _is_order(word: str) -> bool:
    try:
        return float(word) > 0
    except ValueError:
        return False
