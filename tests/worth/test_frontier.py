"""Price, fidelity and leakage of mechanisms and budgets, between the two models."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch

from nafaudit.lab.tiny import SENTENCES
from nafaudit.mechanisms.laws import kl
from nafaudit.workload.passages import Passage
from nafaudit.worth.frontier import FollowedTexts, Frontier, frontier
from nafaudit.worth.matched import FrontierResult, frontier_result
from nafaudit.worth.settings import FrontierSettings
from tests.commands import call

Paths = Callable[[str], tuple[Path, Path]]
SPECS = ("anchored", "renyi:2", "pathwise")
BUDGETS = (0.5, 2.0, 30.0)
ORDINARY = [Passage(f"o{i}", text) for i, text in enumerate(SENTENCES[:2])]
PROTECTED = [Passage(f"p{i}", text) for i, text in enumerate(SENTENCES[2:])]
SETTINGS = FrontierSettings(mechanisms=SPECS, k=BUDGETS, max_new_tokens=20, given=6, window=10)


@pytest.fixture(scope="module")
def source(tiny_pair_paths: Paths) -> Frontier:
    safe, risky = map(str, tiny_pair_paths("llama"))
    return frontier((safe, risky), PROTECTED, ORDINARY, SETTINGS)


@pytest.fixture(scope="module")
def found(source: Frontier) -> FrontierResult:
    return frontier_result(source)


def test_fidelity_on_the_geodesic_is_its_closed_form() -> None:
    """G(theta) = theta psi'(1) - psi(theta), the ceiling at theta = 1; C_1(theta) is the price."""
    chance = torch.Generator().manual_seed(4)
    safe, risky = (
        torch.log_softmax(3 * torch.randn(1, 40, generator=chance, dtype=torch.float64), -1)
        for _ in "ab"
    )
    ratio = risky - safe

    def psi(u: float) -> float:
        return torch.logsumexp(safe + u * ratio, -1).item()

    assert psi(0) == pytest.approx(0, abs=1e-12) and psi(1) == pytest.approx(0, abs=1e-12)
    ceiling = kl(risky, safe).item()
    for theta in (0.0, 0.2, 0.7, 1.0):
        served = torch.log_softmax(safe + theta * ratio, -1)
        bought = ceiling - kl(risky, served).item()
        assert bought == pytest.approx(theta * ceiling - psi(theta), abs=1e-9)


def test_points_lie_between_the_models(found: FrontierResult) -> None:
    assert [(p.mechanism, p.k) for p in found.points] == [(m, k) for m in SPECS for k in BUDGETS]
    for name in SPECS:
        points = [p for p in found.points if p.mechanism == name]
        bought = [p.fidelity for p in points]
        assert bought == sorted(bought) and bought[0] >= 0 and bought[-1] <= 1 + 1e-9
    for point in found.points:
        if point.mechanism == "anchored":
            assert point.price == pytest.approx(point.nats) and point.nats <= point.k


def test_a_mechanism_matches_itself(source: Frontier) -> None:
    """Under another name it buys the same at the same k, and leaks the same."""
    twice = [side_twice(side) for side in (source.ordinary, source.protected)]
    settings = replace(source.settings, mechanisms=("anchored", "renyi:2"))
    same = frontier_result(Frontier(source.identity, settings, *twice))
    for match in same.matched:
        assert match.matched_k == pytest.approx(match.k, rel=1e-6)
        assert (match.same_k, match.none) == (0.0, 0.0)
        assert match.difference == pytest.approx(0, abs=1e-4)
        assert max(abs(match.low), abs(match.high)) < 1e-4


def side_twice(side: FollowedTexts) -> FollowedTexts:
    return replace(side, paths=(side.paths[0], side.paths[0]))


def test_what_no_budget_buys_has_no_match(source: Frontier) -> None:
    """A mechanism that serves the safe law alone buys nothing, whatever its budget."""
    sides = []
    for side in (source.ordinary, source.protected):
        nothing = tuple(
            tuple(
                replace(path, gained=0.0, leaked=end.safe)
                for path, end in zip(row, side.ends, strict=True)
            )
            for row in side.paths[0]
        )
        sides.append(replace(side, paths=(side.paths[0], nothing)))
    settings = replace(source.settings, mechanisms=("anchored", "renyi:2"))
    for match in frontier_result(Frontier(source.identity, settings, *sides)).matched:
        assert match.matched_k == math.inf and match.none == 1.0
        assert math.isnan(match.difference) and math.isnan(match.low)


def test_text_that_the_risky_model_does_not_know_is_not_bracketed(
    tiny_pair_paths: Paths, tmp_path: Path
) -> None:
    """Which of two random models knows a text better is chance; the other way round it fails."""
    (tmp_path / "p.txt").write_text("\n\n".join(one.text for one in PROTECTED))
    (tmp_path / "o.txt").write_text("\n\n".join(one.text for one in ORDINARY))
    small = ("--given", 6, "--k", "1,20", "--mechanism", "anchored", "--quiet", "--json")
    statuses = {}
    for way in (1, -1):
        safe, risky = tiny_pair_paths("llama")[::way]
        done = call("frontier", "p.txt", "--ordinary", "o.txt", "--safe", safe, "--risky", risky,
                    *small, cwd=tmp_path)  # fmt: skip
        data = json.loads(done.stdout)
        assert data["bracketed"] == (done.returncode == 0)
        assert {path.name for path in (tmp_path / data["frontier"]).iterdir()} == {
            "frontier.json", "frontier.svg", "matched.csv", "points.csv",
        }  # fmt: skip
        statuses[data["protected"]["risky_leak"] > 0] = done.returncode
    assert statuses[False] == 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--k", "0,1"), "above 0"),
        (("--mechanism", "best-of-n"), "whole outputs"),
        (("--mechanism", "anchord"), "anchored"),
        (("--mechanism", "anchored", "--mechanism", "anchored"), "once"),
        (("--given", "0"), "given"),
        (("--threads", "3"), "threads must be 1 or 2, got 3"),
        (("--given", "400"), "--given"),
        (("--pair", "tiny"), "--ordinary"),
        (("--safe", "x"), "belong together"),
        (("none.txt",), "none.txt"),
    ],
)
def test_bad_input_is_said_before_a_model_loads(
    options: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    with mock.patch("nafaudit.models.pair.load_model", side_effect=AssertionError):
        done = call("frontier", *options, cwd=tmp_path)
    assert done.returncode == 2 and says in done.stderr
    assert not (tmp_path / "frontiers").exists()
