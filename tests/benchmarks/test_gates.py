"""Every gate lets equal maths pass and fires where it is wrong."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import gates, growth

SIZE = 40


class Drawing:
    """Draws first tokens of a known law, in place of a decoder."""

    def __init__(self, logits: np.ndarray[Any, Any], key: int) -> None:
        self.key = key
        self.law = np.exp(logits) / np.exp(logits).sum()

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        draw = np.random.default_rng([request["seed"], self.key])
        return {"first": draw.choice(SIZE, request["each"], p=self.law).tolist()}


def test_the_gate_of_the_solver_fires(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    logits = {name: draw.standard_normal((2, 50)) for name in ("safe", "risky")}
    np.savez(tmp_path / "x.npz", safe=logits["safe"], risky=logits["risky"])
    truth = gates.bisected(tmp_path / "x.npz", 0.1)
    good = {"theta": [t for t, _ in truth], "charge": [c for _, c in truth]}
    assert gates.solved(good, truth, 0.1, strict=True) == ""
    assert "theta" in gates.solved(good | {"theta": [0.9, 0.9]}, truth, 0.1, strict=True)
    unspent = good | {"charge": [c - 2 * gates.UNSPENT for c in good["charge"]]}
    assert "charge" in gates.solved(unspent, truth, 0.1, strict=True)
    over = good | {"charge": [math.nextafter(0.1, 1)] * 2}
    assert "above" in gates.solved(over, truth, 0.1, strict=True)
    assert gates.solved(over, truth, 0.1, strict=False) == ""


def test_the_gate_of_first_tokens_fires() -> None:
    # Seeds are fixed, so this passes always or never.
    logits = np.random.default_rng(0).standard_normal(SIZE)
    shifted = logits + 0.2 * np.random.default_rng(1).standard_normal(SIZE)
    one, same, other = Drawing(logits, 0), Drawing(logits, 1), Drawing(shifted, 2)
    assert gates.drawn_alike(gates.first_tokens(one, same, 2000, SIZE)) == ""
    assert "differ" in gates.drawn_alike(gates.first_tokens(one, other, 2000, SIZE))


def test_the_other_gates_fire() -> None:
    assert gates.debts({"debt": [1.0]}, {"debt": [1.0 + 5e-5]}) == ""
    assert "differ" in gates.debts({"debt": [1.0]}, {"debt": [1.001]})
    assert gates.feasible({"over": 0.0}) == ""
    assert "above" in gates.feasible({"over": 1e-18})
    assert gates.spending({"a": 1.0}, {"a": 1.0, "b": 2.0}) == ""
    assert "differs" in gates.spending({"a": 1.0}, {"a": 1.002})
    assert gates.counted(3, 3) == "" and "2 of 3" in gates.counted(2, 3)
    assert gates.same_scores([(0.5, 1.0)], [(0.5, 1.0)]) == ""
    assert "differ" in gates.same_scores([(0.5, 1.0)], [(0.5, 1.0 - 1e-9)])
    assert gates.same_records(["a", "b"], ["b", "a"]) == ""
    assert "differ" in gates.same_records(["a", "b"], ["a", "a"])
    assert gates.replayed(1e-5) == "" and "off" in gates.replayed(2e-4)
    assert gates.all_of(["", "b", "a", "b"]) == "a; b" and gates.all_of([""]) == ""


def test_growth_is_over_the_smallest_size_and_counts_only_if_nothing_is_overdrawn() -> None:
    def decode(size: int) -> dict[str, float]:
        return {"cpu": 2.0 * size, "over": 0.0 if size < 5 else 1e-9}

    found = growth._grown("rows", "", (1, 2), decode, 2)
    assert found.ratios["2/1"].middle == 2.0 and found.invalid == ""
    assert "above" in growth._grown("rows", "", (1, 5), decode, 2).invalid
