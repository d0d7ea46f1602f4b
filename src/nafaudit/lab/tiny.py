"""Tiny random checkpoints, built when needed and saved like any other model.

They know nothing, so nothing can leak; they exercise every part of the machinery in seconds.
For a pair that has memorised text, see nafaudit.lab.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import torch

SENTENCES = (
    "A heron stood in the shallow water and counted the boats as they came in.",
    "The baker said that the bread would be ready before the bell rang.",
    "Complete the prefix: once there was a clock that ran only on Sundays.",
    "Nobody in the village had seen a map, and so nobody in the village was lost.",
    "How many lamps does it take to light a harbour of this size?",
)

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.4,
    },
    "gpt2": {
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 512,
        "initializer_range": 0.3,
    },
    "gemma2": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "sliding_window": 16,
        "max_position_embeddings": 512,
        "initializer_range": 0.05,
    },
    "mistral": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "sliding_window": 16,
        "max_position_embeddings": 512,
        "initializer_range": 0.4,
    },
}


def build_tokenizer(size: int = 320) -> Any:
    """Trains a byte-level BPE tokenizer with a start and an end token on a few sentences."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def build_checkpoint(
    path: Path, seed: int, architecture: str = "llama", spare_rows: int = 0
) -> Path:
    """Saves a random model and its tokenizer; embedding rows may exceed the tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = build_tokenizer()
    config = AutoConfig.for_model(
        architecture,
        vocab_size=len(tokenizer) + spare_rows,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
        **ARCHITECTURES[architecture],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def build_pair(directory: Path, architecture: str = "llama") -> tuple[Path, Path]:
    """Saves a tiny safe and a tiny risky checkpoint, unless they are there already."""
    target = directory / f"tiny-{architecture}"
    if not target.exists():
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            built = Path(scratch) / "pair"
            for name, seed in (("safe", 1), ("risky", 2)):
                build_checkpoint(built / name, seed, architecture)
            # Renamed whole, so that a kill leaves no half; another process may have been first.
            with contextlib.suppress(FileExistsError, OSError):
                built.rename(target)
    return target / "safe", target / "risky"
