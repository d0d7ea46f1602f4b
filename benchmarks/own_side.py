"""Our side of the benchmark, and the limit: the two cached forwards alone."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks import breakdown
from benchmarks.peer_side import Side, serve
from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding, row_width
from nafaudit.core.draws import sound_stream
from nafaudit.core.trajectory import STEP_TYPES, Trajectory
from nafaudit.engine.decode import Decoder
from nafaudit.engine.noise import noise_bounds, pick_token
from nafaudit.engine.prompts import PromptRequest, RowRequest
from nafaudit.engine.proof import numerics_of
from nafaudit.mechanisms.laws import log_law
from nafaudit.mechanisms.registry import mechanism
from nafaudit.models.pair import load_pair


class Own(Side):
    """nafaudit's engine as `nafaudit run` uses it, the store left out."""

    def do_load(self, safe: str, risky: str) -> dict[str, Any]:
        """Loads both models."""
        self.pair = load_pair(safe, risky, stop_ids=())
        self.models = self.pair.safe, self.pair.risky
        # The published decoder's debt is of the five largest ratios, whatever their sign.
        self.mechanism = mechanism("anchored", DebtRule(definition="official"))
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        return {"versions": versions}

    def do_constant(self) -> dict[str, Any]:
        """Why every product has a constant number of rows on this machine; empty if none must."""
        how = numerics_of(self.models, row_width(64))
        return {"why": how.why if how.constant else ""}

    def do_decode(
        self,
        prompts: list[list[int]],
        each: int,
        new: int,
        k: float | list[float],
        seed: int = 0,
        **options: Any,
    ) -> dict[str, Any]:
        """Decodes every prompt so many times at every budget."""
        budgets = k if isinstance(k, list) else [k]
        requests = [
            PromptRequest(
                f"p{i}",
                tuple(tokens),
                tuple(
                    RowRequest(budget, j, sound_stream(seed, "bench", f"p{i}", j))
                    for j in range(each)
                    for budget in budgets
                ),
            )
            for i, tokens in enumerate(prompts)
        ]
        longest = max(map(len, prompts)) + new
        decoder = Decoder(
            self.pair,
            self.mechanism,
            Decoding(max_new_tokens=new),
            width=row_width(longest),
            batch=min(32, len(prompts) * each * len(budgets)),
            **options,
        )
        found = sorted(decoder.decode(requests), key=lambda t: (int(t.key.prompt[1:]), t.key.k))
        steps = [t.steps for t in found]
        return {
            "tokens": sum(map(len, steps)),
            "first": [int(s.token[0]) for s in steps],
            "debt": [t.debt for t in found],
            "binding": float(np.mean([s.theta < 1 for s in steps])),
            "stood": decoder.guessed.stood / max(1, decoder.guessed.asked),
            "records": [_digest(t) for t in found],
            "over": max(float((s.charge - s.allowance).max()) for s in steps),
        }

    def do_profile(self, **work: Any) -> dict[str, Any]:
        """Decodes once, with the processor seconds of every part of it."""
        with breakdown.probed() as spent:
            self.do_decode(**work)
        return {"spent": spent}

    @torch.inference_mode()
    def do_limit(self, prompts: list[list[int]], each: int, new: int) -> dict[str, Any]:
        """Both models, cached, given tokens; nothing is served, drawn or recorded."""
        ids = torch.tensor(prompts)
        following = ids[:, :1].repeat_interleave(each, 0)
        reading = 0.0
        for model in (self.pair.safe, self.pair.risky):
            start = time.process_time()
            cache = model(input_ids=ids, use_cache=True, logits_to_keep=1).past_key_values
            if each > 1:
                cache.batch_repeat_interleave(each)
            reading += time.process_time() - start
            for _ in range(new - 1):
                model(input_ids=following, past_key_values=cache, use_cache=True)
        return {"tokens": len(following) * new, "prompts": reading}

    @torch.inference_mode()
    def do_solve(self, file: str, k: float, times: int) -> dict[str, Any]:
        """Our step between the forwards: laws, theta, served law, charge, noise, token."""
        data = np.load(file)
        logits = [torch.from_numpy(data[name]) for name in ("safe", "risky")]
        limit = torch.tensor([k], dtype=torch.float64)
        streams = [sound_stream(0, "bench", "solve", i) for i in range(len(logits[0]))]
        seconds = []
        for repeat in range(times + 1):
            start = time.process_time()
            found = []
            for row, stream in enumerate(streams):
                safe, risky = (log_law(x[row : row + 1]) for x in logits)
                served = self.mechanism.rule.serve([()], safe, risky, limit)
                pick_token(served.law[0], noise_bounds(stream, repeat, served.law.shape[1]))
                found.append((float(served.theta), float(served.charge)))
            seconds.append(time.process_time() - start)
        theta, charge = zip(*found, strict=True)
        return {"seconds": seconds[1:], "theta": theta, "charge": charge}


def _digest(found: Trajectory) -> str:
    """Changes with any bit of a trajectory."""
    columns = [np.asarray(getattr(found.steps, name)).tobytes() for name in STEP_TYPES]
    return hashlib.sha256(repr(found.key).encode() + b"".join(columns)).hexdigest()


if __name__ == "__main__":
    serve(Own())
