"""Answers for PyPI's `anchoreddecode`, in its own environment; speaks the lines of `worker.py`.

Nothing of nafaudit can be imported there. One output is asked for at a time: in a batch, its draws
and its debt would depend on the other rows.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any


class Official:
    """The published decoder, loaded as the first line says."""

    def __init__(self, hello: dict[str, Any]) -> None:
        import torch
        from anchoreddecode import AnchoredDecodingFactory  # type: ignore[import-not-found]
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(hello["threads"])
        models = [
            AutoModelForCausalLM.from_pretrained(
                path,
                config=_config(path),
                torch_dtype=getattr(torch, hello["dtype"]),
                use_safetensors=True,
                trust_remote_code=False,
            )
            .to(hello["device"])
            .eval()
            for path in hello["checkpoints"]
        ]
        tokenizer = _tokenizer(hello["checkpoints"][0])
        self.hello, self.torch = hello, torch
        self.factory = AnchoredDecodingFactory.from_pretrained(
            safe_model=models[0],
            risky_model=models[1],
            tokenizer=tokenizer,
            use_prefix_debt=hello["debt"]["n"] > 0,
            prefix_n=hello["debt"]["n"] or 1,
            log_kl_stats=True,
            device=hello["device"],
        )

    def decode(self, request: dict[str, Any]) -> dict[str, Any]:
        """Returns one output, with what the decoder logs of it."""
        from transformers import GenerationConfig, LogitsProcessorList
        from transformers.generation import RepetitionPenaltyLogitsProcessor

        stops, decoding = self.hello["stops"], self.hello["decoding"]
        penalty = decoding["repetition_penalty"]
        prompt = self.torch.tensor([request["prompt"]], device=self.hello["device"])
        written = self.factory.generate(
            input_ids=prompt,
            attention_mask=self.torch.ones_like(prompt),
            generation_config=GenerationConfig(
                do_sample=True,
                max_new_tokens=request["max_new_tokens"],
                temperature=decoding["temperature"],
                eos_token_id=stops[0] if len(stops) == 1 else stops,
                pad_token_id=self.factory.tokenizer.pad_token_id,
            ),
            logits_processor=LogitsProcessorList(
                [RepetitionPenaltyLogitsProcessor(penalty)] if penalty != 1.0 else []
            ),
            # -1 is its value for the risky model alone; its seeds have 32 bits.
            k_radius=-1.0 if request["k"] == float("inf") else float(request["k"]),
            seed=request["seed"] % 2**32,
        )
        tokens = written.sequences[0, prompt.shape[1] :].tolist()
        return {"tokens": tokens, **self._claims(request["k"], len(tokens))}

    def _claims(self, k: float, length: int) -> dict[str, Any]:
        log = self.factory.kl_stats_history[:length]
        claims: dict[str, Any] = {
            "charge": [entry["kl_to_safe"][0] for entry in log],
            "theta": [entry["bd"][0] for entry in log],
            "allowance": [entry["k_t"][0] for entry in log],
        }
        # Running one model alone, it keeps no account.
        if 0 < k < float("inf"):
            claims["spend"] = log[-1]["cum_kl_spent"][0]
            claims["debt"] = k - log[0]["budget_so_far"][0]
        return claims


def _config(path: str) -> Any:
    """Reads a configuration; a newer Transformers keeps the rotation of positions elsewhere."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    rope = getattr(config, "rope_parameters", None)
    if isinstance(rope, dict) and "rope_theta" in rope:
        config.rope_theta = rope["rope_theta"]
        if rope.get("rope_type", "default") != "default":
            config.rope_scaling = rope
    return config


def _tokenizer(path: str) -> Any:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    except ValueError:  # a newer Transformers saved it, under a class that is not known here
        tokenizer = PreTrainedTokenizerFast.from_pretrained(path, padding_side="left")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def source() -> str:
    """Returns version and source hash of what is installed here."""
    from importlib.metadata import version

    import anchoreddecode

    content = Path(anchoreddecode.__file__).with_name("generate.py").read_bytes()
    return f"{version('anchoreddecode')}-{hashlib.sha256(content).hexdigest()[:12]}"


def main() -> None:
    """Reads the first line, loads, answers until there is nothing left to read."""
    asked, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    try:
        decoder = Official(json.loads(asked.readline()))
        say({"ready": {"source": source()}})
    except Exception as error:
        what = f"cannot build decoder 'anchoreddecode': {type(error).__name__}: {error}"
        say({"fault": {"name": "build", "text": f"{what} (in {sys.executable})"}})
        return
    for line in asked:
        try:
            say({"outputs": [decoder.decode(r) for r in json.loads(line)["requests"]]})
        except Exception as error:
            say({"fault": {"name": "raised", "text": f"{type(error).__name__}: {error}"}})


if __name__ == "__main__":
    main()
