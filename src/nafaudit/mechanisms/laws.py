"""Next-token laws as float64 log-probabilities: made from logits, warped, compared.

Float32 log-softmax loses 1e-5 of mass at 128k tokens, which is more than a budget of 1e-3
forgives; so a law is normalised in float64, whatever the model computes in.
"""

from __future__ import annotations

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
    top = logits.amax(dim=-1, keepdim=True).to(torch.float64)
    if torch.isfinite(top).all():  # amax carries NaN, so this one look covers every entry
        x = logits.to(torch.float64)
        mass = _log_mass(x, top)
        return x - mass if x is logits else x.sub_(mass)
    x = logits.to(torch.float64)
    if torch.isnan(top).any():
        raise LawError("a model returned NaN logits; no law can be served from them.")
    if (top == NEG_INF).any():
        raise LawError("a model forbids every token (all logits are -inf).")
    certain = torch.where(x == torch.inf, 0.0, NEG_INF).to(x)
    return normalise(torch.where(top == torch.inf, certain, x))


def log_probabilities(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probability [rows] of one token a row: `log_law` there, without the rest of the law."""
    size = max(1, _PIECE // logits.shape[-1])
    pieces = [slice(start, start + size) for start in range(0, len(logits), size)]
    at = tokens.unsqueeze(-1)
    return torch.cat([_at(logits[piece], at[piece]) for piece in pieces]).squeeze(-1)


def _at(logits: Tensor, at: Tensor) -> Tensor:
    top = logits.amax(dim=-1, keepdim=True).to(torch.float64)
    if torch.isfinite(top).all():
        return logits.gather(-1, at) - _log_mass(logits.to(torch.float64), top)
    return log_law(logits).gather(-1, at)


def normalise(x: Tensor) -> Tensor:
    """Subtracts the log of the total mass of each row."""
    return x - torch.logsumexp(x, dim=-1, keepdim=True)


def _log_mass(x: Tensor, top: Tensor) -> Tensor:
    """`torch.logsumexp` to the bit, for rows whose largest entry is known and finite."""
    return (x - top).exp_().sum(dim=-1, keepdim=True).log_().add_(top)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """D_KL(p || q) per row in nats, from log-probabilities; inf where q forbids what p serves.

    The one definition of the divergence: every charge in nats of KL is a value of this function.
    """
    if p.device.type == "cpu" and bool(torch.isfinite(p.amin()) & torch.isfinite(q.amin())):
        # Nothing is forbidden: the same numbers without the masks.
        return (p - q).mul_(torch.exp(p)).sum(dim=-1).clamp_min_(0.0)
    # Written out where q is -inf: an underflowing exp(p) times infinity would be NaN.
    terms = torch.where(q == NEG_INF, torch.inf, torch.exp(p) * (p - q))
    return torch.where(p == NEG_INF, 0.0, terms).sum(dim=-1).clamp_min(0.0)


def geodesic(base: Tensor, ratio: Tensor, theta: Tensor) -> Tensor:
    """Log p_theta with p_theta ~ p_safe^(1-theta) p_risky^theta, for 0 < theta < 1.

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
