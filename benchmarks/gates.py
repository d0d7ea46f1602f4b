"""Is the maths of both sides equal? A speed counts only where it is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chisquare

Law = NDArray[np.float64]
DEBT = 1e-4
THETA = 1e-4
UNSPENT = 1e-4
# A replay reads with other shapes, so its charges differ in float32's last digits.
CHARGE = 1e-4
# JSON Lines keep float32.
SPENT = 1e-3
SCORE = 1e-12
# Of a chi-square test of two thousand first tokens a side; a false alarm in ten thousand.
LEVEL = 1e-4


class Drawer(Protocol):
    """Whoever can be asked for first tokens."""

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """One request, one answer."""


def all_of(found: Iterable[str]) -> str:
    """What any gate found wrong; empty if none did."""
    return "; ".join(sorted(set(found) - {""}))


def debts(one: dict[str, Any], other: dict[str, Any]) -> str:
    """Empty if both sides charge prompts alike, else what is wrong."""
    gap = max(abs(a - b) for a, b in zip(one["debt"], other["debt"], strict=True))
    return "" if gap <= DEBT else f"debts differ by {gap:.2g}"


def feasible(own: dict[str, Any]) -> str:
    """Empty if no charge of ours is above its allowance, by however little."""
    return "" if own["over"] <= 0 else f"a charge is {own['over']:.2g} above its allowance"


def spending(logged: Mapping[Any, float], recorded: Mapping[Any, float]) -> str:
    """Empty if two records of the same trajectories agree on what each spent, in nats."""
    gap = max(abs(recorded[key] - spent) for key, spent in logged.items())
    return "" if gap <= SPENT else f"spending differs by {gap:.2g}"


def same_scores(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> str:
    """Empty if two libraries score every output alike."""
    pairs = zip(one, other, strict=True)
    gap = max(abs(a - b) for x, y in pairs for a, b in zip(x, y, strict=True))
    return "" if gap <= SCORE else f"scores differ by {gap:.2g}"


def same_records(one: Sequence[str], other: Sequence[str]) -> str:
    """Empty if two ways of decoding write the same trajectories, to the bit."""
    return "" if sorted(one) == sorted(other) else "the records differ"


def counted(told: int, recorded: int) -> str:
    """Empty if a report counts every trajectory that is recorded."""
    return "" if told == recorded else f"the report counts {told} of {recorded} trajectories"


def replayed(deviation: float) -> str:
    """Empty if a replay charges what decoding charged."""
    return "" if deviation <= CHARGE else f"a charge is off by {deviation:.2g}"


def bisected(file: Path, k: float) -> list[tuple[float, float]]:
    """Theta and charge of every row by float64 bisection: a third party to both sides."""
    data = np.load(file)
    found = []
    for safe, risky in zip(data["safe"], data["risky"], strict=True):
        s, r = (_law(x) for x in (safe, risky))
        low, high = 0.0, 1.0
        if _kl(r, s) <= k:
            found.append((1.0, _kl(r, s)))
            continue
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if _kl(_mix(s, r, middle), s) <= k else (low, middle)
        found.append((low, _kl(_mix(s, r, low), s)))
    return found


def _law(x: NDArray[Any]) -> Law:
    y = x.astype(np.float64)
    y = y - y.max()
    return np.asarray(y - math.log(np.exp(y).sum()))


def _mix(safe: Law, risky: Law, theta: float) -> Law:
    return _law((1 - theta) * safe + theta * risky)


def _kl(p: Law, q: Law) -> float:
    return float((np.exp(p) * (p - q)).sum())


def solved(
    side: dict[str, Any], truth: list[tuple[float, float]], k: float, *, strict: bool
) -> str:
    """Empty if a solver agrees with bisection; a strict one is never above its allowance."""
    for (theta, charge), mine, paid in zip(truth, side["theta"], side["charge"], strict=True):
        if abs(theta - mine) > THETA:
            return f"theta {mine:.6f} instead of {theta:.6f}"
        if abs(charge - paid) > UNSPENT:
            return f"charge {paid:.6f} instead of {charge:.6f}"
        if strict and paid > k:
            return f"charge {paid!r} above {k}"
    return ""


def first_tokens(peer: Drawer, own: Drawer, draws: int, size: int) -> float:
    """The p-value that both sides' first tokens have one law, on a small vocabulary."""
    prompt = [[3, 9, 4, 21, 30, 7]]
    counts = []
    for side in (peer, own):
        drawn: list[int] = []
        for seed in range(-(-draws // 500)):
            drawn += side.ask("decode", prompts=prompt, each=500, new=1, k=8.0, seed=seed)["first"]
        counts.append(np.bincount(drawn, minlength=size)[:size])
    table = np.array(counts) + 0.0
    table = table[:, table.sum(axis=0) >= 10]
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / table.sum()
    degrees = table.shape[1] - 1
    return float(chisquare(table.ravel(), expected.ravel(), ddof=table.size - 1 - degrees).pvalue)


def drawn_alike(p: float) -> str:
    """Empty if first tokens may well have one law."""
    return "" if p > LEVEL else f"first tokens differ, p = {p:.2g}"
