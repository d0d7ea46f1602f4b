"""A safe model alone: all that a rights-holder has, and all that a certificate needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nafaudit.models.pair import (
    Vocabulary,
    check_device,
    check_rows,
    context_of,
    load_model,
    load_tokenizer,
    read_vocabulary,
    torch_dtype,
    weights_hash,
)


@dataclass(frozen=True)
class Anchor:
    """One loaded model.

    Attributes:
        model: The safe model.
        tokenizer: Its tokenizer.
        vocabulary: Its ids.
        context: Positions that it has.
        fingerprint: What identifies it: content hashes and dtype.
    """

    model: Any
    tokenizer: Any
    vocabulary: Vocabulary
    context: int
    fingerprint: Mapping[str, Any]


def load_anchor(path: str | Path, *, dtype: str = "float32", device: str = "cpu") -> Anchor:
    """Loads one checkpoint.

    Only safetensors weights are read and no remote code runs.

    Raises:
        InputError: The checkpoint is missing or cannot score every token.
    """
    precision = torch_dtype(dtype)
    check_device(device)
    tokenizer = load_tokenizer(path)
    model = load_model("safe", path, precision, device)
    vocabulary = read_vocabulary(tokenizer, [model])
    check_rows("safe", model, vocabulary)
    return Anchor(
        model=model,
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        context=context_of(path),
        fingerprint={
            "safe": weights_hash(path, model),
            "vocabulary": vocabulary.hash,
            "dtype": dtype,
        },
    )
