"""Trajectories as the page's viewer reads them: rounded numbers, shown text, nothing else."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.ledger import replay
from nafaudit.core.text import cut, visible
from nafaudit.core.trajectory import Trajectory
from nafaudit.overlap import Reference, spans
from nafaudit.report.data import Report
from nafaudit.report.outline import Outline

# Millionths of a nat: the running sum of 200 rounded charges is then right to 1e-4.
_CHARGE, _LOGARITHM, _THETA = 1e6, -1e3, 1e4
_LONGEST_PIECE = 60


@dataclass
class Table:
    """Strings by number, each once."""

    numbers: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> int:
        """The number of a string; a new one gets the next."""
        return self.numbers.setdefault(text, len(self.numbers))

    @property
    def strings(self) -> list[str]:
        """All strings, by number."""
        return list(self.numbers)


def read_chosen(report: Report, chosen: Sequence[Outline]) -> Iterator[tuple[Outline, Trajectory]]:
    """The records of some outlines, in the order of their keys; only their parts are read."""
    places = {one.place: one for one in chosen}
    located = report.run.located({place.part for place in places})
    found = {place: trajectory for place, trajectory in located if place in places}
    return ((one, found[one.place]) for one in chosen)


# Infinite and absurd numbers in a log are findings, not warnings.
@np.errstate(over="ignore", invalid="ignore")
def encode(
    report: Report, one: Outline, trajectory: Trajectory, pieces: Table | None
) -> dict[str, Any]:
    """One record for the viewer.

    Args:
        report: What it belongs to.
        one: Its outline.
        trajectory: The record itself.
        pieces: Where the texts of tokens are collected; None leaves text out.
    """
    steps = trajectory.steps
    record: dict[str, Any] = {
        "n": one.key.trajectory,
        "d": as_json(trajectory.debt),
        "s": int(trajectory.stopped),
        "rc": as_json(one.recall, 4),
        "c": _scaled(steps.charge, _CHARGE),
        "th": _weights(steps.theta, report.facts.edge),
        "sv": _scaled(steps.served, _LOGARITHM),
        "sf": _scaled(steps.safe, _LOGARITHM),
        "rk": _scaled(steps.risky, _LOGARITHM),
    } | _ledger(report, trajectory)
    shown = list(token_texts(steps.token.tolist(), report.facts.pieces))
    texts = ["" if special else text for text, special in shown]
    if copied := copied_tokens(texts, report.facts.prepared.get(one.key.prompt)):
        record["cp"] = copied
    if pieces is not None:
        record["tok"] = [pieces.number(shown_piece(text)) for text, _ in shown]
        special = [i for i, (_, is_special) in enumerate(shown) if is_special]
        record |= {"sp": special} if special else {}
    return record


def token_texts(
    tokens: Iterable[int], pieces: Sequence[bytes | None]
) -> Iterator[tuple[str, bool]]:
    """The text that each token completes, and whether it is a token without text.

    Joined, the texts of ordinary tokens are what `detokenize` gives: a character that several
    tokens make up belongs to the last of them.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for token in tokens:
        piece = pieces[token] if 0 <= token < len(pieces) else None
        if piece is None:
            yield f"\u27e8{token}\u27e9" if token >= 0 else "\u27e8?\u27e9", True
        else:
            yield decoder.decode(piece), False


def copied_tokens(texts: Sequence[str], reference: Reference | None) -> list[tuple[int, int]]:
    """Ranges of tokens that hold text which stands in the reference too; ends are exclusive."""
    if reference is None:
        return []
    ends = np.cumsum([len(text) for text in texts])
    found = []
    for start, end in spans("".join(texts), reference):
        # The first token that reaches beyond the start, and the first that reaches the end.
        first, last = np.searchsorted(ends, [start, end - 1], side="right").tolist()
        found.append((first, last + 1))
    return found


def shown_piece(text: str) -> str:
    """A token's text on a page; half a character is a dot."""
    return cut(visible(text).replace("\n", "\u23ce\n"), _LONGEST_PIECE) or "\u00b7"


def as_json(value: float, digits: int | None = None) -> float | str | None:
    """A number for the page: unknown is null, infinite a string."""
    if math.isnan(value):
        return None
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    rounded = value if digits is None else round(value, digits)
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 1e15 else rounded


def _ledger(report: Report, trajectory: Trajectory) -> dict[str, Any]:
    """Grants and allowances, left out where the page can compute them from k, debt and charge."""
    key, steps = trajectory.key, trajectory.steps
    facts = report.facts.of_budget(key.k)
    if math.isinf(key.k):
        return {"al": "inf"}
    granted = facts.granted(trajectory)
    plain = np.asarray(np.arange(1, len(steps) + 1) * key.k - trajectory.debt, np.float64)
    linear = granted is not None and _close(granted, plain)
    found: dict[str, Any] = {"lin": 1} if linear else {}
    if granted is not None and not linear:
        found["g"] = _scaled(granted, _CHARGE)
    ledger = facts.ledger
    predicted = None if ledger is None else replay(ledger, key.k, trajectory.debt, steps)
    if not linear or predicted is None or not _close(predicted, steps.allowance):
        found["al"] = _scaled(steps.allowance, _CHARGE)
    return found


def _close(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    return one.shape == other.shape and bool(np.allclose(one, other, rtol=0, atol=1e-7))


def _scaled(values: NDArray[np.floating], scale: float) -> list[float | str | None]:
    scaled = np.rint(values.astype(np.float64) * scale)
    if np.isfinite(scaled).all() and (np.abs(scaled) < 2**53).all():
        whole: list[float | str | None] = scaled.astype(np.int64).tolist()
        return whole
    return [as_json(value) for value in scaled.tolist()]


def _weights(theta: NDArray[np.float32], edge: float) -> list[float | str | None]:
    """Rounded such that exactly 0 and 1 keep their meaning and nothing else gets it."""
    inner = np.clip(np.round(theta.astype(np.float64) * _THETA), 1, _THETA - 1)
    weights = np.where(theta <= edge, 0.0, np.where(theta >= 1 - edge, _THETA, inner))
    return _scaled(np.where(np.isnan(theta), np.nan, weights), 1.0)
