"""A black box that claims the truth about its laws; what it draws from is another matter."""

from __future__ import annotations

import numpy as np

from nafaudit.mechanisms.doors import Law
from nafaudit.mechanisms.reference import AnchoredDecoder, Row


class Cold(AnchoredDecoder):
    """Sharpens the law after the solve."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        scaled = law / 0.7
        return np.asarray(scaled - np.logaddexp.reduce(scaled))
