"""Digests of fixed products: their form here, their golden values in the package.

No test says that a machine agrees: which bits it computes is its own affair.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from nafaudit.lab import digests
from tests.cli.test_schema import validated
from tests.commands import call

DIGEST = re.compile("[0-9a-f]{12}")


def test_the_golden_table_is_whole() -> None:
    tables = {name: digests.golden_digests(name) for name in digests.SETS}
    products = list(tables["default"])
    assert len(products) == 32 and products[0] == "inputs"
    for table in tables.values():
        assert list(table) == products
        assert all(DIGEST.fullmatch(value) for value in table.values())
    assert len({tuple(table.values()) for table in tables.values()}) == 3
    assert len({table["inputs"] for table in tables.values()}) == 1


def test_inputs_follow_from_integers_alone() -> None:
    def slowly(place: int, salt: int) -> float:
        mixed = (place * 2654435761 + salt * 40503 + 12345) % 2**32
        mixed = (mixed ^ mixed >> 15) * 2246822519 % 2**32
        mixed = (mixed ^ mixed >> 13) * 3266489917 % 2**32
        return ((mixed ^ mixed >> 16) % 2**16) / 2**15 - 1

    found = digests._numbers(7, 60, 5).numpy()
    assert found.dtype == np.float32
    assert found.ravel().tolist() == [slowly(place, 7) for place in range(300)]


@pytest.mark.full
def test_it_prints_every_product_and_a_sentence_for_each_set(tmp_path: Path) -> None:
    done = call("lab", "digests", "--set", "default, trio", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    rows = [line.split() for line in lines if line.endswith((" agrees", " differs"))]
    assert len(rows) == 64
    for row in rows:
        assert (row[-3] == row[-2]) == (row[-1] == "agrees")
        assert row[0] != "inputs" or row[-1] == "agrees"
    assert max(map(len, lines)) <= 80
    for name in ("default", "trio"):
        assert sum(line.startswith(f"{name}: this machine") for line in lines) == 1
    assert "golden values: AMD EPYC, family 25 model 17, torch 2.13.0, one thread" in lines


def test_a_set_is_computed_in_its_own_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A process whose variables are not those of its set is a failure.
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    data = validated("lab digests", tmp_path, "lab", "digests", "--set", "strict")
    (found,) = data["sets"]
    assert found["environment"] == {"MKL_CBWR": "AUTO,STRICT"}
    assert len(found["products"]) == 32 and found["products"][0]["agrees"]
    assert found["agreeing"] == sum(one["agrees"] for one in found["products"])
    assert found["agrees"] == (found["agreeing"] == 32) and found["failure"] is None
    assert all(DIGEST.fullmatch(one["digest"]) for one in found["products"])
    assert data["conclusion"][0].startswith("strict: this machine")


def test_another_torch_and_a_process_that_fails_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.__version__", "2.9.1+cpu")
    monkeypatch.setattr("sys.executable", "/bin/false")
    done = call("lab", "digests", "--set", "default", cwd=tmp_path)
    assert done.returncode == 0
    assert "default: the products could not be computed (status 1)." in done.stdout
    assert "torch is 2.9.1 here, not 2.13.0: digests may differ for that reason" in done.stdout


def test_an_unknown_set_is_refused(tmp_path: Path) -> None:
    done = call("lab", "digests", "--set", "default,strikt", cwd=tmp_path)
    assert done.returncode == 2
    assert "unknown set 'strikt'; did you mean 'strict'?" in done.stderr
    assert call("lab", "digests", "--set", "", cwd=tmp_path).returncode == 2
