"""Black boxes that claim the truth about their laws, each with one other fault."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nafaudit.mechanisms.reference import AnchoredDecoder, Row
from nafaudit.protocols import Law, Output, Request


class Cold(AnchoredDecoder):
    """Sharpens the law after the solve."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        scaled = law / 0.7
        return np.asarray(scaled - np.logaddexp.reduce(scaled))


class Unwilling(AnchoredDecoder):
    """Is honest, and refuses one budget."""

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        if any(request.k == 0.25 for request in requests):
            raise ValueError("not at this budget")
        return super().decode(requests)
