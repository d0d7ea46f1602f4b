"""The embedded audit as a user waits for it, beside the same command of an earlier commit.

    python -m benchmarks.lab [prompts] [rounds]

The earlier source comes from the repository's own history; without it there is no row. Both sides
take turns. Decoding is the difference between a run of all prompts and of one: imports, models
and the probe are in both. Processor time is of all processes. Start-up is a run of one token of
one prompt, its page included, less a process that imports torch and what of Transformers loads a
model.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks import gates
from benchmarks.results import Row, plainly, ratio
from benchmarks.sides import HERE

EARLIER = "c049abe"
PROMPTS = 48
IMPORTS = """
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
"""


class Cost(NamedTuple):
    """Seconds of one command."""

    cpu: float
    clock: float


def rows(rounds: int, prompts: int = PROMPTS) -> Iterator[Row]:
    """Start-up, and the command beside an earlier one if that source can be had."""
    yield _start_up(rounds)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        if not _unpacked(root):
            sys.stderr.write(f"no row of the lab: git has no commit {EARLIER} here\n")
            return
        sources = {"ours": HERE / "src", "earlier": root / "src"}
        costs: dict[tuple[str, int], list[Cost]] = {}
        for number in range(rounds):
            for side, source in sources.items():
                for size in (prompts, 1):
                    out = root / f"{side}-{size}-{number}"
                    costs.setdefault((side, size), []).append(_run(source, out, size))
        alone = root / "alone"
        _run(sources["ours"], alone, prompts, "--workers", "1")
        same = gates.same_records(_records(alone), _records(root / f"ours-{prompts}-0"))
        whole = {side: costs[side, prompts] for side in sources}
        decoding = {
            side: [a.cpu - b.cpu for a, b in zip(whole[side], costs[side, 1], strict=True)]
            for side in sources
        }
        cpu, clock = (
            {side: [getattr(one, name) for one in found] for side, found in whole.items()}
            for name in ("cpu", "clock")
        )
        yield Row(
            "lab: nafaudit run",
            f"{prompts} prompts x 10, 200 new; against commit {EARLIER}",
            {
                "decoding, ours/earlier": ratio(decoding["ours"], decoding["earlier"]),
                "processor, ours/earlier": ratio(cpu["ours"], cpu["earlier"]),
                "clock, ours/earlier": ratio(clock["ours"], clock["earlier"]),
            },
            same,
            {"cpu": cpu, "clock": clock, "decoding": decoding},
        )


def _start_up(rounds: int) -> Row:
    """Seconds of one token, beyond imports; in turns."""
    imports, whole = [], []
    least = ("--trajectories", "1", "--max-new-tokens", "1", "--k", "1", "--workers", "1")
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(rounds + 1):  # the first reads files that the others find in memory
            imports.append(_timed([sys.executable, "-c", IMPORTS], Path(scratch), {}))
            whole.append(_run(HERE / "src", Path(scratch) / str(number), 1, *least))
    beyond = [one.cpu - other.cpu for one, other in zip(whole, imports, strict=True)][1:]
    facts = {"imports": [one.cpu for one in imports[1:]], "whole": [one.cpu for one in whole[1:]]}
    about = f"one token; importing torch and Transformers takes {median(facts['imports']):.1f} s"
    return Row("lab: start-up", about, {"seconds beyond imports": plainly(beyond)}, "", facts)


def _unpacked(root: Path) -> bool:
    """Puts the earlier source into a directory; False if there is none."""
    told = subprocess.run(
        ["git", "archive", EARLIER, "src"], cwd=HERE, capture_output=True, check=False
    )
    if told.returncode:
        return False
    subprocess.run(["tar", "-x"], cwd=root, input=told.stdout, check=True)
    return True


def _run(source: Path, out: Path, prompts: int, *more: str) -> Cost:
    command = [sys.executable, "-m", "nafaudit", "run", "--quiet", "--out", str(out)]
    given = [*command, "--limit", str(prompts), *more]
    return _timed(given, out.parent, {"PYTHONPATH": str(source)})


def _timed(command: list[str], cwd: Path, variables: dict[str, str]) -> Cost:
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false"} | variables
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    clock = time.perf_counter() - start
    if done.returncode not in (0, 3):
        raise RuntimeError(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(cpu, clock)


def _records(path: Path) -> list[str]:
    """Every bit of every record, in an order of our own."""
    from nafaudit.core.trajectory import Steps
    from nafaudit.store.run import Run

    found = []
    for one in Run(path).trajectories():
        columns = [getattr(one.steps, name).tobytes().hex() for name in Steps.columns]
        found.append(repr((tuple(one.key), one.debt, one.stopped, columns)))
    return sorted(found)


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]]
    for row in rows(*([given[1]] if len(given) > 1 else [1]), *given[:1]):
        sys.stdout.write(str(row))
