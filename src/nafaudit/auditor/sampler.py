"""Tests whether tokens were drawn from the law that the promise implies; without models.

Numbers in a log can all be right while the sampler draws from something else: a temperature after
the solve, a truncated law, another weight. Only the tokens show it. Every step of a replay gives
a few numbers (`StepScores`), each of known law if the token was drawn from the replayed law:

- ratios: log q(y) / p(y) for a family of alternatives q. Their products are test martingales
  (Ville: the running mean over alternatives reaches 1/alpha with probability at most alpha);
  The same bets are also placed on one stretch of steps of every trajectory, and on a few whole
  trajectories, for samplers that are sound elsewhere;
- surprisal and gain (log p / p_safe), clipped and centred, with exact variance and skewness;
- the rank-PIT, which is uniform.

All arrays may have leading axes, so that thousands of audits of a toy world are one call. The
level of the whole battery is split over its tests by `SHARES`.

References:
    Ville (1939), Etude critique de la notion de collectif: the bound on a test martingale.
    Wasserman, Ramdas, Balakrishnan (2020), Universal inference: products of likelihood ratios.
    Dawid (1984), Present position and potential developments: prequential PIT.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc, gammainc, gammaincc, logsumexp, ndtr

from nafaudit.core.finding import CheckWord, Finding, Witness
from nafaudit.core.trajectory import Key

Array = NDArray[np.float64]

# How the level of a battery is split; the shares add up to 1.
SHARES: Mapping[str, float] = {
    "likelihood": 0.25,
    "some-steps": 0.05,
    "some-outputs": 0.05,
    "surprisal": 0.25,
    "rank-pit": 0.08,
    "gain": 0.10,
    "gain-cgf": 0.07,
    "repeats": 0.10,
    "shared-noise": 0.05,
}
# Tests of whether outputs are independent, given their law; the other tests are of the law, given
# that they are.
INDEPENDENCE = ("repeats", "shared-noise")
# What a test that fires says.
_MEANING = {
    "likelihood": "another law explains the tokens better than the replayed one",
    "some-steps": "another law explains the tokens of some steps better than the replayed one",
    "some-outputs": "another law explains some of the outputs better than the replayed one",
    "surprisal": "tokens are more or less likely than draws from the replayed law",
    "rank-pit": "ranks of the tokens are not those of draws from the replayed law",
    "gain": "L - Z is not what draws from the replayed law give",
    "gain-cgf": "L - Z is not what draws from the replayed law give",
    "repeats": "two outputs of a prompt share a beginning that independent draws of that law "
    "would not",
    "shared-noise": "outputs lean the same way at the same steps: their draws are not independent, "
    "or not from the replayed law",
}
ALPHA = 1e-3
BINS = 20
# Bets of the shared-noise test; |z z'| <= 3, so a bet below 1/3 cannot lose everything.
_BETS = np.array([0.05, 0.15, 0.3])
# Shares of outputs that the bet on a few of them thinks are drawn otherwise.
_SOME = np.array([0.01, 0.05, 0.2])
# A sum of fewer steps is not near its limiting law; a bin that expects fewer tokens neither.
MIN_STEPS = 30
_MIN_EXPECTED = 10.0


@dataclass(frozen=True, eq=False)
class StepScores:
    """The numbers of every step for the sampler tests; padded steps are 0, their PIT is NaN.

    Attributes:
        logp: log p(y) of the token under the replayed law [..., steps].
        ratios: log q(y) / p(y) by alternative [..., steps, alternatives].
        tilts: log q(y) / p(y) for the laws tilted along the gain [..., steps, tilts]; the logarithm
            of their normaliser is the exact cgf of the gain.
        surprisal: Centred value, variance, third moment [..., steps, 3]; 0 where the law is too
            sharp to say anything, which is decided before the token is seen.
        gain: Value, variance, third moment of log p / p_safe, which is L - Z step by step.
        pit: Rank-PIT of the token, randomised within its probability [..., steps].
    """

    logp: Array
    ratios: Array
    tilts: Array
    surprisal: Array
    gain: Array
    pit: Array

    def sums(self) -> Sums:
        """Adds up the steps of every trajectory."""
        bins = np.floor(np.nan_to_num(self.pit, nan=-1.0) * BINS).astype(np.int64)
        bins = np.minimum(bins, BINS - 1)  # a PIT of exactly 1
        counts = np.stack([(bins == b).sum(axis=-1) for b in range(BINS)], axis=-1)
        return Sums(
            self.ratios.sum(axis=-2),
            self.ratios.sum(axis=-3),
            self.tilts.sum(axis=-2),
            _with_count(self.surprisal),
            _with_count(self.gain),
            counts.astype(np.float64),
        )


@dataclass(frozen=True, eq=False)
class Sums:
    """`StepScores`, added up over the steps of each trajectory; [..., trajectories, numbers].

    But for `places`: ratios added up over trajectories, step by step; [..., steps, numbers].
    """

    ratios: Array
    places: Array
    tilts: Array
    surprisal: Array
    gain: Array
    counts: Array


def _with_count(contrast: Array) -> Array:
    """Sums value, variance and third moment, and counts the steps that had any."""
    used = (contrast[..., 1] > 0).sum(axis=-1)
    return np.concatenate([contrast.sum(axis=-2), used[..., None].astype(np.float64)], axis=-1)


def summed(scores: StepScores) -> dict[str, Array]:
    """Adds up a block of steps of which several tokens were scored [steps, tokens, ...].

    Returns:
        Sums by name [tokens, numbers], for the tests that need no more.
    """
    return {
        "ratios": scores.ratios.sum(axis=0),
        "tilts": scores.tilts.sum(axis=0),
        "surprisal": _with_count(np.moveaxis(scores.surprisal, 0, -2)),
        "gain": _with_count(np.moveaxis(scores.gain, 0, -2)),
    }


def likelihood_p(ratios: Array) -> Array:
    """Computes 1 over the largest value of the running e-process, trajectory by trajectory.

    Args:
        ratios: Sums of log q / p [..., trajectories, alternatives].
    """
    paths = np.cumsum(ratios, axis=-2)
    mixed = logsumexp(paths, axis=-1) - np.log(ratios.shape[-1])
    return np.asarray(np.exp(-np.maximum(mixed.max(axis=-1), 0.0)))


def some_steps_p(places: Array) -> Array:
    """Computes 1 over the mean bet that a stretch of steps, the same in all outputs, differs.

    Stretches are the dyadic ones: halves, quarters, ... down to single steps. Each length gets an
    equal part of the stake, and within it each stretch and each alternative.

    Args:
        places: Sums of log q / p over trajectories [..., steps, alternatives].
    """
    bets = []
    while True:
        bets.append(logsumexp(places, axis=(-2, -1)) - np.log(places.shape[-1] * _steps(places)))
        if _steps(places) == 1:
            break
        places = _halved(places)
    mixed = logsumexp(np.stack(bets), axis=0) - np.log(len(bets))
    return np.asarray(np.exp(-np.maximum(mixed, 0.0)))


def _steps(places: Array) -> int:
    return int(places.shape[-2])


def _halved(places: Array) -> Array:
    """Joins neighbouring stretches two by two; one may be left over."""
    even, odd = places[..., 0::2, :], places[..., 1::2, :]
    joined = even.copy()
    joined[..., : _steps(odd), :] += odd
    return np.asarray(joined)


def some_outputs_p(ratios: Array) -> Array:
    """Computes 1 over the largest value of a running bet that a few outputs differ.

    Each trajectory is a bet of its own: one share of it on the mean over the alternatives, the
    rest kept. So an output that is drawn from elsewhere counts however many are not.

    Args:
        ratios: Sums of log q / p [..., trajectories, alternatives].
    """
    each = logsumexp(ratios, axis=-1) - np.log(ratios.shape[-1])
    paths = np.logaddexp(np.log1p(-_SOME), np.log(_SOME) + each[..., None]).cumsum(axis=-2)
    mixed = logsumexp(paths, axis=-1) - np.log(_SOME.size)
    return np.asarray(np.exp(-np.maximum(mixed.max(axis=-1), 0.0)))


def contrast_p(sums: Array) -> Array:
    """Computes a two-sided p value of a sum of centred terms, from its variance and skewness.

    The larger of the normal tail and the gamma tail of the same skewness; 1 if fewer than
    `MIN_STEPS` steps have a say.

    Args:
        sums: Value, variance, third moment, count [..., trajectories, 4].
    """
    value, variance, third, count = np.moveaxis(sums.sum(axis=-2), -1, 0)
    safe = np.where(variance > 0, variance, 1.0)
    z = value / np.sqrt(safe)
    skew = np.clip(third / safe**1.5, -2.0, 2.0)
    upper = np.maximum(ndtr(-z), _gamma_tail(z, skew))
    lower = np.maximum(ndtr(z), _gamma_tail(-z, -skew))
    p = np.minimum(1.0, 2 * np.minimum(upper, lower))
    return np.asarray(np.where((count >= MIN_STEPS) & (variance > 0), p, 1.0))


def contrast_z(sums: Array) -> Array:
    """Computes the same sum in standard deviations."""
    value, variance = (sums[..., i].sum(axis=-1) for i in (0, 1))
    return np.asarray(np.where(variance > 0, value / np.sqrt(np.maximum(variance, 1e-300)), 0.0))


def _gamma_tail(z: Array, skew: Array) -> Array:
    """Computes P(X > z) of a gamma variable of mean 0, variance 1 and this signed skewness."""
    steep = np.maximum(np.abs(skew), 1e-3)
    shape = 4 / steep**2
    root = np.sqrt(shape)
    right = gammaincc(shape, np.maximum(shape + z * root, 0.0))
    left = gammainc(shape, np.maximum(shape - z * root, 0.0))
    return np.asarray(np.where(skew >= 0, right, left))


def pit_p(counts: Array) -> Array:
    """Computes a chi-square p value of rank-PITs; 1 where bins expect fewer than 10 tokens.

    Args:
        counts: Tokens per bin [..., trajectories, bins].
    """
    total = counts.sum(axis=-2)
    expected = total.sum(axis=-1, keepdims=True) / BINS
    chi2 = ((total - expected) ** 2 / np.maximum(expected, 1e-300)).sum(axis=-1)
    enough = expected[..., 0] >= _MIN_EXPECTED
    return np.asarray(np.where(enough, chdtrc(BINS - 1, chi2), 1.0))


def shared_noise_p(pit: Array) -> Array:
    """Tests whether trajectories owe their tokens to the same random numbers.

    A bet, step by step, that a trajectory's PIT leans to where those before it leaned at the same
    step; fair if draws are independent, so the running product is a test martingale.

    Args:
        pit: [..., trajectories, steps], NaN after the end of a trajectory.
    """
    known = ~np.isnan(pit)
    z = np.sqrt(3.0) * (2 * np.where(known, pit, 0.5) - 1)
    before = np.cumsum(z, axis=-2) - z
    count = np.cumsum(known, axis=-2) - known
    product = z * before / np.maximum(count, 1)
    paths = np.log1p(_BETS * product[..., None]).sum(axis=-2).cumsum(axis=-2)
    mixed = logsumexp(paths, axis=-1) - np.log(_BETS.size)
    return np.asarray(np.exp(-np.maximum(mixed.max(axis=-1), 0.0)))


@dataclass(frozen=True)
class Repeat:
    """The least likely beginning that two trajectories of one prompt share.

    Attributes:
        p: Bound on the chance of that, over all pairs.
        first: Index of one trajectory.
        second: Index of the other.
        length: Tokens that they share.
    """

    p: float
    first: int = -1
    second: int = -1
    length: int = 0


def repeats(
    prompts: Sequence[object], tokens: Sequence[NDArray[np.int32]], logp: Sequence[Array]
) -> Repeat:
    """Tests shared beginnings of independent draws: p <= pairs x probability of the beginning.

    A second draw repeats a beginning of probability at most q with probability at most q, so m
    pairs do with probability at most m q, whichever q the data show.
    """
    groups: dict[object, list[int]] = {}
    for index, prompt in enumerate(prompts):
        groups.setdefault(prompt, []).append(index)
    pairs = sum(len(group) * (len(group) - 1) // 2 for group in groups.values())
    best = Repeat(1.0)
    for group in groups.values():
        # Neighbours in sorted order share the longest beginnings.
        ordered = sorted(group, key=lambda i: tokens[i].tolist())
        for one, other in itertools.pairwise(ordered):
            length = _shared(tokens[one], tokens[other])
            chance = max(float(logp[one][:length].sum()), float(logp[other][:length].sum()))
            p = min(1.0, pairs * float(np.exp(min(0.0, chance))))
            if length and p < best.p:
                best = Repeat(p, min(one, other), max(one, other), length)
    return best


def _shared(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    least = min(one.size, other.size)
    differ = np.flatnonzero(one[:least] != other[:least])
    return int(differ[0]) if differ.size else least


def p_values(sums: Sums, pit: Array) -> dict[str, Array]:
    """Computes every test but `repeats`, for whole audits at once; [...] audits each.

    Args:
        sums: Sums of the trajectories of each audit, in the order of their keys.
        pit: Rank-PITs [..., trajectories, steps].
    """
    return {
        "likelihood": likelihood_p(sums.ratios),
        "some-steps": some_steps_p(sums.places),
        "some-outputs": some_outputs_p(sums.ratios),
        "surprisal": contrast_p(sums.surprisal),
        "rank-pit": pit_p(sums.counts),
        "gain": contrast_p(sums.gain),
        "gain-cgf": likelihood_p(sums.tilts),
        "shared-noise": shared_noise_p(pit),
    }


def alarms(p: Mapping[str, Array], alpha: float = ALPHA) -> dict[str, NDArray[np.bool_]]:
    """Says which tests fire at the level of the whole battery."""
    return {name: np.asarray(value <= SHARES[name] * alpha) for name, value in p.items()}


@dataclass
class SamplerTests:
    """The sampler tests of one arm, over the scores of its trajectories.

    Attributes:
        names: Names of the alternatives, in the order of the scores.
        alpha: Level of the whole battery; `SHARES` splits it.
    """

    names: Sequence[str]
    alpha: float = ALPHA
    seen: dict[Key, tuple[NDArray[np.int32], StepScores]] = field(default_factory=dict)

    def add(self, key: Key, tokens: NDArray[np.int32], scores: StepScores) -> None:
        """Takes one trajectory: its tokens, and the scores of all of its steps."""
        self.seen[key] = (tokens, scores)

    def findings(self) -> list[Finding]:
        """Returns one finding per test; FAILED if it fires at its share of the level."""
        if not self.seen:
            reason = "no trajectory was scored"
            return [Finding(f"sampler: {n}", CheckWord.UNKNOWN, math.nan, reason) for n in SHARES]
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
        scores: StepScores,
        repeat: Repeat,
    ) -> Finding:
        level = SHARES[name] * self.alpha
        fired = p <= level
        text = f"{said}p {'<=' if p < 1e-300 else '='} {max(p, 1e-300):.2g} (alarm at {level:.2g})"
        text += f" over {len(keys)} trajectories, {int((~np.isnan(scores.pit)).sum())} tokens"
        if fired:
            text = f"{_MEANING[name]}: {text}"
        witness = _where(name, keys, scores, repeat) if fired else None
        verdict = CheckWord.FAILED if fired else CheckWord.FINE
        return Finding(f"sampler: {name}", verdict, p, text, witness, {"p": p, "level": level})


def _where(name: str, keys: list[Key], scores: StepScores, repeat: Repeat) -> Witness:
    """Finds the step that weighs most in a test that fired."""
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
    """Keeps the bets of the step and alternative that weigh most; -inf elsewhere."""
    step, best = np.unravel_index(int(np.argmax(ratios.sum(axis=0))), ratios.shape[1:])
    found = np.full(ratios.shape[:2], -np.inf)
    found[:, step] = ratios[:, step, best]
    return found


def _padded(each: Sequence[StepScores]) -> StepScores:
    """Stacks trajectories of different lengths."""
    longest = max(one.logp.size for one in each)

    def stack(name: str, fill: float) -> Array:
        parts = [getattr(one, name) for one in each]
        whole = np.full((len(parts), longest, *parts[0].shape[1:]), fill)
        for row, part in enumerate(parts):
            whole[row, : len(part)] = part
        return whole

    fills = {"logp": 0.0, "ratios": 0.0, "tilts": 0.0, "surprisal": 0.0, "gain": 0.0}
    return StepScores(
        **{n: stack(n, fill) for n, fill in fills.items()}, pit=stack("pit", math.nan)
    )


def joined(blocks: Sequence[StepScores]) -> StepScores:
    """Joins the scores of one trajectory's blocks of steps."""
    names = ("logp", "ratios", "tilts", "surprisal", "gain", "pit")
    return StepScores(**{n: np.concatenate([getattr(b, n) for b in blocks]) for n in names})
