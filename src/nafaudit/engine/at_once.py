"""One step of many rows on a device: everything about it in one table, for one transfer.

Nothing here waits for the device (a rule may). So logits that are no law raise nothing yet: that is
a column of the table, for whoever reads it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nafaudit.mechanisms.laws import NEG_INF, normalise
from nafaudit.mechanisms.protocols import Rule


def sent(values: Sequence[float], device: torch.device) -> Tensor:
    """Numbers on their way to a device; nobody waits for their arrival."""
    return torch.tensor(values, dtype=torch.float64).to(device, non_blocking=True)


def table_of_step(
    rule: Rule,
    prefixes: Sequence[Sequence[int]],
    logits: tuple[Tensor, Tensor],
    allowance: Tensor,
    noise: Tensor,
) -> Tensor:
    """Serves and samples one step of every row.

    Args:
        rule: What serves.
        prefixes: Tokens of each row so far.
        logits: Of the safe and of the risky model [rows, lanes], warped.
        allowance: What each row may be charged [rows].
        noise: Gumbel noise [rows, vocabulary]; lanes beyond the vocabulary are not drawn.

    Returns:
        Per row, in float64: whether its logits are no law, the token, the charge, theta, and the
        token's log-probability as served, of the safe and of the risky model.
    """
    (safe, no_safe), (risky, no_risky) = map(law_or_flat, logits)
    served = rule.serve(prefixes, safe, risky, allowance)
    token = (served.law[:, : noise.shape[-1]] + noise).argmax(dim=-1)
    drawn = [law.gather(-1, token.unsqueeze(-1)).squeeze(-1) for law in (served.law, safe, risky)]
    columns = [no_safe | no_risky, token, served.charge, served.theta, *drawn]
    return torch.stack([column.to(torch.float64) for column in columns], dim=1)


def law_or_flat(logits: Tensor) -> tuple[Tensor, Tensor]:
    """`log_law`, but a row for which that would raise gets a flat law and a mark.

    Returns:
        Log-laws [rows, lanes] in float64, and True [rows] for every row whose logits are no law.
    """
    top = logits.amax(dim=-1, keepdim=True)
    x = logits.to(torch.float64)
    x = torch.where(top == torch.inf, torch.where(x == torch.inf, 0.0, NEG_INF), x)
    none = torch.isnan(top) | (top == NEG_INF)  # amax carries NaN
    return normalise(torch.where(none, 0.0, x)), none.squeeze(-1)
