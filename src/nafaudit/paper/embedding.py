"""Embeddings of prompts for the paper's surrogate and archive.

The paper embeds by Sentence-T5, a Sentence-Transformers checkpoint of 110 million parameters. Any
such checkpoint can be named; TF-IDF, which needs none, is the default.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.errors import InputError

TFIDF = "tfidf"
_EXAMPLE = "sentence-transformers/sentence-t5-base"


class Embedder(Protocol):
    """Makes a vector of each text."""

    @property
    def name(self) -> str:
        """Name in reports."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Returns one row per text."""


@dataclass(frozen=True)
class SentenceEmbedder:
    """A Sentence-Transformers checkpoint with all its modules; made by `load_sentences`."""

    checkpoint: str
    model: Any

    @property
    def name(self) -> str:
        """Name in reports."""
        return f"Sentence-Transformers ({self.checkpoint})"

    def embed(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Returns one row per text, each computed alone: a batch would change its last bits."""
        rows = self.model.encode(list(texts), batch_size=1, show_progress_bar=False)
        return np.asarray(rows, dtype=np.float64)


def load_sentences(
    checkpoint: str, device: str = "cpu", *, pickle: bool = False
) -> SentenceEmbedder:
    """Loads a checkpoint by path or hub id; none of its own code runs.

    Args:
        checkpoint: Directory with `modules.json`, or a hub id.
        device: Torch device.
        pickle: True if weights may be read from pickle files where there are no safetensors.

    Raises:
        InputError: The library is not installed, or this is no such checkpoint.
    """
    try:
        library = importlib.import_module("sentence_transformers")
    except ImportError as error:
        raise InputError(
            f"embedding = {checkpoint} needs sentence-transformers, which is not installed; pip "
            "install 'nafaudit[sentence]', or leave the option out for TF-IDF."
        ) from error
    try:
        model = library.SentenceTransformer(
            checkpoint,
            device=device,
            trust_remote_code=False,
            model_kwargs={} if pickle else {"use_safetensors": True},
        )
    # The library raises whatever its parts do: a wrong file, a missing one, no network.
    except Exception as error:
        raise InputError(
            f"embedding = {checkpoint}: not a Sentence-Transformers checkpoint that can be loaded "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason'})"
            f"; give a directory with modules.json and safetensors, or a hub id such as {_EXAMPLE}."
        ) from error
    return SentenceEmbedder(checkpoint, model.eval())
