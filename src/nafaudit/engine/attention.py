"""Attention as rows need it: the bits of the plain kernel, in two other ways of asking for them.

Where several heads share their keys and values, Transformers copies these for every head as soon
as there is a mask. On a CPU the kernel does without the copies, and gives the same bits.

Several new positions of a row are attended to one at a time: a kernel that sees several queries at
once sums in another order, and a speculated token's logits would differ in the last bits from
those of plain decoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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


def _shared_heads(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    shared = query.shape[1] > key.shape[1] and query.device.type == "cpu"
    # A layer that drops its mask means a causal one.
    if (
        not shared
        or attention_mask is None
        or any(options.get(name) is not None for name in _SPECIAL)
    ):
        plain: tuple[Tensor, None] = ALL_ATTENTION_FUNCTIONS[_PLAIN](
            module, query, key, value, attention_mask, **options
        )
        return plain
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


def _one_position_at_a_time(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **options: Any
) -> tuple[Tensor, None]:
    parts = []
    for position in range(query.shape[2]):
        one = slice(position, position + 1)
        at = query[:, :, one], key, value, attention_mask[:, :, one]
        parts.append(_shared_heads(module, *at, **options)[0])
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


@contextmanager
def attending(model: Any, way: Way) -> Iterator[None]:
    """Switches a model's attention for as long as it lasts, unless it is not the plain one.

    Whoever finds it switched leaves it so: two threads may share a configuration, and only the
    one that switched knows what was there before.
    """
    config = model.config.get_text_config()
    if config._attn_implementation != _PLAIN:
        yield
        return
    config._attn_implementation = way
    try:
        yield
    finally:
        config._attn_implementation = _PLAIN
