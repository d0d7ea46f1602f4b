"""Every mechanism through the command line: run, check, verify."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nafaudit.mechanisms.cards import CARDS
from tests.commands import call

STEP = {
    "renyi:4": 0,
    "pathwise:cap=3,bank=1": 0,
    "anchored:refill=character,bank=1": 0,
    "cp-delta": 0,
    "cp-delta:kl": 0,
    "cp-fuse": 3,
    "memfree:n=2": 3,
    "tokenswap": 3,
}
CHOOSING = {"best-of-n:8": 0, "blockwise:4": 0, "cp-k:tries=4": 0, "hybrid:n=2": 0}
QUICK = ("pathwise:cap=3,bank=1", "memfree:n=2")
SIZE = ("--pair", "tiny", "--k", "0.5", "--trajectories", "4", "--max-new-tokens", "12")


def tiers(specs: dict[str, int]) -> list[object]:
    return [s if s in QUICK else pytest.param(s, marks=pytest.mark.full) for s in specs]


def test_every_mechanism_is_run() -> None:
    names = {spec.partition(":")[0] for spec in (*STEP, *CHOOSING)}
    assert names == {card.name for card in CARDS}


@pytest.mark.parametrize("spec", tiers(STEP))
def test_a_step_level_mechanism_is_run_checked_and_verified(spec: str, tmp_path: Path) -> None:
    done = call("run", *SIZE, "--mechanism", spec, "--out", "r", "--quiet", "--json", cwd=tmp_path)
    assert done.returncode == STEP[spec], done.stderr
    checked = call("check", "r", "--json", cwd=tmp_path)
    assert checked.returncode == STEP[spec]
    arm = next(a for a in json.loads(checked.stdout)["verdicts"] if a["k"] == 0.5)
    assert arm["kept"] == ("INCONCLUSIVE" if STEP[spec] else "WITHIN")
    verified = call("verify", "r", "--quiet", cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout


@pytest.mark.full
@pytest.mark.parametrize("spec", CHOOSING)
def test_a_choosing_mechanism_is_run_and_checked(spec: str, tmp_path: Path) -> None:
    done = call("run", *SIZE, "--mechanism", spec, "--out", "r", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    checked = call("check", "r", cwd=tmp_path)
    assert checked.returncode == 0
    refused = call("verify", "r", cwd=tmp_path)
    assert refused.returncode == 2 and "chooses among whole outputs" in refused.stderr


def test_a_wrong_option_is_said_before_a_model_loads(tmp_path: Path) -> None:
    done = call("run", "--safe", "nowhere", "--risky", "nowhere", "--prompts", "none.jsonl",
                "--mechanism", "renyi:alpah=4", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 2


def test_the_list_fits_a_terminal(tmp_path: Path) -> None:
    shown = call("mechanisms", cwd=tmp_path).stdout
    assert max(map(len, shown.splitlines())) <= 80
    data = json.loads(call("mechanisms", "--json", cwd=tmp_path).stdout)["mechanisms"]
    assert [one["name"] for one in data] == [card.name for card in CARDS]
    assert all(one["promise"]["words"] and one["currency"] for one in data)
    one = call("mechanisms", "renyi", cwd=tmp_path).stdout
    assert one.startswith("renyi\n") and "anchored\n" not in one
    wrong = call("mechanisms", "reny", cwd=tmp_path)
    assert wrong.returncode == 2 and "did you mean 'renyi'" in wrong.stderr


@pytest.mark.full
@pytest.mark.parametrize("spec", ["renyi:4", "pathwise", "anchored:cap=2", "cp-delta", "tokenswap"])
def test_a_mechanism_keeps_the_contract(spec: str, tmp_path: Path) -> None:
    tried = call("conform", spec, cwd=tmp_path)
    assert tried.returncode == 0, tried.stdout


def test_a_mechanism_is_no_decoder(tmp_path: Path) -> None:
    done = call("run", "--pair", "tiny", "--decoder", "renyi:4", cwd=tmp_path)
    assert done.returncode == 2 and "use --mechanism renyi:4" in done.stderr
