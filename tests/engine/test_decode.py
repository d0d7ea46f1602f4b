from __future__ import annotations

import gc
import json
import math
import random
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.core.draws import gumbel, sound_stream
from nafaudit.core.errors import InputError, LawError
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.engine.decode import Decoder
from nafaudit.engine.probe import probe
from nafaudit.engine.prompts import PromptRequest, RowRequest
from nafaudit.engine.proof import numerics_of
from nafaudit.engine.rows import SHARED_HEADS, RowModel
from nafaudit.lab.tiny import build_checkpoint
from nafaudit.mechanisms.anchored import Anchored
from nafaudit.mechanisms.registry import mechanism
from nafaudit.models.pair import Pair, load_pair
from nafaudit.protocols import Mechanism, Served
from nafaudit.selftest.faults import tools
from tests.exact import largest_theta

INF = math.inf
BUDGETS = (0.0, 0.4, 3.0, INF)
ARCHITECTURES = ("llama", "gpt2", "gemma2", pytest.param("mistral", marks=pytest.mark.full))
Paths = Callable[[str], tuple[Path, Path]]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def pair(request: pytest.FixtureRequest, tiny_pair_paths: Paths) -> Pair:
    return load_pair(*tiny_pair_paths(request.param))


@pytest.fixture(scope="module")
def llama(tiny_pair_paths: Paths) -> Pair:
    return load_pair(*tiny_pair_paths("llama"))


def request(
    number: int, length: int, budgets: tuple[float, ...] = BUDGETS, trajectories: int = 1
) -> PromptRequest:
    draw = random.Random(number)
    tokens = (0, *(draw.randrange(2, 320) for _ in range(length)))
    name = f"p{number}"
    rows = tuple(
        RowRequest(k, j, sound_stream(0, "test", name, j))
        for j in range(trajectories)
        for k in budgets
    )
    return PromptRequest(name, tokens, rows)


def decode(
    pair: Pair,
    requests: list[PromptRequest],
    *,
    batch: int = 8,
    decoding: Decoding = Decoding(max_new_tokens=16),  # noqa: B008 - frozen
    rule: Mechanism | None = None,
    width: int = 128,
) -> dict[Key, Trajectory]:
    rule = rule or mechanism("anchored", DebtRule())
    decoder = Decoder(pair, rule, decoding, width=width, batch=batch)
    return {trajectory.key: trajectory for trajectory in decoder.decode(requests)}


def same(part: dict[Key, Trajectory], whole: dict[Key, Trajectory]) -> bool:
    """True if every row of a part, and there is one, is bit for bit the row of the whole."""
    return bool(part) and all(part[key].same_as(whole[key]) for key in part)


def test_a_row_is_bit_identical_alone_in_a_crowd_reordered_and_after_a_refill(pair: Pair) -> None:
    longer = [request(i, 20 + 7 * i % 60, budgets=(0.4,)) for i in range(1, 33)]
    target = request(0, 5)
    for row in target.rows:
        single = replace(target, rows=(row,))
        alone = decode(pair, [single], batch=1)
        crowd = decode(pair, [single, *longer], batch=33)  # all 33 at once
        assert len(crowd) == 33
        assert same(alone, crowd)
    everything = [target, *longer[:8]]
    expected = decode(pair, everything, batch=12)
    assert len(expected) == len(BUDGETS) + 8
    assert same(alone, expected)
    for other in (
        decode(pair, everything[::-1], batch=12),
        decode(pair, everything, batch=3),  # every row but three is a refill
        decode(pair, everything, batch=40),
    ):
        assert other.keys() == expected.keys()
        assert same(other, expected)


def test_rows_of_equal_tokens_share_a_slot_and_keep_every_bit(pair: Pair) -> None:
    """The slow twin gives every row a slot of its own."""
    asked = [request(i, 4 + i, budgets=(0.0, 0.4, 50.0, INF), trajectories=2) for i in range(3)]
    decoding, rule = Decoding(max_new_tokens=16), mechanism("anchored", DebtRule())
    found, read = [], []
    for shared in (True, False):
        decoder = Decoder(pair, rule, decoding, width=128, batch=9, shared=shared)
        step = decoder._safe.step
        counts: list[int] = []

        def counted(tokens: Any, positions: Any, step: Any = step, counts: Any = counts) -> Any:
            counts.append(len(tokens))
            return step(tokens, positions)

        decoder._safe.step = counted  # type: ignore[method-assign]
        found.append({t.key: t for t in decoder.decode(asked)})
        read.append(sum(counts))
    assert len(found[0]) == 24 and found[0].keys() == found[1].keys()
    assert same(found[0], found[1])
    rows = found[0].values()
    texts = {(t.key.prompt, tuple(t.steps.token[:n])) for t in rows for n in range(1, len(t))}
    assert read[1] == sum(len(t) - 1 for t in rows)
    # Every text is read once where all rows of a prompt enter together, and never oftener.
    assert len(texts) <= read[0] < read[1]


def test_a_decoder_gives_its_memory_back_at_once(llama: Pair) -> None:
    """Keys and values are most of its memory; nothing waits for a search for cycles."""
    gc.collect()
    gc.disable()
    try:
        decoder: Decoder | None = Decoder(
            llama, mechanism("anchored", DebtRule()), Decoding(max_new_tokens=4), width=64, batch=4
        )
        assert decoder and len(list(decoder.decode([request(0, 5)]))) == 4
        tables = [weakref.ref(m._cache) for m in (decoder._safe, decoder._risky)]
        kept = [weakref.ref(layer.keys) for m in (decoder._safe,) for layer in m._cache.layers]
        decoder = None
        assert [found() for found in (*tables, *kept)] == [None] * (2 + len(kept))
    finally:
        gc.enable()


SIX = [request(i, 3 + 7 * i % 40) for i in range(6)]


@pytest.fixture(scope="module")
def six(llama: Pair) -> dict[Key, Trajectory]:
    return decode(llama, SIX)


@settings(max_examples=6)
@given(st.randoms(use_true_random=False), st.integers(1, 13))
def test_random_batch_histories(
    llama: Pair, six: dict[Key, Trajectory], shuffle: random.Random, batch: int
) -> None:
    mixed = [replace(r, rows=tuple(shuffle.sample(r.rows, len(r.rows)))) for r in SIX]
    shuffle.shuffle(mixed)
    decoded = decode(llama, mixed, batch=batch)
    assert decoded.keys() == six.keys()
    assert same(decoded, six)


def laws(pair: Pair, model: Any, tokens: list[int], new: int) -> np.ndarray:
    """Every next-token law of the last `new` tokens from one plain pass, no cache."""
    with torch.inference_mode():
        ids = torch.tensor([tokens])
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
    law = logits[-new - 1 : -1, : len(pair.vocabulary)].double().log_softmax(-1)
    return np.asarray(law)


def near(value: float) -> Any:
    """Equal up to the float32 noise of another kernel: about 1e-5 nats on logits of size 30."""
    return pytest.approx(value, rel=1e-4, abs=1e-4)


def test_records_are_what_a_plain_pass_and_the_slow_twin_say(pair: Pair) -> None:
    requests = [request(i, 6 + 9 * i) for i in range(3)]
    for key, trajectory in decode(pair, requests).items():
        prompt = next(r for r in requests if r.prompt == key.prompt)
        steps = trajectory.steps
        tokens = [*prompt.tokens, *steps.token.tolist()]
        safe = laws(pair, pair.safe, tokens, len(steps))
        risky = laws(pair, pair.risky, tokens, len(steps))
        spent = 0.0
        for t, token in enumerate(steps.token):
            allowance = INF if key.k == INF else max(0.0, (t + 1) * key.k - spent - trajectory.debt)
            assert steps.allowance[t] == pytest.approx(allowance, abs=1e-12)
            theta = largest_theta(safe[t], risky[t], allowance)
            served = tools.mixture(safe[t], risky[t], theta)
            assert steps.charge[t] == near(tools.divergence(served, safe[t]))
            assert steps.theta[t] == pytest.approx(theta, abs=2e-3)
            assert steps.safe[t] == near(safe[t][token])
            assert steps.risky[t] == near(risky[t][token])
            assert steps.served[t] == pytest.approx(served[token], abs=5e-3)
            scores = served + gumbel(prompt.rows[0].stream, t, len(served))
            assert scores[token] >= scores.max() - 1e-3
            assert steps.charge[t] <= steps.allowance[t]
            spent += steps.charge[t]


def test_rows_end_at_any_stop_id_and_nothing_follows(tiny_pair_paths: Paths) -> None:
    stops = set(range(1, 30))
    pair = load_pair(*tiny_pair_paths("llama"), stop_ids=stops)
    decoded = decode(pair, [request(i, 8, trajectories=3) for i in range(6)])
    assert {t.stopped for t in decoded.values()} == {True, False}
    for trajectory in decoded.values():
        ends = [int(token) in stops for token in trajectory.steps.token]
        assert not any(ends[:-1])
        assert ends[-1] == trajectory.stopped
        assert trajectory.stopped or len(trajectory) == 16


def test_stop_ids_come_from_tokenizer_and_models(tiny_pair_paths: Paths, tmp_path: Path) -> None:
    safe, risky = tiny_pair_paths("llama")
    copy = tmp_path / "risky"
    copy.mkdir()
    for file in risky.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    settings_file = copy / "generation_config.json"
    data = json.loads(settings_file.read_text())
    settings_file.write_text(json.dumps(data | {"eos_token_id": [1, 77]}))
    assert load_pair(safe, copy).vocabulary.stops == {1, 77}
    with pytest.raises(InputError, match="stop ids"):
        load_pair(safe, risky, stop_ids=[100_000])


def test_ids_that_the_tokenizer_skips_are_never_served(llama: Pair) -> None:
    tokens = tuple(None if 100 <= i < 200 else t for i, t in enumerate(llama.vocabulary.tokens))
    holed = replace(llama, vocabulary=replace(llama.vocabulary, tokens=tokens))
    prompts = [replace(request(i, 5), tokens=(0, 5, 250 + i)) for i in range(4)]
    for trajectory in decode(holed, prompts).values():
        drawn = trajectory.steps.token
        assert not ((drawn >= 100) & (drawn < 200)).any()
    probe(holed, mechanism("anchored", DebtRule()), Decoding(), width=256, batch=4)


def test_rows_beyond_the_tokenizer_are_never_served(tiny_pair_paths: Paths, tmp_path: Path) -> None:
    paths = [build_checkpoint(tmp_path / n, s, spare_rows=70) for n, s in (("a", 1), ("b", 2))]
    padded = load_pair(*paths)
    size = len(padded.vocabulary)
    assert padded.safe.get_input_embeddings().weight.shape[0] == size + 70
    with torch.no_grad():  # the spare rows would win every draw
        for model in (padded.safe, padded.risky):
            model.get_output_embeddings().weight[size:] = 50.0
    for trajectory in decode(padded, [request(i, 5) for i in range(4)]).values():
        assert int(trajectory.steps.token.max()) < size
        assert np.isfinite(trajectory.steps.charge).all()


def test_debt_depends_on_the_prompt_alone(pair: Pair) -> None:
    rule = mechanism("anchored", DebtRule())
    decoding = Decoding(max_new_tokens=2)
    prompts = [request(i, length) for i, length in enumerate((1, 2, 3, 5, 30, 60))]
    decoded = decode(pair, prompts, decoding=decoding, batch=32)
    decoder = Decoder(pair, rule, decoding, width=128, batch=1)
    for prompt in prompts:
        debt = decoder.debt(prompt.tokens)
        assert {t.debt for k, t in decoded.items() if k.prompt == prompt.prompt} == {debt}
        tokens = list(prompt.tokens)
        both = [laws(pair, m, tokens, len(tokens) - 1) for m in (pair.risky, pair.safe)]
        ratios = [float(both[0][i, t] - both[1][i, t]) for i, t in enumerate(tokens[1:])]
        top = sorted((r for r in ratios if r > 0), reverse=True)[:5]
        assert debt == pytest.approx(sum(top) / len(top) if top else 0.0, abs=1e-4)


def test_special_tokens_owe_nothing_and_one_token_owes_nothing(llama: Pair) -> None:
    decoder = Decoder(llama, mechanism("anchored", DebtRule()), Decoding(), width=256, batch=1)
    assert decoder.debt([0]) == 0
    assert decoder.debt([0, 1, 1, 1]) == 0
    assert decoder.debt([0, 5, 9, 200]) > 0


def test_debt_is_of_the_warped_laws(llama: Pair) -> None:
    rule = mechanism("anchored", DebtRule())
    tokens = [0, 40, 41, 40, 90, 41, 17]
    warped = Decoding(max_new_tokens=2, temperature=0.7, repetition_penalty=1.3)
    debt = Decoder(llama, rule, warped, width=64, batch=1).debt(tokens)
    ratios = []
    with torch.inference_mode():
        raw = [m(input_ids=torch.tensor([tokens])).logits[0] for m in (llama.risky, llama.safe)]
    for i in range(1, len(tokens)):
        logp = []
        for logits in raw:
            x = logits[i - 1, : len(llama.vocabulary)].double()
            for token in set(tokens[:i]):
                x[token] = x[token] / 1.3 if x[token] > 0 else x[token] * 1.3
            logp.append(float((x / 0.7).log_softmax(-1)[tokens[i]]))
        ratios.append(logp[0] - logp[1])
    top = sorted((r for r in ratios if r > 0), reverse=True)[:5]
    assert debt == pytest.approx(sum(top) / len(top), abs=1e-4)
    assert debt != pytest.approx(
        Decoder(llama, rule, Decoding(max_new_tokens=2), width=64, batch=1).debt(tokens), abs=1e-2
    )


def test_a_long_prompt_is_read_in_passes(llama: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = request(3, 150, budgets=(0.5,))
    decoding = Decoding(max_new_tokens=6)
    whole = decode(llama, [prompt], width=192, decoding=decoding)
    sizes = []
    forward = RowModel._forward

    def small_passes(self: RowModel, *args: Any, **how: Any) -> torch.Tensor:
        logits: torch.Tensor = forward(self, *args, **how)
        sizes.append(logits.shape[0] * logits.shape[1])
        return logits

    monkeypatch.setattr("nafaudit.engine.rows._PASS_TOKENS", 16)
    monkeypatch.setattr(RowModel, "_forward", small_passes)
    passes = decode(llama, [prompt], width=192, decoding=decoding)
    # Never [prompt, vocabulary] at once.
    constant = numerics_of((llama.safe, llama.risky), 192).constant
    assert max(sizes) == (constant.prompts if constant else 16)
    (one,), (other,) = whole.values(), passes.values()
    assert one.same_as(other)


def test_a_prompt_is_read_once_for_all_its_rows(
    llama: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    read = RowModel.read

    def counted(self: RowModel, prompts: Any, visit: Any) -> Any:
        reads.extend(prompts)
        return read(self, prompts, visit)

    monkeypatch.setattr(RowModel, "read", counted)
    decode(llama, [request(i, 5, trajectories=3) for i in range(2)], batch=4)
    assert len(reads) == 2 * 2


def test_prompts_are_read_together_as_if_each_were_alone(pair: Pair) -> None:
    """Keys, values and every logit, for lengths around the ends of blocks."""
    model = pair.risky
    size = model.get_output_embeddings().weight.shape[0]
    prompts = [[(7 * i + n) % size for i in range(n)] for n in (1, 3, 15, 16, 17, 31, 33, 70)]
    rows = RowModel(model, 4, 72)

    def read(chosen: list[list[int]]) -> list[list[torch.Tensor]]:
        logits: list[list[torch.Tensor]] = [[] for _ in chosen]
        with torch.inference_mode():
            found = rows.read(chosen, lambda n, _, seen: logits[n].append(seen.clone()))
        return [
            [torch.cat(seen), one.logits, *one.keys, *one.values]
            for seen, one in zip(logits, found, strict=True)
        ]

    for alone, among in zip((read([p])[0] for p in prompts), read(prompts), strict=True):
        assert all(map(torch.equal, alone, among))


def test_heads_that_share_keys_get_the_bits_of_the_plain_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {"hidden_size": 96, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=128, **shape, **heads)).eval()

    def logits() -> list[torch.Tensor]:
        rows, seen = RowModel(model, 5, 64), []
        with torch.inference_mode():
            prompts = [list(range(n)) for n in (3, 20, 33)]
            for slot, read in enumerate(rows.read(prompts, lambda *a: seen.append(a[2].clone()))):
                rows.admit(slot, read)
            seen.append(rows.step([1, 2, 3], [3, 20, 33]))
            seen.append(rows.steps([[4, 5]] * 3, [[4, 5], [21, 22], [34, 35]]))
        return seen

    ours, used = logits(), []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def plainly(query: Any, key: Any, value: Any, **how: Any) -> Any:
        used.append(how.pop("enable_gqa", False))
        each = query.shape[1] // key.shape[1]
        return kernel(query, *(x.repeat_interleave(each, 1) for x in (key, value)), **how)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", plainly)
    assert all(map(torch.equal, ours, logits()))
    assert used and all(used)


def test_a_layer_without_a_mask_stays_causal() -> None:
    query, key = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8)
    layer = torch.nn.Module()
    layer.num_key_value_groups, layer.is_causal = 2, True  # type: ignore[assignment]
    ways = [ALL_ATTENTION_FUNCTIONS[name] for name in ("sdpa", SHARED_HEADS)]
    plain, ours = (way(layer, query, key, key, None)[0] for way in ways)
    assert torch.equal(plain, ours)
    assert torch.allclose(ours[0, 0, 0], key[0, 0, 0])  # the first position sees itself alone


def test_budgets_share_their_draws(llama: Pair) -> None:
    decoded = decode(llama, [request(1, 12, budgets=(1e6, INF), trajectories=3)])
    for trajectory in range(3):
        rich, free = (
            next(t for k, t in decoded.items() if k.k == b and k.trajectory == trajectory)
            for b in (1e6, INF)
        )
        assert rich.steps.token.tolist() == free.steps.token.tolist()
        assert rich.spend == free.spend > 0


def test_baselines_log_their_true_charge(llama: Pair) -> None:
    decoded = decode(llama, [request(i, 9) for i in range(3)])
    for key, trajectory in decoded.items():
        if key.k == 0:
            assert trajectory.spend == 0
            assert (trajectory.steps.theta == 0).all()
        if key.k == INF:
            assert trajectory.spend > 1
            assert (trajectory.steps.theta == 1).all()
            assert np.isposinf(trajectory.steps.allowance).all()


class BadRule:
    """Serves something that is not a law."""

    def serve(self, prefixes: Any, safe: Any, risky: Any, allowance: Any) -> Served:
        out = Anchored().serve(prefixes, safe, risky, allowance)
        return Served(out.law, out.charge * math.nan, out.theta)


def test_a_rule_that_charges_nan_is_named(llama: Pair) -> None:
    sound = mechanism("anchored", DebtRule())
    with pytest.raises(LawError, match="mechanism broken served prompt 'p0'"):
        decode(llama, [request(0, 4)], rule=replace(sound, name="broken", rule=BadRule()))


def test_baselines_are_the_models_whatever_rule_is_audited(llama: Pair) -> None:
    prompts = [request(i, 9) for i in range(3)]
    sound = decode(llama, prompts)
    ledger = mechanism("anchored", DebtRule()).ledger
    rule = Mechanism("no repeats", BanRepeats(), ledger, DebtRule())
    other = decode(llama, prompts, rule=rule)
    for key, trajectory in sound.items():
        if key.k in (0, INF):
            twin_row = other[key._replace(mechanism="no repeats")]
            assert twin_row.steps.token.tolist() == trajectory.steps.token.tolist()
            assert twin_row.spend == trajectory.spend


class BanRepeats:
    """A rule that sees the prefix: never the same token twice in a row; else the safe law."""

    def serve(self, prefixes: Any, safe: Any, risky: Any, allowance: Any) -> Served:
        law = safe.clone()
        for row, prefix in enumerate(prefixes):
            law[row, prefix[-1]] = -INF
        law = law - torch.logsumexp(law, -1, keepdim=True)
        charge = (torch.exp(law) * (law - safe)).nan_to_num(0.0).sum(-1)
        return Served(law, charge, torch.full_like(charge, math.nan))


def test_a_rule_may_see_the_prefix(llama: Pair) -> None:
    rule = Mechanism(
        "no repeats", BanRepeats(), mechanism("anchored", DebtRule()).ledger, DebtRule(0)
    )
    decoded = decode(
        llama, [request(i, 4, budgets=(1.0,), trajectories=4) for i in range(3)], rule=rule
    )
    for trajectory in decoded.values():
        assert trajectory.debt == 0
        assert (np.diff(trajectory.steps.token) != 0).all()
        assert np.isnan(trajectory.steps.theta).all()


def test_what_does_not_fit_is_refused_before_decoding(llama: Pair) -> None:
    with pytest.raises(InputError, match="context of 512"):
        decode(llama, [request(0, 4)], width=1024)
    with pytest.raises(InputError, match="does not fit the run's 64 positions"):
        decode(llama, [request(0, 60)], width=64)
    with pytest.raises(InputError, match="has no tokens"):
        decode(llama, [replace(request(0, 4), tokens=())])


def test_bfloat16_and_float64_models_decode(tiny_pair_paths: Paths) -> None:
    for dtype in ("bfloat16", "float64"):
        pair = load_pair(*tiny_pair_paths("llama"), dtype=dtype)
        for trajectory in decode(pair, [request(1, 9)]).values():
            steps = trajectory.steps
            assert (steps.charge <= steps.allowance).all()
