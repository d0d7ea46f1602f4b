"""Size, time and memory of the record at the scale of a full audit.

    python -m benchmarks.store [--trajectories 27000] [--steps 200] [--out DIRECTORY]

Writes synthetic trajectories through `RunWriter` in parts of 256, as a run does, then times
`nafaudit check` and `report` in child processes and reads their peak memory. The size is compared
with the paper's JSON Lines for the same steps: 15 fields a step, floats as float32 widened to
Python's.
Only steps and the few numbers that identify a trajectory are counted there; its texts and its
source record are not, which flatters the JSON Lines.

Without --out everything goes to a temporary directory that is removed at the end.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import gates
from benchmarks.results import Row, exponent, of_bytes, plainly, ratio
from nafaudit.core.design import Decoding, Design, Extent, Identity
from nafaudit.core.trajectory import Key, Steps, Trajectory
from nafaudit.measures.batch import measure_batch
from nafaudit.measures.context import RunContext
from nafaudit.measures.measure import measure
from nafaudit.store.run import Run, open_for_writing
from nafaudit.workload import Prompt, TokenizedPrompt, workload_hash

PART = 256
BUDGETS = (1.0, 3.0, 5.0)
PER_PROMPT = 10
VOCABULARY = 128_256  # Llama 3, the risky model of the paper

# Runs a command and ends its errors with processor seconds and peak memory in KiB. The system's
# count for a process begins with what its parent held, so the kernel's own line is read.
MEASURED = """
import pathlib, resource, sys
from nafaudit.cli.main import main
try:
    main()
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    peak = next(line.split()[1] for line in lines if line.startswith("VmHWM"))
    print(used.ru_utime + used.ru_stime, peak, file=sys.stderr)
"""


def trajectories(count: int, steps: int, seed: int = 0) -> Iterator[Trajectory]:
    """Trajectories with the entropy of real ones.

    Free steps cost about 0.8 nats on average (ordinary traffic of the paper's pair), the debt is
    6.64 nats on average; tokens follow Zipf's law. Every draw is independent: in a real run
    most arms repeat each other's steps, which would only compress better.
    """
    rng = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, VOCABULARY + 1)
    edges = np.cumsum(weights / weights.sum())
    names = rng.permutation(VOCABULARY).astype(np.int32)
    for number in range(count):
        prompt, rest = divmod(number, PER_PROMPT * len(BUDGETS))
        index, arm = divmod(rest, len(BUDGETS))
        key = Key(f"prompt-{prompt:05d}", "anchored", BUDGETS[arm], index)
        debt = 2.5 + rng.gamma(4.0, 1.035)
        places = np.minimum(np.searchsorted(edges, rng.random(steps)), VOCABULARY - 1)
        yield _execute(rng, key, debt, names[places])


def _execute(
    rng: np.random.Generator, key: Key, debt: float, token: np.ndarray[Any, np.dtype[np.int32]]
) -> Trajectory:
    """One execution of the banking rule on random laws."""
    steps = token.size
    full = rng.lognormal(-0.9, 1.2, steps)  # what the risky law would cost
    risky = -rng.gamma(0.6, 2.0, steps)
    safe = risky - full - rng.normal(0.0, 0.8, steps)
    allowance, charge, theta = np.zeros(steps), np.zeros(steps), np.zeros(steps)
    spent = 0.0
    for t in range(steps):
        allowance[t] = max(0.0, (t + 1) * key.k - spent - debt)
        if full[t] <= allowance[t]:
            charge[t], theta[t] = full[t], 1.0
        elif allowance[t] > 0:
            charge[t] = allowance[t] * (1 - 1e-7 * rng.random())
            theta[t] = math.sqrt(charge[t] / full[t])
        spent += charge[t]
    served = np.where(theta == 1, risky, np.where(theta == 0, safe, risky + (1 - theta) * 0.3))
    served, safe, risky = (np.minimum(law, -1e-6) for law in (served, safe, risky))
    columns = (x.astype(np.float32) for x in (theta, served, safe, risky))
    return Trajectory(key, float(debt), False, Steps(token, allowance, charge, *columns))


def json_line(trajectory: Trajectory) -> bytes:
    """The trajectory as the paper's code would log it."""
    k, steps = trajectory.key.k, trajectory.steps
    spent = np.cumsum(steps.charge)
    granted = np.arange(1, len(steps) + 1) * k - trajectory.debt

    def floats(values: Any) -> list[float]:
        return [float(value) for value in np.asarray(values, np.float32)]

    charge, theta = floats(steps.charge), floats(steps.theta)
    columns: dict[str, list[Any]] = {
        "t": list(range(len(steps))),
        "k_t": floats(steps.allowance),
        "a_t": charge,
        "a_t_recomputed": charge,
        "lambda": [None] * len(steps),
        "budget_remaining": floats(granted - spent),
        "budget_so_far": floats(granted),
        "cum_kl_spent": floats(spent),
        "sampled_token": [f" {token:x}" for token in steps.token],  # as long as a word piece
        "sampled_token_id": steps.token.tolist(),
        "p_star_prob": floats(np.exp(steps.served)),
        "p_s_prob": floats(np.exp(steps.safe)),
        "p_risky_prob": floats(np.exp(steps.risky)),
        "bc": floats(1 - steps.theta),
        "bd": theta,
    }
    row = {
        "metadata": {
            "prompt_id": trajectory.key.prompt,
            "k": k,
            "trajectory_id": trajectory.key.trajectory,
        },
        "prefix_analysis": {"delta_init": trajectory.debt},
        "per_step_log": [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ],
        "aggregate": {"total_spend": float(spent[-1]), "final_budget": float(granted[-1])},
    }
    return json.dumps(row).encode() + b"\n"


def write_run(
    path: Path, count: int, steps: int, every: int, keep: Path | None = None
) -> dict[str, float]:
    """Writes a run; returns seconds spent in the writer and bytes of JSON Lines.

    Args:
        path: Where the run goes.
        count: Trajectories.
        steps: Steps of each.
        every: One in so many is written as JSON, and their bytes are scaled up.
        keep: Where those lines go; None counts them only.
    """
    ids = tuple(f"prompt-{i:05d}" for i in range(-(-count // (PER_PROMPT * len(BUDGETS)))))
    prompts = [TokenizedPrompt(Prompt(name, name), (0,)) for name in ids]
    design = Design(
        Identity({}, "anchored", "banking", Decoding(steps), workload_hash(prompts), 512, 0),
        Extent(BUDGETS, PER_PROMPT, ids),
    )
    source = trajectories(count, steps)
    seconds, sampled, plain, packed = 0.0, 0, 0, 0
    with (
        open_for_writing(path, design, prompts, {"tokens": [], "stops": []}) as writer,
        (keep or Path(os.devnull)).open("wb") as kept,
    ):
        while batch := list(islice(source, PART)):
            start = time.perf_counter()
            writer.append(batch)
            seconds += time.perf_counter() - start
            lines = [json_line(trajectory) for trajectory in batch[::every]]
            kept.writelines(lines)
            sampled += len(lines)
            plain += sum(map(len, lines))
            packed += len(gzip.compress(b"".join(lines), 6))
    scale = count / sampled
    return {"seconds": seconds, "json": plain * scale, "gzip": packed * scale, "scale": scale}


def measure_command(verb: str, path: Path) -> dict[str, float]:
    """Seconds, processor seconds and peak bytes of `nafaudit VERB RUN`, in its own process."""
    command = [sys.executable, "-c", MEASURED, verb, str(path)]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    # The last prompt may have fewer trajectories than the others: such a run is unfinished.
    if done.returncode not in (0, 3):
        raise SystemExit(done.stdout + done.stderr)
    processor, peak = map(float, done.stderr.split()[-2:])
    return {"seconds": seconds, "processor": processor, "peak": 1024 * peak}


def rows(count: int, rounds: int) -> Iterator[Row]:
    """The rows of `python -m benchmarks`: size and reading against JSON Lines, check and page.

    JSON is written and read of one trajectory in twenty, and scaled up; its reading ends with
    Python's own objects, ours with arrays whose digests were verified.
    """
    fewer = max(1, count // 10)
    times: dict[str, list[float]] = {"json": [], "run": []}
    checks: dict[int, list[dict[str, float]]] = {fewer: [], count: []}
    pages: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as scratch:
        path, small, lines = (Path(scratch) / name for name in ("run", "small", "steps.jsonl"))
        write_run(small, fewer, 200, fewer)
        written = write_run(path, count, 200, 20, lines)
        size = float(sum(p.stat().st_size for p in path.rglob("*") if p.is_file()))
        for _ in range(rounds):
            start = time.process_time()
            logged = _spent_in_lines(lines)
            middle = time.process_time()
            recorded = _spent_in_run(path)
            times["json"].append(written["scale"] * (middle - start))
            times["run"].append(time.process_time() - middle)
            checks[fewer].append(measure_command("check", small))
            checks[count].append(measure_command("check", path))
            pages.append(measure_command("report", path))
        told = json.loads((path / "report" / "report.json").read_text())["verdicts"]
        wrong = gates.counted(sum(arm["trajectories"] for arm in told), len(recorded))
        alike = _measured_alike(Run(path))
    about, outputs = f"{count:,} trajectories of 200 steps", f"{count:,} outputs"
    spent = {n: [one["processor"] for one in found] for n, found in checks.items()}
    yield Row(
        "record",
        about,
        {
            "size, JSON Lines/run": of_bytes(written["json"], size),
            "reading, JSON Lines/run": ratio(times["json"], times["run"]),
        },
        gates.spending(logged, recorded),
        {"cpu": times, "written": written, "bytes": size},
    )
    yield Row(
        "record: check",
        f"all checks of {about}",
        {
            f"seconds, {outputs}": plainly(spent[count]),
            f"MiB, {outputs}": plainly([one["peak"] / 2**20 for one in checks[count]]),
            "JSON Lines/all checks": ratio(times["json"], spent[count]),
        },
        alike,
        {"checks": checks[count]},
    )
    yield Row(
        "record: page",
        f"nafaudit report of {about}, its checks included",
        {f"seconds, {outputs}": plainly([one["processor"] for one in pages])},
        gates.all_of([alike, wrong]),
        {"pages": pages},
    )
    yield Row(
        "growth: check",
        f"trajectories of 200 steps; exponent {exponent(spent):.2f}",
        {f"{count:,}/{fewer:,}": ratio(spent[count], spent[fewer])},
        alike,
        {"cpu": spent, "exponent": exponent(spent)},
    )


def _measured_alike(run: Run) -> str:
    """Empty if a part measured at once has the rows that `measure` makes of each trajectory."""
    _, batch = next(run.batches())
    context = RunContext.of(run)
    slow = [repr(measure(one, context)) for one in batch]
    return gates.same_records(list(map(repr, measure_batch(batch, context))), slow)


def _spent_in_lines(path: Path) -> dict[tuple[str, float, int], float]:
    found = {}
    with path.open("rb") as lines:
        for line in lines:
            row = json.loads(line)
            about = row["metadata"]
            key = about["prompt_id"], about["k"], about["trajectory_id"]
            found[key] = row["aggregate"]["total_spend"]
    return found


def _spent_in_run(path: Path) -> dict[tuple[str, float, int], float]:
    return {
        (one.key.prompt, one.key.k, one.key.trajectory): float(one.steps.charge.sum())
        for one in Run(path).trajectories()
    }


def column_sizes(path: Path) -> dict[str, int]:
    """Compressed bytes of each column over all parts."""
    import pyarrow.parquet as pq

    sizes: dict[str, int] = {}
    for part in sorted((path / "parts").glob("*.parquet")):
        meta = pq.ParquetFile(part).metadata
        for group in range(meta.num_row_groups):
            for index in range(meta.num_columns):
                chunk = meta.row_group(group).column(index)
                name = chunk.path_in_schema.split(".")[0]
                sizes[name] = sizes.get(name, 0) + chunk.total_compressed_size
    return sizes


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--trajectories", type=int, default=27_000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json-every", type=int, default=20, help="count JSON of 1 in so many")
    parser.add_argument("--checks", type=int, default=3, help="time `check` and `report` so often")
    parser.add_argument("--out", type=Path, help="keep the run here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = given.out or Path(scratch) / "run"
        written = write_run(path, given.trajectories, given.steps, given.json_every)
        size = sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
        checks = [measure_command("check", path) for _ in range(given.checks)]
        pages = [measure_command("report", path) for _ in range(given.checks)]
        columns = column_sizes(path)
    steps = given.trajectories * given.steps
    out = sys.stdout.write
    out(f"{given.trajectories} trajectories of {given.steps} steps, parts of {PART}; ")
    out(f"Python {platform.python_version()}, NumPy {np.__version__}, pyarrow {pa.__version__}\n\n")
    rows = [
        ("the run on disk", f"{size / 1e6:.1f} MB", f"{size / steps:.2f} bytes a step"),
        *((f"  {n}", f"{b / 1e6:.1f} MB", f"{b / steps:.2f}") for n, b in columns.items()),
        ("JSON Lines", f"{written['json'] / 1e6:.1f} MB", f"{written['json'] / steps:.1f}"),
        ("JSON Lines, gzip", f"{written['gzip'] / 1e6:.1f} MB", f"{written['gzip'] / steps:.1f}"),
        ("JSON Lines / run", f"{written['json'] / size:.1f}", "times"),
        ("gzip / run", f"{written['gzip'] / size:.1f}", "times"),
        ("writing", f"{written['seconds']:.1f} s", "encode, sync, journal"),
        ("nafaudit check", f"{min(c['seconds'] for c in checks):.1f} s", f"best of {given.checks}"),
        ("  processor time", f"{min(c['processor'] for c in checks):.1f} s", "all threads"),
        (
            "  peak memory",
            f"{max(c['peak'] for c in checks) / 2**20:.0f} MiB",
            f"worst of {given.checks}",
        ),
        ("nafaudit report", f"{min(c['processor'] for c in pages):.1f} s", "processor time"),
        (
            "  peak memory",
            f"{max(c['peak'] for c in pages) / 2**20:.0f} MiB",
            f"worst of {given.checks}",
        ),
    ]
    for name, value, note in rows:
        out(f"{name:24} {value:>12}  {note}\n")


if __name__ == "__main__":
    main()
