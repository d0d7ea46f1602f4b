from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nafaudit.core.errors import InputError
from nafaudit.runner.gpu import Arithmetic, GpuWork, gpu_of, known_gpus, known_shapes, shape_of
from tests.commands import WITHOUT_TORCH, call

Paths = Callable[[str], tuple[Path, Path]]


def paper(batch: int = 32, gpus: int = 1, gpu: str = "h100", dtype: str = "bfloat16") -> Arithmetic:
    """27,000 trajectories of 200 tokens over three budgets."""
    work = GpuWork(900, 100, 27_000, 200, 320, batch, 3)
    pair = (shape_of("tinycomma-1.8b"), shape_of("llama-3.1-8b"))
    return Arithmetic(*pair, dtype, gpu_of(gpu), gpus, work)


def test_parameters_are_those_that_the_models_are_published_with() -> None:
    found = {name: shape.parameters for name, shape in known_shapes().items()}
    assert found["tinycomma-1.8b"] == 1_758_562_304
    assert found["llama-3.1-8b"] == 8_030_261_248
    assert found["llama-3.1-70b"] == 70_553_706_496


@pytest.mark.parametrize("architecture", ["llama", "mistral"])
def test_a_configuration_counts_the_weights_of_its_model(
    architecture: str, tiny_pair_paths: Paths
) -> None:
    from nafaudit.models.pair import load_pair

    paths = tiny_pair_paths(architecture)
    pair = load_pair(*paths)
    for path, model in zip(paths, (pair.safe, pair.risky), strict=True):
        assert shape_of(str(path)).parameters == model.num_parameters()


def test_memory_is_weights_and_rows() -> None:
    count = paper()
    assert count.weights == 2 * (1_758_562_304 + 8_030_261_248)
    # Two tables of 24 x 32 x 64 and of 32 x 8 x 128 numbers, two bytes each, 320 positions.
    assert count.cache_per_row == 2 * (2 * 24 * 32 * 64 + 2 * 32 * 8 * 128) * 320
    most = replace(count, work=replace(count.work, batch=count.largest_batch))
    more = replace(count, work=replace(count.work, batch=count.largest_batch + 1))
    assert most.memory <= 0.9 * 80e9 < more.memory
    assert paper(dtype="float32", gpu="l4").largest_batch == 0


def test_a_step_is_bound_by_memory_until_arithmetic_is_dearer() -> None:
    few, many = paper(batch=4), paper(batch=64)
    read = sum(shape.read_each_step for shape in (few.safe, few.risky))
    kept = 4 * few.cache_per_row
    assert few.step_at_limit == pytest.approx((2 * read + kept) / 3350e9)
    assert many.step_at_limit < 16 * few.step_at_limit / 4
    slow = replace(many, gpu=replace(many.gpu, half=1e12))
    assert slow.step_at_limit == pytest.approx(2 * read * 64 / 1e12)
    assert all(paper(batch=b).step_likely > paper(batch=b).step_at_limit for b in (1, 32, 451))


def test_gpus_share_the_work() -> None:
    one, eight = paper(batch=256), paper(batch=256, gpus=8)
    assert 7 < one.seconds_likely / eight.seconds_likely <= 8.01
    assert one.seconds_at_limit < one.seconds_likely


def test_every_figure_has_a_source() -> None:
    assert all(gpu.source for gpu in known_gpus().values())
    assert all(shape.source for shape in known_shapes().values())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--gpu", "h10"], "did you mean 'h100'?"),
        (["--gpu", "h100", "--gpus", "0"], "at least 1"),
        (["--gpu", "h100", "--shapes", "llama-3.1-8b"], "two, safe and risky"),
        (["--gpu", "h100", "--shapes", "llama-3.1-8b,llama-3.1-8"], "did you mean 'llama-3.1-8b'?"),
        (["--gpus", "8"], "name it"),
    ],
)
def test_wrong_hardware_is_said(words: list[str], says: str, tmp_path: Path) -> None:
    done = call("plan", "--seconds", 0, *words, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr


def test_a_configuration_that_cannot_be_counted_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 8, "num_local_experts": 4}))
    with pytest.raises(InputError, match="mixture of experts"):
        shape_of(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 8}))
    with pytest.raises(InputError, match="num_attention_heads"):
        shape_of(str(tmp_path))


def test_the_papers_audit_is_counted_without_torch(tmp_path: Path) -> None:
    import sys

    words = "plan --protocol paper --k 1,3,5 --shapes tinycomma-1.8b,llama-3.1-8b --gpu h100"
    more = "--gpus 8 --dtype bfloat16 --batch 256 --seconds 0"
    code = [sys.executable, "-c", WITHOUT_TORCH]
    done = call(*words.split(), *more.split(), cwd=tmp_path, code=code)
    assert done.returncode == 0, done.stderr
    assert "on 8 x h100, by arithmetic from its data sheet, not measured" in done.stdout
    assert all(len(line) < 80 for line in done.stdout.splitlines())
    told = json.loads(call(*words.split(), *more.split(), "--json", cwd=tmp_path).stdout)
    assert told["arithmetic"]["work"]["rows"] == 45_000
    assert told["arithmetic"]["seconds"]["at_limit"] < told["arithmetic"]["seconds"]["likely"]
