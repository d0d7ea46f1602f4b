"""Prompts are asked for with all their trajectories, and read once by both models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nafaudit.core.debt import DebtRule, prefix_debt
from nafaudit.core.draws import Stream
from nafaudit.engine.lanes import Lanes
from nafaudit.engine.rows import Prefilled, RowModel
from nafaudit.mechanisms.laws import log_probabilities


class RowRequest(NamedTuple):
    """One trajectory to decode: its budget, its number, and the key of its draws."""

    k: float
    trajectory: int
    stream: Stream


@dataclass(frozen=True)
class PromptRequest:
    """A prompt and all the trajectories that are wanted of it."""

    prompt: str
    tokens: tuple[int, ...]
    rows: tuple[RowRequest, ...]


@dataclass(frozen=True)
class PrefilledPrompt:
    """A prompt, read by both models."""

    request: PromptRequest
    debt: float
    safe: Prefilled
    risky: Prefilled


@dataclass(frozen=True)
class PromptReader:
    """Both models, and what a prompt's debt is.

    Attributes:
        safe: The safe model.
        risky: The risky one.
        lanes: How their logits become laws.
        special: Ids that no debt is counted for.
        rule: Rule of the debt.
    """

    safe: RowModel
    risky: RowModel
    lanes: Lanes
    special: frozenset[int]
    rule: DebtRule

    def groups(
        self, requests: Iterable[PromptRequest], enough: Callable[[], int]
    ) -> Iterator[list[PromptRequest]]:
        """Yields groups of successive prompts that are read in one pass.

        Args:
            requests: The prompts; none is drawn before it is needed.
            enough: How many rows are enough for a group.
        """
        group: list[PromptRequest] = []
        for request in requests:
            longest = max(len(r.tokens) for r in (*group, request))
            fits = all(m.fits(len(group) + 1, longest) for m in (self.safe, self.risky))
            if group and not fits:
                yield group
                group = []
            group.append(request)
            if sum(len(r.rows) for r in group) >= enough():
                yield group
                group = []
        if group:
            yield group

    @torch.inference_mode()
    def read(self, requests: Sequence[PromptRequest]) -> list[PrefilledPrompt]:
        """Reads prompts together; each comes out as if it were alone."""
        prompts = [request.tokens for request in requests]
        safe, risky = (self._read_by(model, prompts) for model in (self.safe, self.risky))
        return [
            PrefilledPrompt(request, self._debt(request.tokens, s.logp, r.logp), s.read, r.read)
            for request, s, r in zip(requests, safe, risky, strict=True)
        ]

    def _debt(
        self, tokens: Sequence[int], safe: NDArray[np.float64], risky: NDArray[np.float64]
    ) -> float:
        with np.errstate(invalid="ignore"):
            ratios = risky - safe
        counted = np.array([token not in self.special for token in tokens[1:]], bool)
        return prefix_debt(ratios, counted, self.rule)

    def _read_by(self, model: RowModel, prompts: Sequence[Sequence[int]]) -> list[_Scored]:
        logp: list[list[Tensor]] = [[] for _ in prompts]

        def visit(number: int, start: int, logits: Tensor) -> None:
            tokens = prompts[number]
            following = torch.tensor(tokens[start + 1 : start + 1 + len(logits)], dtype=torch.long)
            if not len(following):
                return
            before = [tokens[: start + i + 1] for i in range(len(following))]
            scored = self.lanes.cut(logits[: len(following)])
            if not self.rule.raw:
                (scored,) = self.lanes.warped(before, scored)
            at = following.to(scored.device, non_blocking=True)
            logp[number].append(log_probabilities(scored, at))

        read = model.read(prompts, visit)
        scores = [torch.cat(found).cpu().numpy() if found else np.empty(0) for found in logp]
        return [_Scored(*both) for both in zip(scores, read, strict=True)]


class _Scored(NamedTuple):
    """A prompt read by one model, and log p(x_i | x_<i) for i = 1 .. L-1."""

    logp: NDArray[np.float64]
    read: Prefilled
