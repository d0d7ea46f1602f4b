from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nafaudit.auditor.replay import ReplayTask, replay_in, replay_texts
from nafaudit.auditor.teacher_forcing import ForcedText, Forest, Part, Reader
from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.core.draws import sound_stream
from nafaudit.core.errors import InputError
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.engine.decode import Decoder
from nafaudit.engine.prompts import PromptRequest, RowRequest
from nafaudit.engine.world import PairWorld
from nafaudit.mechanisms.registry import mechanism
from nafaudit.models.pair import Pair, load_pair
from nafaudit.protocols import debt_of

Paths = Callable[[str], tuple[Path, Path]]
BUDGETS = (0.0, 0.4, 3.0, math.inf)
RULE = mechanism("anchored", DebtRule())


def decoded(pair: Pair, decoding: Decoding) -> tuple[list[ReplayTask], dict[Key, Trajectory]]:
    """A few trajectories of each budget, as a run would hand them to replay."""
    draw = np.random.default_rng(0)
    requests = []
    for number, length in enumerate((1, 4, 23)):
        tokens = (0, *draw.integers(2, 320, length).tolist())
        rows = tuple(
            RowRequest(k, j, sound_stream(0, "t", f"p{number}", j)) for k in BUDGETS for j in (0, 1)
        )
        requests.append(PromptRequest(f"p{number}", tokens, rows))
    decoder = Decoder(pair, RULE, decoding, width=64, batch=8)
    records = {t.key: t for t in decoder.decode(requests)}
    prompts = {r.prompt: r.tokens for r in requests}
    written = [
        ReplayTask(
            key,
            prompts[key.prompt],
            t.steps.token,
            t.stopped,
            sound_stream(0, "t", key.prompt, key.trajectory),
            t.steps.theta,
        )
        for key, t in records.items()
    ]
    return written, records


@pytest.mark.parametrize(
    ("architecture", "warps", "numbers"),
    [
        ("llama", {}, 1 << 22),
        ("llama", {"temperature": 0.7, "repetition_penalty": 1.3}, 1 << 14),
        ("gpt2", {}, 1 << 13),  # passes of one row and 25 positions: chunks, joined by a cache
        ("gemma2", {}, 1 << 13),
        ("mistral", {}, 1 << 13),
    ],
)
def test_replay_finds_what_was_decoded(
    tiny_pair_paths: Paths, architecture: str, warps: dict[str, Any], numbers: int
) -> None:
    pair = load_pair(*tiny_pair_paths(architecture))
    decoding = Decoding(max_new_tokens=24, **warps)
    written, records = decoded(pair, decoding)
    reader = Reader(pair, decoding, numbers=numbers)
    replayed = {r.trajectory.key: r for r in replay_texts(reader, RULE, written)}
    assert replayed.keys() == records.keys()
    for key, record in records.items():
        second = replayed[key]
        steps = second.trajectory.steps
        assert second.trajectory.debt == pytest.approx(record.debt, abs=1e-4)
        # Another kernel: about 1e-5 nats on logits of size 30.
        for name, slack in (("charge", 1e-3), ("allowance", 1e-3), ("safe", 1e-4)):
            claimed = getattr(record.steps, name)
            assert np.allclose(getattr(steps, name), claimed, rtol=1e-4, atol=slack), name
        assert np.allclose(second.implied, record.steps.charge, rtol=1e-4, atol=1e-3)
        assert (second.shortfall < 1e-3).all()
        assert (second.expected == record.steps.token).mean() > 0.9


def test_steps_are_shown_with_the_law_that_was_served(tiny_pair_paths: Paths) -> None:
    pair = load_pair(*tiny_pair_paths("llama"))
    written, _ = decoded(pair, Decoding(max_new_tokens=10))
    shown: dict[Key, list[float]] = {}

    def look(
        task: ReplayTask, first: int, served: Any, safe: torch.Tensor, risky: torch.Tensor
    ) -> None:
        key = task.key
        assert not math.isnan(task.debt)
        assert served.law.shape == safe.shape == risky.shape
        assert first == len(shown.setdefault(key, []))
        shown[key] += served.charge.tolist()

    for second in replay_texts(Reader(pair, Decoding()), RULE, written, look):
        assert shown[second.trajectory.key] == second.trajectory.steps.charge.tolist()


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma2", "mistral"])
def test_what_texts_share_is_read_once(tiny_pair_paths: Paths, architecture: str) -> None:
    """The slow twin reads every text by itself, in one pass without a cache."""
    pair = load_pair(*tiny_pair_paths(architecture))
    draw = np.random.default_rng(1)
    prompt, trunk = (tuple(draw.integers(2, 320, n).tolist()) for n in (30, 40))
    texts = [ForcedText((0,), trunk[:5]), ForcedText(prompt, trunk), ForcedText(prompt, trunk[:9])]
    for shared, more in ((0, 9), (0, 30), (12, 17), (12, 1), (33, 20)):
        tail = tuple(draw.integers(2, 320, more).tolist())
        texts.append(ForcedText(prompt, trunk[:shared] + tail))
    texts.append(ForcedText(prompt[:20], prompt[20:] + trunk[:15]))  # another place of the prompt
    read = calls = 0
    forward = pair.safe.forward

    def counted(*given: Any, **named: Any) -> Any:
        nonlocal read, calls
        read, calls = read + named["input_ids"].numel(), calls + 1
        return forward(*given, **named)

    pair.safe.forward = counted

    def laws(texts: list[ForcedText], **shape: Any) -> list[list[torch.Tensor]]:
        found: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in texts]
        places = [0] * len(texts)
        reader = Reader(pair, Decoding(), **shape)
        for piece in itertools.chain.from_iterable(reader.read(texts)):
            for text in piece.texts:
                assert piece.start == places[text]
                places[text] = min(piece.stop, len(texts[text].tokens) - 1)
                found[text].append(reader.laws([Part(piece, piece.start, places[text])]))
        assert places == [len(text.tokens) - 1 for text in texts]
        return [[torch.cat(part) for part in zip(*each, strict=True)] for each in found]

    alone = [laws([text])[0] for text in texts]
    assert calls == len(texts)
    prefixes = {text.tokens[:n] for text in texts for n in range(1, len(text.tokens))}
    for shape in ({}, {"numbers": 320 * 40}, {"numbers": 1, "chunk": 8}):
        read = calls = 0
        together = laws(texts, **shape)
        assert (calls > 1) == bool(shape)
        if shape:
            assert len(prefixes) <= read < 0.8 * sum(len(text.tokens) for text in texts)
        for one, other in zip(alone, together, strict=True):
            for safe, again in zip(one, other, strict=True):
                assert torch.allclose(safe, again, rtol=0, atol=1e-4)


written_texts = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple), min_size=1, max_size=7
).map(sorted)


@settings(max_examples=60)
@given(written_texts, st.floats(0, 9), st.sampled_from([4, 9, 1000]))
def test_windows_are_the_cheapest(texts: list[tuple[int, ...]], call: float, most: int) -> None:
    """The slow twin tries every choice of cuts, and finds rows by comparing prefixes."""
    forest = Forest(texts)
    depth = max(map(len, texts))

    def cost(cuts: Sequence[int]) -> float:
        total = 0.0
        for start, stop in itertools.pairwise(cuts):
            paths = {text[:stop] for text in texts if len(text) > start}
            paths -= {path[:n] for path in paths for n in range(len(path))}
            rows = forest.rows(start, stop)
            assert {texts[row[-1]][:stop] for row in rows} == paths
            members = [n for row in rows for n in row]
            assert members == [n for n, text in enumerate(texts) if len(text) > start]
            for row in rows:
                assert all(texts[row[-1]][:stop][: len(texts[n])] == texts[n][:stop] for n in row)
            read = len(paths) * (stop - start)
            total += read + call * math.ceil((stop - start) / max(1, most // len(paths)))
        return total

    cuts = forest.cuts(most, call)
    if most >= 1000:
        inner = range(1, depth)
        every = itertools.chain.from_iterable(
            itertools.combinations(inner, n) for n in range(depth)
        )
        assert cost(cuts) == pytest.approx(min(cost((0, *some, depth)) for some in every))
    for start, stop in itertools.pairwise(cuts):
        assert stop - start == 1 or len(forest.rows(start, stop)) * (stop - start) <= most
    if call == 0 and most >= 1000:
        assert cost(cuts) == len({text[:n] for text in texts for n in range(1, len(text) + 1)})


def test_texts_that_cannot_be_read_are_refused(tiny_pair_paths: Paths) -> None:
    pair = load_pair(*tiny_pair_paths("llama"))
    reader = Reader(pair, Decoding())
    for text, message in (
        (ForcedText((), (1, 2)), "without a prompt"),
        (ForcedText((0,), (5, 100_000)), "100000 is not among"),
        (ForcedText((0,), (-1,)), "-1 is not among"),
        (ForcedText((0,), (5,) * 600), "does not fit"),
    ):
        with pytest.raises(InputError, match=message):
            list(reader.read([text]))


@pytest.mark.parametrize("warps", [{"temperature": 0.7}, {"repetition_penalty": 1.3}, {}])
def test_a_debt_is_counted_in_the_laws_that_its_rule_names(
    tiny_pair_paths: Paths, warps: dict[str, float]
) -> None:
    """Decoding, a world and the replay agree on both counts; the raw one knows no warps."""
    pair = load_pair(*tiny_pair_paths("llama"))
    decoding, plain = Decoding(max_new_tokens=4, **warps), Decoding(max_new_tokens=4)
    prompt = (0, *np.random.default_rng(1).integers(2, 6, 9).tolist())
    row = RowRequest(0.5, 0, sound_stream(0, "t", "p", 0))

    def debts(rule: DebtRule, decoding: Decoding) -> tuple[float, float, float | None]:
        promise = mechanism("anchored", rule)
        decoder = Decoder(pair, promise, decoding, width=32, batch=1)
        (record,) = decoder.decode([PromptRequest("p", prompt, (row,))])
        world = PairWorld(pair, decoding, rule, width=32)
        assert debt_of(world, prompt) == pytest.approx(record.debt, abs=1e-4)
        one = ReplayTask(record.key, prompt, record.steps.token)
        (second,) = replay_texts(Reader(pair, decoding), promise, [one])
        alone = replay_in(world, promise, one).replayed
        for again in (second, alone):
            assert again.trajectory.debt == pytest.approx(record.debt, abs=1e-4)
        if second.other_debt is not None:
            ledger = promise.ledger
            granted = ledger.accrued(0.5, second.other_debt, one.tokens)
            assert second.granted_otherwise is not None
            np.testing.assert_array_equal(second.granted_otherwise, granted)
        return record.debt, second.trajectory.debt, second.other_debt

    rule = DebtRule(5, "official")
    warped, raw = debts(rule, decoding), debts(rule.other, decoding)
    assert raw[0] == pytest.approx(debts(rule, plain)[0], abs=1e-9)
    if not warps:
        assert warped[2] is None and raw[2] is None
        return
    assert debts(DebtRule(0), decoding) == (0.0, 0.0, None)
    assert abs(raw[0] - warped[0]) > 0.01
    assert warped[2] == pytest.approx(raw[1], abs=1e-9)
    assert raw[2] == pytest.approx(warped[1], abs=1e-9)
