"""Prefix debt: what a prompt already owes before the first token is written.

One definition, shared by decoding and by replay. A prompt that the risky model knows much
better than the safe one is a quotation in progress; the debt makes the decoder start poor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.errors import InputError

DebtDefinition = Literal["positives", "official", "positives-raw", "official-raw"]
DEFINITIONS: tuple[DebtDefinition, ...] = get_args(DebtDefinition)

_LAWS = {
    True: "the models' own laws, before temperature and penalty",
    False: "the laws after temperature and penalty",
}


@dataclass(frozen=True)
class DebtRule:
    """The rule by which log-ratios of prompt tokens become a debt.

    Attributes:
        n: How many of the largest log-ratios count; 0 switches the debt off.
        definition: `positives` averages the up to n largest positive log-ratios (the paper's
            code). `official` sums the min(n, L-1) largest, clamped at 0, and divides by that
            count whether or not they are positive (the published decoder), so it is never
            larger. Both take the laws that are served, after temperature and penalty; with `-raw`
            they take those of the models as they are, as the published decoder does.
    """

    n: int = 5
    definition: DebtDefinition = "positives"

    def __post_init__(self) -> None:
        if self.n < 0:
            raise InputError(f"prefix-n must be at least 0 (0: no prefix debt), got {self.n}.")
        if self.definition not in DEFINITIONS:
            raise InputError(
                "debt must be 'positives' or 'official', or one of them with -raw (counted before "
                f"temperature and penalty), got {self.definition!r}."
            )

    @property
    def over_all(self) -> bool:
        """True if the sum is divided by n whether or not its terms are positive."""
        return self.definition.startswith("official")

    @property
    def raw(self) -> bool:
        """True if the log-ratios are the models' own, before temperature and penalty."""
        return self.definition.endswith("-raw")

    @property
    def laws(self) -> str:
        """The laws whose log-ratios are counted, in words."""
        return _LAWS[self.raw]

    @property
    def other(self) -> DebtRule:
        """Returns this debt counted in the other laws."""
        kind = self.definition.removesuffix("-raw")
        found: Any = kind if self.raw else f"{kind}-raw"
        return DebtRule(self.n, found)


def prefix_debt(ratios: NDArray[np.float64], counted: NDArray[np.bool_], rule: DebtRule) -> float:
    """Returns the debt of one prompt in nats.

    Args:
        ratios: log p_risky(x_i | x_<i) - log p_safe(x_i | x_<i) for prompt tokens 1 .. L-1,
            from laws warped as in decoding, or from the models' own if the rule is a raw one.
        counted: False for special tokens, which owe nothing.
        rule: The definition.
    """
    if ratios.shape != counted.shape or ratios.ndim != 1:
        raise ValueError(f"need two vectors of one length, got {ratios.shape}, {counted.shape}.")
    if np.isnan(ratios[counted]).any():
        raise ValueError("a prompt token's log-ratio is NaN: it has no probability in either law.")
    # min(n, L-1) positions as the official decoder takes them, special tokens among the zeros.
    places = min(rule.n, ratios.size)
    if places == 0:
        return 0.0
    gains = np.sort(np.where(counted, np.maximum(ratios, 0.0), 0.0))[::-1][:places]
    divisor = places if rule.over_all else int((gains > 0).sum())
    return float(gains.sum() / divisor) if divisor else 0.0


def most_debt(surprisals: NDArray[np.float64], counted: NDArray[np.bool_], rule: DebtRule) -> float:
    """Returns the largest debt in nats that a prompt can have under any risky model.

    A log-ratio is at most the safe model's surprisal of its token. `positives` averages over
    the positive ratios only, so one token may decide; `official` averages over n whatever they are.

    Args:
        surprisals: -log p_safe(x_i | x_<i) for prompt tokens 1 .. L-1.
        counted: False for special tokens, which owe nothing.
        rule: The definition.
    """
    if rule.over_all or rule.n == 0:
        return prefix_debt(surprisals, counted, rule)
    return float(max(surprisals[counted], default=0.0))
