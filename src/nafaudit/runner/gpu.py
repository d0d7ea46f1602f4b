"""Estimates memory and time of a run on GPUs from data sheets and model shapes, unmeasured.

A step of a batch reads every weight and the whole cache once (limit of memory), or does two
operations for every weight and row (limit of arithmetic); the larger counts, for each model. What
Transformers and this engine add is estimated apart.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

from nafaudit.core.errors import InputError, UnavailableError, nearest

_SHAPES = Path(__file__).with_name("shapes.csv")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder with a gated feed-forward part, as Llama, Mistral and Qwen have.

    Attributes:
        name: Its name.
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
        """Returns the number of weights, without biases, which are few."""
        attention = self.hidden * self.head * (2 * self.heads + 2 * self.kv_heads)
        layer = attention + 3 * self.hidden * self.inner + 2 * self.hidden
        return self.layers * layer + self.hidden + self._embedding * (1 if self.tied else 2)

    @property
    def read_each_step(self) -> int:
        """Returns the weights that a step reads; of the input embedding it reads few rows."""
        return self.parameters - (0 if self.tied else self._embedding)

    @property
    def cached_each_position(self) -> int:
        """Returns how many numbers the cache keeps for one token."""
        return 2 * self.layers * self.kv_heads * self.head

    @property
    def _embedding(self) -> int:
        return self.vocabulary * self.hidden


def known_shapes() -> dict[str, ModelShape]:
    """Returns shapes by name."""
    counts = ("hidden", "layers", "heads", "kv_heads", "head", "inner", "vocabulary")
    with _SHAPES.open(newline="") as stream:
        return {
            row["name"]: ModelShape(
                row["name"],
                **{name: int(row[name]) for name in counts},
                tied=row["tied"] == "yes",
                source=row["source"],
            )
            for row in csv.DictReader(stream)
        }


def shape_of(name: str) -> ModelShape:
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
    if any(config.get(key) for key in _EXPERTS):
        raise InputError(f"{path}: a mixture of experts; its time cannot be counted this way.")
    try:
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        return ModelShape(
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


_GPUS = Path(__file__).with_name("gpus.csv")
# Bytes of a weight; the cache, and what few-bit weights are multiplied with, have two at least.
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8, "8bit": 1, "4bit": 0.5}
# Float64 arrays of rows x vocabulary that a step holds at once: laws, noise, scores, work space.
_LAW_ARRAYS = 12
# Bytes that a step moves for every row and token id if rows bind, and those of its noise: counted
# operation by operation in tests/engine/test_batched.py (1,400 and 1,900), and some to spare.
LAW_TRAFFIC = 1600
NOISE_TRAFFIC = 2000
# A layer of Transformers without compilation, whatever the GPU: the 8B model of a third party
# took 3.19 s an answer; with 200 tokens and 32 layers that is 0.5 ms.
_LAYER_SECONDS = 0.5e-3
# What the driver, Torch and the allocator keep for themselves.
_SPARE = 0.1


@dataclass(frozen=True)
class Gpu:
    """A GPU as its data sheet has it.

    Attributes:
        name: Its name here.
        memory: Bytes.
        bandwidth: Bytes a second.
        half: Operations a second in bfloat16 and float16, dense.
        single: Operations a second in float32.
        source: Where the figures come from.
    """

    name: str
    memory: float
    bandwidth: float
    half: float
    single: float
    source: str


def known_gpus() -> dict[str, Gpu]:
    """Returns GPUs by name."""
    with _GPUS.open(newline="") as stream:
        return {
            row["name"]: Gpu(
                row["name"],
                float(row["memory_gb"]) * 1e9,
                float(row["bandwidth_gb_s"]) * 1e9,
                float(row["bf16_tflops"]) * 1e12,
                float(row["fp32_tflops"]) * 1e12,
                row["source"],
            )
            for row in csv.DictReader(stream)
        }


def gpu_of(name: str) -> Gpu:
    """Returns a GPU by its name."""
    known = known_gpus()
    if name not in known:
        raise InputError(
            f"unknown GPU {name!r}{nearest(name, known)} Known: {', '.join(known)}; others are a "
            "line in src/nafaudit/runner/gpus.csv."
        )
    return known[name]


@dataclass(frozen=True)
class GpuWork:
    """The size of a run.

    Attributes:
        prompts: Number of prompts.
        prompt_tokens: Their mean length.
        rows: Trajectories.
        length: Tokens of each, at most.
        width: Positions per row in the cache.
        batch: Rows decoded together by a worker.
        sharing: Rows of one trajectory, one per budget, which have the same noise.
    """

    prompts: int
    prompt_tokens: float
    rows: int
    length: int
    width: int
    batch: int
    sharing: int


@dataclass(frozen=True)
class Arithmetic:
    """Memory and time of a run; each GPU holds the pair and is a worker.

    Attributes:
        safe: The safe model.
        risky: The risky model.
        dtype: Precision of the weights.
        gpu: GPU of each worker.
        gpus: Number of workers.
        work: Size of the run.
    """

    safe: ModelShape
    risky: ModelShape
    dtype: str
    gpu: Gpu
    gpus: int
    work: GpuWork

    @property
    def weights(self) -> int:
        """Returns the bytes of both models."""
        return int((self.safe.parameters + self.risky.parameters) * BYTES[self.dtype])

    @property
    def cache_per_row(self) -> int:
        """Bytes of keys and values of both models: a row has all its positions from the start."""
        numbers = self.safe.cached_each_position + self.risky.cached_each_position
        return numbers * self.work.width * self._cached_bytes

    @property
    def laws_per_row(self) -> int:
        """Returns the bytes of a row's logits and laws."""
        return max(self.safe.vocabulary, self.risky.vocabulary) * (8 * _LAW_ARRAYS + 8)

    @property
    def memory(self) -> int:
        """Returns the bytes that a worker takes."""
        return self.weights + self.work.batch * (self.cache_per_row + self.laws_per_row)

    @property
    def largest_batch(self) -> int:
        """Rows that fit a worker, a tenth of its memory kept free; 0 if the pair does not."""
        room = self.gpu.memory * (1 - _SPARE) - self.weights
        return max(0, int(room // (self.cache_per_row + self.laws_per_row)))

    @property
    def step_at_limit(self) -> float:
        """Returns the least seconds of a batch's step, by the data sheet."""
        return sum(self._forward(shape) for shape in (self.safe, self.risky))

    @property
    def step_likely(self) -> float:
        """Returns the seconds of a step with Transformers' layers, the solver and the noise."""
        layers = (
            max(self._forward(shape), shape.layers * _LAYER_SECONDS)
            for shape in (self.safe, self.risky)
        )
        numbers = self.work.batch * max(self.safe.vocabulary, self.risky.vocabulary)
        moved = numbers * (LAW_TRAFFIC + NOISE_TRAFFIC / self.work.sharing)
        return sum(layers) + moved / self.gpu.bandwidth

    @property
    def reading(self) -> float:
        """Returns the seconds to read one prompt with both models, at the limit."""
        return sum(
            max(
                shape.read_each_step * BYTES[self.dtype] / self.gpu.bandwidth,
                2 * shape.read_each_step * self.work.prompt_tokens / self._speed,
            )
            for shape in (self.safe, self.risky)
        )

    @property
    def seconds_at_limit(self) -> float:
        """Returns the seconds of the run with every step at the limit."""
        return self._whole(self.step_at_limit)

    @property
    def seconds_likely(self) -> float:
        """Returns the seconds of the run with every step as is likely."""
        return self._whole(self.step_likely)

    @property
    def _speed(self) -> float:
        return self.gpu.half if BYTES[self.dtype] <= 2 else self.gpu.single

    @property
    def _cached_bytes(self) -> int:
        return max(2, int(BYTES[self.dtype]))

    def _forward(self, shape: ModelShape) -> float:
        rows = self.work.batch
        cached = rows * self.work.width * shape.cached_each_position * self._cached_bytes
        moved = shape.read_each_step * BYTES[self.dtype] + cached
        return max(moved / self.gpu.bandwidth, 2 * shape.read_each_step * rows / self._speed)

    def _whole(self, step: float) -> float:
        steps = -(-self.work.rows // (self.work.batch * self.gpus)) * self.work.length
        return steps * step + -(-self.work.prompts // self.gpus) * self.reading
