"""Price, fidelity and leakage against a walk along one text, one token and one budget at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from nafaudit.auditor import follow
from nafaudit.auditor.follow import follow_texts
from nafaudit.auditor.laws import ForcedText, Reader
from nafaudit.auditor.replay import ReplayTask, replay_texts
from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.core.ledger import Payment
from nafaudit.core.trajectory import Key
from nafaudit.lab.tiny import SENTENCES
from nafaudit.mechanisms.laws import kl
from nafaudit.mechanisms.registry import mechanism
from nafaudit.models.pair import Pair, load_pair
from nafaudit.protocols import booked
from nafaudit.workload.passages import Passage
from nafaudit.worth.frontier import Frontier, Side, frontier
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
def pair(tiny_pair_paths: Paths) -> Pair:
    safe, risky = tiny_pair_paths("llama")
    return load_pair(str(safe), str(risky))


@pytest.fixture(scope="module")
def source(tiny_pair_paths: Paths) -> Frontier:
    safe, risky = map(str, tiny_pair_paths("llama"))
    return frontier((safe, risky), PROTECTED, ORDINARY, SETTINGS)


@pytest.fixture(scope="module")
def found(source: Frontier) -> FrontierResult:
    return frontier_result(source)


def laws_of(model: torch.nn.Module, tokens: tuple[int, ...]) -> torch.Tensor:
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0]
    return torch.log_softmax(logits.double(), dim=-1)


@pytest.mark.parametrize("held", [1, 1 << 23])
def test_paths_are_those_of_a_walk(pair: Pair, held: int) -> None:
    ids = [tuple(pair.tokenizer(text)["input_ids"]) for text in SENTENCES[:2]]
    texts = [ForcedText(row[:7], row[7:22]) for row in ids]
    mechanisms = [mechanism(spec, DebtRule(3)) for spec in SPECS]
    with mock.patch.object(follow, "_HELD", held):
        rows = {i: (ends, paths) for i, ends, paths in follow_texts(
            Reader(pair, Decoding()), mechanisms, BUDGETS, texts, kl)}  # fmt: skip
    assert sorted(rows) == [0, 1]
    for i, text in enumerate(texts):
        safe, risky = (laws_of(model, text.tokens) for model in (pair.safe, pair.risky))
        ends, paths = rows[i]
        at = range(len(text.prompt) - 1, len(text.tokens) - 1)
        nexts = [text.tokens[t + 1] for t in at]
        assert ends.tokens == 15
        assert ends.safe == pytest.approx(
            sum(safe[t, x].item() for t, x in zip(at, nexts, strict=True)), abs=1e-3
        )
        gains = sorted(
            max(0.0, (risky[t, x] - safe[t, x]).item())
            for t, x in enumerate(text.prompt[1:])
            if x not in pair.vocabulary.special
        )[::-1][:3]
        debt = sum(gains) / sum(gain > 0 for gain in gains)
        prefix = np.cumsum([-safe[t, x].item() for t, x in zip(at, nexts, strict=True)])
        assert ends.paying_k == pytest.approx(
            max((s + debt) / (n + 1) for n, s in enumerate(prefix)), abs=1e-3
        )
        for path in paths:
            made = mechanisms[path.mechanism]
            account = made.ledger.open(path.k, debt)
            price = gained = leaked = nats = 0.0
            for t, x in zip(at, nexts, strict=True):
                allowance = torch.tensor([account.allowance()], dtype=torch.float64)
                one = made.rule.serve([text.tokens[: t + 1]], safe[t : t + 1], risky[t : t + 1],
                                      allowance)  # fmt: skip
                ratio = (one.law[0, x] - safe[t, x]).item()
                charge = booked(made.rule, one.charge.item(), ratio)
                account.pay(Payment(charge, ratio, x))
                price, leaked = price + charge, leaked + one.law[0, x].item()
                mass = risky[t].exp()
                gained += (mass * (one.law[0] - safe[t])).sum().item()
                nats += (one.law[0].exp() * (one.law[0] - safe[t])).sum().item()
            expected = (price, nats, gained, leaked)
            values = (path.price, path.divergence, path.gained, path.leaked)
            assert values == pytest.approx(expected, abs=2e-3)


def test_a_debt_is_counted_in_the_laws_that_its_rule_names(pair: Pair) -> None:
    ids = tuple(pair.tokenizer(SENTENCES[0])["input_ids"])
    decoding, rules = Decoding(temperature=0.5), (DebtRule(5), DebtRule(5, "positives-raw"))
    paying = []
    for rule in rules:
        made = mechanism("anchored", rule)
        both = [made, mechanism("anchored", rule.other)]
        text = ForcedText(ids[:7], ids[7:8])
        ((_, ends, _),) = follow_texts(Reader(pair, decoding), both, (0.5,), [text], kl)
        paying.append(ends.paying_k)
        task = ReplayTask(Key("p", "m", 0.5, 0), text.prompt, np.array(text.output, np.int32))
        (second,) = replay_texts(Reader(pair, decoding), made, [task])
        assert ends.paying_k == pytest.approx(second.trajectory.debt - ends.safe, abs=1e-6)
    assert abs(paying[0] - paying[1]) > 0.1


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


def side_twice(side: Side) -> Side:
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
