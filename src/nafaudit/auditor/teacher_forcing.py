"""Every next-token law of a written text, from one teacher-forced pass of both models.

This is the model forward and nothing else of the decoder: no row cache, no schedule. Texts of
like length share a pass, padded on the right, where a causal model cannot see it. A prompt that
several texts follow is read once, and their outputs go on from its keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache

from nafaudit.core.design import Decoding
from nafaudit.core.errors import InputError, LawError
from nafaudit.models.pair import Pair

# Most logits of one pass per model: 17 MB in float32.
PASS_NUMBERS = 1 << 22
# Longer texts are read in chunks that do; no chunk is shorter than this.
_LEAST_CHUNK = 16
# Texts of one prompt that are read after it, at least: fewer share a pass with other prompts'.
_FOLLOWERS = 4


class ForcedText(NamedTuple):
    """A prompt and what was written after it."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        """Both."""
        return self.prompt + self.output


class Piece(NamedTuple):
    """The laws at some consecutive positions of one text; the law at i is of token i + 1.

    Attributes:
        text: Number of the text.
        start: First position.
        stop: Position after the last.
        laws: Returns the log-laws of both models, float64, warped, at positions [i, j).
        raw: Returns the log-laws without the warps.
    """

    text: int
    start: int
    stop: int
    laws: Callable[[int, int], tuple[Tensor, Tensor]]
    raw: Callable[[int, int], tuple[Tensor, Tensor]]


class Reader:
    """A pair, ready to read texts.

    Args:
        pair: The two models.
        decoding: Its warps.
        numbers: Logits per pass and model, at most, unless one short chunk has more.
        chunk: Positions per pass; as many as fit unless given.
    """

    def __init__(
        self,
        pair: Pair,
        decoding: Decoding,
        *,
        numbers: int = PASS_NUMBERS,
        chunk: int | None = None,
    ) -> None:
        self.pair = pair
        self.decoding = decoding
        self._numbers = numbers
        self._chunk = chunk
        known = [token is not None for token in pair.vocabulary.tokens]
        self._unknown = ~torch.tensor(known, device=pair.risky.device)
        models = (pair.safe, pair.risky)
        self._rows = max(m.get_output_embeddings().weight.shape[0] for m in models)

    def read(self, texts: Sequence[ForcedText]) -> Iterator[Piece]:
        """Yields every text's pieces, in order of position within a text.

        The laws of a piece may be asked for until the next piece is.
        """
        self._check(texts)
        order = sorted(range(len(texts)), key=lambda i: len(texts[i].tokens))
        followers: dict[tuple[int, ...], list[int]] = {}
        for index in order:
            followers.setdefault(texts[index].prompt, []).append(index)
        few = [i for i in order if len(followers[texts[i].prompt]) < _FOLLOWERS]
        for batch in self._batches(texts, few):
            yield from self._pass(texts, batch)
        most = max(_FOLLOWERS, self._numbers // (self._rows * 4 * _LEAST_CHUNK))
        for prompt, batch in followers.items():
            if len(batch) >= _FOLLOWERS:
                for start in range(0, len(batch), most):
                    yield from self._after(prompt, texts, batch[start : start + most])

    def _check(self, texts: Sequence[ForcedText]) -> None:
        size = len(self.pair.vocabulary)
        for text in texts:
            if not text.prompt:
                raise InputError("a text without a prompt has no first law; give its prompt.")
            if len(text.tokens) > self.pair.context:
                raise InputError(
                    f"a text of {len(text.tokens)} tokens does not fit the pair's context of "
                    f"{self.pair.context}."
                )
            if not all(0 <= token < size for token in text.tokens):
                bad = next(token for token in text.tokens if not 0 <= token < size)
                raise InputError(f"token id {bad} is not among the pair's ids 0 to {size - 1}.")

    def _batches(self, texts: Sequence[ForcedText], order: Sequence[int]) -> Iterator[list[int]]:
        """Splits texts, shortest first, so that a padded batch stays within the numbers."""
        batch: list[int] = []
        for index in order:
            width = len(texts[index].tokens)
            if batch and (len(batch) + 1) * width * self._rows > self._numbers:
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch

    def _pass(self, texts: Sequence[ForcedText], batch: list[int]) -> Iterator[Piece]:
        width = max(len(texts[index].tokens) for index in batch)
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        for row, index in enumerate(batch):
            tokens = texts[index].tokens
            ids[row, : len(tokens)] = torch.tensor(tokens)
        chunk = self._chunk or max(_LEAST_CHUNK, self._numbers // (self._rows * len(batch)))
        models = (self.pair.safe, self.pair.risky)
        both = [_forward(model, None, ids, min(chunk, width)) for model in models]
        for (start, safe), (_, risky) in zip(*both, strict=True):
            for row, index in enumerate(batch):
                if start < len(texts[index].tokens):
                    yield self._piece(texts, index, start, safe[row], risky[row])

    def _after(
        self, prompt: tuple[int, ...], texts: Sequence[ForcedText], batch: list[int]
    ) -> Iterator[Piece]:
        """Reads a prompt once, then all outputs that follow it, side by side."""
        models = (self.pair.safe, self.pair.risky)
        caches: list[Any] = [DynamicCache(config=model.config) for model in models]
        chunk = self._chunk or max(_LEAST_CHUNK, self._numbers // self._rows)
        ids = torch.tensor([prompt])
        both = [_forward(*one, ids, chunk) for one in zip(models, caches, strict=True)]
        for (start, safe), (_, risky) in zip(*both, strict=True):
            for index in batch:
                yield self._piece(texts, index, start, safe[0], risky[0])
        width = max(len(texts[index].output) for index in batch)
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        for row, index in enumerate(batch):
            ids[row, : len(texts[index].output)] = torch.tensor(texts[index].output)
        for cache in caches:
            cache.batch_repeat_interleave(len(batch))
        chunk = self._chunk or max(_LEAST_CHUNK, self._numbers // (self._rows * len(batch)))
        both = [_forward(*one, ids, chunk) for one in zip(models, caches, strict=True)]
        for (first, safe), (_, risky) in zip(*both, strict=True):
            for row, index in enumerate(batch):
                if first < len(texts[index].output):
                    start = len(prompt) + first
                    yield self._piece(texts, index, start, safe[row], risky[row])

    def _piece(
        self, texts: Sequence[ForcedText], index: int, start: int, safe: Tensor, risky: Tensor
    ) -> Piece:
        tokens = texts[index].tokens
        laws = self._laws(tokens, start, safe, risky, self.decoding)
        raw = self._laws(tokens, start, safe, risky, Decoding())
        return Piece(index, start, min(start + len(safe), len(tokens)), laws, raw)

    def _laws(
        self, tokens: Sequence[int], start: int, safe: Tensor, risky: Tensor, decoding: Decoding
    ) -> Callable[[int, int], tuple[Tensor, Tensor]]:
        def laws(first: int, last: int) -> tuple[Tensor, Tensor]:
            seen = self._seen(tokens, first, last, decoding)
            part = slice(first - start, last - start)
            return self._law(safe[part], seen, decoding), self._law(risky[part], seen, decoding)

        return laws

    def _law(self, logits: Tensor, seen: Tensor | None, decoding: Decoding) -> Tensor:
        x = logits[:, : len(self.pair.vocabulary)].to(self._unknown.device, torch.float64)
        if self._unknown.any():
            x = x.masked_fill(self._unknown, -torch.inf)
        if seen is not None:
            penalty = decoding.repetition_penalty
            x = torch.where(seen, x * torch.where(x < 0, penalty, 1 / penalty), x)
        if decoding.temperature != 1.0:
            x = x / decoding.temperature
        # Whatever has no usable law (NaN, nothing allowed, +inf) ends up as NaN.
        law = torch.log_softmax(x, dim=-1)
        if torch.isnan(law[:, 0]).any():
            raise LawError("a model's logits are NaN, +inf or all -inf; no law can be replayed.")
        return law

    def _seen(
        self, tokens: Sequence[int], first: int, last: int, decoding: Decoding
    ) -> Tensor | None:
        """Marks the tokens that occur at or before each position."""
        if decoding.repetition_penalty == 1.0:
            return None
        since = torch.full((len(self.pair.vocabulary),), len(tokens))
        for position in range(last - 1, -1, -1):
            since[tokens[position]] = position
        at = torch.arange(first, last).unsqueeze(-1)
        return (since.unsqueeze(0) <= at).to(self._unknown.device)


def _forward(model: Any, cache: Any, ids: Tensor, chunk: int) -> Iterator[tuple[int, Tensor]]:
    """Yields the logits of all rows, chunk by chunk of positions, after what a cache holds."""
    whole = cache is None and chunk >= ids.shape[1]
    for start in range(0, ids.shape[1], chunk):
        part = ids[:, start : start + chunk].to(model.device)
        with torch.inference_mode():
            output = model(input_ids=part, past_key_values=cache, use_cache=not whole)
        cache = None if whole else output.past_key_values
        yield start, output.logits


def prompt_logp(
    piece: Piece, prompt: Sequence[int], *, raw: bool = False
) -> tuple[NDArray[np.float64], ...]:
    """Computes log p(x_i | x_<i) under both models for prompt tokens that a piece predicts."""
    last = min(piece.stop, len(prompt) - 1)
    if last <= piece.start:
        return np.empty(0), np.empty(0)
    laws = (piece.raw if raw else piece.laws)(piece.start, last)
    following = torch.tensor(prompt[piece.start + 1 : last + 1], device=laws[0].device)
    return tuple(law.gather(-1, following.unsqueeze(-1)).squeeze(-1).cpu().numpy() for law in laws)
