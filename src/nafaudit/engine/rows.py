"""The rows of a batch: where keys and values lie, so that no row depends on its neighbours.

Version 3 of the memory layout (the design records it). Every row has `width` positions, fixed by
the design; token i of a row (prompt and output) sits at position i, whatever slot the row is in and
whatever rows share the batch. A new token attends over its row's own length, rounded up to a fixed
step. A product has at least four rows, because fewer take another path through the linear-algebra
library. A prompt is read in blocks of 16 positions, the last one filled up, so that prompts can be
read together without a change of bits.

Where a row's bits still depend on how many rows a product has (`nafaudit.engine.proof` finds out),
every product of a step has the same number of rows, every prompt is read alone in blocks of one
size, and attention runs over the whole width.

What a row attends to, and in which bits, depends on the row alone. One new position of a row is
attended to by two batched products and a softmax over the row's own length, rounded up to a fixed
step. A wider sum gives the same value, as masked positions weigh 0, but its order of additions, and
so its last bits, may differ. If `nafaudit.engine.proof` shows that the bits do not differ, all rows
use the width of the longest, which is faster.

Several positions of a prompt are attended to by the plain kernel. Where several heads share their
keys and values, Transformers copies these for every head as soon as there is a mask; on a CPU the
kernel does without the copies, and gives the same bits. Several new positions of a row (guesses)
are attended to one at a time, so that their bits are those of plain decoding.
"""

from __future__ import annotations

import math
import mmap
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from nafaudit.core.errors import InputError
from nafaudit.core.numerics import ConstantRows

_PLAIN = "sdpa"
Way = Literal["nafaudit_shared_heads", "nafaudit_one_position_at_a_time"]
SHARED_HEADS: Way = "nafaudit_shared_heads"
ONE_POSITION_AT_A_TIME: Way = "nafaudit_one_position_at_a_time"
# With any of these the plain function decides what is to be done.
_SPECIAL = ("softcap", "position_bias", "cache")
# Products of 16 bits round every score; the plain kernel keeps 32 bits inside.
BY_PRODUCTS = (torch.float32, torch.float64)
# Most widths of a row, few enough that every one of them can be tried beforehand.
_WIDTHS = 16
_STEP = 64


def width_step(width: int) -> int:
    """Returns the step that lengths are rounded up to, in rows of this many positions."""
    return _STEP * -(-width // (_STEP * _WIDTHS))


@dataclass
class RowReach:
    """The widths over which rows attend in one forward pass.

    Attributes:
        widths: For each new position, every row's own width.
        common: True if rows may share the width of the longest.
    """

    widths: Sequence[Sequence[int]]
    common: bool
    _biases: dict[tuple[int, int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def bias(self, mask: Tensor, heads: int, width: int) -> Tensor:
        """Returns the mask of each row and head [rows x heads, 1, width]; made once."""
        key = (id(mask), heads, width)
        if key not in self._biases:
            # The mask is kept too: another one could get its id.
            self._biases[key] = mask, _bias(mask, heads, width)
        return self._biases[key][1]


def reach(positions: Sequence[Sequence[int]], width: int, *, common: bool) -> RowReach:
    """Returns how far rows attend whose new tokens stand at these positions."""
    step = width_step(width)
    widths = [[min(width, (p // step + 1) * step) for p in row] for row in positions]
    return RowReach(list(zip(*widths, strict=True)), common)


def attend_one(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float) -> Tensor:
    """Attends from one position a row: two batched products and a softmax.

    Args:
        query: [rows, heads, 1, size].
        key: [rows, shared heads, at least width, size].
        value: [rows, shared heads, at least width, size].
        bias: What is added to every score [rows x shared heads, 1, width].
        scale: Factor of the scores.

    Returns:
        [rows, heads, 1, size].
    """
    rows, heads, _, size = query.shape
    batch, _, width = bias.shape
    each = heads * rows // batch
    keys = key[:, :, :width].reshape(batch, width, size)
    values = value[:, :, :width].reshape(batch, width, value.shape[-1])
    scores = torch.baddbmm(
        bias.expand(batch, each, width),
        query.reshape(batch, each, size),
        keys.transpose(1, 2),
        alpha=scale,
    )
    return torch.bmm(scores.softmax(-1), values).view(rows, heads, 1, -1)


def _bias(mask: Tensor, heads: int, width: int) -> Tensor:
    rows = mask.shape[0]
    return mask[..., :width].expand(rows, heads, 1, width).reshape(rows * heads, 1, width)


# .reach: widths of this thread's forward pass
_current = threading.local()


def _shared_heads(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    # No mask means a causal one to the layer; only the plain function handles that.
    if attention_mask is None or any(options.get(name) is not None for name in _SPECIAL):
        return _plain(module, query, key, value, attention_mask, **options)
    reach: RowReach | None = getattr(_current, "reach", None)
    if reach is not None and query.shape[2] == 1 and query.dtype in BY_PRODUCTS:
        scale = options.get("scaling") or query.shape[-1] ** -0.5
        tensors = query, key, value, attention_mask
        return _one_query(*tensors, scale, reach, reach.widths[0]).transpose(1, 2), None
    if query.shape[1] == key.shape[1] or query.device.type != "cpu":
        return _plain(module, query, key, value, attention_mask, **options)
    attended = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=options.get("dropout", 0.0),
        scale=options.get("scaling"),
        enable_gqa=True,
    )
    return attended.transpose(1, 2).contiguous(), None


def _plain(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    found: tuple[Tensor, None] = ALL_ATTENTION_FUNCTIONS[_PLAIN](
        module, query, key, value, attention_mask, **options
    )
    return found


def _one_query(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scale: float,
    reach: RowReach,
    widths: Sequence[int],
) -> Tensor:
    """Attends at one common width, or rows of equal width at a time."""
    heads = key.shape[1]
    if reach.common or len(set(widths)) == 1:
        return attend_one(query, key, value, reach.bias(mask, heads, max(widths)), scale)
    found = query.new_empty(*query.shape[:3], value.shape[-1])
    for width in sorted(set(widths)):
        rows = torch.tensor([row for row, own in enumerate(widths) if own == width])
        rows = rows.to(query.device, non_blocking=True)
        own_keys, own_values = key[rows, :, :width], value[rows, :, :width]
        bias = _bias(mask[rows], heads, width)
        found[rows] = attend_one(query[rows], own_keys, own_values, bias, scale)
    return found


def _one_position_at_a_time(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **options: Any
) -> tuple[Tensor, None]:
    parts = []
    all_positions: RowReach | None = getattr(_current, "reach", None)
    try:
        for position in range(query.shape[2]):
            one = slice(position, position + 1)
            if all_positions is not None:
                widths = all_positions.widths[position]
                _current.reach = RowReach([widths], all_positions.common)
            arguments = query[:, :, one], key, value, attention_mask[:, :, one]
            parts.append(_shared_heads(module, *arguments, **options)[0])
    finally:
        _current.reach = all_positions
    return torch.cat(parts, dim=1), None


ALL_ATTENTION_FUNCTIONS.register(SHARED_HEADS, _shared_heads)
ALL_ATTENTION_FUNCTIONS.register(ONE_POSITION_AT_A_TIME, _one_position_at_a_time)


def check_attention(name: str, model: Any) -> None:
    """Raises unless a model's attention can be asked for one position at a time."""
    used = model.config.get_text_config()._attn_implementation
    if used != _PLAIN:
        raise InputError(
            f"the {name} model attends by {used!r}; speculation needs {_PLAIN!r}. Leave out "
            "--speculate."
        )


_switch = threading.Lock()
# How many threads are inside each configuration: two models may share one.
_inside: dict[int, int] = {}


@contextmanager
def attending(model: Any, way: Way, reach: RowReach | None = None) -> Iterator[None]:
    """Switches a model's attention inside the block, if it is the plain one.

    Two threads may share a configuration: the last one to leave switches it back.
    """
    config = model.config.get_text_config()
    with _switch:
        ours = config._attn_implementation == _PLAIN or id(config) in _inside
        if ours:
            _inside[id(config)] = _inside.get(id(config), 0) + 1
            config._attn_implementation = way
    _current.reach = reach
    try:
        yield
    finally:
        _current.reach = None
        if ours:
            with _switch:
                _inside[id(config)] -= 1
                if not _inside[id(config)]:
                    del _inside[id(config)]
                    config._attn_implementation = _PLAIN


MIN_ROWS = 4
# Positions of a block in which prompts are read.
BLOCK = 16
# Logits of one pass over prompts stay under 2^24 numbers: 67 MB in float32.
_PASS_NUMBERS = 1 << 24
_PASS_TOKENS = 512


def _zeros(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Returns zeros of a tensor's type; on a CPU they take memory only once they are written to."""
    if like.device.type != "cpu" or not hasattr(mmap, "MAP_PRIVATE"):
        return like.new_zeros(shape)
    # Pages of its own: they are zero, begin at an aligned address, and go back to the system.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    pages = mmap.mmap(-1, math.prod(shape) * like.dtype.itemsize, flags=flags)
    return torch.frombuffer(pages, dtype=like.dtype).view(shape)


class _RowLayer(CacheLayerMixin):
    """Keys and values of one layer, [rows, heads, width, size]."""

    is_sliding = False

    def __init__(self, table: RowCache) -> None:
        super().__init__()
        # Weak, so that a table ends with its last use and not when cycles are looked for.
        self.table = cast("RowCache", weakref.proxy(table))

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        shape = (self.table.rows, key_states.shape[1], self.table.width)
        self.keys = _zeros(key_states, (*shape, key_states.shape[3]))
        self.values = _zeros(value_states, (*shape, value_states.shape[3]))
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        first, rows = self.table.first, key_states.shape[0]
        at = self.table.positions.to(key_states.device)
        slot = torch.arange(first, first + rows, device=key_states.device).unsqueeze(-1)
        # Advanced indices around a slice put [rows, tokens] first: hence the transposes.
        self.keys[slot, :, at] = key_states.transpose(1, 2)
        self.values[slot, :, at] = value_states.transpose(1, 2)
        return self.keys[first : first + rows], self.values[first : first + rows]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.table.width, 0

    def get_seq_length(self) -> int:
        # Positions are always passed explicitly, so that no common length is needed.
        return 0

    def get_max_length(self) -> int:
        return self.table.width


class RowCache(Cache):
    """A Transformers cache whose rows stand at positions of their own."""

    def __init__(self, layers: int, rows: int, width: int) -> None:
        self.rows = rows
        self.width = width
        # The rows that are fed stand in the slots from here on, at these positions.
        self.first = 0
        self.positions = torch.zeros(rows, 1, dtype=torch.long)
        super().__init__(layers=[_RowLayer(self) for _ in range(layers)])


@dataclass(frozen=True)
class Prefilled:
    """One prompt, read: its keys and values per layer and the logits after its last token."""

    keys: list[Tensor]
    values: list[Tensor]
    logits: Tensor


def whole_blocks(positions: int, block: int = BLOCK) -> int:
    """Rounds up to whole blocks."""
    return -(-positions // block) * block


class RowModel:
    """One model with a cache of rows: reads prompts, admits rows, steps them together.

    Args:
        model: The model.
        rows: How many it holds, at least.
        width: Positions per row.
        constant: Rows of every product, where their number matters.
        common: True if rows may attend over the width of the longest; changes speed only.
    """

    def __init__(
        self,
        model: Any,
        rows: int,
        width: int,
        constant: ConstantRows | None = None,
        *,
        common: bool = False,
    ) -> None:
        self.model = model
        self.width = width
        self.constant = constant
        self.device = model.device
        self._common = common
        self._block = constant.prompts if constant else BLOCK
        # The last block of a prompt may fill up past the width, which is never read.
        self.padded_width = whole_blocks(width, self._block)
        self.rows = whole_blocks(rows, constant.steps) if constant else max(MIN_ROWS, rows)
        # Positions of each row that may be other than 0.
        self._reached = [0] * self.rows
        self._layers = int(model.config.get_text_config().num_hidden_layers)
        self._cache = RowCache(self._layers, self.rows, self.padded_width)
        embedding_rows: int = model.get_output_embeddings().weight.shape[0]
        tokens = min(_PASS_TOKENS, _PASS_NUMBERS // embedding_rows)
        # Positions in one pass over prompts, those that fill up blocks included.
        blocks = 1 if constant else max(1, tokens // self._block)
        self.pass_tokens = blocks * self._block

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
        if not self.constant:
            return self._read(prompts, visit)

        def shown(number: int) -> Callable[[int, int, Tensor], None]:
            return lambda _, start, logits: visit(number, start, logits)

        return [self._read([tokens], shown(n))[0] for n, tokens in enumerate(prompts)]

    def _read(
        self, prompts: Sequence[Sequence[int]], visit: Callable[[int, int, Tensor], None]
    ) -> list[Prefilled]:
        block = self._block
        longest = whole_blocks(max(map(len, prompts)), block)
        each = min(longest, max(block, self.pass_tokens // len(prompts) // block * block))
        cache = RowCache(self._layers, len(prompts), self.padded_width)
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
        """Returns True if this many prompts of at most `longest` tokens are read in one pass."""
        return prompts * whole_blocks(longest, self._block) <= self.pass_tokens

    def admit(self, slot: int, prompt: Prefilled) -> None:
        """Puts a prompt's keys and values into a slot, in the place of the row before."""
        before = self._reached[slot]
        for layer, keys, values in zip(self._cache.layers, prompt.keys, prompt.values, strict=True):
            if not layer.is_initialized:
                layer.lazy_initialization(keys.unsqueeze(0), values.unsqueeze(0))
            for table, content in ((layer.keys, keys), (layer.values, values)):
                # Stale numbers behind the mask weigh exactly 0 unless they are not finite.
                self._reached[slot] = length = content.shape[1]
                table[slot, :, length:before] = 0
                table[slot, :, :length] = content

    def move(self, source: int, target: int) -> None:
        """Copies a row to another slot."""
        most = max(self._reached[source], self._reached[target])
        self._reached[target] = self._reached[source]
        for layer in self._cache.layers:
            if layer.is_initialized:
                layer.keys[target, :, :most] = layer.keys[source, :, :most]
                layer.values[target, :, :most] = layer.values[source, :, :most]

    def step(self, tokens: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Feeds one token to each of the first rows; returns their next logits [rows, :]."""
        if not self.constant:
            return self._step(0, tokens, positions, MIN_ROWS)
        size = self.constant.steps
        parts = [
            self._step(first, tokens[first : first + size], positions[first : first + size], size)
            for first in range(0, len(tokens), size)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _step(
        self, first: int, tokens: Sequence[int], positions: Sequence[int], least: int
    ) -> Tensor:
        """Steps the rows from a slot on, filled up to a number of rows."""
        spare = max(0, least - len(tokens))
        at = [[position] for position in [*positions, *[0] * spare]]
        ids = self._sent([*tokens, *[0] * spare]).unsqueeze(-1)
        self._reach_to(first, at)
        self._cache.first = first
        logits = self._forward(self._cache, ids, self._sent(at), reach=self._reach(at))
        return logits[: len(tokens), -1]

    def steps(self, tokens: Sequence[Sequence[int]], positions: Sequence[Sequence[int]]) -> Tensor:
        """Feeds as many tokens to each of the first rows; returns the logits after each.

        To the bit what `step` gives for one after the other, unless the number of rows matters:
        attention is asked for one position at a time.
        """
        assert not self.constant, "guesses need products that do not depend on their rows"
        spare = [[0] * len(tokens[0])] * max(0, MIN_ROWS - len(tokens))
        ids = self._sent([*tokens, *spare])
        at = [*positions, *spare]
        self._reach_to(0, at)
        self._cache.first = 0
        way, widths = ONE_POSITION_AT_A_TIME, self._reach(at)
        return self._forward(self._cache, ids, self._sent(at), way, widths)[: len(tokens)]

    def _reach_to(self, first: int, positions: Sequence[Sequence[int]]) -> None:
        """Notes that rows from a slot on are about to be written at these positions."""
        for slot, at in enumerate(positions, start=first):
            self._reached[slot] = max(self._reached[slot], max(at) + 1)

    def _reach(self, positions: Sequence[Sequence[int]]) -> RowReach:
        """Returns the width of each row; the full width if bits depend on the other rows."""
        if self.constant:
            return RowReach([[self.padded_width] * len(positions)], common=True)
        return reach(positions, self.padded_width, common=self._common)

    def _sent(self, numbers: Sequence[object]) -> Tensor:
        """Sends numbers to the model's device without waiting for their arrival."""
        return torch.tensor(numbers).to(self.device, non_blocking=True)

    def _forward(
        self,
        cache: RowCache,
        ids: Tensor,
        at: Tensor,
        way: Way = SHARED_HEADS,
        reach: RowReach | None = None,
    ) -> Tensor:
        cache.positions = at
        with attending(self.model, way, reach):
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
        """Returns the additive mask [rows, 1, tokens, width]: 0 where a position is attended to."""
        position = torch.arange(self.padded_width, device=at.device)
        hidden = position > at.unsqueeze(-1)
        if window is not None:
            hidden |= position <= at.unsqueeze(-1) - window
        dtype = self.model.dtype
        mask = torch.zeros(hidden.shape, dtype=dtype, device=at.device)
        return mask.masked_fill_(hidden, torch.finfo(dtype).min).unsqueeze(1)
