"""Every next-token law of a written text, from one teacher-forced pass of both models.

This is the model forward and nothing else of the decoder: no row cache, no schedule. Texts are read
side by side, from left to right, in *windows* of positions: texts that are the same up to the end
of a window are one row of it, and a row goes on from the keys and values of the row it came from.
So a beginning that several texts share is read once, and a text that has ended takes no more
room. A row is padded on the right, where a causal model cannot see it, and then dropped. Where
windows end is what makes the passes cheapest: padding and twice-read positions against passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
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
# A pass has room for this many positions at least.
_LEAST_POSITIONS = 32
# Texts that are read side by side: their keys and values, in bytes per model, and how few may be.
_CACHED_BYTES = 1 << 26
_LEAST_TEXTS = 4
# What a pass costs beside its positions, in multiplications per layer: the calls themselves.
_CALL = 2e7


class ForcedText(NamedTuple):
    """A prompt and what was written after it."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        """Both."""
        return self.prompt + self.output

    @property
    def read(self) -> tuple[int, ...]:
        """What a model must read for every law: all but the last token, as nothing follows it."""
        return self.tokens[:-1] or self.tokens


class Piece(NamedTuple):
    """Some consecutive positions of texts that are the same there.

    Attributes:
        texts: Numbers of the texts; one may end before the others do.
        start: First position.
        stop: Position after the last; the last token of a text is not read, nothing follows it.
        tokens: The tokens up to there, from the first one on.
        logits: Of both models, from the first position on.
    """

    texts: tuple[int, ...]
    start: int
    stop: int
    tokens: tuple[int, ...]
    logits: tuple[Tensor, Tensor]


class Part(NamedTuple):
    """Positions [first, last) of a piece."""

    piece: Piece
    first: int
    last: int


class Reader:
    """A pair, ready to read texts.

    Args:
        pair: The two models.
        decoding: Its warps.
        numbers: Logits per pass and model, at most, unless a few positions have more.
        chunk: Width of a window; what is cheapest unless given.
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
        self._all_known = all(known)
        self._models = (pair.safe, pair.risky)
        width = max(m.get_output_embeddings().weight.shape[0] for m in self._models)
        self._positions = max(_LEAST_POSITIONS, numbers // width)

    def read(self, texts: Sequence[ForcedText]) -> Iterator[list[Piece]]:
        """Yields the pieces of one window after the other, in order of position within a text."""
        self._check(texts)
        for side_by_side in self._groups(texts):
            yield from self._read(texts, side_by_side)

    def _groups(self, texts: Sequence[ForcedText]) -> Iterator[list[int]]:
        """Splits texts, by prompt, so that the keys and values of a group stay within bounds."""
        room = _CACHED_BYTES // max(map(_cached_bytes, self._models))
        by_prompt: dict[tuple[int, ...], list[int]] = {}
        for index in sorted(range(len(texts)), key=lambda i: (len(texts[i].prompt), texts[i])):
            by_prompt.setdefault(texts[index].prompt, []).append(index)
        group: list[int] = []
        longest = 0
        for of_prompt in by_prompt.values():
            whole = max(longest, *(len(texts[i].tokens) for i in of_prompt))
            if group and (len(group) + len(of_prompt)) * whole > room:
                yield group
                group, longest = [], 0
            for index in of_prompt:
                longest = max(longest, len(texts[index].tokens))
                if len(group) >= _LEAST_TEXTS and (len(group) + 1) * longest > room:
                    yield group
                    group, longest = [], len(texts[index].tokens)
                group.append(index)
        if group:
            yield group

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

    def _read(self, texts: Sequence[ForcedText], group: Sequence[int]) -> Iterator[list[Piece]]:
        order = sorted(group, key=lambda i: texts[i].read)
        written = [texts[i].read for i in order]
        forest = Forest(written)
        if self._chunk:
            cuts = [*range(0, forest.depth, self._chunk), forest.depth]
        else:
            call = max(map(_call_positions, self._models))
            cuts = forest.cuts(self._positions, call)
        whole = len(cuts) == 2
        caches = [None if whole else DynamicCache(config=m.config) for m in self._models]
        before: list[range] = []
        for start, stop in pairwise(cuts):
            rows = forest.rows(start, stop)
            came = [next(n for n, old in enumerate(before) if r[-1] in old) for r in rows if before]
            ids = torch.zeros(len(rows), stop - start, dtype=torch.long)
            for row, members in enumerate(rows):
                part = written[members[-1]][start:stop]
                ids[row, : len(part)] = torch.tensor(part)
            both = [
                _forward(model, cache, ids, came if came != [*range(len(before))] else None)
                for model, cache in zip(self._models, caches, strict=True)
            ]
            yield [
                Piece(
                    tuple(order[member] for member in members),
                    start,
                    min(stop, forest.lengths[members[-1]]),
                    written[members[-1]],
                    (both[0][row], both[1][row]),
                )
                for row, members in enumerate(rows)
            ]
            before = rows

    def laws(self, parts: Sequence[Part], *, raw: bool = False) -> tuple[Tensor, Tensor]:
        """Computes the log-laws of both models at positions of pieces, one row each.

        The law at position i is of token i + 1; float64, warped unless the raw ones are asked for.
        """
        decoding = Decoding() if raw else self.decoding
        seen = None
        if decoding.repetition_penalty != 1.0:
            seen = torch.cat([self._seen(*part) for part in parts])
        safe, risky = (
            torch.cat(
                [
                    one.piece.logits[side][one.first - one.piece.start : one.last - one.piece.start]
                    for one in parts
                ]
            )
            for side in (0, 1)
        )
        return self._law(safe, seen, decoding), self._law(risky, seen, decoding)

    def _law(self, logits: Tensor, seen: Tensor | None, decoding: Decoding) -> Tensor:
        x = logits[:, : len(self.pair.vocabulary)].to(self._unknown.device, torch.float64)
        if not self._all_known:
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

    def _seen(self, piece: Piece, first: int, last: int) -> Tensor:
        """Marks the tokens that occur at or before each position."""
        since = torch.full((len(self.pair.vocabulary),), len(piece.tokens))
        for position in range(last - 1, -1, -1):
            since[piece.tokens[position]] = position
        at = torch.arange(first, last).unsqueeze(-1)
        return (since.unsqueeze(0) <= at).to(self._unknown.device)


class Forest:
    """Texts in lexical order, of which windows of positions are read.

    Args:
        texts: What is read of each, in order.
    """

    def __init__(self, texts: Sequence[tuple[int, ...]]) -> None:
        self.lengths: list[int] = [len(text) for text in texts]
        self.depth = max(self.lengths)
        # How much each text has in common with the next; a beginning stands before what it begins.
        self._common = [_common(*two) for two in pairwise(texts)]

    def rows(self, start: int, stop: int) -> list[range]:
        """Returns the texts of every row of a window, the longest last."""
        ends = [
            number + 1
            for number, (common, length) in enumerate(
                zip(self._common, self.lengths[:-1], strict=True)
            )
            if common < min(stop, length)
        ]
        all_rows = (range(*two) for two in pairwise([0, *ends, len(self.lengths)]))
        reached = (
            range(next((n for n in row if self.lengths[n] > start), row[-1]), row.stop)
            for row in all_rows
            if self.lengths[row[-1]] > start
        )
        return list(reached)

    def cuts(self, most: int, call: float) -> list[int]:
        """Returns where windows end, so that all passes together cost least.

        Args:
            most: Positions of a pass, all rows together.
            call: What a pass costs beside its positions, in positions.
        """
        lengths, common = np.array(self.lengths), np.array(self._common, np.int64)
        # Only where texts part or end do the rows of a window change.
        events = np.unique(np.concatenate([[0], lengths, common]))
        cost, before = [0.0], [0]
        for number, stop in enumerate(events[1:].tolist(), 1):
            ends = np.flatnonzero(common < np.minimum(stop, lengths[:-1]))
            last = np.sort(lengths[np.append(ends, len(lengths) - 1)])
            rows = len(last) - np.searchsorted(last, events[:number], side="right")
            widths = stop - events[:number]
            passes = np.ceil(widths / np.maximum(1, most // rows))
            total = np.array(cost) + rows * widths + call * passes
            before.append(int(np.argmin(total)))
            cost.append(float(total[before[-1]]))
        cuts, number = [int(events[-1])], len(events) - 1
        while number:
            start, stop = int(events[before[number]]), int(events[number])
            widest = max(1, most // len(self.rows(start, stop)))
            passes_here = -(-(stop - start) // widest)
            cuts += [*range(start, stop, -(-(stop - start) // passes_here))][::-1]
            number = before[number]
        return cuts[::-1]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Counts the tokens that two texts begin with alike."""
    least = min(len(one), len(other))
    return next((n for n in range(least) if one[n] != other[n]), least)


def _forward(model: Any, cache: Any, ids: Tensor, came: list[int] | None) -> Tensor:
    """Returns the logits of all rows; each goes on from one of the rows that a cache holds."""
    with torch.inference_mode():
        if came is not None:
            cache.batch_select_indices(torch.tensor(came, device=model.device))
        given = ids.to(model.device)
        output = model(input_ids=given, past_key_values=cache, use_cache=cache is not None)
    return output.logits  # type: ignore[no-any-return]


def _cached_bytes(model: Any) -> int:
    """Estimates the bytes of the keys and values of one position."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    found: int = max(1, 2 * config.num_hidden_layers * heads * size * model.dtype.itemsize)
    return found


def _call_positions(model: Any) -> float:
    """Estimates how many positions cost as much as the calls of a pass."""
    layers: int = model.config.get_text_config().num_hidden_layers
    weights: int = sum(weight.numel() for weight in model.parameters())
    return _CALL * layers / weights


def prompt_logp(
    reader: Reader, piece: Piece, prompt: Sequence[int], *, raw: bool = False
) -> tuple[NDArray[np.float64], ...]:
    """Computes log p(x_i | x_<i) under both models for prompt tokens that a piece predicts."""
    last = min(piece.stop, len(prompt) - 1)
    if last <= piece.start:
        return np.empty(0), np.empty(0)
    laws = reader.laws([Part(piece, piece.start, last)], raw=raw)
    following = torch.tensor(prompt[piece.start + 1 : last + 1], device=laws[0].device)
    return tuple(law.gather(-1, following.unsqueeze(-1)).squeeze(-1).cpu().numpy() for law in laws)
