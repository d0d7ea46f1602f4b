"""What a verification costs beside the decoding it verifies, in one process.

    python -m benchmarks.replay [prompts] [trajectories] [new tokens] [SAFE RISKY]

Prints one JSON object, of the lab or of the pair in two directories. Processor time, one thread;
loading the models is in no number. The limit is two plain forwards over every position that some
text has, each once; replay and limit take turns.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from benchmarks import gates
from benchmarks.checkpoints import Checkpoints
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
LENGTH, REAL_LENGTH = 200, 48
# Replay and limit take turns this many times.
ROUNDS = 3


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Result and processor seconds."""
    start = time.process_time()
    done = work()
    return done, time.process_time() - start


def measure(where: Sequence[str], prompts: int, trajectories: int, length: int) -> dict[str, Any]:
    """Decodes prompts of the lab at every budget, then replays what was written."""
    torch.set_num_threads(1)
    named = named_pair("lab")
    pair = load_pair(*(map(Path, where) if where else named.locate()))
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
    rule, decoding = mechanism("anchored", DebtRule()), Decoding(max_new_tokens=length)
    width = -(-(max(map(len, ids.values())) + length) // 64) * 64
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
    plain = shapes(pair, written)
    forwards(pair, plain[:1])
    seconds, limits = [], []
    for _ in range(ROUNDS):
        replayed, spent = timed(lambda: list(replay_texts(reader, rule, written)))
        seconds.append(spent)
        limits.append(timed(lambda: forwards(pair, plain))[1])
    scored = timed(lambda: list(replay_texts(reader, rule, written, score)))[1]
    replaying, limit = median(seconds), median(limits)
    count = sum(len(r) for r in records)
    return {
        "limit_seconds": limit,
        "positions": sum(rows * width for rows, width in plain),
        "tokens": count,
        "ids": len(pair.vocabulary),
        "different texts": len({(w.prompt, w.tokens.tobytes()) for w in written}),
        "of": len(written),
        "decoding_seconds": decoded,
        "replay_seconds": replaying,
        "decoding_us_per_token": 1e6 * decoded / count,
        "replay_us_per_token": 1e6 * replaying / count,
        "replay_and_sampler_us_per_token": 1e6 * scored / count,
        "replay_over_decoding": replaying / decoded,
        "replay_over_limit": replaying / limit,
        "largest_charge_deviation": max(
            float(np.abs(r.trajectory.steps.charge - c.steps.charge).max())
            for r in replayed
            for c in records
            if c.key == r.trajectory.key
        ),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def shapes(pair: Any, written: list[ReplayTask]) -> list[tuple[int, int]]:
    """Passes with as many positions as the texts have, shared prefixes once.

    Which tokens stand there does not matter for the cost, so texts of their mean length do.
    """
    prefixes = set()
    for one in written:
        text = (*one.prompt, *one.tokens.tolist())
        prefixes |= {text[:n] for n in range(1, len(text))}
    texts = {(*one.prompt, *one.tokens.tolist()) for one in written}
    width = round(sum(map(len, texts)) / len(texts))
    most = max(1, PASS_NUMBERS // (width * len(pair.vocabulary)))
    whole, left = divmod(len(prefixes), width)
    full, few = divmod(whole, most)
    return [*[(most, width)] * full, *[(few, width)] * (few > 0), *[(1, left)] * (left > 0)]


@torch.inference_mode()
def forwards(pair: Any, plain: list[tuple[int, int]]) -> None:
    """Two plain forward passes of every shape."""
    for shape in plain:
        ids = torch.ones(shape, dtype=torch.long)
        for model in (pair.safe, pair.risky):
            model(input_ids=ids, use_cache=False)


def rows(rounds: int, real: Checkpoints | None = None) -> Iterator[Row]:
    """The rows of `python -m benchmarks`: few prompts, each round in a process of its own.

    Args:
        rounds: How many processes, one after the other.
        real: The real pair, if it is at hand.
    """
    yield _row("lab: replay", rounds, ["4", "2", str(LENGTH)])
    if real is not None:
        yield _row("real: replay", rounds, ["2", "2", str(REAL_LENGTH), *map(str, real)])


def _row(name: str, rounds: int, arguments: list[str]) -> Row:
    command = [sys.executable, "-m", "benchmarks.replay", *arguments]
    found = [
        json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=HERE).stdout)
        for _ in range(rounds)
    ]
    worst = max(each["largest_charge_deviation"] for each in found)
    names = ("replay", "decoding", "limit")
    times = {name: [each[f"{name}_seconds"] for each in found] for name in names}
    return Row(
        name,
        f"{found[0]['tokens']:,} tokens, {found[0]['of']} trajectories, {found[0]['ids']:,} ids",
        {
            "replay/limit": ratio(times["replay"], times["limit"]),
            "replay/decoding": ratio(times["replay"], times["decoding"]),
        },
        gates.replayed(worst),
        {"cpu": times, "rounds": found},
    )


if __name__ == "__main__":
    defaults = ["12", "2", str(LENGTH)]
    counts, where = sys.argv[1:4], sys.argv[4:]
    numbers = [int(text) for text in [*counts, *defaults[len(counts) :]]]
    sys.stdout.write(json.dumps(measure(where, *numbers), indent=2) + "\n")
