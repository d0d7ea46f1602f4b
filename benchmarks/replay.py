"""What a verification costs beside the decoding it verifies, in one process.

    python -m benchmarks.replay [prompts] [trajectories]

Prints one JSON object. Processor time, one thread; loading the models is in neither number.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from benchmarks import gates
from benchmarks.results import Row, ratio
from benchmarks.sides import HERE
from nafaudit.auditor.alternatives import step_scores
from nafaudit.auditor.replay import ReplayTask, replay_texts
from nafaudit.auditor.teacher_forcing import PASS_NUMBERS, Reader
from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.core.draws import sound_stream
from nafaudit.engine.decode import Decoder
from nafaudit.engine.prompts import PromptRequest, RowRequest
from nafaudit.mechanisms.registry import mechanism
from nafaudit.models.pair import load_pair
from nafaudit.runner.pairs import named_pair

BUDGETS = (0.0, 0.25, 1.0, 10.0, float("inf"))
LENGTH = 200


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Result and processor seconds."""
    start = time.process_time()
    done = work()
    return done, time.process_time() - start


def measure(prompts: int, trajectories: int) -> dict[str, Any]:
    """Decodes the lab's first prompts at every budget, then replays what was written."""
    torch.set_num_threads(1)
    named = named_pair("lab")
    pair = load_pair(*named.locate())
    texts = named.workload().prompts[:prompts]
    ids = {p.id: tuple(pair.tokenizer(p.text)["input_ids"]) for p in texts}
    rows = {
        name: tuple(
            RowRequest(k, j, sound_stream(0, "bench", name, j))
            for j in range(trajectories)
            for k in BUDGETS
        )
        for name in ids
    }
    requests = [PromptRequest(name, tokens, rows[name]) for name, tokens in ids.items()]
    rule, decoding = mechanism("anchored", DebtRule()), Decoding(max_new_tokens=LENGTH)
    width = -(-(max(map(len, ids.values())) + LENGTH) // 64) * 64
    decoder = Decoder(pair, rule, decoding, width=width, batch=32)
    records, decoded = timed(lambda: list(decoder.decode(requests)))
    written = [
        ReplayTask(
            r.key,
            ids[r.key.prompt],
            r.steps.token,
            r.stopped,
            sound_stream(0, "bench", r.key.prompt, r.key.trajectory),
            r.steps.theta,
        )
        for r in records
    ]

    def score(task: Any, first: int, served: Any, safe: Any, risky: Any) -> None:
        part = task.tokens[first : first + len(safe)]
        step_scores(served.law, safe, risky, served.theta, part, np.full(len(part), 0.5))

    reader = Reader(pair, decoding)
    seconds, replayed = timed(lambda: list(replay_texts(reader, rule, written)))[::-1]
    scored = timed(lambda: list(replay_texts(reader, rule, written, score)))[1]
    limit = timed(lambda: forwards(pair, written))[1]
    count = sum(len(r) for r in records)
    return {
        "limit_seconds": limit,
        "tokens": count,
        "different texts": len({(w.prompt, w.tokens.tobytes()) for w in written}),
        "of": len(written),
        "decoding_seconds": decoded,
        "replay_seconds": seconds,
        "decoding_us_per_token": 1e6 * decoded / count,
        "replay_us_per_token": 1e6 * seconds / count,
        "replay_and_sampler_us_per_token": 1e6 * scored / count,
        "replay_over_decoding": seconds / decoded,
        "largest_charge_deviation": max(
            float(np.abs(r.trajectory.steps.charge - c.steps.charge).max())
            for r in replayed
            for c in records
            if c.key == r.trajectory.key
        ),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


@torch.inference_mode()
def forwards(pair: Any, written: list[ReplayTask]) -> None:
    """Two plain forward passes over as many positions as the texts have, shared prefixes once.

    Which tokens stand there does not matter for the cost, so texts of their mean length do.
    """
    prefixes = set()
    for one in written:
        text = (*one.prompt, *one.tokens.tolist())
        prefixes |= {text[:n] for n in range(1, len(text))}
    texts = {(*one.prompt, *one.tokens.tolist()) for one in written}
    length = round(sum(map(len, texts)) / len(texts))
    rows = PASS_NUMBERS // (length * len(pair.vocabulary))
    left = round(len(prefixes) / length)
    while left > 0:
        ids = torch.ones(min(rows, left), length, dtype=torch.long)
        for model in (pair.safe, pair.risky):
            model(input_ids=ids, use_cache=False)
        left -= rows


def rows(rounds: int) -> Iterator[Row]:
    """The row of `python -m benchmarks`: few prompts, each round in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.replay", "4", "2"]
    found = [
        json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=HERE).stdout)
        for _ in range(rounds)
    ]
    worst = max(each["largest_charge_deviation"] for each in found)
    names = ("replay", "decoding", "limit")
    times = {name: [each[f"{name}_seconds"] for each in found] for name in names}
    yield Row(
        "lab: replay",
        f"{found[0]['tokens']:,} tokens, {found[0]['of']} trajectories, 2,048 ids",
        {
            "replay/limit": ratio(times["replay"], times["limit"]),
            "replay/decoding": ratio(times["replay"], times["decoding"]),
        },
        gates.replayed(worst),
        {"cpu": times, "rounds": found},
    )


if __name__ == "__main__":
    given = [int(text) for text in [*sys.argv[1:], "12", "2"][:2]]
    sys.stdout.write(json.dumps(measure(*given), indent=2) + "\n")
