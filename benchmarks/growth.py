"""Growth of decoding with trajectories, budgets, prompts and vocabulary; our side alone.

Every size is decoded in every round, one after another, and compared with the smallest of its
round's sizes. Growth below the sizes' own ratio is work that is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import checkpoints, gates, sides
from benchmarks.decoding import Case
from benchmarks.results import Row, exponent, ratio
from benchmarks.sides import Worker

TRAJECTORIES = (1, 2, 5, 10)
BUDGETS = (1.0, 0.5, 2.0, 3.0, 5.0)
PROMPTS = (4, 8, 16, 32)
VOCABULARIES = ("r8", "r32", "r128")


def rows(root: Path, rounds: int) -> Iterator[Row]:
    """Four rows: trajectories of a prompt, budgets of a prompt, prompts, ids of a vocabulary."""
    with ExitStack() as stack:
        loaded = {}
        for name in VOCABULARIES:
            where = checkpoints.build(name, root)
            loaded[name] = stack.enter_context(sides.own())
            loaded[name].ask("load", safe=str(where.safe), risky=str(where.risky))
        own, size = loaded["r32"], checkpoints.VOCABULARY["r32"]
        one = Case("growth", "r32", 1, 128, 1, 32, 1.0).work(size)

        def more(each: int) -> dict[str, Any]:
            return own.ask("decode", **one | {"each": each}, k=1.0)

        def wider(budgets: int) -> dict[str, Any]:
            return own.ask("decode", **one | {"each": 2}, k=list(BUDGETS[:budgets]))

        def larger(ids: int) -> dict[str, Any]:
            name = next(n for n in VOCABULARIES if checkpoints.VOCABULARY[n] == ids)
            return _short(loaded[name], 8, ids)

        sizes = [checkpoints.VOCABULARY[name] for name in VOCABULARIES]
        about = "1 prompt of 128 tokens, 32 new, 32,000 ids"
        yield _grown("trajectories", about, TRAJECTORIES, more, rounds)
        yield _grown("budgets", f"{about}, 2 trajectories", (1, 2, len(BUDGETS)), wider, rounds)
        about = "32 tokens each, 16 new, 32,000 ids"
        yield _grown("prompts", about, PROMPTS, lambda n: _short(own, n, size), rounds)
        yield _grown("vocabulary", "8 prompts of 32 tokens, 16 new", sizes, larger, rounds)


def _short(own: Worker, prompts: int, ids: int) -> dict[str, Any]:
    return own.ask("decode", **Case("growth", "", prompts, 32, 1, 16, 1.0).work(ids), k=1.0)


def _grown(
    name: str,
    about: str,
    sizes: list[int] | tuple[int, ...],
    decode: Callable[[int], Any],
    rounds: int,
) -> Row:
    """Cost at every size over the cost at the first."""
    times: dict[int, list[float]] = {size: [] for size in sizes}
    wrong: set[str] = set()
    decode(sizes[0])  # warms up
    for _ in range(rounds):
        for size in sizes:
            answer = decode(size)
            wrong.add(gates.feasible(answer))
            times[size].append(answer["cpu"])
    base = times[sizes[0]]
    grown = {f"{n:,}/{sizes[0]:,}": ratio(times[n], base) for n in sizes[1:]}
    about = f"{about}; exponent {exponent(times):.2f}"
    facts = {"cpu": times, "exponent": exponent(times)}
    return Row(f"growth: {name}", about, grown, gates.all_of(wrong), facts)
