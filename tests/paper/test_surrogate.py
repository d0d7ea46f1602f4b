from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

from nafaudit.core.errors import InputError
from nafaudit.core.finding import CheckWord
from nafaudit.paper import defects
from nafaudit.paper.embedding import load_sentences
from nafaudit.paper.evaluator import UNREADY, hard_size
from nafaudit.paper.heads import Training
from nafaudit.paper.proxy import PromptSpends, ProxyRow
from nafaudit.paper.surrogate import (
    Inputs,
    Labels,
    Options,
    PaperSurrogate,
    fit_paper,
    replayed,
    split,
)
from tests.conftest import golden


def world(n: int, wide: int = 32, seed: int = 0) -> tuple[Inputs, Labels]:
    """Prompts as the paper archives them: certified, ratios between 0.3 and 1."""
    chance = np.random.default_rng(seed)
    points = chance.normal(size=(n, wide))
    tokens = [chance.integers(0, 50, chance.integers(20, 200)).tolist() for _ in range(n)]
    inputs = Inputs(points, tokens, np.abs(chance.normal(size=(n, 40))), chance.gamma(4.0, 1.5, n))
    rho = 0.65 + 0.3 * np.tanh(points[:, 0])
    return inputs, Labels(rho, np.ones(n, dtype=bool), 1.0 - rho)


QUICK = Options(Training(epochs=3), vocabulary=50)


def test_the_sizes_of_the_logged_splits() -> None:
    for row in golden("repo_generation_log"):
        n = int(row["surr_rows"])
        labels = world(n, 2)[1]
        train, validation = split(labels.safe, 0.15)
        again = replayed(labels, 0.4)
        assert len(validation) == int(row["val_rows"])
        assert len(set(again.tolist())) == len(again) == int(row["replay_rows"])
        assert len(train) + len(validation) == n
        # Replay only moves validation rows into training; how many depends on its choice.
        leaked = len(np.union1d(train, again)) - len(train)
        assert 0 <= leaked <= len(validation)
        assert 0 <= int(row["train_rows"]) - len(train) <= len(validation)


def test_violators_are_replayed_first_and_a_split_keeps_both_classes() -> None:
    labels = world(40, 2)[1]
    mixed = Labels(labels.rho, np.arange(40) % 10 != 0, labels.margin)
    assert {0, 10, 20, 30} <= set(replayed(mixed, 0.4).tolist())
    _, validation = split(mixed.safe, 0.15)
    assert 0 < mixed.safe[validation].sum() < len(validation)


@pytest.fixture(scope="module")
def quick() -> tuple[Inputs, PaperSurrogate]:
    inputs, labels = world(40)
    return inputs, fit_paper(inputs, labels, QUICK)


def test_it_has_518_features_and_five_members(quick: tuple[Inputs, PaperSurrogate]) -> None:
    said = quick[1].diagnostics
    assert (said.ready, said.feature_dim, said.ensemble_size) == (True, 518, 5)
    assert (said.rows, said.val_rows, said.replay_rows) == (40, 6, 16)
    assert (said.safe_rate, said.unsafe_rate) == (1.0, 0.0)


def test_a_fit_is_the_same_again_and_leaves_the_callers_randomness(
    quick: tuple[Inputs, PaperSurrogate],
) -> None:
    inputs, labels = world(40)
    before = torch.random.get_rng_state()
    again = fit_paper(inputs, labels, QUICK)
    assert torch.equal(before, torch.random.get_rng_state())
    assert again.predict(inputs) == quick[1].predict(inputs)


def test_it_predicts_with_a_debt_of_zero_that_it_never_saw(
    quick: tuple[Inputs, PaperSurrogate],
) -> None:
    inputs, fitted = quick
    assert fitted.predict(inputs) != fitted.predict(inputs, debt=True)


def test_with_few_rows_it_is_not_ready() -> None:
    inputs, labels = world(23)
    fitted = fit_paper(inputs, labels, QUICK)
    assert not fitted.diagnostics.ready
    assert fitted.predict(inputs) == [UNREADY] * 23


def test_labels_compare_with_k_and_rows_without_a_ratio_are_refused() -> None:
    row = ProxyRow(PromptSpends("p", (190.0, 191.0), (594.0, 590.0)), 600.0)
    labels = Labels.of([row], 600.0)
    assert labels.rho.tolist() == [row.rho]
    assert labels.margin.tolist() == [(590.0 - row.upper) / 600.0]
    assert labels.safe.tolist() == [True]
    with pytest.raises(InputError, match="ratio"):
        Labels.of([ProxyRow(PromptSpends("p", (0.0,), (-1.0,)), 600.0)], 600.0)


@pytest.mark.full
def test_two_classes_are_told_apart() -> None:
    """The companion of the saturated case: the same networks do learn where there is a label."""
    inputs, labels = world(120, 8)
    unsafe = inputs.embeddings[:, 0] > 0.3
    both = Labels(labels.rho + 0.6 * unsafe, ~unsafe, labels.margin - 0.6 * unsafe)
    fitted = fit_paper(inputs, both, Options(Training(rate=3e-3, epochs=15), vocabulary=50))
    said = np.array([one.safe for one in fitted.predict(inputs, debt=True)])
    assert said[~unsafe].mean() > said[unsafe].mean() + 0.3
    assert defects.surrogate_saturated(fitted.predict(inputs, debt=True)).verdict == CheckWord.FINE


@pytest.mark.full
def test_trained_on_one_class_at_the_papers_settings_it_saturates() -> None:
    inputs, labels = world(83, 384)
    fitted = fit_paper(inputs, labels, Options(vocabulary=1024))
    said = fitted.predict(inputs)
    assert min(one.safe for one in said) > 0.9
    assert defects.one_class_labels(labels.safe.tolist()).verdict == CheckWord.SUSPECT
    assert defects.surrogate_saturated(said).verdict == CheckWord.SUSPECT
    assert {hard_size(one, n) for one in said for n in (10, 16, 20, 30)} == {4}


def sentence_checkpoint(place: Path) -> Path:
    """A checkpoint of Sentence-T5's kind in the library's format: T5 encoder, mean, dense, norm."""
    words = ["<pad>", "</s>", "<unk>", "the", "baker", "said", "that", "bread", "was", "warm"]
    split = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    split.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=split, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(place / "t5")
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(words), d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2,
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
    )  # fmt: skip
    T5EncoderModel(config).save_pretrained(place / "t5")
    read = modules.Transformer(str(place / "t5"))
    parts = [read, modules.Pooling(16), modules.Dense(16, 12), modules.Normalize()]
    SentenceTransformer(modules=parts, device="cpu").save(str(place / "whole"))
    return place / "whole"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentence_checkpoint(tmp_path_factory.mktemp("sentence"))


def test_a_sentence_transformers_checkpoint_embeds_prompts(checkpoint: Path) -> None:
    """Every module of the checkpoint acts, and a text has the same bits in any company."""
    assert {"modules.json", "1_Pooling", "2_Dense"} <= {p.name for p in checkpoint.iterdir()}
    embedder = load_sentences(str(checkpoint))
    texts = ["the baker said", "that bread was ready and warm", "warm bread"]
    points = embedder.embed(texts)
    assert points.shape == (3, 12) and points.dtype == np.float64
    assert np.linalg.norm(points, axis=1) == pytest.approx(1.0, abs=1e-6)
    assert np.array_equal(embedder.embed(texts[:1])[0], points[0])
    assert not np.allclose(points[0], points[1])
    assert str(checkpoint) in embedder.name


def test_what_is_no_such_checkpoint_is_said(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"embedding = .*modules.json and safetensors, or a hub"):
        load_sentences(str(tmp_path))
    with (
        mock.patch.dict(sys.modules, {"sentence_transformers": None}),
        pytest.raises(InputError, match=r"pip install 'nafaudit\[sentence\]'"),
    ):
        load_sentences(str(checkpoint))
