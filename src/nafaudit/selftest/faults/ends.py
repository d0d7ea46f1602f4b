"""Stops and batches: outputs that end elsewhere, or are somebody else's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from nafaudit.mechanisms.doors import Output, Request
from nafaudit.mechanisms.reference import AnchoredDecoder, Row


class StopUncharged(AnchoredDecoder):
    """Does not charge the step that writes the stop token."""

    def output(self, row: Row) -> Output:
        """The last charge is left out of the claims."""
        out = super().output(row)
        if row.tokens[-1] not in self.world.stops:
            return out
        charge = [*row.claims["charge"][:-1], 0.0]
        return replace(out, charge=charge, spend=math.fsum(charge))


class RunsPastItsStop(AnchoredDecoder):
    """Goes on writing after a stop token, and charging."""

    def ended(self, row: Row) -> bool:
        """Only the length limit ends a row."""
        return row.step == row.request.max_new_tokens


class StopsShort(AnchoredDecoder):
    """Ends every output at half of its length limit, without a stop token."""

    def ended(self, row: Row) -> bool:
        """Half of the limit ends a row."""
        return super().ended(row) or row.step >= max(1, row.request.max_new_tokens // 2)


class StripsItsStop(AnchoredDecoder):
    """Takes the stop token off its outputs."""

    def output(self, row: Row) -> Output:
        """All but the stop, in tokens and claims."""
        out = super().output(row)
        if row.tokens[-1] not in self.world.stops or row.step < 2:
            return out
        charge, served = (row.claims[name][:-1] for name in ("charge", "served"))
        return Output(row.tokens[:-1], charge=charge, served=served, debt=row.debt, spend=row.spent)


class StopsElsewhere(AnchoredDecoder):
    """Takes one ordinary token for a stop token."""

    def ended(self, row: Row) -> bool:
        """Ends at token 3 too."""
        return super().ended(row) or bool(row.tokens and row.tokens[-1] == 3)


class SwappedRows(AnchoredDecoder):
    """Hands the outputs of a batch back in reverse."""

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        """Right outputs, wrong places."""
        return super().decode(requests)[::-1]
