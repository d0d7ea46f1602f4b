"""Our side of the benchmark, on a tiny pair: what it decodes, and where it says the time goes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.own_side import Own

from benchmarks import breakdown, gates
from nafaudit.engine.proof import numerics_of

WORK: dict[str, Any] = {"prompts": [[5, 6, 7], [8, 9, 10]], "each": 2, "new": 4, "k": 0.3}


@pytest.fixture(scope="module")
def own(tiny_pair_paths: Callable[..., tuple[Path, Path]]) -> Own:
    side = Own()
    safe, risky = tiny_pair_paths()
    side.do_load(str(safe), str(risky))
    return side


def test_decoding_answers_what_the_gates_ask_for(own: Own) -> None:
    plain = own.do_decode(**WORK)
    assert plain["tokens"] == 16 and plain["binding"] > 0 and gates.feasible(plain) == ""
    if not numerics_of((own.pair.safe, own.pair.risky), 64).constant:
        guessed = own.do_decode(**WORK, speculate=2)
        assert gates.same_records(plain["records"], guessed["records"]) == ""
    assert gates.same_records(plain["records"], own.do_decode(**WORK, seed=1)["records"])
    work = {name: WORK[name] for name in ("prompts", "each", "new")}
    limit = own.answer({"do": "limit"} | work)
    assert limit["tokens"] == 16 and 0 < limit["prompts"] < limit["cpu"]


def test_every_part_of_the_engine_is_timed(own: Own) -> None:
    answer = own.answer({"do": "profile"} | WORK)
    assert set(answer["spent"]) == set(breakdown.PROBES)
    assert all(seconds > 0 for seconds in answer["spent"].values())
    assert sum(answer["spent"].values()) < answer["cpu"]


def test_touching_the_weights_takes_them_out_of_the_peak(own: Own) -> None:
    own.answer({"do": "touch"})
    answer = own.answer({"do": "decode"} | WORK)
    assert 0 <= answer["peak"] - answer["before"] < 100e6


def test_the_solver_agrees_with_bisection_and_is_strict(own: Own, tmp_path: Path) -> None:
    file, draw = tmp_path / "logits.npz", np.random.default_rng(0)
    logits = {n: 1.75 * draw.standard_normal((2, 500), np.float32) for n in ("safe", "risky")}
    np.savez(file, safe=logits["safe"], risky=logits["risky"])
    for k in (0.5, 50.0):
        found = own.do_solve(str(file), k, 1)
        assert gates.solved(found, gates.bisected(file, k), k, strict=True) == ""


def test_a_probe_that_is_gone_or_idle_is_an_error() -> None:
    with pytest.raises(LookupError, match="is gone"), breakdown.probed({"x": ("json:none",)}):
        pass
    with pytest.raises(LookupError, match="never called"), breakdown.probed({"x": ("json:dumps",)}):
        pass


def test_what_is_called_inside_another_part_counts_as_that(monkeypatch: Any) -> None:
    now = iter(range(100))
    monkeypatch.setattr("time.process_time", lambda: float(next(now)))
    probes = {"outer": ("json:dumps",), "inner": ("json.encoder:JSONEncoder.encode",)}
    with breakdown.probed(probes) as spent:
        json.dumps({})
        json.JSONEncoder().encode({})
    assert spent == {"outer": 1.0, "inner": 1.0}
    assert not hasattr(json.dumps, "__wrapped__")


def test_the_table_has_a_line_for_every_side() -> None:
    ours = dict.fromkeys(breakdown.PROBES, 1.0)
    text = breakdown.text({"case": {"ours": ours, "limit": {breakdown.FORWARDS: 2.0}}})
    assert max(map(len, text.splitlines())) <= 100
    assert "case: limit" in text and breakdown.text({}) == ""
