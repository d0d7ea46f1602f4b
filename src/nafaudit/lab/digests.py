"""Digests of fixed products: which last bits this machine computes, beside golden ones.

Kernels choose their order of adding by the CPU, and a few environment variables restrict that
choice. Libraries read the variables once, when the first number is computed, so every set of
variables is tried in a new process (`python -m nafaudit.lab.digests`), which prints its variables
and its digests as JSON.

The inputs of all products follow from integer arithmetic alone, so the digest of `inputs` is the
same on every machine.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

GOLDEN_CPU = "AMD EPYC, family 25 model 17"
GOLDEN_TORCH = "2.13.0"

_TRIO = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "COMPATIBLE",
}
SETS: dict[str, dict[str, str]] = {
    "default": {},
    "strict": {"MKL_CBWR": "AUTO,STRICT"},
    "trio": _TRIO,
    "avx2-strict": {"MKL_CBWR": "AVX2,STRICT"},
    "trio-strict": _TRIO | {"MKL_CBWR": "COMPATIBLE,STRICT"},
}
"""Environment variables of each set, by the set's name."""

# On the machine of the golden values these sets gave the digests of another set.
_SAME_AS = {"avx2-strict": "strict", "trio-strict": "trio"}
# Removed from the user's environment, so that only the variables of the set itself are there.
_KERNEL_VARIABLES = ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR")
_TIMEOUT_SECONDS = 600
_ROWS = (1, 4, 8, 32)
_SHAPES = ((32, 64), (128, 512), (576, 1536), (2048, 512))


@dataclass(frozen=True)
class DigestComparison:
    """The digests of one set of variables on this machine, beside the golden ones.

    Attributes:
        name: Name of the set.
        digests: By product; empty if the process failed.
        failure: Why there are none; empty if there are.
    """

    name: str
    digests: Mapping[str, str]
    failure: str = ""

    @property
    def golden(self) -> dict[str, str]:
        """Golden digests of the set, in the order of the products."""
        return golden_digests(self.name)

    @property
    def agreeing(self) -> int:
        """Number of products whose digest is the golden one."""
        return sum(self.digests.get(name) == value for name, value in self.golden.items())

    @property
    def agrees(self) -> bool:
        """True if every product has the golden digest."""
        return self.agreeing == len(self.golden)


def golden_digests(name: str) -> dict[str, str]:
    """Returns the golden digest of every product under a set of variables."""
    text = (resources.files("nafaudit.lab") / "digests.csv").read_text(encoding="utf-8")
    column = _SAME_AS.get(name, name)
    return {row["product"]: row[column] for row in csv.DictReader(text.splitlines())}


def compare(name: str) -> DigestComparison:
    """Computes the digest of every product in a new process, under a set of variables."""
    kept = {key: value for key, value in os.environ.items() if key not in _KERNEL_VARIABLES}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "nafaudit.lab.digests", name],
            env=kept,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return DigestComparison(name, {}, f"no answer within {_TIMEOUT_SECONDS} s")
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        return DigestComparison(name, {}, last[0])
    found = json.loads(done.stdout)
    if found["environment"] != SETS[name]:
        return DigestComparison(
            name, {}, f"its process had other variables: {found['environment']}"
        )
    return DigestComparison(name, found["digests"])


def digests() -> dict[str, str]:
    """Computes the digest of every product in this process: the start of its SHA-256."""
    torch.set_num_threads(1)
    with torch.inference_mode():
        found = {name: value.contiguous().numpy().tobytes() for name, value in _products()}
    return {name: hashlib.sha256(content).hexdigest()[:12] for name, content in found.items()}


def _products() -> Iterator[tuple[str, Tensor]]:
    """Yields the result of every operation of a forward pass, on inputs equal on all machines."""
    yield "inputs", _numbers(1, 32, 128)
    for width, height in _SHAPES:
        rows, weights = _numbers(1, 32, width), _numbers(2, height, width)
        for count in _ROWS:
            yield f"linear {width}x{height} M={count}", F.linear(rows[:count], weights)
    queries = _numbers(5, 32, 4, 1, 32)
    keys, values = (_numbers(salt, 32, 4, 384, 32) for salt in (3, 4))
    mask = torch.zeros(32, 1, 1, 384)
    yield "sdpa", F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    # Attention by hand, a row and head at a time, each part on inputs of its own.
    queries, keys, values = (part.reshape(128, -1, 32) for part in (queries, keys, values))
    yield "bmm scores", torch.bmm(queries, keys.transpose(1, 2)) * 32**-0.5
    weights = _numbers(9, 128, 384)
    yield "softmax of fixed", weights.softmax(-1)
    yield "bmm values", torch.bmm(weights.view(128, 1, 384), values)
    x = _numbers(6, 32, 576)
    positive = x.abs() + 1e-3
    yield "layer_norm", F.layer_norm(x, (576,))
    yield "rms_norm", F.rms_norm(x, (576,))
    yield "mean", x.mean(-1)
    yield "rsqrt", positive.rsqrt()
    yield "silu", F.silu(x)
    yield "gelu", F.gelu(x)
    yield "gelu_tanh", F.gelu(x, approximate="tanh")
    yield "exp", x.exp()
    yield "log", positive.log()
    yield "tanh", x.tanh()
    yield "cos", (x * 100).cos()


def _numbers(salt: int, *shape: int) -> Tensor:
    """Returns multiples of 2^-15 in [-1, 1) that look random; float32 holds every one of them."""
    mixed = np.arange(np.prod(shape), dtype=np.uint32) * np.uint32(2654435761)
    mixed += np.uint32(salt * 40503 + 12345)
    for shift, factor in ((15, 2246822519), (13, 3266489917)):
        mixed = (mixed ^ (mixed >> np.uint32(shift))) * np.uint32(factor)
    mixed ^= mixed >> np.uint32(16)
    values = (mixed & np.uint32(0xFFFF)).astype(np.float32) / np.float32(2**15) - np.float32(1)
    # A copy, because products of one row depend on where torch lays out their weights.
    return torch.from_numpy(values).clone().reshape(shape)


if __name__ == "__main__":
    # Importing the package sets a variable of its own: the set replaces it here, before the
    # first number is computed.
    for variable in _KERNEL_VARIABLES:
        os.environ.pop(variable, None)
    os.environ.update(SETS[sys.argv[1]])
    answer = {
        "environment": {key: os.environ[key] for key in _KERNEL_VARIABLES if key in os.environ},
        "digests": digests(),
    }
    sys.stdout.write(json.dumps(answer) + "\n")
