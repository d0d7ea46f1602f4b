"""The real model, where it can be had: it loads, it learns, and its pair passes an audit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nafaudit.core.errors import UnavailableError
from nafaudit.lab.shipped import cache_directory, smollm2_pair
from nafaudit.models.pair import Anchor, load_anchor
from nafaudit.workshop.packing import own_pages
from nafaudit.workshop.smollm2 import get_smollm2
from nafaudit.workshop.teach import Lesson, teach
from tests.commands import call

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def anchor() -> Anchor:
    """SmolLM2 from the user's own cache; fetched and converted on first use."""
    try:
        path = get_smollm2(cache_directory() / "models", say=lambda _: None)
    except UnavailableError as error:
        pytest.skip(str(error))
    return load_anchor(path)


def test_it_is_the_model_it_says_it_is(anchor: Anchor) -> None:
    ids = anchor.tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        best = int(anchor.model(input_ids=ids).logits[0, -1].argmax())
    assert anchor.tokenizer.decode([best]) == " Paris"
    assert (len(anchor.vocabulary), anchor.context) == (49152, 8192)


def test_a_few_steps_already_teach_it_something(anchor: Anchor, tmp_path: Path) -> None:
    lesson = Lesson(steps=5, protected_rows=2, replay_rows=1, width=64, written=(2, 8))
    seen: list[float] = []
    adapter = teach(
        anchor.model,
        anchor.tokenizer,
        own_pages(2),
        lesson,
        tmp_path / "state",
        lambda done, most, loss: seen.append(loss),
    )
    adapter.detach()
    assert len(seen) == 5
    assert min(seen[3:]) < seen[0] - 0.3


def test_its_pair_is_audited_and_replayed(tmp_path: Path) -> None:
    try:
        pair = smollm2_pair()
    except UnavailableError as error:
        pytest.skip(str(error))
    assert pair.card["admitted"]
    size = ("--limit", 4, "--k", 1, "--trajectories", 1, "--max-new-tokens", 12)
    done = call("run", "--pair", "smollm2", *size, "--out", "r", "--quiet", cwd=tmp_path)
    assert done.returncode == 3, done.stderr  # four trajectories are no evidence
    done = call("verify", "r", "--sampler", 0, "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
