"""A step-level rule behind the black-box door, so that one conformance suite serves both.

The rule's law is sampled and its true charge is paid, as our engine would; what is claimed is the
charge that the rule itself states.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nafaudit.mechanisms.doors import Law, Output, Request, World
from nafaudit.mechanisms.protocols import Rule, Served
from nafaudit.mechanisms.reference import AnchoredDecoder, Row
from nafaudit.mechanisms.registry import Guarded


class _Kept:
    """Remembers what a rule said before anybody corrected it."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self.said: Served | None = None

    def serve(
        self, prefixes: Sequence[Sequence[int]], safe: Tensor, risky: Tensor, allowance: Tensor
    ) -> Served:
        self.said = self._rule.serve(prefixes, safe, risky, allowance)
        return self.said


class RuleDecoder(AnchoredDecoder):
    """Samples from anybody's rule.

    Args:
        world: The two models.
        rule: The rule.
        name: Of the rule, for errors.
    """

    def __init__(self, world: World, rule: Rule, name: str) -> None:
        super().__init__(world)
        self._kept = _Kept(rule)
        self._guarded = Guarded(self._kept, name)
        self._open: list[Row] = []
        self._claimed: dict[int, list[float]] = {}

    def laws(self, rows: Sequence[Row]) -> tuple[Law, Law]:
        """The laws, and whose they are."""
        self._open = list(rows)
        return super().laws(rows)

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """What the rule serves, if it is a law; its charge as it truly is."""
        tensors = [torch.from_numpy(np.ascontiguousarray(x)) for x in (safe, risky, allowance)]
        served = self._guarded.serve([row.prefix for row in self._open], *tensors)
        said = self._kept.said
        assert said is not None
        for row, charge in zip(self._open, said.charge.tolist(), strict=True):
            self._claimed.setdefault(id(row), []).append(charge)
        return served.law.numpy(), served.charge.numpy(), served.theta.numpy()

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        """Writes all requests."""
        self._claimed = {}
        return super().decode(requests)

    def output(self, row: Row) -> Output:
        """What is handed back, with the charge that the rule stated."""
        said = super().output(row)
        claims = {name: getattr(said, name) for name in ("allowance", "served", "safe", "risky")}
        return Output(said.tokens, charge=self._claimed[id(row)], debt=said.debt, **claims)
