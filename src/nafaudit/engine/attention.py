"""Attention of several new positions of a row, one at a time: the same kernel as for one token.

A kernel that sees several queries at once sums in another order, and a speculated token's logits
would differ in the last bits from those of plain decoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from nafaudit.core.errors import InputError

_PLAIN = "sdpa"
_NAME = "nafaudit_one_position_at_a_time"


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **options: Any
) -> tuple[Tensor, None]:
    plain = ALL_ATTENTION_FUNCTIONS[_PLAIN]
    parts = []
    for position in range(query.shape[2]):
        one = slice(position, position + 1)
        part, _ = plain(module, query[:, :, one], key, value, attention_mask[:, :, one], **options)
        parts.append(part)
    return torch.cat(parts, dim=1), None


ALL_ATTENTION_FUNCTIONS.register(_NAME, _attend)


def check_attention(name: str, model: Any) -> None:
    """Raises unless a model's attention can be asked for one position at a time."""
    used = model.config.get_text_config()._attn_implementation
    if used != _PLAIN:
        raise InputError(
            f"the {name} model attends by {used!r}; speculation needs {_PLAIN!r}. Leave out "
            "--speculate."
        )


@contextmanager
def one_position_at_a_time(model: Any) -> Iterator[None]:
    """Switches a model's attention for as long as it lasts."""
    config = model.config.get_text_config()
    before = config._attn_implementation
    config._attn_implementation = _NAME
    try:
        yield
    finally:
        config._attn_implementation = before
