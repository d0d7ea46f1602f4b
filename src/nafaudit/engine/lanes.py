"""From logits to masked, warped laws, and the surprisals of a text under them.

`Lanes` belongs to decoding. `Scorer` does not: runner and worth call it, to score passages.

Surprisals by teacher forcing are what a certificate is measured against. One pass gives -log p(y_i
| context, y_<i) of every token, hence of every prefix and window. The law is the one that decoding
is charged against: same warps, same masked ids, float64. A text is read alone, at a width of its
own, so its numbers do not depend on the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nafaudit.core.design import Decoding, row_width
from nafaudit.core.passage import DECIMALS
from nafaudit.engine.proof import numerics_of
from nafaudit.engine.rows import MIN_ROWS, RowModel
from nafaudit.mechanisms.laws import NEG_INF, log_law, warp
from nafaudit.models.pair import Vocabulary

# Laws are padded to a multiple of this many lanes, so that a row starts at the same offset
# within a vector register whatever its place in the batch.
_LANES = 64


class Lanes:
    """The ids that may be drawn, and how logits over them are warped.

    Attributes:
        size: Number of ids of the tokenizer, those that stand for nothing included.
        width: Lanes of a law; those past the ids are forbidden.
    """

    def __init__(self, vocabulary: Vocabulary, decoding: Decoding, device: torch.device) -> None:
        known = torch.tensor([token is not None for token in vocabulary.tokens])
        self.size = len(known)
        self.width = -(-self.size // _LANES) * _LANES
        self._decoding = decoding
        self._device = device
        self._forbidden = torch.ones(self.width, dtype=torch.bool, device=device)
        self._forbidden[: self.size] = ~known.to(device)
        self._all_known = bool(known.all()) and self.width == self.size

    def cut(self, logits: Tensor) -> Tensor:
        """Logits over the tokenizer's ids, padded to whole lanes; other rows are forbidden."""
        logits = logits[..., : self.size].to(self._device)
        if self._all_known:
            return logits
        padded = torch.nn.functional.pad(logits, (0, self.width - logits.shape[-1]))
        return padded.masked_fill_(self._forbidden, NEG_INF)

    def warped(self, prefixes: Sequence[Sequence[int]], *logits: Tensor) -> list[Tensor]:
        """Applies the warps to cut logits [rows, lanes], each row after its own prefix."""
        seen = self._seen(prefixes)
        return [warp(one, seen, self._decoding) for one in logits]

    def _seen(self, prefixes: Sequence[Sequence[int]]) -> Tensor | None:
        if self._decoding.repetition_penalty == 1.0:
            return None
        seen = torch.zeros(len(prefixes), self.width, dtype=torch.bool)
        for row, prefix in enumerate(prefixes):
            seen[row, list(prefix)] = True
        return seen.to(self._device, non_blocking=True)


class Scorer:
    """One model, ready to score texts by their surprisal.

    Args:
        model: Usually the safe one.
        vocabulary: Whose ids; every other row of the model is forbidden, as in decoding.
        decoding: Warps of the law; its length limit plays no part.
        context: Positions that the model has.
    """

    def __init__(
        self, model: Any, vocabulary: Vocabulary, decoding: Decoding, *, context: int
    ) -> None:
        self._model = model
        self._decoding = decoding
        self._context = context
        unknown = torch.tensor([token is None for token in vocabulary.tokens])
        self._forbidden = unknown.to(model.device)
        self._constant = numerics_of((model,)).constant

    @torch.inference_mode()
    def surprisals(self, before: Sequence[int], tokens: Sequence[int]) -> NDArray[np.float64]:
        """Returns -log p of each of `tokens`, in nats.

        Args:
            before: What the model is given first; at least one token.
            tokens: What is scored.
        """
        if not before or not tokens:
            raise ValueError("a text to score, and a token to stand before it, are needed.")
        row = [*before, *tokens]
        width = row_width(len(row), max(self._context, len(row)))
        scored: list[Tensor] = []

        def visit(start: int, logits: Tensor) -> None:
            # Position i predicts token i + 1; the context's own tokens are not scored.
            first = max(start, len(before) - 1)
            following = row[first + 1 : start + len(logits) + 1]
            if following:
                scored.append(self._scores(row, first, following, logits[first - start :]))

        RowModel(self._model, MIN_ROWS, width, self._constant).prefill(row[:-1], visit)
        # Never -0.0, and never a hair below 0.
        logp = np.minimum(torch.cat(scored).cpu().numpy(), 0.0)
        return np.asarray(np.round(np.abs(logp), DECIMALS))

    def _scores(
        self, row: Sequence[int], first: int, following: Sequence[int], logits: Tensor
    ) -> Tensor:
        size = len(self._forbidden)
        known = logits[: len(following), :size].masked_fill(self._forbidden, NEG_INF)
        law = log_law(warp(known, self._seen(row, first, len(following)), self._decoding))
        at = torch.tensor(following, dtype=torch.long, device=law.device).unsqueeze(-1)
        return law.gather(-1, at).squeeze(-1)

    def _seen(self, row: Sequence[int], first: int, count: int) -> Tensor | None:
        """Returns True where a token occurs before the scored one; None if no penalty needs it."""
        if self._decoding.repetition_penalty == 1.0:
            return None
        seen = torch.zeros(count, len(self._forbidden), dtype=torch.bool)
        for i in range(count):
            seen[i, list(row[: first + i + 1])] = True
        return seen.to(self._forbidden.device)
