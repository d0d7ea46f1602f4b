from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.core.errors import InputError
from nafaudit.engine.probe import Probe, probe
from nafaudit.engine.rows import RowModel
from nafaudit.mechanisms.registry import mechanism
from nafaudit.models.pair import Pair, load_pair
from tests.conftest import needs_free_rows

Paths = Callable[[str], tuple[Path, Path]]


def run(pair: Pair) -> Probe:
    return probe(pair, mechanism("anchored", DebtRule()), Decoding(), width=256, batch=8)


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma2", "mistral"])
def test_holds_here(architecture: str, tiny_pair_paths: Paths) -> None:
    seen = run(load_pair(*tiny_pair_paths(architecture)))
    assert seen.batch_free
    assert seen.deviation == 0
    assert seen.plain_error < 1e-3


def _shift_logits(model: Any, shift: Callable[[Any, Any], Any]) -> None:
    """Makes a model's logits depend on something they must not depend on."""
    forward = model.forward

    def shifted(*args: Any, **kwargs: Any) -> Any:
        out = forward(*args, **kwargs)
        out.logits = out.logits + shift(kwargs, out.logits)
        return out

    model.forward = shifted


def test_notices_logits_that_depend_on_the_batch(tiny_pair_paths: Paths) -> None:
    pair = load_pair(*tiny_pair_paths("llama"))
    needs_free_rows(pair.safe, pair.risky, width=256)

    def ripple(kwargs: Any, logits: Any) -> Any:
        shape = (1, 1, logits.shape[-1])
        return 1e-5 * logits.shape[0] * logits.new_ones(shape).cumsum(-1) / shape[-1]

    _shift_logits(pair.risky, ripple)
    seen = run(pair)
    assert not seen.batch_free
    assert 0 < seen.deviation < 1e-2


def test_the_digest_is_of_the_bits_and_not_of_the_batch(tiny_pair_paths: Paths) -> None:
    pair, law = load_pair(*tiny_pair_paths("llama")), mechanism("anchored", DebtRule())
    first = run(pair).digest
    assert probe(pair, law, Decoding(), width=256, batch=3).digest == first
    # One weight by a last bit: as if a product had been summed in another order.
    weight = pair.risky.get_output_embeddings().weight.data
    weight[5, 7] = weight[5, 7] * (1 + 2**-22)
    assert run(pair).digest != first


def test_notices_a_batch_size_that_only_a_full_batch_has(tiny_pair_paths: Paths) -> None:
    pair = load_pair(*tiny_pair_paths("llama"))
    needs_free_rows(pair.safe, pair.risky, width=256)

    def ripple(kwargs: Any, logits: Any) -> Any:
        size = 1e-3 if logits.shape[0] > 28 else 0.0
        return size * logits.new_ones(1, 1, logits.shape[-1]).cumsum(-1) / logits.shape[-1]

    _shift_logits(pair.safe, ripple)
    rule = mechanism("anchored", DebtRule())
    assert probe(pair, rule, Decoding(), width=256, batch=16).batch_free
    assert not probe(pair, rule, Decoding(), width=256, batch=32).batch_free


def _no_window(self: RowModel, at: Any, window: Any, _mask: Any = RowModel._mask) -> Any:
    return _mask(self, at, None)


def _narrow(self: RowModel, at: Any, window: Any, _mask: Any = RowModel._mask) -> Any:
    return _mask(self, at, 2)


def _stuck(self: RowModel, cache: Any, ids: Any, at: Any, **how: Any) -> Any:
    cache.positions = at
    out = self.model(
        input_ids=ids,
        attention_mask=self._masks(at),
        position_ids=at.clamp(max=3),
        past_key_values=cache,
        use_cache=True,
    )
    return out.logits


@pytest.mark.parametrize(
    ("architecture", "method", "sabotage"),
    [
        ("mistral", "_mask", _no_window),
        ("gemma2", "_mask", _no_window),
        ("llama", "_mask", _narrow),
        ("llama", "_forward", _stuck),
        ("gpt2", "_forward", _stuck),
    ],
)
def test_refuses_wrong_masks_and_positions(
    architecture: str,
    method: str,
    sabotage: Any,
    tiny_pair_paths: Paths,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = load_pair(*tiny_pair_paths(architecture))
    monkeypatch.setattr(RowModel, method, sabotage)
    with pytest.raises(InputError, match="cannot be audited here"):
        run(pair)


def test_refuses_a_model_whose_cache_is_not_ours(tiny_pair_paths: Paths) -> None:
    pair = load_pair(*tiny_pair_paths("llama"))

    def only_cached(kwargs: Any, logits: Any) -> Any:
        cached = kwargs.get("past_key_values") is not None
        return logits.new_ones(1, 1, logits.shape[-1]).cumsum(-1) * (0.1 if cached else 0)

    _shift_logits(pair.safe, only_cached)
    with pytest.raises(InputError, match=r"the safe model .* cannot be audited here"):
        run(pair)
