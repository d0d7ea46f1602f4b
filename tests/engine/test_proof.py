"""Which arithmetic is chosen, here and where products are made as by other vendors' libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.core.errors import InputError
from nafaudit.core.numerics import ConstantRows
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.engine import probe as probes
from nafaudit.engine import proof
from nafaudit.engine import rows as attention
from nafaudit.engine.decode import Decoder
from nafaudit.engine.probe import probe, settle
from nafaudit.engine.proof import Numerics, numerics_of
from nafaudit.engine.rows import RowModel
from nafaudit.mechanisms.registry import mechanism
from nafaudit.models.pair import Pair, load_pair
from tests.engine.test_decode import request, same
from tests.vendors import arithmetic
from tests.vendors.arithmetic import KINDS, VARIABLE, pretending

Paths = Callable[[str], tuple[Path, Path]]
RULE = mechanism("anchored", DebtRule())
WIDTH = 128
DECODING = Decoding(max_new_tokens=6)
# An odd number of rows, so that no batch is filled evenly.
REQUESTS = [*(request(i, n) for i, n in enumerate((3, 70, 25))), request(6, 30, budgets=(0.4,))]
# With one thread nothing depends on how many there are.
DEPENDING = [kind for kind in KINDS if kind != "threads"]


@pytest.fixture(params=["llama", pytest.param("gpt2", marks=pytest.mark.full)])
def pair(request: pytest.FixtureRequest, tiny_pair_paths: Paths) -> Pair:
    return load_pair(*tiny_pair_paths(request.param))


def models(pair: Pair) -> tuple[Any, Any]:
    return pair.safe, pair.risky


def decode(pair: Pair, how: Numerics | None, batch: int, backwards: bool) -> dict[Key, Trajectory]:
    decoder = Decoder(pair, RULE, DECODING, width=WIDTH, batch=batch, numerics=how)
    requests = REQUESTS[::-1] if backwards else REQUESTS
    return {trajectory.key: trajectory for trajectory in decoder.decode(requests)}


def histories(pair: Pair, how: Numerics | None) -> list[bool]:
    """Whether other batches and another order leave every bit as it was."""
    expected = decode(pair, how, 32, False)
    others = [(3, True), (8, False), (32, True)]
    return [same(decode(pair, how, *other), expected) for other in others]


@pytest.mark.parametrize("kind", DEPENDING)
def test_constant_rows_keep_every_bit_where_rows_matter_and_only_they_do(
    kind: str, pair: Pair
) -> None:
    with pretending(kind):
        how = numerics_of(models(pair), WIDTH)
        assert how.constant == ConstantRows()
        assert "depend on the rows" in how.why
        assert all(histories(pair, how))
        # A decoder that is told nothing has them too.
        assert same(decode(pair, None, 1, False), decode(pair, how, 32, False))
        free = replace(how, constant=None)
        assert not all(histories(pair, free))
        assert probe(pair, RULE, DECODING, width=WIDTH, batch=8, numerics=how).batch_free
        assert not probe(pair, RULE, DECODING, width=WIDTH, batch=8, numerics=free).batch_free


@pytest.mark.parametrize("kind", DEPENDING)
def test_guesses_are_refused_where_rows_matter(kind: str, pair: Pair) -> None:
    with pretending(kind), pytest.raises(InputError, match=r"is refused.*Leave out --speculate"):
        Decoder(pair, RULE, DECODING, width=WIDTH, batch=8, speculate=2)


def test_what_only_whole_rows_show_is_settled_by_constant_rows(tiny_pair_paths: Paths) -> None:
    pair = load_pair(*tiny_pair_paths("llama"))
    forward = pair.risky.forward

    def rippled(*args: Any, **kwargs: Any) -> Any:
        out = forward(*args, **kwargs)
        ripple = out.logits.new_ones(out.logits.shape[-1]).cumsum(-1) * 1e-6
        out.logits = out.logits + out.logits.shape[0] * ripple
        return out

    pair.risky.forward = rippled
    settled = settle(pair, RULE, DECODING, width=WIDTH, batch=8)
    assert settled.numerics.constant == ConstantRows()
    assert settled.probe.batch_free
    if not numerics_of(models(pair), WIDTH).constant:
        assert "in a crowd" in settled.numerics.why


def test_whoever_looks_at_its_neighbours_is_not_free_whatever_their_number(
    tiny_pair_paths: Paths,
) -> None:
    pair = load_pair(*tiny_pair_paths("llama"))
    forward = pair.risky.forward

    def nosy(*args: Any, **kwargs: Any) -> Any:
        out = forward(*args, **kwargs)
        # As a mixture of experts does that ranks the tokens of a batch.
        out.logits = out.logits + 1e-4 * out.logits.mean(dim=(0, 1), keepdim=True)
        return out

    pair.risky.forward = nosy
    settled = settle(pair, RULE, DECODING, width=WIDTH, batch=8)
    assert settled.numerics.constant and not settled.probe.batch_free


@pytest.fixture
def two_threads() -> Any:
    # Little is computed so: two threads that wait for a busy machine's cores are slow.
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


FEW = [request(1, 5, budgets=(0.4, 3.0)), request(2, 9, budgets=(0.4, 3.0))]


def few(pair: Pair, how: Numerics, batch: int) -> dict[Key, Trajectory]:
    decoder = Decoder(pair, RULE, Decoding(2), width=64, batch=batch, numerics=how)
    return {trajectory.key: trajectory for trajectory in decoder.decode(FEW)}


@pytest.mark.usefixtures("two_threads")
def test_threads_that_change_bits_are_lowered_to_one(tiny_pair_paths: Paths) -> None:
    pair = load_pair(*tiny_pair_paths("llama"))
    with pretending("threads"):
        # With the bits of two threads a row depends on its company, and the digest says so.
        free = Numerics(None, common=False, threads=2, why="", digest="")
        assert not same(few(pair, free, 4), few(pair, free, 1))
        two = probe(pair, RULE, Decoding(1), width=64, batch=4, numerics=free).digest
        how = numerics_of(models(pair), 64)
        assert how.threads == torch.get_num_threads() == 1
        assert "one is used" in how.why
        assert same(few(pair, how, 4), few(pair, how, 1))
        one = probe(pair, RULE, Decoding(1), width=64, batch=4, numerics=free).digest
    assert one != two


@pytest.mark.usefixtures("two_threads")
def test_threads_that_change_attention_alone_are_lowered_to_one(
    tiny_pair_paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = load_pair(*tiny_pair_paths("llama"))
    monkeypatch.setattr(proof, "_THREAD_WIDTH", 1)
    attend, layers, asked = attention.attend_one, proof._layers, list[Any]()

    def by_threads(*given: Any) -> Any:
        return attend(*given) * (1 + torch.get_num_threads() * 1e-6)

    def counted(model: Any) -> Any:
        asked.append(model)
        return layers(model)

    monkeypatch.setattr(proof, "attend_one", by_threads)
    monkeypatch.setattr(proof, "_layers", counted)
    proof.forget()
    try:
        how = numerics_of(models(pair), 64)
        assert how.threads == torch.get_num_threads() == 1
        assert "2 torch threads give other last bits" in how.why
        torch.set_num_threads(2)
        asked.clear()
        assert numerics_of(models(pair), 64) == how
        assert not asked  # what was found of a model stands
    finally:
        proof.forget()


@pytest.mark.usefixtures("two_threads")
def test_fewer_threads_are_said_beside_what_only_whole_rows_show(
    tiny_pair_paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = load_pair(*tiny_pair_paths("llama"))
    if numerics_of(models(pair), 64).constant:
        pytest.skip("not tested here: products of layers depend on their rows")
    seen = probe(pair, RULE, Decoding(1), width=64, batch=4)
    monkeypatch.setattr(probes, "probe", lambda *_, **__: replace(seen, batch_free=False))
    torch.set_num_threads(3)
    why = settle(pair, RULE, Decoding(1), width=64, batch=4).numerics.why
    assert "3 torch threads" in why and "in a crowd" in why


def test_as_many_rows_are_tried_as_a_pass_over_prompts_has(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A library that sums in another order from 200 rows on, or from 100 if weights are many.
    for first, many in ((200, proof._MANY_WEIGHTS), (100, 0)):
        monkeypatch.setattr(
            arithmetic, "other_from", lambda _, rows, __, first=first: 0 if rows >= first else rows
        )
        monkeypatch.setattr(proof, "_MANY_WEIGHTS", many)
        with pretending("rows"):
            assert numerics_of(models(pair), WIDTH).constant


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("queries", [1, 64])
def test_the_plain_kernel_is_tried_too(
    dtype: str, queries: int, tiny_pair_paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a prompt's positions, and of a new token in 16 bits; other bits from four rows on."""
    pair = load_pair(*tiny_pair_paths("llama"), dtype=dtype)
    functional: Any = torch.nn.functional
    plain = functional.scaled_dot_product_attention

    def another(q: Any, *given: Any, **how: Any) -> Any:
        many = len(q) >= 4 if queries == 1 else q.shape[2] >= queries
        return plain(q, *given, **how) * (1 + 0.01 * many)

    if numerics_of(models(pair), WIDTH).constant:
        pytest.skip("not tested here: products of layers depend on their rows")
    monkeypatch.setattr(functional, "scaled_dot_product_attention", another)
    proof.forget()
    try:
        how = numerics_of(models(pair), WIDTH)
        assert bool(how.constant) == (queries > 1 or dtype == "bfloat16")
        assert "attention" in how.why or not how.constant
    finally:
        proof.forget()


@torch.inference_mode()
def test_a_mask_that_is_gone_is_not_taken_for_another() -> None:
    how = attention.reach([[3]], 64, common=True)
    for number in range(50):
        mask = torch.full((1, 1, 1, 64), float(number))
        assert set(how.bias(mask, 2, 64).flatten().tolist()) == {number}
        del mask


def test_the_digest_changes_with_the_bits(tiny_pair_paths: Paths) -> None:
    pair = load_pair(*tiny_pair_paths("llama"))
    digests = {probe(pair, RULE, DECODING, width=WIDTH, batch=b).digest for b in (3, 8, 40)}
    assert len(digests) == 1  # the batch is no part of it
    if not numerics_of(models(pair), WIDTH).constant:
        with pretending("rows"):
            digests.add(probe(pair, RULE, DECODING, width=WIDTH, batch=8).digest)
        assert len(digests) == 2


def test_every_layer_of_both_models_is_tried(pair: Pair) -> None:
    for model in models(pair):
        tried = {type(layer.module).__name__ for layer in proof._layers(model)}
        shapes = {
            (type(m).__name__, tuple(m.weight.shape))
            for m in model.modules()
            if type(m).__name__ in ("Linear", "Conv1D")
        }
        seen = {
            (type(layer.module).__name__, tuple(layer.module.weight.shape))
            for layer in proof._layers(model)
            if hasattr(layer.module, "weight")
        }
        assert shapes <= seen
        assert any("Norm" in name for name in tried)


def test_a_common_width_is_taken_only_where_it_changes_no_bit(
    tiny_pair_paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of the same own width together, and all at the longest: the same bits, if so proved."""
    pair = load_pair(*tiny_pair_paths("llama"))
    how = numerics_of(models(pair), WIDTH)
    if how.common and not how.constant:
        apart = replace(how, common=False)
        assert same(decode(pair, apart, 8, False), decode(pair, how, 8, False))
    attend = attention.attend_one

    def by_width(*given: Any) -> Any:
        return attend(*given) * (1 + given[3].shape[-1] * 1e-6)

    monkeypatch.setattr(attention, "attend_one", by_width)
    monkeypatch.setattr(proof, "attend_one", by_width)
    proof.forget()
    try:
        how = numerics_of(models(pair), WIDTH)
        assert not how.common
        if not how.constant:
            assert all(histories(pair, how))
            assert not all(histories(pair, replace(how, common=True)))
    finally:
        proof.forget()


def test_a_row_attends_over_its_own_length_rounded_up() -> None:
    found = attention.reach([[0], [63], [64], [200], [383]], 384, common=True)
    assert list(found.widths[0]) == [64, 64, 128, 256, 384]
    assert attention.width_step(1024) == 64
    assert attention.width_step(1025) == 128  # at most sixteen widths, so that all can be tried
    assert max(attention.reach([[70]], 72, common=True).widths[0]) == 72


def test_one_query_is_attended_to_as_the_plain_kernel_does() -> None:
    """Heads that share keys, masks with windows: equal up to float32 rounding."""
    generator = torch.Generator().manual_seed(0)
    for heads, shared, size in ((4, 4, 32), (6, 2, 16), (5, 1, 20)):
        q = torch.randn(3, heads, 1, size, generator=generator)
        k, v = torch.randn(2, 3, shared, 192, size, generator=generator)
        mask = torch.zeros(3, 1, 1, 192)
        for row, (first, last) in enumerate(((0, 40), (30, 130), (0, 191))):
            mask[row, ..., last + 1 :] = mask[row, ..., :first] = torch.finfo(mask.dtype).min
        plain = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, enable_gqa=True
        )
        for common in (True, False):
            how = attention.reach([[40], [130], [191]], 192, common=common)
            ours = attention._one_query(q, k, v, mask, size**-0.5, how, how.widths[0])
            assert torch.allclose(ours, plain, atol=2e-6)


def test_float64_models_are_settled_too(tiny_pair_paths: Paths) -> None:
    pair = load_pair(*tiny_pair_paths("llama"), dtype="float64")
    assert all(histories(pair, numerics_of(models(pair), WIDTH)))


def test_prompts_are_read_alone_in_constant_blocks(tiny_pair_paths: Paths) -> None:
    model = load_pair(*tiny_pair_paths("llama")).risky
    seen: list[tuple[int, ...]] = []
    forward = model.forward

    def watched(*args: Any, **kwargs: Any) -> Any:
        seen.append(tuple(kwargs["input_ids"].shape))
        return forward(*args, **kwargs)

    model.forward = watched
    rows = RowModel(model, 40, 192, ConstantRows())
    with torch.inference_mode():
        read = rows.read([[5] * 3, [7] * 100], lambda *_: None)
        assert seen == [(1, 64), (1, 64), (1, 64)]
        for slot, one in enumerate(read):
            rows.admit(slot, one)
        seen.clear()
        assert rows.step([1] * 40, [100] * 40).shape[0] == 40
        assert seen == [(32, 1), (32, 1)]


SAYS = """
import json, os, sys
import torch, transformers.modeling_utils  # imported, and nothing is computed yet
for before in json.loads(sys.argv.pop(1)):
    if os.fork():
        os.wait()
        continue
    exec(before)
    import nafaudit
    from nafaudit.engine.proof import mkl, numerics_of
    from nafaudit.models.pair import load_pair
    pair = load_pair(*sys.argv[1:])
    how = numerics_of((pair.safe, pair.risky), 128)
    print(json.dumps([mkl()._asdict(), how.facts(), how.remark]), flush=True)
    os._exit(0)
"""
COMPUTES = "torch.ones(40, 40) @ torch.ones(40, 40); torch.ones(9).exp()"


def said(paths: tuple[Path, Path], *before: str, **environment: str) -> list[Any]:
    """What processes say that did something before they imported nafaudit; one start for all."""
    kept = {k: v for k, v in os.environ.items() if k not in ("MKL_CBWR", VARIABLE)}
    out = subprocess.run(
        [sys.executable, "-c", SAYS, json.dumps(before), *map(str, paths)],
        env=kept | environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [json.loads(line) for line in out.splitlines()]


@pytest.fixture(scope="module")
def in_time_and_late(tiny_pair_paths: Paths) -> list[Any]:
    return said(tiny_pair_paths("llama"), "", COMPUTES)


def test_a_process_asks_in_time(in_time_and_late: list[Any]) -> None:
    library, facts, _ = in_time_and_late[0]
    assert facts["MKL_CBWR"] == library["variable"] == "AUTO,STRICT"
    assert not library["late"]
    assert not proof.mkl().late  # this process imported nafaudit before torch
    if library["setting"] is None:
        pytest.skip("not tested here: torch has another library than MKL")
    assert library["setting"] & 0x10000


@pytest.mark.full
def test_a_process_respects_what_the_user_has_set(tiny_pair_paths: Paths) -> None:
    ((own, facts, _),) = said(tiny_pair_paths("llama"), "", MKL_CBWR="COMPATIBLE")
    assert facts["MKL_CBWR"] == "COMPATIBLE" and not own["late"]
    if own["setting"] is None:
        pytest.skip("not tested here: torch has another library than MKL")
    assert own["setting"] == 3


def test_who_computed_before_is_told_and_gets_constant_rows(in_time_and_late: list[Any]) -> None:
    library, facts, remark = in_time_and_late[1]
    if library["setting"] is None:
        pytest.skip("not tested here: torch has another library than MKL")
    assert library["late"] and facts["late"]
    assert facts["constant_rows"] == {"steps": 32, "prompts": 64}
    assert "import nafaudit first" in remark
