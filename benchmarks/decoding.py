"""Decoding and its parts: the published decoder, nafaudit and the limit on one loaded pair."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import checkpoints, gates, sides
from benchmarks.sides import Worker, ratio


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
    Case("8 prompts", "smol", 8, 32, 1, 16, 0.5),
    Case("1 prompt x 10", "smol", 1, 96, 10, 16, 0.5),
)
SWEEP = (0.0, 0.5, 1.0, 3.0, float("inf"))


class Bench:
    """Both sides with one pair loaded, and the rows that are measured on it."""

    def __init__(
        self, pair: str, where: checkpoints.Checkpoints, python: str | None, rounds: int
    ) -> None:
        self.pair, self.where, self.python, self.rounds = pair, where, python, rounds
        self.size = checkpoints.VOCABULARY.get(pair, 49_152)

    def _load(self, side: Worker) -> dict[str, Any]:
        return side.ask("load", safe=str(self.where.safe), risky=str(self.where.risky))

    def rows(self, scratch: Path) -> Iterator[dict[str, Any]]:
        """Decoding, then the step between the forwards, on logits kept in a scratch directory."""
        cases = [case for case in CASES if case.pair == self.pair]
        solver = self.pair != "smol"  # its own laws are what its decoding rows measure
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
