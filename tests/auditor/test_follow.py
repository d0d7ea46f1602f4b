"""Following many rows at once, against one trajectory, or one token and one budget, at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from nafaudit.auditor import follow
from nafaudit.auditor.follow import follow_texts, replay_many
from nafaudit.auditor.replay import ReplayTask, replay_in, replay_texts
from nafaudit.auditor.teacher_forcing import ForcedText, Reader
from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.core.ledger import Payment, is_baseline
from nafaudit.core.trajectory import Key, Steps
from nafaudit.lab.tiny import SENTENCES
from nafaudit.mechanisms.laws import kl
from nafaudit.mechanisms.reference import AnchoredDecoder
from nafaudit.mechanisms.registry import mechanism
from nafaudit.models.pair import Pair, load_pair
from nafaudit.protocols import booked
from nafaudit.selftest.power import AuditSetup
from nafaudit.selftest.worlds import toy_prompts

Paths = Callable[[str], tuple[Path, Path]]
SPECS = ("anchored", "renyi:2", "pathwise")
BUDGETS = (0.5, 2.0, 30.0)
SMALL = AuditSetup(length=30, prompts=4, size=20, stop=0.03, sizes=(12,))


@pytest.fixture(scope="module")
def pair(tiny_pair_paths: Paths) -> Pair:
    safe, risky = tiny_pair_paths("llama")
    return load_pair(str(safe), str(risky))


@pytest.mark.parametrize("k", [0.0, 0.4, float("inf")])
def test_replaying_many_is_replaying_each(k: float) -> None:
    arena = replace(SMALL, budgets=(k,))
    world = arena.world(3)
    (asked,) = arena.stages(toy_prompts(world, 3, arena.prompts), 3)
    outputs = AnchoredDecoder(world).decode([one.request for one in asked])
    promise = mechanism("anchored", world.debt)
    tasks = [
        ReplayTask(
            one.key,
            one.request.prompt,
            np.asarray(output.tokens, np.int32),
            output.tokens[-1] in world.stops,
            theta=np.asarray(output.theta),
        )
        for one, output in zip(asked, outputs, strict=True)
    ]
    for task, many in zip(tasks, replay_many(world, promise, tasks), strict=True):
        single = replay_in(world, promise, task)
        again, alone = many.replayed, single.replayed
        assert again.trajectory.debt == alone.trajectory.debt
        assert again.trajectory.stopped == alone.trajectory.stopped
        assert np.allclose(again.granted, alone.granted, rtol=0, atol=1e-12)
        assert np.allclose(many.law, single.law, rtol=0, atol=1e-9)
        for name in Steps.columns:
            one, other = (getattr(x.trajectory.steps, name) for x in (again, alone))
            assert np.allclose(one, other, rtol=1e-6, atol=1e-9), name
        assert np.allclose(again.implied, alone.implied, rtol=0, atol=1e-9, equal_nan=True)
        assert is_baseline(k) or (again.trajectory.steps.charge > 0).any()


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
