"""Where a row's keys and values lie, so that its logits cannot depend on its neighbours.

Layout 2. Every row has `width` positions, fixed by the design; token i of a row (prompt and
output) sits at position i, whatever slot the row is in and whoever shares the batch. Attention
always runs over the whole width, later positions masked. A batch has at least four rows,
because matrix products of fewer take another path through the linear-algebra library. A
prompt is read in blocks of 16 positions, the last one filled up, so that prompts can be read
together and none of them notices. With one torch thread, logits are then bit-identical for
every batch, slot, order and refill; `nafaudit.engine.probe` checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from nafaudit.engine.attention import ONE_POSITION_AT_A_TIME, SHARED_HEADS, Way, attending

MIN_ROWS = 4
# Prompts are read in blocks of so many positions.
BLOCK = 16
# Logits of one pass over prompts stay under 2^24 numbers: 67 MB in float32.
_PASS_NUMBERS = 1 << 24
_PASS_TOKENS = 512


class _RowLayer(CacheLayerMixin):
    """Keys and values of one layer, [rows, heads, width, size]."""

    is_sliding = False

    def __init__(self, table: RowCache) -> None:
        super().__init__()
        self.table = table

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        shape = (self.table.rows, key_states.shape[1], self.table.width)
        self.keys = key_states.new_zeros(*shape, key_states.shape[3])
        self.values = value_states.new_zeros(*shape, value_states.shape[3])
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows = key_states.shape[0]
        at = self.table.positions.to(key_states.device)
        slot = torch.arange(rows, device=key_states.device).unsqueeze(-1)
        # Advanced indices around a slice put [rows, tokens] first: hence the transposes.
        self.keys[slot, :, at] = key_states.transpose(1, 2)
        self.values[slot, :, at] = value_states.transpose(1, 2)
        return self.keys[:rows], self.values[:rows]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.table.width, 0

    def get_seq_length(self) -> int:
        # Positions are always passed explicitly, so nobody needs a common length.
        return 0

    def get_max_length(self) -> int:
        return self.table.width


class RowCache(Cache):
    """A Transformers cache whose rows stand at positions of their own."""

    def __init__(self, layers: int, rows: int, width: int) -> None:
        self.rows = rows
        self.width = width
        self.positions = torch.zeros(rows, 1, dtype=torch.long)
        super().__init__(layers=[_RowLayer(self) for _ in range(layers)])


@dataclass(frozen=True)
class Prefilled:
    """One prompt, read: its keys and values per layer and the logits after its last token."""

    keys: list[Tensor]
    values: list[Tensor]
    logits: Tensor


def whole_blocks(positions: int) -> int:
    """Rounds up to whole blocks."""
    return -(-positions // BLOCK) * BLOCK


class RowModel:
    """One model with a cache of rows: reads prompts, admits rows, steps them together."""

    def __init__(self, model: Any, rows: int, width: int) -> None:
        self.model = model
        self.width = width
        # The last block of a prompt may fill up past the width, where nobody looks.
        self.slots = whole_blocks(width)
        self.device = model.device
        self.rows = max(MIN_ROWS, rows)
        self._layers = int(model.config.get_text_config().num_hidden_layers)
        self._cache = RowCache(self._layers, self.rows, self.slots)
        embedding_rows: int = model.get_output_embeddings().weight.shape[0]
        tokens = min(_PASS_TOKENS, _PASS_NUMBERS // embedding_rows)
        # Positions in one pass over prompts, those that fill up blocks included.
        self.pass_tokens = max(BLOCK, tokens // BLOCK * BLOCK)

    def prefill(self, tokens: Sequence[int], visit: Callable[[int, Tensor], None]) -> Prefilled:
        """Reads one prompt; shows `visit` the first position of each pass and its logits."""
        return self.read([tokens], lambda _, start, logits: visit(start, logits))[0]

    def read(
        self, prompts: Sequence[Sequence[int]], visit: Callable[[int, int, Tensor], None]
    ) -> list[Prefilled]:
        """Reads prompts together, each to the bit as if it were alone.

        Args:
            prompts: The fewer passes, the better: see `fits`.
            visit: Shown a prompt's number, the first position of a pass and its logits there.
        """
        longest = whole_blocks(max(map(len, prompts)))
        each = min(longest, max(BLOCK, self.pass_tokens // len(prompts) // BLOCK * BLOCK))
        cache = RowCache(self._layers, len(prompts), self.slots)
        ids = self._sent([[*tokens, *[0] * (longest - len(tokens))] for tokens in prompts])
        last: list[Tensor] = [ids.new_empty(0)] * len(prompts)
        for start in range(0, longest, each):
            part = ids[:, start : start + each]
            at = torch.arange(start, start + part.shape[1], device=self.device)
            logits = self._forward(cache, part, at.expand(len(prompts), -1))
            for number, tokens in enumerate(prompts):
                if (length := min(part.shape[1], len(tokens) - start)) > 0:
                    visit(number, start, logits[number, :length])
                    if start + length == len(tokens):
                        last[number] = logits[number, length - 1].clone()
        return [
            Prefilled(
                [layer.keys[number, :, : len(tokens)].clone() for layer in cache.layers],
                [layer.values[number, :, : len(tokens)].clone() for layer in cache.layers],
                last[number],
            )
            for number, tokens in enumerate(prompts)
        ]

    def fits(self, prompts: int, longest: int) -> bool:
        """True if so many prompts, the longest of so many tokens, are read in one pass."""
        return prompts * whole_blocks(longest) <= self.pass_tokens

    def admit(self, slot: int, prompt: Prefilled) -> None:
        """Puts a prompt's keys and values into a slot, wiping whoever was there."""
        for layer, keys, values in zip(self._cache.layers, prompt.keys, prompt.values, strict=True):
            if not layer.is_initialized:
                layer.lazy_initialization(keys.unsqueeze(0), values.unsqueeze(0))
            for table, content in ((layer.keys, keys), (layer.values, values)):
                # Stale numbers behind the mask weigh exactly 0 unless they are not finite.
                table[slot].zero_()
                table[slot, :, : content.shape[1]] = content

    def move(self, source: int, target: int) -> None:
        """Moves a row to another slot."""
        for layer in self._cache.layers:
            if layer.is_initialized:
                layer.keys[target] = layer.keys[source]
                layer.values[target] = layer.values[source]

    def step(self, tokens: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Feeds one token to each of the first rows; returns their next logits [rows, :]."""
        spare = max(0, MIN_ROWS - len(tokens))
        ids = self._sent([*tokens, *[0] * spare]).unsqueeze(-1)
        at = self._sent([*positions, *[0] * spare]).unsqueeze(-1)
        return self._forward(self._cache, ids, at)[: len(tokens), -1]

    def steps(self, tokens: Sequence[Sequence[int]], positions: Sequence[Sequence[int]]) -> Tensor:
        """Feeds as many tokens to each of the first rows; returns the logits after each.

        To the bit what `step` gives for one after the other: products of four rows and more do
        not depend on their number, and attention is asked for one position at a time.
        """
        spare = [[0] * len(tokens[0])] * max(0, MIN_ROWS - len(tokens))
        ids = self._sent([*tokens, *spare])
        at = self._sent([*positions, *spare])
        return self._forward(self._cache, ids, at, ONE_POSITION_AT_A_TIME)[: len(tokens)]

    def _sent(self, numbers: Sequence[object]) -> Tensor:
        """Numbers on their way to the model's device; nobody waits for their arrival."""
        return torch.tensor(numbers).to(self.device, non_blocking=True)

    def _forward(self, cache: RowCache, ids: Tensor, at: Tensor, way: Way = SHARED_HEADS) -> Tensor:
        cache.positions = at
        with attending(self.model, way):
            output = self.model(
                input_ids=ids,
                attention_mask=self._masks(at),
                position_ids=at.clamp(max=self.width - 1),
                past_key_values=cache,
                use_cache=True,
            )
        logits: Tensor = output.logits
        return logits

    def _masks(self, at: Tensor) -> Tensor | dict[str, Tensor]:
        config = self.model.config.get_text_config()
        window = getattr(config, "sliding_window", None)
        layer_types = set(getattr(config, "layer_types", None) or ())
        if "sliding_attention" in layer_types:
            return {
                "full_attention": self._mask(at, None),
                "sliding_attention": self._mask(at, window),
            }
        return self._mask(at, None if layer_types else window)

    def _mask(self, at: Tensor, window: int | None) -> Tensor:
        """Additive mask [rows, 1, tokens, width]: 0 where a position may be attended to."""
        position = torch.arange(self.slots, device=at.device)
        hidden = position > at.unsqueeze(-1)
        if window is not None:
            hidden |= position <= at.unsqueeze(-1) - window
        dtype = self.model.dtype
        mask = torch.zeros(hidden.shape, dtype=dtype, device=at.device)
        return mask.masked_fill_(hidden, torch.finfo(dtype).min).unsqueeze(1)
