"""The sampler tests of one arm, as findings: which test fired, at which level, where to look."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nafaudit.checks.sampler import (
    ALPHA,
    SHARES,
    Array,
    Repeat,
    Scores,
    contrast_z,
    p_values,
    repeats,
)
from nafaudit.core.finding import Answer, Finding, Witness
from nafaudit.core.trajectory import Key

_MEANING = {
    "likelihood": "another law explains the tokens better than the replayed one",
    "some-steps": "another law explains the tokens of some steps better than the replayed one",
    "some-outputs": "another law explains some of the outputs better than the replayed one",
    "surprisal": "tokens are more or less likely than draws from the replayed law",
    "rank-pit": "ranks of the tokens are not those of draws from the replayed law",
    "gain": "L - Z is not what draws from the replayed law give",
    "gain-cgf": "L - Z is not what draws from the replayed law give",
    "repeats": "two outputs of a prompt share a beginning that independent draws would not",
    "shared-noise": "outputs lean the same way at the same steps: their draws are not independent",
}


@dataclass
class SamplerTests:
    """Sees the scores of every trajectory of an arm, then answers for every test.

    Attributes:
        names: Of the alternatives, in the order of the scores.
        alpha: Level of the whole battery; `SHARES` splits it.
    """

    names: Sequence[str]
    alpha: float = ALPHA
    seen: dict[Key, tuple[NDArray[np.int32], Scores]] = field(default_factory=dict)

    def see(self, key: Key, tokens: NDArray[np.int32], scores: Scores) -> None:
        """Takes one trajectory: its tokens, and the scores of all of its steps."""
        self.seen[key] = (tokens, scores)

    def findings(self) -> list[Finding]:
        """One per test; FAILED if it fires at its share of the level."""
        if not self.seen:
            reason = "no trajectory was scored"
            return [Finding(f"sampler: {n}", Answer.UNKNOWN, math.nan, reason) for n in SHARES]
        keys = sorted(self.seen)
        scores = _padded([self.seen[key][1] for key in keys])
        sums = scores.sums()
        found = {name: float(p) for name, p in p_values(sums, scores.pit).items()}
        tokens = [self.seen[key][0] for key in keys]
        logp = [self.seen[key][1].logp for key in keys]
        repeat = repeats([key.prompt for key in keys], tokens, logp)
        found["repeats"] = repeat.p
        said = {
            "likelihood": self._best(sums.ratios),
            "surprisal": f"z = {float(contrast_z(sums.surprisal)):.2f}; ",
            "gain": f"z = {float(contrast_z(sums.gain)):.2f}; ",
            "repeats": f"{repeat.length} tokens; " if repeat.length else "",
        }
        return [
            self._finding(name, found[name], said.get(name, ""), keys, scores, repeat)
            for name in SHARES
        ]

    def _best(self, ratios: Array) -> str:
        total = ratios.sum(axis=0)
        best = int(np.argmax(total))
        return f"best alternative {self.names[best]}, log ratio {total[best]:.1f}; "

    def _finding(
        self,
        name: str,
        p: float,
        said: str,
        keys: list[Key],
        scores: Scores,
        repeat: Repeat,
    ) -> Finding:
        level = SHARES[name] * self.alpha
        fired = p <= level
        text = f"{said}p {'<=' if p < 1e-300 else '='} {max(p, 1e-300):.2g} (alarm at {level:.2g})"
        text += f" over {len(keys)} trajectories, {int((~np.isnan(scores.pit)).sum())} tokens"
        if fired:
            text = f"{_MEANING[name]}: {text}"
        witness = _where(name, keys, scores, repeat) if fired else None
        verdict = Answer.FAILED if fired else Answer.FINE
        return Finding(f"sampler: {name}", verdict, p, text, witness, {"p": p, "level": level})


def _where(name: str, keys: list[Key], scores: Scores, repeat: Repeat) -> Witness:
    """The step that weighs most in a test that fired."""
    if name == "repeats":
        return Witness(keys[repeat.second], 0)
    if name == "some-steps":
        row, step = np.unravel_index(int(np.argmax(_peak(scores.ratios))), scores.pit.shape)
        return Witness(keys[int(row)], int(step))
    if name in ("likelihood", "some-outputs", "gain-cgf"):
        table = scores.tilts if name == "gain-cgf" else scores.ratios
        total = table.sum(axis=1).max(axis=0) if name == "some-outputs" else table.sum(axis=(0, 1))
        weight = table[..., int(np.argmax(total))]
    elif name in ("surprisal", "gain"):
        values = (scores.surprisal if name == "surprisal" else scores.gain)[..., 0]
        weight = values * np.sign(values.sum())
    else:
        weight = np.abs(np.nan_to_num(scores.pit, nan=0.5) - 0.5)
    row, step = np.unravel_index(int(np.argmax(weight)), weight.shape)
    return Witness(keys[int(row)], int(step))


def _peak(ratios: Array) -> Array:
    """The bets of the step and alternative that weigh most over all outputs; -inf elsewhere."""
    step, best = np.unravel_index(int(np.argmax(ratios.sum(axis=0))), ratios.shape[1:])
    found = np.full(ratios.shape[:2], -np.inf)
    found[:, step] = ratios[:, step, best]
    return found


def _padded(each: Sequence[Scores]) -> Scores:
    """Stacks trajectories of different lengths."""
    longest = max(one.logp.size for one in each)

    def stack(name: str, fill: float) -> Array:
        parts = [getattr(one, name) for one in each]
        whole = np.full((len(parts), longest, *parts[0].shape[1:]), fill)
        for row, part in enumerate(parts):
            whole[row, : len(part)] = part
        return whole

    fills = {"logp": 0.0, "ratios": 0.0, "tilts": 0.0, "surprisal": 0.0, "gain": 0.0}
    return Scores(**{n: stack(n, fill) for n, fill in fills.items()}, pit=stack("pit", math.nan))


def joined(blocks: Sequence[Scores]) -> Scores:
    """The scores of one trajectory from those of its blocks of steps."""
    names = ("logp", "ratios", "tilts", "surprisal", "gain", "pit")
    return Scores(**{n: np.concatenate([getattr(b, n) for b in blocks]) for n in names})
