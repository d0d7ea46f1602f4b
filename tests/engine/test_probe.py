from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.core.errors import InputError
from nafaudit.engine.probe import Probe, probe
from nafaudit.mechanisms.registry import mechanism
from nafaudit.models.pair import Pair, load_pair

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

    def ripple(kwargs: Any, logits: Any) -> Any:
        shape = (1, 1, logits.shape[-1])
        return 1e-5 * logits.shape[0] * logits.new_ones(shape).cumsum(-1) / shape[-1]

    _shift_logits(pair.risky, ripple)
    seen = run(pair)
    assert not seen.batch_free
    assert 0 < seen.deviation < 1e-2


def test_refuses_a_model_whose_cache_is_not_ours(tiny_pair_paths: Paths) -> None:
    pair = load_pair(*tiny_pair_paths("llama"))

    def only_cached(kwargs: Any, logits: Any) -> Any:
        cached = kwargs.get("past_key_values") is not None
        return logits.new_ones(1, 1, logits.shape[-1]).cumsum(-1) * (0.1 if cached else 0)

    _shift_logits(pair.safe, only_cached)
    with pytest.raises(InputError, match=r"the safe model .* cannot be audited here"):
        run(pair)
