"""One trajectory as one row of numbers: the only place where a record becomes quantities.

Checks, class tables, reports, comparisons, searches and notebooks read these rows; none of them
looks at steps again.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.finding import Witness, own_tolerance
from nafaudit.core.ledger import FixedBudget, allowances, is_baseline
from nafaudit.core.trajectory import STEP_TYPES, Key, Steps, Trajectory, total
from nafaudit.measures.context import RunContext
from nafaudit.measures.overlap import Overlap, overlap_of
from nafaudit.store.run import RecordPlace

Array = NDArray[np.float64]

WINDOW = 20
"""Consecutive steps whose charges are added up to find a burst."""

NOWHERE = RecordPlace("", 0)

NOTHING = 1e-10
"""An allowance of at most this counts as 0, about as it does for the solver."""

SURE = math.log(0.999)
"""A log-probability that padding exceeds."""

# A log-probability may exceed 0, or a weight 1, by rounding only.
_ROUNDING = 1e-4
NONE: dict[str, Any] = {}
"""Most rows have no broken identity and no flaw, and share one object for it."""


@dataclass(frozen=True, slots=True)
class Measure:
    """The numbers of one trajectory.

    Attributes:
        key: Which trajectory.
        label: Class of its prompt.
        length: Tokens written.
        stopped: True if a stop token ended it.
        debt: Prefix debt, in nats; NaN if unknown.
        spend: Total charge Z, in nats.
        granted: B at its own end, negative while the debt is not paid; NaN if unknown.
        budget: What it may have spent at its own end, at least 0; infinite without a limit. NaN
            if unknown, also where more was spent than k and T grant and the log states more.
        violated: True if a step exceeded its allowance, or a prefix its budget.
        judged: False if a number that the judgement needs is missing, infinite, negative,
            contradicted by the log's own totals, or contested.
        larger: True if the log states a budget above what k and T grant.
        contested: True if it spent more than k and T grant and no more than the log states.
        excess: Nats above the limit at the worst step; 0 if it is not violated.
        excess_step: That step.
        forced: Steps that served the safe law.
        active: Steps that served a mixture.
        free: Steps that served the risky law.
        unweighted: Steps that record no weight.
        opening: Leading steps that the debt left without allowance.
        log_ratio: L, the sum of log p_served - log p_safe; NaN if not recorded.
        largest_ratio: The largest term of L.
        largest_step: Its step.
        gain_variance: Least variance of L - Z that the recorded probabilities imply; NaN unless
            charges are a KL and both L and Z are finite.
        impossible_step: Step at which L - Z is infinite; -1 if it is not.
        burst: Largest charge of `WINDOW` consecutive steps, over the k each that they earn; None
            without a budget or where a charge is not recorded.
        burst_step: Where that window begins.
        bank: The largest allowance of any step; -inf without a burst.
        digest: Stands for the tokens; empty if they are not all known.
        served_logp: Log-probability of the output under the served laws; NaN without a digest.
        opening_due: Leading steps that were granted nothing; -1 if weights or grants are unknown.
        opening_seen: Leading steps with weight 0; -1 likewise.
        compared: Identities (`IDENTITIES`) for which the record has two sources.
        broken_identities: Those of them that do not hold: by how much, and at which step.
        flaws: By kind (`FLAWS`), the step of what is wrong with the record itself.
        pad_steps: Steps of padding at the end.
        recorded: Step columns that the record has, of those that it must have.
        absent: Step columns that it lacks altogether.
        overlap: What the output shares with the prompt's reference.
        place: Where the record is; `NOWHERE` if it was not read from a run.
        admitted: True if it is violated by the charges that the decoder itself claims.
    """

    key: Key
    label: str
    length: int
    stopped: bool
    debt: float
    spend: float
    granted: float
    budget: float
    violated: bool
    judged: bool
    larger: bool
    contested: bool
    excess: float
    excess_step: int
    forced: int
    active: int
    free: int
    unweighted: int
    opening: int
    log_ratio: float
    largest_ratio: float
    largest_step: int
    gain_variance: float
    impossible_step: int
    burst: float | None
    burst_step: int
    bank: float
    digest: bytes
    served_logp: float
    opening_due: int
    opening_seen: int
    compared: tuple[str, ...]
    broken_identities: Mapping[str, tuple[float, int]]
    flaws: Mapping[str, int]
    pad_steps: int
    recorded: tuple[str, ...]
    absent: tuple[str, ...]
    overlap: Overlap
    place: RecordPlace
    admitted: bool = False

    @property
    def has_budget(self) -> bool:
        """True if the spend can be divided by a budget."""
        return not math.isinf(self.key.k) and self.budget > 0

    @property
    def utilisation(self) -> float:
        """Z / B; NaN where there is no such ratio."""
        return self.spend / self.budget if self.has_budget else math.nan

    @property
    def gain(self) -> float:
        """L - Z, whose mean is 0 if tokens are drawn from the law that was charged."""
        return self.log_ratio - self.spend

    @property
    def recall(self) -> float:
        """Near-verbatim recall of the reference; NaN if unscored."""
        return self.overlap.near_verbatim_recall

    @property
    def end(self) -> int:
        """The last step."""
        return max(0, self.length - 1)

    def witness(self, step: int) -> Witness:
        """Returns a step as that which a finding rests on; without it where only totals are."""
        return Witness(self.key, step if self.length else None)

    @property
    def sort_key(self) -> tuple[bool, float, float, float]:
        """What makes a trajectory worth reading: an excess, then use, recall and spend."""
        use, recall, spend = self.utilisation, self.recall, self.spend
        # Only NaN is not equal to itself; a page asks for this of every row.
        return (
            self.violated,
            use if use == use else -math.inf,
            recall if recall == recall else -math.inf,
            spend if spend == spend else -math.inf,
        )

    @property
    def sample_key(self) -> bytes:
        """A number drawn from prompt and trajectory alone: samples are the same in every arm."""
        return sample_key(self.key.prompt, self.key.trajectory)


def sample_key(prompt: str, trajectory: int) -> bytes:
    """Returns a hash of prompt and trajectory number, for samples that never change."""
    text = f"{trajectory}\n{prompt}".encode(errors="replace")
    return hashlib.blake2b(text, digest_size=8).digest()


def measure(trajectory: Trajectory, context: RunContext, place: RecordPlace = NOWHERE) -> Measure:
    """Measures one trajectory.

    Args:
        trajectory: The record.
        context: What is known of its run; without references nothing is compared with them.
        place: Where the record is.
    """
    key, context = trajectory.key, context.of_budget(trajectory.key.k)
    token = trajectory.steps.token
    known = bool(token.size) and not (token < 0).any()
    # Infinite and absurd numbers in a log are findings, not warnings.
    with np.errstate(over="ignore", invalid="ignore"):
        spend, granted = trajectory.spend, context.granted(trajectory)
        kept, steps = _kept(trajectory, context, spend), _regime(trajectory, context)
        ratio, burst = _log_ratio(trajectory, context, spend), _burst(trajectory)
        opening_due, opening_seen = _opening(trajectory, context, granted)
        compared, broken = _identities(trajectory, context, granted)
        record = _flaws(trajectory, context, granted)
        return Measure(
            key=key,
            label=context.label(key.prompt),
            length=len(trajectory),
            stopped=trajectory.stopped,
            debt=trajectory.debt,
            spend=spend,
            granted=float(granted[-1]) if granted is not None and granted.size else math.nan,
            budget=kept.budget,
            violated=kept.violated,
            judged=kept.judged,
            larger=kept.larger,
            contested=kept.contested,
            excess=kept.excess,
            excess_step=kept.excess_step,
            forced=steps.forced,
            active=steps.active,
            free=steps.free,
            unweighted=steps.unweighted,
            opening=steps.opening,
            log_ratio=ratio.log_ratio,
            largest_ratio=ratio.largest_ratio,
            largest_step=ratio.largest_step,
            gain_variance=ratio.gain_variance,
            impossible_step=ratio.impossible_step,
            burst=burst.ratio,
            burst_step=burst.step,
            bank=burst.bank,
            digest=token_digest(token) if known else b"",
            served_logp=total(trajectory.steps.served) if known else math.nan,
            opening_due=opening_due,
            opening_seen=opening_seen,
            compared=compared,
            broken_identities=broken,
            flaws=record.flaws,
            pad_steps=record.pad_steps,
            recorded=record.recorded,
            absent=record.absent,
            overlap=overlap_with_reference(key, token, context),
            place=place,
        )


def token_digest(token: NDArray[np.int32]) -> bytes:
    """Returns what stands for the tokens of an output."""
    return hashlib.blake2b(token.tobytes(), digest_size=16).digest()


def overlap_with_reference(key: Key, token: NDArray[np.int32], context: RunContext) -> Overlap:
    """Compares an output with the reference of its prompt; else takes what the log claims."""
    reference = context.prepared.get(key.prompt)
    text = None if reference is None else context.text(key, token)
    if text is None and key in context.scored_by_log:
        told = context.logged.claims[key]
        return Overlap(
            told.get("rouge_l", math.nan), jaccard_5gram=told.get("minhash_5gram", math.nan)
        )
    return overlap_of(text, reference)


def with_admission(
    row: Measure, claimed: Trajectory, truth: Trajectory, context: RunContext
) -> Measure:
    """Returns the row of a black box, VIOLATED if its own charges are more than it was granted.

    A step with a claimed weight is charged by the replay, whatever the decoder says it cost: there
    the replay contradicts the claim. The caller knows that the replay does not contradict the rest.

    Args:
        row: The measured replay.
        claimed: What the decoder says of the same tokens.
        truth: The replay.
        context: What is known of the run.
    """
    k, steps = row.key.k, claimed.steps
    if row.violated or is_baseline(k) or not len(claimed) or not context.currency.promised:
        return row
    admitted = np.isnan(steps.theta) & np.isfinite(steps.charge)
    spent = np.cumsum(np.where(admitted, steps.charge, truth.steps.charge))
    logged = claimed.logged
    if logged is not None and np.isnan(steps.theta).all() and np.isfinite(logged.spend):
        spent[-1] = max(spent[-1], logged.spend)
    ceiling = context.budget_ceiling(truth)
    excess = np.where(np.isposinf(ceiling), -np.inf, spent - ceiling)
    if not (excess > context.tolerance(ceiling)).any():
        return row
    at = int(np.argmax(excess))
    return replace(
        row,
        spend=float(spent[-1]),
        violated=True,
        excess=float(excess[at]),
        excess_step=at,
        admitted=True,
    )


class _Kept(NamedTuple):
    """Numbers of the first verdict, named as in `Measure`."""

    budget: float
    violated: bool
    judged: bool
    larger: bool
    contested: bool
    excess: float
    excess_step: int


def _kept(trajectory: Trajectory, context: RunContext, spend: float) -> _Kept:
    """Judges the spend against the budget, step by step."""
    ceiling, stated = context.budget_ceiling(trajectory), context.stated(trajectory)
    has_budget = context.has_budget(trajectory)
    budget = float(ceiling[-1]) if has_budget else math.nan
    if stated is not None and spend > budget + float(context.tolerance(ceiling[-1:])[0]):
        budget = math.nan
    excess, over, usable = _excess(trajectory, context, spend, ceiling)
    usable &= has_budget and not _contradicts_itself(trajectory, context)
    promised, contested = context.currency.promised, False
    if stated is not None and over.any():
        excess, over, _ = _excess(trajectory, context, spend, stated)
        contested = promised and not over.any()
    larger = stated is not None
    if not promised or not over.any():
        return _Kept(budget, False, usable and not contested, larger, contested, 0.0, 0)
    at = int(np.argmax(np.where(over, excess, -np.inf)))
    return _Kept(budget, True, usable, larger, False, float(excess[at]), at)


def _excess(
    trajectory: Trajectory, context: RunContext, spend: float, ceiling: Array
) -> tuple[Array, NDArray[np.bool_], bool]:
    """Returns by how much limits are exceeded, which are, and whether that can be judged."""

    def above(spent: Array, limit: Array) -> Array:
        # No limit means no excess, even of an infinite charge.
        endless = limit == np.inf
        gap = spent - limit
        return np.asarray(np.where(endless, -np.inf, gap) if endless.any() else gap)

    if not len(trajectory):
        excess = above(np.array([spend]), ceiling)
        usable = not np.isnan(excess).any() and (spend >= 0 or context.currency.signed)
        return excess, excess > context.tolerance(ceiling), usable
    steps, logged = trajectory.steps, trajectory.logged
    step, prefix = above(steps.charge, steps.allowance), above(np.cumsum(steps.charge), ceiling)
    if logged is not None and logged.cumulative.size == len(trajectory):
        prefix = np.fmax(prefix, above(logged.cumulative, ceiling))
    usable = not np.isnan(step).any()
    if math.isfinite(trajectory.key.k):
        usable &= not (steps.allowance == np.inf).any()
    if not context.currency.signed:
        usable &= not (steps.charge < 0).any()
    slack = context.tolerance(ceiling if context.foreign else steps.allowance)
    over = (step > context.tolerance(steps.allowance)) | (prefix > slack)
    # fmax: a NaN in the sums must not cover an excess of a step.
    return np.fmax(step, prefix), over, usable


def _contradicts_itself(trajectory: Trajectory, context: RunContext) -> bool:
    """Returns True if a log's totals say that more was spent than granted, against its steps."""
    logged, k = trajectory.logged, trajectory.key.k
    if logged is None or not len(trajectory) or math.isinf(k):
        return False
    # A total may be of a whole batch, which ran up to T; no output is granted more than K.
    granted = float(np.fmin(logged.budget, context.promised(k)))
    return logged.spend > max(0.0, granted) + 1e-3 + 1e-6 * abs(granted)


class _StepCounts(NamedTuple):
    """Steps by what was served, named as in `Measure`."""

    forced: int
    active: int
    free: int
    unweighted: int
    opening: int


def _regime(trajectory: Trajectory, context: RunContext) -> _StepCounts:
    """Counts forced, active, free, unweighted and opening steps, by the risky law's weight."""
    steps = trajectory.steps
    forced, active, free, missing = regimes(steps, context)
    opening = 0
    if trajectory.debt > 0:
        # The debt's share: steps from the first on that had nothing to spend.
        opening = _leading(forced & (steps.allowance <= 0))
    return _StepCounts(
        int(forced.sum()), int(active.sum()), int(free.sum()), int(missing.sum()), opening
    )


def regimes(steps: Steps, context: RunContext) -> tuple[NDArray[np.bool_], ...]:
    """Returns which steps are forced, active, free, or of unknown weight."""
    edge = context.theta_tolerance
    forced, free, missing = steps.theta <= edge, steps.theta >= 1 - edge, np.isnan(steps.theta)
    if not context.foreign:
        # A rule of ours without weights acted where it served neither model's probability.
        other = (steps.served != steps.safe) & (steps.served != steps.risky)
        missing &= ~(other & ~np.isnan(steps.served))
    return forced, ~(forced | free | missing), free, missing


class _LogRatio(NamedTuple):
    """Numbers of L, named as in `Measure`."""

    log_ratio: float
    largest_ratio: float
    largest_step: int
    gain_variance: float
    impossible_step: int


def _log_ratio(trajectory: Trajectory, context: RunContext, spend: float) -> _LogRatio:
    """Returns L, its largest term and its step, the variance of L - Z, an impossible step."""
    steps = trajectory.steps
    ratios = steps.served.astype(np.float64) - steps.safe.astype(np.float64)
    if not ratios.size or np.isnan(ratios).any():
        return _LogRatio(math.nan, math.nan, 0, math.nan, -1)
    value, variance = total(ratios), math.nan
    gain = value - spend
    # Drawn although forbidden, or forbidden but cheap.
    impossible = int(np.abs(ratios).argmax()) if math.isinf(gain) else -1
    if math.isfinite(gain) and context.currency.is_kl:
        variance = total(gain_variances(steps, ratios))
    if math.isnan(value):
        return _LogRatio(math.nan, math.nan, 0, variance, impossible)
    at = int(np.argmax(ratios))
    return _LogRatio(value, float(ratios[at]), at, variance, impossible)


def gain_variances(steps: Steps, ratios: Array) -> Array:
    """Returns the least variance of each step's term of L - Z.

    A gain g of mean 0 that is taken with probability p has on the rest the mean -p g / (1 - p), so
    by Jensen its variance is at least g^2 p / (1 - p).
    """
    logp = np.minimum(steps.served.astype(np.float64), 0.0)
    rest = -np.expm1(logp)
    odds = np.divide(np.exp(logp), rest, out=np.zeros_like(logp), where=rest > 0)
    return np.asarray((ratios - steps.charge) ** 2 * odds)


class _Burst(NamedTuple):
    """The dearest window over what it earns, its start, and the largest allowance."""

    ratio: float | None
    step: int
    bank: float


def _burst(trajectory: Trajectory) -> _Burst:
    """Returns the dearest window over what it earns, its start, and the largest allowance.

    A trajectory shorter than a window is one window.
    """
    charge, k = trajectory.steps.charge, trajectory.key.k
    if is_baseline(k) or math.isnan(k) or not charge.size or np.isnan(charge.min()):
        return _Burst(None, 0, -math.inf)
    width = min(WINDOW, charge.size)
    sums = charge[: charge.size - width + 1].copy()
    for shift in range(1, width):
        sums += charge[shift : charge.size - width + 1 + shift]
    at = int(np.argmax(sums))
    bank = float(np.fmax.reduce(trajectory.steps.allowance))
    return _Burst(float(sums[at]) / (WINDOW * k), at, bank)


def _opening(trajectory: Trajectory, context: RunContext, granted: Array | None) -> tuple[int, int]:
    """Counts leading steps that were granted nothing, and those that served the safe law."""
    theta = trajectory.steps.theta
    if granted is None or not theta.size or granted.size != theta.size:
        return -1, -1
    due = _leading(granted <= NOTHING)
    if np.isnan(theta[: due + 1]).any():
        return -1, -1
    return due, _leading(theta <= context.theta_tolerance)


def _leading(flags: NDArray[np.bool_]) -> int:
    """Counts the values that are true before the first that is not."""
    first = int(flags.argmin()) if flags.size else 0
    return flags.size if flags.size and flags[first] else first


def _identities(
    trajectory: Trajectory, context: RunContext, granted: Array | None
) -> tuple[tuple[str, ...], Mapping[str, tuple[float, int]]]:
    """Identities for which this record has two sources; those that do not hold, with gap and step.

    Where a number is missing, nothing is compared.
    """
    steps, length, logged = trajectory.steps, len(trajectory), trajectory.logged
    if not length:
        return (), NONE
    end = length - 1
    found: dict[str, tuple[float, int]] = {}

    def compare(name: str, claimed: Array, true: Array, step: int | None = None) -> None:
        gap, at = _gap(claimed, true, context)
        found[name] = gap, at if step is None else step

    ledger = context.ledger if not math.isnan(trajectory.debt) else None
    if ledger is not None:
        again = allowances(ledger, trajectory.key.k, trajectory.debt, steps)
        if np.isnan(steps.charge.min()):
            # After a charge that is not known, neither is any allowance.
            again[int(np.argmax(np.isnan(steps.charge))) + 1 :] = np.nan
        compare("allowance", steps.allowance, again)
    if logged is not None:
        sums = np.cumsum(steps.charge)
        if logged.cumulative.size:
            compare("cumulative", logged.cumulative, sums)
        compare("spend", np.array([logged.spend]), sums[-1:], end)
        if ledger is not None and granted is not None:
            if logged.granted.size:
                compare("granted", logged.granted, granted)
            compare("budget", np.array([logged.budget]), granted[-1:], end)
        # Some logs do not count the stop token.
        off = logged.length - length
        found["length"] = min(abs(off), abs(off + trajectory.stopped)), end
    if context.stops and (steps.token >= 0).all():
        stops = np.zeros(length, bool)
        for stop in context.stops:
            stops |= steps.token == stop
        first = int(np.argmax(stops)) if stops.any() else end
        found["stop"] = end - first, first
        wrong = bool(stops[-1]) != trajectory.stopped
        # Ours end at a stop token or at the limit; a foreign decoder may have other reasons.
        cut = not context.foreign and not trajectory.stopped and length < context.max_new_tokens
        found["ending"] = float(wrong or cut), end
    if context.max_new_tokens:
        found["limit"] = max(0, length - context.max_new_tokens), end
    compared = tuple(name for name, (gap, _) in found.items() if not math.isnan(gap))
    broken = {name: found[name] for name in compared if found[name][0] > 0}
    return _shared(compared), broken or NONE


def _gap(claimed: Array, true: Array, context: RunContext) -> tuple[float, int]:
    """Returns the largest gap beyond the tolerance and its step; NaN if a number is missing."""
    if claimed.size != true.size:
        return math.inf, min(claimed.size, true.size) - 1
    if (claimed == true).all():
        return 0.0, 0
    gap = np.where(claimed == true, 0.0, np.abs(claimed - true))
    # Sums of float32 numbers lose digits in proportion to their size.
    slack = np.maximum(context.tolerance(true), own_tolerance(np.abs(true)))
    if np.isnan(gap).all():
        return math.nan, 0
    gap = np.where(gap > slack, gap, np.where(np.isnan(gap), -1.0, 0.0))
    at = int(np.argmax(gap))
    return float(gap[at]), at


class _RecordFlaws(NamedTuple):
    """What is wrong with a record itself, named as in `Measure`."""

    flaws: Mapping[str, int]
    pad_steps: int
    recorded: tuple[str, ...]
    absent: tuple[str, ...]


def _flaws(trajectory: Trajectory, context: RunContext, granted: Array | None) -> _RecordFlaws:
    """Returns flaws of the record itself, padding steps, columns recorded and absent.

    In our own records only a weight may be missing, as not every mechanism has one, and the
    served law where whole outputs are chosen.
    """
    steps, length = trajectory.steps, len(trajectory)
    flaws: dict[str, int] = {}
    recorded: list[str] = []
    absent: list[str] = []
    logged = trajectory.logged.length if trajectory.logged is not None else math.nan
    limit = context.max_new_tokens
    if limit and (length > limit or logged > limit):
        flaws["long"] = max(0, min(limit, length - 1))
    optional = ("theta", "served") if isinstance(context.ledger, FixedBudget) else ("theta",)
    for name in STEP_TYPES if length else ():
        if name == "token" or (name in optional and not context.foreign):
            continue
        column = getattr(steps, name)
        lowest = column.min()
        if lowest == lowest:  # only NaN is not equal to itself
            recorded.append(name)
        elif (missing := np.isnan(column)).all():
            absent.append(name)
        else:
            recorded.append(name)
            flaws.setdefault("holes", int(np.argmax(missing)))
    padding = _pad_tail(trajectory, context, granted)
    if padding:
        flaws["pad"] = length - padding
    if (wrong := impossible_steps(steps)).any():
        flaws["impossible"] = int(np.argmax(wrong))
    return _RecordFlaws(flaws or NONE, padding, _shared(tuple(recorded)), _shared(tuple(absent)))


def impossible_steps(steps: Steps) -> NDArray[np.bool_]:
    """Returns which steps have a weight outside 0 and 1 or a log-probability above 0."""
    found = np.asarray(np.abs(steps.theta - 0.5) - 0.5 > _ROUNDING)
    for column in (steps.served, steps.safe, steps.risky):
        found |= column > _ROUNDING
    return found


def _pad_tail(trajectory: Trajectory, context: RunContext, granted: Array | None) -> int:
    """Steps of the pad tail; 0 if there is none.

    A suffix of at least two steps with one token id, no allowance, charge and weight, and
    probabilities above 0.999, although budget had been granted.
    """
    steps = trajectory.steps
    if len(trajectory) < 2 or steps.allowance[-1] != 0 or steps.charge[-1] != 0:
        return 0
    idle = (steps.allowance == 0) & (steps.charge == 0) & (steps.theta <= context.theta_tolerance)
    pad = idle & (steps.served > SURE) & (steps.safe > SURE)
    pad &= steps.token == steps.token[-1]
    if granted is not None and granted.size == pad.size:
        # Before its debt is paid a row has no allowance either, and may repeat itself.
        pad &= granted > 0
    tail = int(np.argmin(pad[::-1])) if not pad.all() else pad.size
    return tail if tail >= 2 else 0


@lru_cache(maxsize=256)
def _shared(names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns one object for all rows with these names."""
    return names
