"""Alternative laws that a sampler might have drawn from: the sampler tests bet on them.

Each alternative is a law q made from the served law p, the two models' laws and the weight,
before the token is seen; `step_scores` turns a block of replayed steps into the numbers that
`nafaudit.auditor.sampler` adds up. A new alternative is an entry of `ALTERNATIVES`.

Some alternatives favour or avoid a set of tokens that is known before the draw: those that the
text has already, those that would repeat a pair, and stop tokens (`token_sets`).

Every q is mixed with a little of p, so that one token which q forbids costs a bet most of its
stake and not all of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nafaudit.auditor.sampler import StepScores

# Share of p in every alternative.
_KEPT = 1e-2
# Contrasts are clipped at this many standard deviations, and left out where the law is so sharp
# that a rare token would decide a sum.
_CLIP = 4.0
_LEAST_VARIANCE = 1e-2
_SHARPEST = 0.99
# Multiples of k that are tried where a promise does not fit.
OTHER_K = (0.5, 0.75, 1.25, 1.5, 2.0, 3.0, 4.0)
# Of two promises that fit, neither is preferred unless it makes the tokens 20 times likelier.
_ALIKE = math.log(20)
# Below this vocabulary size, exponentials are taken in float64; above it 1e-6 of a
# normaliser changes nothing and float32 is three times as fast.
_DOUBLE_UPTO = 1024


# By name of the set: its mass in the served law, and 1 if the drawn token is in it [steps, 2].
TokenSets = Mapping[str, Tensor]
SET_NAMES = ("stop", "seen", "pair")


def token_sets(
    law: Tensor,
    prompt: Sequence[int],
    written: NDArray[np.integer],
    first: int,
    stops: Collection[int],
) -> TokenSets:
    """Returns tokens that are special at consecutive steps of one output, before the draw.

    Stop tokens; tokens that prompt and output have already; tokens that would repeat a pair.

    Args:
        law: Served log-laws [steps, vocabulary].
        prompt: Token ids of the prompt.
        written: All token ids of the output.
        first: Number of the first step.
        stops: Ids that end an output.
    """
    last = first + len(law)
    text = np.concatenate([np.asarray(prompt, np.int64), np.asarray(written[:last], np.int64)])
    at = np.arange(first, last) + len(prompt)
    ids, place, which = np.unique(text, return_index=True, return_inverse=True)
    values = law.cpu().numpy()
    seen = np.where(place[None, :] < at[:, None], np.exp(values[:, ids]), 0.0).sum(axis=-1)
    ending = np.array(sorted(stops), np.int64)
    found = {
        "stop": [np.exp(values[:, ending]).sum(axis=-1), np.isin(text[at], ending)],
        "seen": [seen, place[which[at]] < at],
        "pair": _repeated_pairs(values, text.tolist(), at[0]),
    }
    return {name: torch.from_numpy(np.stack(x, axis=-1)).to(law) for name, x in found.items()}


def _repeated_pairs(
    values: NDArray[np.floating], text: Sequence[int], begin: int
) -> list[NDArray[np.float64]]:
    """Returns the mass of tokens that followed the last one before, and whether one was drawn."""
    after: dict[int, set[int]] = {}
    for one, other in itertools.pairwise(text[:begin]):
        after.setdefault(one, set()).add(other)
    rows = []
    for row, token in enumerate(text[begin:]):
        known = after.setdefault(text[begin + row - 1], set())
        mass = math.fsum(math.exp(values[row, one]) for one in known)
        rows.append((mass, float(token in known)))
        known.add(token)
    return list(np.array(rows, np.float64).T)


@dataclass(frozen=True, eq=False)
class Step:
    """A block of steps, before any token is looked at; one row each.

    Attributes:
        law: Served log-law p.
        safe: Log-law of the safe model.
        risky: Log-law of the risky model.
        theta: Weight of the risky law; NaN for rules without one.
        sets: Tokens that are in a set known before the draw; None if that is not known.
    """

    law: Tensor
    safe: Tensor
    risky: Tensor
    theta: Tensor
    sets: TokenSets | None = None

    @cached_property
    def mass(self) -> Tensor:
        """Probabilities of the served law."""
        return torch.exp(self.law)

    @cached_property
    def descending(self) -> Tensor:
        """Probabilities of the served law, the largest first."""
        if self.mass.device.type != "cpu":
            return torch.sort(self.mass, dim=-1, descending=True).values
        # NumPy sorts by vector instructions, several times as fast.
        return torch.from_numpy(np.sort(self.mass.numpy(), axis=-1)[..., ::-1].copy())

    @cached_property
    def ratio(self) -> Tensor:
        """Log p_risky - log p_safe where both allow the token, else 0."""
        both = torch.isfinite(self.safe) & torch.isfinite(self.risky)
        return torch.where(both, self.risky - self.safe, 0.0)

    @cached_property
    def gain(self) -> Tensor:
        """Log p - log p_safe where p serves the token and the safe law allows it, else 0."""
        both = torch.isfinite(self.law) & torch.isfinite(self.safe)
        return torch.where(both, self.law - self.safe, 0.0)


# log q(y) - log p(y) of the tokens y [rows, tokens].
Alternative = Callable[[Step, Tensor], Tensor]


def _at(x: Tensor, token: Tensor) -> Tensor:
    return x.gather(-1, token)


def _log_total(x: Tensor) -> Tensor:
    """Computes log sum exp of rows whose entries are of moderate size, nearly always; [rows, 1]."""
    total = torch.exp(x).sum(dim=-1, keepdim=True)
    if ((total > 1e-30) & (total < 1e30)).all():
        return torch.log(total)
    return torch.logsumexp(x, dim=-1, keepdim=True)


def _tilted(step: Step, direction: Tensor, weight: Tensor | float, token: Tensor) -> Tensor:
    """Computes log q / p for q ~ p exp(weight direction)."""
    moved = step.law + weight * direction
    return _at(weight * direction, token) - _log_total(moved)


def _tempered(temperature: float) -> Alternative:
    def ratio(step: Step, token: Tensor) -> Tensor:
        scaled = step.law / temperature
        return _at(scaled, token) - _log_total(scaled) - _at(step.law, token)

    return ratio


def _top_k(count: int) -> Alternative:
    def ratio(step: Step, token: Tensor) -> Tensor:
        top = step.descending[:, :count]
        inside = _at(step.mass, token) >= top[:, -1:]
        return torch.where(inside, -torch.log(top.sum(dim=-1, keepdim=True)), -math.inf)

    return ratio


def _top_p(share: float) -> Alternative:
    def ratio(step: Step, token: Tensor) -> Tensor:
        # A token belongs if those before it have less than the share.
        running = torch.cumsum(step.descending, dim=-1)
        last = (running - step.descending < share).sum(dim=-1, keepdim=True) - 1
        inside = _at(step.mass, token) >= _at(step.descending, last)
        return torch.where(inside, -torch.log(_at(running, last)), -math.inf)

    return ratio


def _above(floor: float) -> Alternative:
    def ratio(step: Step, token: Tensor) -> Tensor:
        # A law without any token above the floor stays as it is.
        kept = torch.where(step.mass >= floor, step.mass, 0.0).sum(dim=-1, keepdim=True)
        inside = _at(step.mass, token) >= floor
        cut = torch.where(inside, -torch.log(kept), -math.inf)
        return torch.where(kept > 0, cut, 0.0)

    return ratio


def _reweighted(shift: float) -> Alternative:
    def ratio(step: Step, token: Tensor) -> Tensor:
        theta = torch.nan_to_num(step.theta, nan=0.0)
        moved = ((theta + shift).clamp(0, 1) - theta).unsqueeze(-1)
        return _tilted(step, step.ratio, moved, token)

    return ratio


def _arithmetic(step: Step, token: Tensor) -> Tensor:
    weight = torch.nan_to_num(step.theta, nan=0.5).clamp(0, 1).unsqueeze(-1)
    mixed = (1 - weight) * torch.exp(_at(step.safe, token))
    mixed += weight * torch.exp(_at(step.risky, token))
    return torch.log(mixed) - _at(step.law, token)


def _favours(name: str, weight: float) -> Alternative:
    """Makes q ~ p exp(weight) on a set of tokens, p elsewhere."""

    def ratio(step: Step, token: Tensor) -> Tensor:
        if step.sets is None:
            return torch.zeros(token.shape, dtype=step.law.dtype, device=step.law.device)
        mass, hit = step.sets[name].to(step.law).unsqueeze(1).unbind(-1)
        return weight * hit - torch.log1p(mass.clamp(0, 1) * math.expm1(weight))

    return ratio


def _partly(share: float, other: Alternative) -> Alternative:
    def ratio(step: Step, token: Tensor) -> Tensor:
        return torch.log1p(share * torch.expm1(other(step, token)))

    return ratio


def _safe(step: Step, token: Tensor) -> Tensor:
    return _at(step.safe, token) - _at(step.law, token)


def _risky(step: Step, token: Tensor) -> Tensor:
    return _at(step.risky, token) - _at(step.law, token)


def _greedy(step: Step, token: Tensor) -> Tensor:
    mass = _at(step.mass, token)
    return torch.where(mass >= step.mass.amax(dim=-1, keepdim=True), -torch.log(mass), -math.inf)


def _uniform(step: Step, token: Tensor) -> Tensor:
    allowed = torch.isfinite(step.law).sum(dim=-1, keepdim=True)
    return -torch.log(allowed.to(step.law.dtype)) - _at(step.law, token)


ALTERNATIVES: dict[str, Alternative] = {
    "safe": _safe,
    "risky": _risky,
    "partly safe": _partly(0.2, _safe),
    "partly risky": _partly(0.2, _risky),
    "temperature 0.7": _tempered(0.7),
    "temperature 0.85": _tempered(0.85),
    "temperature 0.95": _tempered(0.95),
    "temperature 1.1": _tempered(1.1),
    "temperature 1.3": _tempered(1.3),
    "top 10": _top_k(10),
    "top 50": _top_k(50),
    "top 200": _top_k(200),
    "top 80 %": _top_p(0.8),
    "top 90 %": _top_p(0.9),
    "top 95 %": _top_p(0.95),
    "top 99 %": _top_p(0.99),
    "above 1 %": _above(0.01),
    "above 0.1 %": _above(0.001),
    "theta + 0.1": _reweighted(0.1),
    "theta + 0.03": _reweighted(0.03),
    "theta - 0.1": _reweighted(-0.1),
    "arithmetic mixture": _arithmetic,
    "5 % greedy": _partly(0.05, _greedy),
    "30 % greedy": _partly(0.3, _greedy),
    "5 % uniform": _partly(0.05, _uniform),
    "fewer repetitions": _favours("seen", -1.0),
    "somewhat fewer repetitions": _favours("seen", -0.3),
    "more repetitions": _favours("seen", 0.5),
    "hardly any repeated pairs": _favours("pair", -5.0),
    "hardly any stops": _favours("stop", -5.0),
    "fewer stops": _favours("stop", -0.7),
    "more stops": _favours("stop", 0.7),
}


def likeliest(fitting: Mapping[float, float]) -> tuple[float, ...]:
    """Returns which of some promises the tokens speak for: the one without debt, one k, or both.

    Args:
        fitting: Log-probability of all tokens under each promise that nothing refutes, by what k is
            multiplied by; 1 is the promise without debt.
    """
    best = max(fitting.values(), default=0.0)
    other_k = sorted((logp, factor) for factor, logp in fitting.items() if factor != 1)[-1:]
    ways = ([1.0] if 1 in fitting else []) + [factor for _, factor in other_k]
    return tuple(factor for factor in ways if fitting[factor] >= best - _ALIKE)


def other_promise(factors: Sequence[float], debt: float) -> str:
    """Says which other promise a decoder's tokens fit; empty if none.

    Args:
        factors: What k is multiplied by there (`likeliest`); 1 if it is the debt that is left out.
        debt: The largest debt of an output under the promise that they do not fit.
    """
    if not factors:
        return ""
    if factors[0] != 1:
        return f"its tokens fit the promise at {factors[0]:g} times k, not at k"
    owed = f"not with a prefix debt of up to {debt:.4g} nats"
    if len(factors) > 1:
        return f"its tokens fit the promise without debt, and at {factors[1]:g} times k, {owed}"
    return (
        f"its tokens fit the promise without debt, {owed}. If its promise has none: run it with "
        "--no-prefix-debt"
    )


# Weights of the gain in the laws that bet on L - Z; -1 would be the safe law itself.
TILTS = (-0.4, -0.1, 0.1, 0.4)


def step_scores(
    law: Tensor,
    safe: Tensor,
    risky: Tensor,
    theta: Tensor,
    token: NDArray[np.integer],
    uniform: NDArray[np.float64],
    sets: TokenSets | None = None,
) -> StepScores:
    """Scores a block of steps, one row each.

    Args:
        law: Replayed served log-laws [steps, vocabulary], float64.
        safe: Log-laws of the safe model.
        risky: Log-laws of the risky model.
        theta: Weights [steps]; NaN for rules without one.
        token: The tokens that were written [steps].
        uniform: The auditor's own uniform numbers [steps], for the PIT.
        sets: Repeated tokens and stops, see `token_sets`; without it there is no bet on them.
    """
    drawn = torch.from_numpy(np.array(token, np.int64)).to(law.device).unsqueeze(-1)
    found = drawn_scores(law, safe, risky, theta, drawn, uniform, sets)
    return StepScores(**{name: values[:, 0] for name, values in vars(found).items()})


def drawn_scores(
    law: Tensor,
    safe: Tensor,
    risky: Tensor,
    theta: Tensor,
    drawn: Tensor,
    uniform: NDArray[np.float64] | None = None,
    sets: TokenSets | None = None,
) -> StepScores:
    """Scores several tokens of every step at the price of one.

    Args:
        law: Replayed served log-laws [steps, vocabulary], float64.
        safe: Log-laws of the safe model.
        risky: Log-laws of the risky model.
        theta: Weights [steps]; NaN for rules without one.
        drawn: Token ids [steps, tokens].
        uniform: Uniform numbers of steps with one token; without them there is no PIT.
        sets: Of steps with one token.

    Returns:
        Scores [steps, tokens, ...].
    """
    logp = _at(law, drawn)
    kind = torch.float64 if law.shape[-1] <= _DOUBLE_UPTO else torch.float32
    step = Step(law.to(kind), safe.to(kind), risky.to(kind), theta.to(kind), sets)
    ratios = [_kept(alternative(step, drawn)) for alternative in ALTERNATIVES.values()]
    tilts = [_kept(_tilted(step, step.gain, weight, drawn)) for weight in TILTS]
    surprise = torch.where(step.mass > 0, -step.law, 0.0)
    return StepScores(
        logp=_numpy(logp),
        ratios=_numpy(torch.stack(ratios, dim=-1)),
        tilts=_numpy(torch.stack(tilts, dim=-1)),
        surprisal=_contrast(step, surprise, drawn),
        gain=_contrast(step, step.gain, drawn),
        pit=np.full(drawn.shape, np.nan)
        if uniform is None
        else _rank_pit(step, drawn, uniform)[:, None],
    )


def _numpy(x: Tensor) -> NDArray[np.float64]:
    return x.to(torch.float64).cpu().numpy()


def _kept(ratio: Tensor) -> Tensor:
    """Computes log ((1 - e) q / p + e); +inf where p forbids what was drawn."""
    inside = torch.nan_to_num(ratio.to(torch.float64), nan=0.0, posinf=700.0, neginf=-math.inf)
    floor = torch.full_like(inside, math.log(_KEPT))
    return torch.logaddexp(inside + math.log1p(-_KEPT), floor)


def _contrast(step: Step, x: Tensor, token: Tensor) -> NDArray[np.float64]:
    """Computes centred value, variance and third moment of x(y), clipped; 0 for a sharp law."""
    mass = step.mass
    mean = (mass * x).sum(dim=-1, keepdim=True)
    spread = (mass * (x - mean) ** 2).sum(dim=-1, keepdim=True)
    reach = _CLIP * torch.sqrt(spread)
    clipped = torch.clamp(x - mean, -reach, reach)
    middle = (mass * clipped).sum(dim=-1, keepdim=True)
    centred = clipped - middle
    square = mass * centred**2
    variance = square.sum(dim=-1, keepdim=True)
    third = (square * centred).sum(dim=-1, keepdim=True)
    use = (spread >= _LEAST_VARIANCE) & (mass.amax(dim=-1, keepdim=True) <= _SHARPEST)
    value = _at(centred, token)
    parts = torch.stack([value, variance.expand_as(value), third.expand_as(value)], dim=-1)
    return _numpy(torch.where(use.unsqueeze(-1), parts, 0.0))


def _rank_pit(step: Step, token: Tensor, uniform: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mass of likelier tokens and a uniform part of the mass of equally likely ones."""
    own = step.mass.gather(-1, token)
    above = torch.where(step.mass > own, step.mass, 0.0).sum(dim=-1)
    ties = torch.where(step.mass == own, step.mass, 0.0).sum(dim=-1)
    return np.clip(_numpy(above) + uniform * _numpy(ties), 0.0, 1.0)
