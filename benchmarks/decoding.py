"""Decoding and its parts: the published decoder, nafaudit and the limit on one loaded pair."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Self

import numpy as np

from benchmarks import checkpoints, gates, sides
from benchmarks.breakdown import FORWARDS, PROMPTS, REST
from benchmarks.results import LIMIT, MEMORY, PEER, Row, of_bytes, ratio
from benchmarks.sides import Worker


@dataclass(frozen=True)
class Case:
    """A decoding workload: prompts, their length, trajectories of each, new tokens, budget.

    Its memory is measured if so said; of many prompts most of it is keys and values, on both sides.
    """

    name: str
    pair: str
    prompts: int
    length: int
    each: int
    new: int
    k: float
    memory: bool = False

    def __str__(self) -> str:
        many = f"{self.prompts} x {self.each}, " if self.each > 1 else ""
        return f"{many}{self.length} tokens and {self.new} new, k = {self.k:g}"

    def work(self, size: int) -> dict[str, Any]:
        """The request for a side, without the budget."""
        draw = random.Random(self.name)
        ids = [[draw.randrange(2, size) for _ in range(self.length)] for _ in range(self.prompts)]
        return {"prompts": ids, "each": self.each, "new": self.new}


CASES = (
    Case("8 prompts, binding", "r32", 8, 32, 1, 64, 1.0),
    Case("8 prompts, free", "r32", 8, 32, 1, 64, 20.0),
    Case("32 prompts, binding", "r32", 32, 16, 1, 24, 1.0),
    Case("1 prompt x 10", "r32", 1, 128, 10, 64, 1.0, memory=True),
    Case("8 prompts, binding", "r128", 8, 32, 1, 16, 1.0),
    Case("8 prompts, free", "r128", 8, 32, 1, 16, 20.0),
    Case("1 prompt x 10", "r128", 1, 128, 10, 16, 1.0, memory=True),
    Case("8 prompts", "real", 8, 32, 1, 32, 0.5),
    Case("1 prompt x 10", "real", 1, 96, 10, 16, 0.5, memory=True),
)
SOLVED = {"binding": 0.5, "free": 50.0}
SWEEP = (0.0, 0.5, 1.0, 3.0, float("inf"))
AHEAD = 3


class Bench:
    """Both sides with one pair loaded, and the rows that are measured on it.

    Args:
        pair: Its name in `checkpoints.VOCABULARY`.
        where: Its checkpoints.
        python: The interpreter of the published decoder's environment; None leaves it out.
        rounds: How often everything is timed.
        profile: Whether every case is decoded once more to see where the time goes.
    """

    def __init__(
        self,
        pair: str,
        where: checkpoints.Checkpoints,
        python: str | None,
        rounds: int,
        *,
        profile: bool,
    ) -> None:
        self.pair, self.where, self.python = pair, where, python
        self.rounds, self.profile = rounds, profile
        self.size = checkpoints.VOCABULARY[pair]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.own, self.peer = sides.own(), sides.peer(self.python)
            for side in filter(None, (self.peer, self.own)):
                stack.enter_context(side)
            for side in filter(None, (self.peer, self.own)):
                self._load(side)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self._open.close()

    def _load(self, side: Worker) -> None:
        side.ask("load", safe=str(self.where.safe), risky=str(self.where.risky))

    def decoding(self) -> Iterator[Row]:
        """The cases of this pair."""
        for case in CASES:
            if case.pair == self.pair:
                yield self._decoding(case)

    def solver(self, scratch: Path) -> Iterator[Row]:
        """The step between the forwards, on logits kept in a scratch directory."""
        for rows in (8, 32):
            for kind, k in SOLVED.items():
                yield self._solver(rows, kind, k, scratch)

    def _decoding(self, case: Case) -> Row:
        own, peer = self.own, self.peer
        work = case.work(self.size)
        times: dict[str, list[float]] = {"peer": [], "own": [], "limit": [], "limit, prompts": []}
        wrong: set[str] = set()
        for turn in range(self.rounds + 1):  # the first warms up
            small = work | {"new": 4, "each": min(case.each, 2)} if turn == 0 else work
            theirs = peer and peer.ask("decode", **small, k=case.k)
            ours = own.ask("decode", **small, k=case.k)
            limit = own.ask("limit", **small)
            wrong |= {gates.feasible(ours), gates.debts(theirs, ours) if theirs else ""}
            if turn:
                times["peer"].append(theirs["cpu"] if theirs else float("nan"))
                times["own"].append(ours["cpu"])
                times["limit"].append(limit["cpu"])
                times["limit, prompts"].append(limit["prompts"])
        memory = self._memory(case) if case.memory else {}
        ratios = {PEER: ratio(times["peer"], times["own"])}
        ratios |= {LIMIT: ratio(times["own"], times["limit"])}
        if len(memory) == 2:
            ratios |= {MEMORY: of_bytes(memory["peer"], memory["own"])}
        facts = {"case": asdict(case), "cpu": times, "memory": memory, "binding": ours["binding"]}
        if self.profile:
            facts["ns"] = self._profile(case, times)
        return Row(
            f"{self.pair}: {case.name}",
            f"{case}; {ours['binding']:.0%} of steps bind",
            ratios,
            gates.all_of(wrong),
            facts,
        )

    def _memory(self, case: Case) -> dict[str, float]:
        """Bytes above the loaded models, each side in a fresh process, both at once."""

        def peak(side: Worker) -> float:
            with side:
                self._load(side)
                side.ask("touch")
                answer = side.ask("decode", **case.work(self.size), k=case.k)
                return float(answer["peak"] - answer["before"])

        started = {"peer": sides.peer(self.python), "own": sides.own()}
        with ThreadPoolExecutor() as threads:
            asked = {name: threads.submit(peak, side) for name, side in started.items() if side}
        return {name: answer.result() for name, answer in asked.items()}

    def _profile(self, case: Case, times: dict[str, list[float]]) -> dict[str, dict[str, float]]:
        """Nanoseconds per row, step and token id of ours and of the limit, by part."""
        answer = self.own.ask("profile", **case.work(self.size), k=case.k)
        ours = answer["spent"] | {REST: answer["cpu"] - sum(answer["spent"].values())}
        prompts = median(times["limit, prompts"])
        limit = {FORWARDS: median(times["limit"]) - prompts, PROMPTS: prompts}
        each = 1e9 / (case.prompts * case.each * case.new * self.size)
        return {
            side: {part: each * seconds for part, seconds in spent.items()}
            for side, spent in (("ours", ours), ("limit", limit))
        }

    def _solver(self, rows: int, kind: str, k: float, scratch: Path) -> Row:
        file, draw = scratch / "logits.npz", np.random.default_rng(rows)
        names = ("safe", "risky")
        logits = {n: 1.75 * draw.standard_normal((rows, self.size), np.float32) for n in names}
        np.savez(file, safe=logits["safe"], risky=logits["risky"])
        truth = gates.bisected(file, k)
        times: dict[str, list[float]] = {"peer": [], "own": []}
        wrong = set()
        for _ in range(self.rounds):
            for name, side in (("peer", self.peer), ("own", self.own)):
                if side is None:
                    times[name].append(float("nan"))
                    continue
                answer = side.ask("solve", file=str(file), k=k, times=2)
                times[name].append(min(answer["seconds"]))
                wrong.add(gates.solved(answer, truth, k, strict=name == "own"))
        cells = rows * self.size / 1e9
        each = " / ".join(f"{median(times[name]) / cells:.0f}" for name in ("peer", "own"))
        return Row(
            f"{self.pair}: solver, {rows} rows, {kind}",
            f"k = {k:g}; {each} ns per row and token id",
            {PEER: ratio(times["peer"], times["own"])},
            gates.all_of(wrong),
            {"cpu": times},
        )

    def sweep(self, rounds: int) -> Row:
        """Three budgets and two baselines in one run against five separate ones."""
        case = Case("sweep", self.pair, 2, 128, 2, 64, 1.0)
        work = case.work(self.size)
        together, apart, wrong = [], [], set()
        for _ in range(rounds):
            one = self.own.ask("decode", **work, k=list(SWEEP))
            each = [self.own.ask("decode", **work, k=k) for k in SWEEP]
            records = [record for answer in each for record in answer["records"]]
            wrong.add(gates.same_records(one["records"], records))
            together.append(one["cpu"])
            apart.append(sum(answer["cpu"] for answer in each))
        return Row(
            f"{self.pair}: five arms",
            f"2 x 2, 128 tokens and 64 new, k = {', '.join(f'{k:g}' for k in SWEEP)}",
            {"one run/five runs": ratio(together, apart)},
            gates.all_of(wrong),
            {"case": asdict(case), "cpu": {"together": together, "apart": apart}},
        )

    def speculation(self, rounds: int) -> Row:
        """Plain decoding against guessing tokens ahead."""
        case = Case("speculation", self.pair, 8, 32, 1, 32, 0.25)
        work, wrong = case.work(self.size), set()
        times: dict[str, list[float]] = {"plain": [], "speculated": []}
        for _ in range(rounds):
            plain = self.own.ask("decode", **work, k=case.k)
            guessed = self.own.ask("decode", **work, k=case.k, speculate=AHEAD)
            wrong.add(gates.same_records(plain["records"], guessed["records"]))
            times["plain"].append(plain["cpu"])
            times["speculated"].append(guessed["cpu"])
        return Row(
            f"{self.pair}: {AHEAD} guesses ahead",
            f"{case}; {guessed['stood']:.0%} stood",
            {"plain/speculated": ratio(times["plain"], times["speculated"])},
            gates.all_of(wrong),
            {"case": asdict(case), "stood": guessed["stood"], "cpu": times},
        )


def gate_of_first_tokens(root: Path, python: str) -> Row:
    """The chi-square gate, on a pair of its own."""
    where = checkpoints.build("tiny", root)
    peer = sides.peer(python)
    assert peer is not None
    with peer, sides.own() as own:
        for side in (peer, own):
            side.ask("load", safe=str(where.safe), risky=str(where.risky))
        p = gates.first_tokens(peer, own, 2000, checkpoints.VOCABULARY["tiny"])
    about = f"of 2,000 draws a side, 64 ids; p = {p:.2g}"
    return Row("gate: first tokens", about, {}, gates.drawn_alike(p), {"p": p})
