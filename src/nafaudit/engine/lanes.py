"""From a model's logits to what laws are made of: the tokenizer's ids, in whole lanes, warped."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nafaudit.core.design import Decoding
from nafaudit.mechanisms.laws import NEG_INF, warp
from nafaudit.models.pair import Vocabulary

# Laws are padded to a multiple of this many lanes, so that a row starts at the same offset
# within a vector register whatever its place in the batch.
_LANES = 64


class Lanes:
    """The ids that may be drawn, and how logits over them are warped.

    Attributes:
        ids: Ids of the tokenizer, those that stand for nothing included.
        width: Lanes of a law; those past the ids are forbidden.
    """

    def __init__(self, vocabulary: Vocabulary, decoding: Decoding, device: torch.device) -> None:
        known = torch.tensor([token is not None for token in vocabulary.tokens])
        self.ids = len(known)
        self.width = -(-self.ids // _LANES) * _LANES
        self._decoding = decoding
        self._device = device
        self._forbidden = torch.ones(self.width, dtype=torch.bool, device=device)
        self._forbidden[: self.ids] = ~known.to(device)
        self._all_known = bool(known.all()) and self.width == self.ids

    def cut(self, logits: Tensor) -> Tensor:
        """Logits over the tokenizer's ids, padded to whole lanes; other rows are forbidden."""
        logits = logits[..., : self.ids].to(self._device)
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
