"""Attention as rows need it: what a row attends to, and in which bits, depends on the row alone.

One new position of a row is attended to by two batched products and a softmax over the row's own
length, rounded up to a fixed step. Wider would be right too, as masked positions weigh exactly 0,
but a sum over another width may be made in another order. Where the proof has shown that it is not
(`nafaudit.engine.proof`), all rows share the width of the longest, which is faster.

Several positions of a prompt are attended to by the plain kernel. Where several heads share their
keys and values, Transformers copies these for every head as soon as there is a mask; on a CPU the
kernel does without the copies, and gives the same bits. Several new positions of a row (guesses)
are attended to one at a time, so that their bits are those of plain decoding.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from nafaudit.core.errors import InputError

_PLAIN = "sdpa"
Way = Literal["nafaudit_shared_heads", "nafaudit_one_position_at_a_time"]
SHARED_HEADS: Way = "nafaudit_shared_heads"
ONE_POSITION_AT_A_TIME: Way = "nafaudit_one_position_at_a_time"
# With any of these the plain function decides what is to be done.
_SPECIAL = ("softcap", "position_bias", "cache")
# Products of 16 bits round every score; the plain kernel keeps 32 bits inside.
BY_PRODUCTS = (torch.float32, torch.float64)
# A row has at most so many widths, so that every one of them can be tried beforehand.
_WIDTHS = 16
_STEP = 64


def width_step(slots: int) -> int:
    """What lengths are rounded up to, in rows of so many positions."""
    return _STEP * -(-slots // (_STEP * _WIDTHS))


@dataclass
class Reach:
    """How far rows attend in one forward pass.

    Attributes:
        widths: For each new position, every row's own width.
        common: True if rows may share the width of the longest.
    """

    widths: Sequence[Sequence[int]]
    common: bool
    _biases: dict[tuple[int, int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def bias(self, mask: Tensor, heads: int, width: int) -> Tensor:
        """A mask [rows, 1, 1, slots] for each row and head [rows x heads, 1, width]; made once."""
        key = (id(mask), heads, width)
        if key not in self._biases:
            # The mask is kept too: another one could get its id.
            self._biases[key] = mask, _bias(mask, heads, width)
        return self._biases[key][1]


def reach(positions: Sequence[Sequence[int]], slots: int, *, common: bool) -> Reach:
    """How far rows attend whose new tokens stand at these positions."""
    step = width_step(slots)
    widths = [[min(slots, (p // step + 1) * step) for p in row] for row in positions]
    return Reach(list(zip(*widths, strict=True)), common)


def attend_one(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float) -> Tensor:
    """Attention of one position a row: two batched products and a softmax.

    Args:
        query: [rows, heads, 1, size].
        key: [rows, shared heads, at least width, size].
        value: The same.
        bias: What is added to every score [rows x shared heads, 1, width].
        scale: Of the scores.

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


_asked = threading.local()


def _shared_heads(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    # A layer that drops its mask means a causal one.
    if attention_mask is None or any(options.get(name) is not None for name in _SPECIAL):
        return _plain(module, query, key, value, attention_mask, **options)
    how: Reach | None = getattr(_asked, "reach", None)
    if how is not None and query.shape[2] == 1 and query.dtype in BY_PRODUCTS:
        scale = options.get("scaling") or query.shape[-1] ** -0.5
        given = query, key, value, attention_mask
        return _one_query(*given, scale, how, how.widths[0]).transpose(1, 2), None
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
    how: Reach,
    widths: Sequence[int],
) -> Tensor:
    """Rows at one common width, or rows of the same width together."""
    heads = key.shape[1]
    if how.common or len(set(widths)) == 1:
        return attend_one(query, key, value, how.bias(mask, heads, max(widths)), scale)
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
    whole: Reach | None = getattr(_asked, "reach", None)
    try:
        for position in range(query.shape[2]):
            one = slice(position, position + 1)
            if whole is not None:
                _asked.reach = Reach([whole.widths[position]], whole.common)
            at = query[:, :, one], key, value, attention_mask[:, :, one]
            parts.append(_shared_heads(module, *at, **options)[0])
    finally:
        _asked.reach = whole
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
def attending(model: Any, way: Way, how: Reach | None = None) -> Iterator[None]:
    """Switches a model's attention for as long as it lasts, unless it is not the plain one.

    Two threads may share a configuration: the last one to leave switches it back.
    """
    config = model.config.get_text_config()
    with _switch:
        ours = config._attn_implementation == _PLAIN or id(config) in _inside
        if ours:
            _inside[id(config)] = _inside.get(id(config), 0) + 1
            config._attn_implementation = way
    _asked.reach = how
    try:
        yield
    finally:
        _asked.reach = None
        if ours:
            with _switch:
                _inside[id(config)] -= 1
                if not _inside[id(config)]:
                    del _inside[id(config)]
                    config._attn_implementation = _PLAIN
