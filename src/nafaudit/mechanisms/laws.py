"""Next-token laws as float64 log-probabilities: made from logits, warped, compared.

Float32 log-softmax loses 1e-5 of mass at 128k tokens, which is more than a budget of 1e-3
forgives; so a law is normalised in float64, whatever the model computes in.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from nafaudit.core.design import Decoding
from nafaudit.core.errors import LawError

NEG_INF = float("-inf")
# Rows are worked on in pieces of about this many numbers, to stay in a processor's cache.
_PIECE = 1 << 15


def log_law(logits: Tensor) -> Tensor:
    """Normalises logits [rows, vocabulary] to float64 log-probabilities.

    A logit of -inf forbids its token; logits of +inf share all the mass between them.

    Raises:
        LawError: A row has a NaN or forbids every token.
    """
    x = logits.to(torch.float64)
    law = normalise(x)
    if not any(map(math.isnan, law[:, 0].cpu().tolist())):  # a row without a law is NaN throughout
        return law
    top = x.amax(dim=-1, keepdim=True)
    if torch.isnan(top).any():
        raise LawError("a model returned NaN logits; no law can be served from them.")
    if (top == NEG_INF).any():
        raise LawError("a model forbids every token (all logits are -inf).")
    certain = torch.where(x == torch.inf, 0.0, NEG_INF).to(x)
    return normalise(torch.where(top == torch.inf, certain, x))


def log_probabilities(logits: Tensor, tokens: Tensor) -> Tensor:
    """Computes the log-probability [rows] of one token a row, without keeping the law."""
    size = max(1, _PIECE // logits.shape[-1] if logits.device.type == "cpu" else len(logits))
    pieces = [slice(start, start + size) for start in range(0, len(logits), size)]
    at = tokens.unsqueeze(-1)
    return torch.cat([log_law(logits[piece]).gather(-1, at[piece]) for piece in pieces]).squeeze(-1)


def normalise(x: Tensor) -> Tensor:
    """Subtracts the log of the total mass of each row."""
    return torch.log_softmax(x, dim=-1)


class LawGap(NamedTuple):
    """The divergence of a law p from a law q, row by row.

    Attributes:
        ratio: log p - log q; 0 where both forbid the token.
        weighted: p times that.
        total: D_KL(p || q).
    """

    ratio: Tensor
    weighted: Tensor
    total: Tensor


def gap(p: Tensor, q: Tensor) -> LawGap:
    """Compares log-laws [rows, vocabulary]; the total is inf where q forbids what p serves."""
    ratio = p - q
    if p.device.type == "cpu":  # elsewhere, to look is to wait
        weighted = torch.exp(p).mul_(ratio)
        total = weighted.sum(dim=-1)
        if not any(map(math.isnan, total.tolist())):  # nothing is forbidden
            return LawGap(ratio, weighted, total.clamp_min_(0.0))
    no_p, no_q = p == NEG_INF, q == NEG_INF
    ratio = torch.where(no_p & no_q, 0.0, ratio)
    # Written out where q is -inf: an underflowing exp(p) times infinity would be NaN.
    weighted = torch.where(no_q, torch.inf, torch.exp(p).mul_(ratio))
    weighted = torch.where(no_p, 0.0, weighted)
    return LawGap(ratio, weighted, weighted.sum(dim=-1).clamp_min_(0.0))


def kl(p: Tensor, q: Tensor) -> Tensor:
    """Computes D_KL(p || q) per row in nats; inf where q forbids what p serves.

    The one definition of the divergence: every charge in nats of KL is a value of this function,
    or of `tilted`, which is the same number for laws between two others.
    """
    return gap(p, q).total


class Tilted(NamedTuple):
    """A law [vocabulary] between two others, and its D_KL to the first."""

    law: Tensor
    charge: float


def tilted(base: Tensor, ratio: Tensor, theta: float) -> Tilted:
    """Computes a row of `geodesic` with its charge theta E[ratio] - log(mass), one exp less.

    Unlike there, nothing has to be -inf: base and base + ratio are log-laws, so that no entry
    of the mixture exceeds 0, and its mass is at most 1.
    """
    law = torch.add(base, ratio, alpha=theta)
    weight = torch.exp(law)
    mass = weight.sum().item()
    if not mass > 0:
        return Tilted(law, math.nan)
    log_mass = math.log(mass)
    return Tilted(law.sub_(log_mass), theta * torch.dot(weight, ratio).item() / mass - log_mass)


def geodesic(base: Tensor, ratio: Tensor, theta: Tensor) -> Tensor:
    """Computes log p_theta with p_theta ~ p_safe^(1-theta) p_risky^theta, for 0 < theta < 1.

    Args:
        base: log p_safe, -inf wherever either law forbids the token.
        ratio: log p_risky - log p_safe where both allow it, 0 elsewhere.
        theta: One weight per row.
    """
    return normalise(base + theta.unsqueeze(-1) * ratio)


def warp(logits: Tensor, seen: Tensor | None, decoding: Decoding) -> Tensor:
    """Applies repetition penalty, then temperature, to logits [rows, vocabulary].

    Args:
        logits: As the model returned them, cut to the tokenizer's vocabulary.
        seen: True where a token occurs in the row's prefix; needed if there is a penalty.
        decoding: The warps.
    """
    if not decoding.warps:
        return logits
    x = logits.to(torch.float64)
    if decoding.repetition_penalty != 1.0:
        if seen is None:
            raise ValueError("a repetition penalty needs the tokens already seen.")
        penalty = decoding.repetition_penalty
        x = torch.where(seen, torch.where(x > 0, x / penalty, x * penalty), x)
    return x / decoding.temperature
