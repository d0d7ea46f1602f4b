"""The published decoder's side of the benchmark; runs in its own environment.

Imports nothing of nafaudit. Reads one JSON request a line, answers with one line.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch


def peak_memory(reset: bool = False) -> int:
    """Most resident bytes since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Side:
    """What both sides share: loading once, timing a call."""

    models: tuple[Any, Any]

    def do_decode(self, *given: Any, **named: Any) -> dict[str, Any]:
        """Decodes prompts; what a side is for."""
        raise NotImplementedError

    def do_touch(self) -> dict[str, Any]:
        """Reads every weight and decodes a little, so that what follows is memory of decoding.

        Weights are mapped into memory and arrive when they are first read, and so does code.
        """
        for model in self.models:
            for weight in model.parameters():
                weight.sum()
        self.do_decode(prompts=[[2, 3]], each=1, new=2, k=1.0)
        ctypes.CDLL(None).malloc_trim(0)
        return {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Does what a request names, with its processor and wall seconds and peak memory."""
        work = getattr(self, "do_" + request.pop("do"))
        before = peak_memory(reset=True)
        wall, cpu = time.perf_counter(), time.process_time()
        found = work(**request)
        used = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
        return used | {"before": before, "peak": peak_memory()} | (found or {})


class Peer(Side):
    """`anchoreddecode`, told to keep its log as an audit needs it."""

    def do_load(self, safe: str, risky: str) -> dict[str, Any]:
        """Loads both models."""
        from anchoreddecode import AnchoredDecodingFactory  # type: ignore[import-not-found]
        from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

        def load(path: str) -> Any:
            config = AutoConfig.from_pretrained(path)
            rope = getattr(config, "rope_parameters", None)
            if isinstance(rope, dict) and "rope_theta" in rope:
                config.rope_theta = rope["rope_theta"]
            model = AutoModelForCausalLM.from_pretrained(
                path, config=config, torch_dtype=torch.float32
            )
            return model.eval()

        tokenizer = PreTrainedTokenizerFast.from_pretrained(safe, padding_side="left")
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        self.size = len(tokenizer)
        self.models = load(safe), load(risky)
        self.factory = AnchoredDecodingFactory.from_pretrained(
            safe_model=self.models[0],
            risky_model=self.models[1],
            tokenizer=tokenizer,
            use_prefix_debt=True,
            prefix_n=5,
            log_kl_stats=True,
            device="cpu",
        )
        names = ("anchoreddecode", "transformers", "torch")
        return {"versions": {name: version(name) for name in names}}

    def do_decode(
        self, prompts: list[list[int]], each: int, new: int, k: float, seed: int = 0
    ) -> dict[str, Any]:
        """Decodes every prompt so many times, all in one batch, which is its fastest form."""
        from transformers import GenerationConfig

        ids = torch.tensor([tokens for tokens in prompts for _ in range(each)])
        self.factory.kl_stats_history = []
        written = self.factory.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            generation_config=GenerationConfig(
                do_sample=True,
                max_new_tokens=new,
                temperature=1.0,
                eos_token_id=self.size,  # no such token: every row has its full length
                pad_token_id=0,
            ),
            k_radius=k,
            seed=seed,
        ).sequences[:, ids.shape[1] :]
        first = self.factory.kl_stats_history[0]["budget_so_far"]
        binding = [b < 1 for step in self.factory.kl_stats_history for b in step["bd"]]
        return {
            "tokens": int(written.numel()),
            "first": written[:, 0].tolist(),
            "debt": [k - granted for granted in first],
            "binding": sum(binding) / len(binding),
        }

    def do_solve(self, file: str, k: float, times: int) -> dict[str, Any]:
        """Its step between the forwards: laws, theta, served law, charge, token; by CPU time."""
        data = np.load(file)
        safe, risky = (torch.from_numpy(data[name]) for name in ("safe", "risky"))
        allowance = torch.full((len(safe),), k)
        seconds = []
        with torch.no_grad():
            for _ in range(times + 1):
                start = time.process_time()
                bc, theta, pc, pd = self.factory.solve_optimization_newton(safe, risky, allowance)
                law, pc, _ = self.factory._get_logp_from_weights(bc, theta, pc, pd)
                charge = self.factory._safe_kl_terms(law, pc)
                torch.multinomial(law.exp(), 1)
                seconds.append(time.process_time() - start)
        return {
            "seconds": seconds[1:],
            "theta": theta.flatten().tolist(),
            "charge": charge.tolist(),
        }


def serve(side: Side) -> None:
    """Answers until there is nothing left to read."""
    torch.set_num_threads(1)
    asked, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in asked:
        try:
            found = side.answer(json.loads(line))
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(found) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(Peer())
