from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.core.errors import InputError
from nafaudit.engine.probe import probe
from nafaudit.lab.tiny import build_checkpoint, build_tokenizer
from nafaudit.mechanisms.registry import mechanism
from nafaudit.models.checkpoints import context_of
from nafaudit.models.pair import load_pair

Paths = Callable[[str], tuple[Path, Path]]


@pytest.fixture
def copies(tiny_pair_paths: Paths, tmp_path: Path) -> tuple[Path, Path]:
    """A pair that a test may damage."""
    safe, risky = (
        Path(shutil.copytree(path, tmp_path / path.name)) for path in tiny_pair_paths("llama")
    )
    return safe, risky


def test_equal_files_have_equal_fingerprints_and_others_do_not(
    tiny_pair_paths: Paths, copies: tuple[Path, Path]
) -> None:
    assert load_pair(*copies).fingerprint == load_pair(*tiny_pair_paths("llama")).fingerprint
    swapped = load_pair(*reversed(copies)).fingerprint
    assert swapped != load_pair(*copies).fingerprint


def test_a_checkpoint_that_lacks_a_tensor_is_refused(copies: tuple[Path, Path]) -> None:
    weights = copies[1] / "model.safetensors"
    tensors = load_file(weights)
    del tensors["model.layers.1.self_attn.q_proj.weight"]
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"lacks 1 of the model's tensors, .*q_proj"):
        load_pair(*copies)


def test_a_truncated_file_is_refused(copies: tuple[Path, Path]) -> None:
    weights = copies[0] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(InputError, match="the safe model could not be loaded"):
        load_pair(*copies)


def test_another_vocabulary_is_refused_with_what_is_shared(copies: tuple[Path, Path]) -> None:
    build_tokenizer(size=300).save_pretrained(copies[0])
    with pytest.raises(InputError, match="300 and 320 ids, of which 300 mean the same token"):
        load_pair(*copies)


def test_too_few_embedding_rows_are_refused(tmp_path: Path) -> None:
    paths = [build_checkpoint(tmp_path / n, 1, spare_rows=-20) for n in ("a", "b")]
    with pytest.raises(InputError, match="300 embedding rows for a tokenizer of 320 ids"):
        load_pair(*paths)


@pytest.mark.parametrize("what", ["nowhere", "empty"])
def test_what_is_no_checkpoint_is_refused(
    what: str, copies: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no tokenizer could be loaded"):
        load_pair(copies[0], tmp_path / what)


def test_a_recurrent_model_is_refused(copies: tuple[Path, Path], tmp_path: Path) -> None:
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=320, hidden_size=32, num_hidden_layers=1, state_size=4)
    MambaForCausalLM(config).save_pretrained(tmp_path / "mamba")
    build_tokenizer().save_pretrained(tmp_path / "mamba")
    with pytest.raises(InputError, match="Only attention models are supported"):
        load_pair(copies[0], tmp_path / "mamba")


def test_alibi_is_refused_by_the_probe(tmp_path: Path) -> None:
    from transformers import BloomConfig, BloomForCausalLM

    config = BloomConfig(vocab_size=320, hidden_size=32, n_layer=1, n_head=2)
    BloomForCausalLM(config).save_pretrained(tmp_path / "bloom")
    build_tokenizer().save_pretrained(tmp_path / "bloom")
    pair = load_pair(tmp_path / "bloom", tmp_path / "bloom")
    with pytest.raises(InputError, match="cannot be audited here"):
        probe(pair, mechanism("anchored", DebtRule()), Decoding(), width=64, batch=4)


def test_longrope_ends_where_rows_would_feel_each_other(
    copies: tuple[Path, Path],
) -> None:
    assert context_of(*copies) == 512
    file = copies[0] / "config.json"
    data = json.loads(file.read_text())
    data["rope_parameters"] = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 8,
        "long_factor": [2.0] * 8,
        "original_max_position_embeddings": 64,
    }
    file.write_text(json.dumps(data))
    assert AutoConfig.from_pretrained(copies[0]).rope_parameters["rope_type"] == "longrope"
    assert context_of(*copies) == 64
