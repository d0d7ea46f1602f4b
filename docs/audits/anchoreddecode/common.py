"""What the scripts of this directory share: the lab pair in the decoder's own environment.

They import anchoreddecode, Transformers 4.57 and torch, and nothing of nafaudit: whatever is
recomputed here is recomputed from the two models by a plain forward pass in float64.
"""

from __future__ import annotations

import json
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from anchoreddecode import AnchoredDecodingFactory
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedTokenizerFast,
    logging,
)

WEIGHTS = Path(__file__).resolve().parents[3] / "src/nafaudit/lab/weights"
TEXTS = (
    "The ferry left the harbour before the fog had lifted, and nobody on the pier",
    "In the museum of small machines there is a clock that",
    "She opened the letter, read it twice, and said that",
    "The river rises in the hills above the town and",
    "Of the three keys on the ring, only one",
    "When the rain stopped, the children",
    "A baker who cannot smell",
    "It was the first morning of",
)

warnings.simplefilter("ignore")
logging.set_verbosity_error()
torch.set_num_threads(1)


def model(role: str, dtype: torch.dtype = torch.float32) -> Any:
    """One model of the lab pair."""
    path = WEIGHTS / role
    config = AutoConfig.from_pretrained(path)
    # The weights were saved by Transformers 5, which keeps the rotation's base elsewhere.
    config.rope_theta = config.rope_parameters["rope_theta"]
    return AutoModelForCausalLM.from_pretrained(path, config=config, torch_dtype=dtype).eval()


def tokenizer() -> Any:
    """The lab's tokenizer, padding on the left."""
    found = PreTrainedTokenizerFast.from_pretrained(WEIGHTS / "safe", padding_side="left")
    if found.pad_token_id is None:
        found.pad_token = found.eos_token
    return found


def factory(**options: Any) -> Any:
    """The published decoder on the lab pair, logging every step."""
    given = {"safe_model": model("safe"), "risky_model": model("risky")} | options
    return AnchoredDecodingFactory.from_pretrained(
        tokenizer=tokenizer(), log_kl_stats=True, device="cpu", **given
    )


def write(decoder: Any, texts: Any, k: float, tokens: int, seed: int = 0, **options: Any) -> Tensor:
    """Decodes some prompts together; returns the new tokens, row by row."""
    ids = decoder.tokenizer(list(texts), return_tensors="pt", padding=True)
    prompt, mask = ids["input_ids"], ids["attention_mask"]
    extra = {name: options.pop(name) for name in ("logits_warper",) if name in options}
    config = {"do_sample": True, "temperature": 1.0} | options
    written = decoder.generate(
        input_ids=prompt,
        attention_mask=mask,
        generation_config=GenerationConfig(
            max_new_tokens=tokens,
            eos_token_id=decoder.tokenizer.eos_token_id,
            pad_token_id=decoder.tokenizer.pad_token_id,
            **config,
        ),
        k_radius=k,
        seed=seed,
        **extra,
    )
    return written.sequences[:, prompt.shape[1] :]


def logged(decoder: Any, name: str, row: int = 0) -> list[float]:
    """One column of the decoder's own log."""
    return [entry[name][row] for entry in decoder.kl_stats_history]


@torch.inference_mode()
def law(one: Any, prompt: list[int], output: list[int]) -> Tensor:
    """Log-probabilities in float64 of every next token along an output, by a plain pass."""
    ids = torch.tensor([prompt + output])
    logits = one(ids).logits[0, len(prompt) - 1 : -1].double()
    return torch.log_softmax(logits, dim=-1)


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) of log-laws, row by row; where p has no mass nothing is added."""
    return torch.where(p > -torch.inf, p.exp() * (p - q), 0.0).sum(-1)


def say(**numbers: Any) -> None:
    """Prints what was measured, with the script's name and the versions, as one line of JSON."""
    versions = {name: version(name) for name in ("anchoreddecode", "transformers", "torch")}
    print(json.dumps({"finding": Path(sys.argv[0]).stem, **numbers, "versions": versions}))
