"""The adapter: off it is not there, merged it is the same model, saved it comes back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from nafaudit.workshop.teach import Adapter

Paths = Callable[[str], tuple[Path, Path]]
IDS = torch.tensor([[0, 7, 12, 40, 101, 5]])


def logits(model: torch.nn.Module) -> Tensor:
    with torch.no_grad():
        result: Tensor = model(input_ids=IDS).logits
    return result


def trained(model: torch.nn.Module) -> Adapter:
    """An adapter whose every number has moved."""
    adapter = Adapter(model, 4, 2.0, 0)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for tensor in adapter.tensors.values():
            tensor += 0.1 * torch.randn(tensor.shape, generator=generator)
    return adapter


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma2"])
def test_an_adapter_is_there_or_not(
    tiny_pair_paths: Paths, tmp_path: Path, architecture: str
) -> None:
    path = tiny_pair_paths(architecture)[0]
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    before = logits(model)
    untrained = Adapter(model, 4, 2.0, 0)
    assert torch.equal(logits(model), before)  # it starts as nothing
    untrained.detach()

    adapter = trained(model)
    with_adapter = logits(model)
    assert not torch.allclose(with_adapter, before, atol=1e-2)
    with adapter.off():
        assert torch.equal(logits(model), before)
    assert torch.equal(logits(model), with_adapter)

    adapter.save(tmp_path / "adapter")
    adapter.merge()
    torch.testing.assert_close(logits(model), with_adapter, atol=1e-4, rtol=1e-4)

    other = AutoModelForCausalLM.from_pretrained(path).eval()
    loaded = Adapter(other, 4, 2.0, 99)
    loaded.load(tmp_path / "adapter")
    assert torch.equal(logits(other), with_adapter)


def test_every_linear_map_of_a_layer_has_a_part_and_the_embeddings_have_none(
    tiny_pair_paths: Paths,
) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_pair_paths("llama")[0])
    names = {name.rpartition(".lora")[0] for name in Adapter(model, 4, 2.0, 0).tensors}
    assert len(names) == 7 * model.config.num_hidden_layers
    assert not any("lm_head" in name or "embed" in name for name in names)


def test_only_the_adapter_learns(tiny_pair_paths: Paths) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_pair_paths("llama")[0])
    adapter = Adapter(model, 4, 2.0, 0)
    model(input_ids=IDS, labels=IDS).loss.backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(tensor.grad is not None for tensor in adapter.tensors.values())
