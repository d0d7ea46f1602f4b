"""Parts of several faults, and a slow solver that shares no code with the engine's.

The slow solver is plain bisection in float64 NumPy. Tests hold the fast solver and the auditor's
own to it, so that a mistake in one cannot confirm itself.
"""

from __future__ import annotations

import inspect
import math
import re
import zlib

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from nafaudit.mechanisms.reference import AnchoredDecoder, ReferenceRow
from nafaudit.protocols import Law, Output


def name_of(kind: type[AnchoredDecoder]) -> str:
    """Returns a decoder's name in small letters, with hyphens."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", kind.__name__).lower()


def about(kind: type[AnchoredDecoder]) -> str:
    """Returns one line on what a decoder does."""
    return (inspect.getdoc(kind) or "").splitlines()[0]


def shown(kind: type[AnchoredDecoder], *claims: str) -> type[AnchoredDecoder]:
    """Returns the same decoder, whose outputs show the tokens and some of its claims.

    Args:
        kind: A decoder.
        claims: Which attributes of `Output` stay, as far as it claims them.
    """

    def output(self: AnchoredDecoder, row: ReferenceRow) -> Output:
        out = kind.output(self, row)
        return Output(out.tokens, **{claim: getattr(out, claim) for claim in claims})

    said = f"It shows {', '.join(claims) or 'its tokens alone'}."
    parts = {
        "__doc__": f"{about(kind)}\n\n{said}",
        "__module__": kind.__module__,
        "output": output,
        "shows_laws": "laws" in claims,
    }
    return type(f"{kind.__name__}Showing" if claims else f"Silent{kind.__name__}", (kind,), parts)


def silent(kind: type[AnchoredDecoder]) -> type[AnchoredDecoder]:
    """Returns the same decoder, whose outputs show their tokens and claim nothing."""
    return shown(kind)


def chance_of(*numbers: int) -> int:
    """Returns a number below 2**32 that looks like chance, and is the same in every process."""
    return zlib.crc32(" ".join(map(str, numbers)).encode())


def only(law: Law, kept: NDArray[np.intp]) -> Law:
    """Returns a law restricted to some tokens."""
    cut = np.full_like(law, -np.inf)
    cut[kept] = law[kept]
    return np.asarray(log_softmax(cut))


def blend(first: Law, second: Law, share: float) -> Law:
    """Returns the arithmetic mixture with `share` of the second law."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.logaddexp(first + np.log1p(-share), second + np.log(share)))


def weight_of(law: Law, safe: Law, risky: Law) -> float:
    """Returns the weight of the risky law in a geometric mixture, from two log-odds."""
    known = np.flatnonzero((safe > -np.inf) & (risky > -np.inf))
    gap = (risky - safe)[known]
    high, low = known[np.argmax(gap)], known[np.argmin(gap)]
    span = (risky - safe)[high] - (risky - safe)[low]
    if span < 1e-9:
        return 1.0
    return float(np.clip(((law - safe)[high] - (law - safe)[low]) / span, 0.0, 1.0))


def allowance_of(
    row: ReferenceRow, debt: float, steps: int | None = None, times: float = 1.0
) -> float:
    """Returns what a running budget allows.

    Args:
        row: The output so far.
        debt: Debt of its prompt.
        steps: Steps that have been granted; the step under way is the last one if None.
        times: How many times its k is granted at each step.
    """
    k = row.request.k * times
    if k == math.inf:
        return math.inf
    earned = (row.step + 1 if steps is None else steps) * k
    return max(0.0, earned - row.spent - debt)


def divergence(p: Law, q: Law) -> float:
    """Returns D_KL(p || q) of two log-laws in nats, summed exactly (math.fsum)."""
    inside = p > -np.inf
    # Also where a probability is so small that it is 0 as a number.
    if np.any(q[inside] == -np.inf):
        return math.inf
    return max(0.0, math.fsum(np.exp(p[inside]) * (p[inside] - q[inside])))


def mixture(safe: Law, risky: Law, theta: float) -> Law:
    """Returns log p_theta; weights 0 and 1 give the two laws themselves."""
    if theta == 0:
        return safe
    if theta == 1:
        return risky
    with np.errstate(invalid="ignore"):
        x = (1 - theta) * safe + theta * risky
    top = x.max()
    if top == -np.inf:
        raise ValueError("the two laws share no token.")
    return np.asarray(x - (top + math.log(math.fsum(np.exp(x - top)))))
