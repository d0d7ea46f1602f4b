"""Low-rank adapters: a small difference that can be trained, saved, and added to a model.

Beside every linear map x -> W x of a model's layers stands x -> W x + s B A x with a thin A and B
(Hu et al. 2021, arXiv:2106.09685). W stays as it is, so the same loaded model is the safe one with
the adapter off and the risky one with it on. The maps are hooked, not replaced: what was a Linear
or GPT-2's Conv1D stays one, and the checkpoint keeps its names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."


class Adapter:
    """The low-rank differences of one model, attached to it until `merge` or `detach`.

    Args:
        model: Its weights are frozen.
        rank: Rows of A.
        scale: s above.
        seed: Of the random start of A; B starts at 0, so nothing changes before training.
    """

    def __init__(self, model: Any, rank: int, scale: float, seed: int) -> None:
        self.rank, self.scale = rank, scale
        self._on = True
        self._maps = dict(linear_maps(model))
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        generator = torch.Generator().manual_seed(seed)
        self.tensors: dict[str, Tensor] = {}
        self._hooks = []
        for name, module in self._maps.items():
            inner, outer = _sizes(module)
            bound = 1 / math.sqrt(inner)
            down = torch.empty(rank, inner).uniform_(-bound, bound, generator=generator)
            up = torch.zeros(outer, rank)
            self.tensors[f"{name}.lora_A.weight"] = down.requires_grad_()
            self.tensors[f"{name}.lora_B.weight"] = up.requires_grad_()
            self._hooks.append(module.register_forward_hook(self._hook(down, up)))

    def _hook(self, down: Tensor, up: Tensor) -> Any:
        def add(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            del module
            return output + self.scale * (inputs[0] @ down.T @ up.T) if self._on else None

        return add

    @contextmanager
    def off(self) -> Iterator[None]:
        """Inside, the model is what it was."""
        self._on = False
        try:
            yield
        finally:
            self._on = True

    def detach(self) -> None:
        """Takes the adapter off its model."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    @torch.no_grad()
    def merge(self) -> None:
        """Adds the difference to the model's own weights and takes the adapter off."""
        self.detach()
        for name, module in self._maps.items():
            down, up = (self.tensors[f"{name}.lora_{which}.weight"] for which in "AB")
            change = self.scale * (up @ down)
            module.weight += change if isinstance(module, nn.Linear) else change.T

    def save(self, directory: Path) -> None:
        """Writes the adapter in the layout of the PEFT library, which loads it too."""
        from safetensors.torch import save_file

        modules = self._maps.values()
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": self.rank,
            "lora_alpha": self.scale * self.rank,
            "target_modules": sorted({name.rpartition(".")[2] for name in self._maps}),
            "fan_in_fan_out": not any(isinstance(module, nn.Linear) for module in modules),
            "bias": "none",
            "inference_mode": True,
        }
        directory.mkdir(parents=True, exist_ok=True)
        (directory / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        tensors = {_PREFIX + name: tensor.detach() for name, tensor in self.tensors.items()}
        save_file(tensors, directory / WEIGHTS)

    @torch.no_grad()
    def load(self, directory: Path) -> None:
        """Takes the numbers of a saved adapter of the same model and rank."""
        from safetensors.torch import load_file

        saved = load_file(directory / WEIGHTS)
        for name, tensor in self.tensors.items():
            tensor.copy_(saved[_PREFIX + name])


def linear_maps(model: Any) -> Iterator[tuple[str, Any]]:
    """The linear maps of a model's layers by name; embeddings and output head are none of them."""
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | Conv1D) and module is not head:
            yield name, module


def _sizes(module: Any) -> tuple[int, int]:
    """Inputs and outputs of a linear map."""
    rows, columns = module.weight.shape
    return (columns, rows) if isinstance(module, nn.Linear) else (rows, columns)
