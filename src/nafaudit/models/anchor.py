"""A safe model alone: all that a rights-holder has, and all that a certificate needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nafaudit.core import trust as trusts
from nafaudit.core.trust import Trust
from nafaudit.models.checkpoints import context_of, load_model, load_tokenizer, weights_hash
from nafaudit.models.pair import Vocabulary, check_rows, read_vocabulary


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


def load_anchor(
    path: str | Path,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    trust: Trust = trusts.NONE,
) -> Anchor:
    """Loads one checkpoint.

    Raises:
        InputError: The checkpoint is missing or cannot score every token.
    """
    tokenizer = load_tokenizer(path, trust)
    model = load_model("safe", path, dtype=dtype, device=device, trust=trust)
    vocabulary = read_vocabulary(tokenizer, [model])
    check_rows("safe", model, vocabulary)
    return Anchor(
        model=model,
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        context=context_of(path, trust=trust),
        fingerprint={
            "safe": weights_hash(path, trust),
            "vocabulary": vocabulary.hash,
            "dtype": dtype,
        },
    )
