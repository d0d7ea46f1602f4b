"""The examples of docs/protocols.md, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nafaudit.core.debt import DebtRule
from nafaudit.core.draws import Stream
from nafaudit.core.finding import FAULTS
from nafaudit.core.trajectory import Key
from nafaudit.mechanisms.laws import kl
from nafaudit.mechanisms.registry import SequenceMechanism, mechanism
from nafaudit.mechanisms.sequences import decode_by_choice
from nafaudit.protocols import Request
from nafaudit.runner.outputs import read_output
from nafaudit.runner.worker import answer
from tests.mechanisms.tables import TableWorld

PAGE = (Path(__file__).parents[1] / "docs" / "protocols.md").read_text(encoding="utf-8")


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes an example of the page to a file of its own, and names its class."""
    monkeypatch.chdir(tmp_path)

    def written(name: str) -> str:
        code = re.search(rf"```python {name}\n(.*?)```", PAGE, re.S)
        assert code is not None
        (tmp_path / f"door_{name}.py").write_text(code[1], encoding="utf-8")
        found = re.search(r"^class (\w+)", code[1], re.M)
        assert found is not None
        return f"door_{name}.py:{found[1]}"

    return written


def test_the_rule(example: Any) -> None:
    rule = mechanism(example("rule"), DebtRule()).rule
    safe, risky = (torch.from_numpy(law) for law in TableWorld().laws([[0], [1]]))
    cost = kl(risky, safe)
    served = rule.serve([(0,), (1,)], safe, risky, torch.stack([cost[0] * 1.01, cost[1] * 0.99]))
    assert served.theta.tolist() == [1.0, 0.0]
    assert served.charge.tolist() == [pytest.approx(float(cost[0])), 0.0]


def test_the_sequence_rule(example: Any) -> None:
    found = mechanism(example("sequence"), DebtRule())
    assert isinstance(found, SequenceMechanism)
    draft, cost = decode_by_choice(TableWorld(), found.sequence, "s", (0, 1), 0.5, Stream(3))
    assert cost.sum() == pytest.approx(np.log(2)) and draft.tokens


def test_the_decoder(example: Any) -> None:
    from nafaudit.mechanisms.plugins import build

    world, request = TableWorld(), Request((0, 1), 0.5, 3, 6)
    said = answer(build(example("decoder"), world, what="decoder"), [vars(request)])
    reading = read_output(said["outputs"][0], Key("p", "d", 0.5, 0), request, 5, world.stops)
    assert reading.trajectory is not None and not reading.faults


def test_every_fault_is_on_the_page() -> None:
    assert all(f"`{name}`" in PAGE or f"`decoder: {name}`" in PAGE for name in FAULTS)
