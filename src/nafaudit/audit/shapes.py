"""How large a language model is, from the numbers of its configuration; no weight is read."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nafaudit.core.errors import InputError, UnavailableError, nearest

_TABLE = Path(__file__).with_name("shapes.csv")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder with a gated feed-forward part, as Llama, Mistral and Qwen have.

    Attributes:
        name: What it is called.
        hidden: Width of the residual stream.
        layers: Number of layers.
        heads: Query heads.
        kv_heads: Heads of keys and values.
        head: Width of a head.
        inner: Width of the feed-forward part.
        vocabulary: Rows of the embedding.
        tied: True if the output layer is the embedding.
        source: Where the numbers come from.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    vocabulary: int
    tied: bool
    source: str

    @property
    def parameters(self) -> int:
        """All weights but biases, which are few."""
        attention = self.hidden * self.head * (2 * self.heads + 2 * self.kv_heads)
        layer = attention + 3 * self.hidden * self.inner + 2 * self.hidden
        return self.layers * layer + self.hidden + self._embedding * (1 if self.tied else 2)

    @property
    def read_each_step(self) -> int:
        """Weights that a step reads: of the input embedding only a row for each token."""
        return self.parameters - (0 if self.tied else self._embedding)

    @property
    def cached_each_position(self) -> int:
        """Numbers that the cache keeps for one token."""
        return 2 * self.layers * self.kv_heads * self.head

    @property
    def _embedding(self) -> int:
        return self.vocabulary * self.hidden


def known_shapes() -> dict[str, Shape]:
    """Shapes by name."""
    with _TABLE.open(newline="") as stream:
        return {row["name"]: _shape(row) for row in csv.DictReader(stream)}


def shape_of(name: str) -> Shape:
    """Returns a known shape, or that of a checkpoint directory or a config.json.

    Raises:
        UnavailableError: There is no such shape here.
        InputError: The configuration is not of a model that can be counted.
    """
    known = known_shapes()
    if name in known:
        return known[name]
    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    try:
        config = json.loads(path.read_bytes())
    except OSError:
        raise UnavailableError(
            f"no model shape {name!r} is known, and no config.json is there"
            f"{nearest(name, known)} Known: {', '.join(known)}; or give a checkpoint directory."
        ) from None
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}.") from error
    return _of_config(path, config)


def _of_config(path: Path, config: Any) -> Shape:
    if any(config.get(key) for key in _EXPERTS):
        raise InputError(f"{path}: a mixture of experts; its time cannot be counted this way.")
    try:
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        return Shape(
            path.parent.name,
            hidden,
            int(config["num_hidden_layers"]),
            heads,
            int(config.get("num_key_value_heads") or heads),
            int(config.get("head_dim") or hidden // heads),
            int(config["intermediate_size"]),
            int(config["vocab_size"]),
            bool(config.get("tie_word_embeddings", False)),
            str(path),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: {error} is missing or no number; only configurations with hidden_size, "
            "num_hidden_layers, num_attention_heads, intermediate_size and vocab_size are counted."
        ) from error


def _shape(row: dict[str, str]) -> Shape:
    names = ("hidden", "layers", "heads", "kv_heads", "head", "inner", "vocabulary")
    numbers = {name: int(row[name]) for name in names}
    return Shape(row["name"], **numbers, tied=row["tied"] == "yes", source=row["source"])
