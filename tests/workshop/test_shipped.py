"""What the shipped pair must show: its card says it, and the card is measured from the weights.

Losses, divergence and debt are sums over fixed text: no randomness, no flakiness. Sampled numbers
come from fixed seeds, so they repeat on one kind of CPU; elsewhere a flipped token makes them a
fresh sample, and each test states how often a fresh sample would miss its margin.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from statistics import mean
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from nafaudit.lab.shipped import WEIGHTS
from nafaudit.workshop.card import CARD_DATA, checksums
from nafaudit.workshop.pair_facts import (
    Decode,
    LabPair,
    Losses,
    Sampled,
    TeacherForced,
    mean_kl,
    mean_loss,
    prefix_debts,
    recall_prompts,
    sampled,
    teacher_forced,
)
from nafaudit.workshop.works import protected


def read_card() -> dict[str, Any]:
    card: dict[str, Any] = json.loads((WEIGHTS / CARD_DATA).read_text(encoding="utf-8"))
    return card


@pytest.fixture(scope="module")
def fixed() -> TeacherForced:
    """As the card says."""
    written = read_card()["facts"]["teacher_forced"]
    losses = {role: Losses(**written[role]) for role in ("safe", "safe2", "risky")}
    return TeacherForced(**written | losses)


@pytest.fixture(scope="module")
def drawn(pair: LabPair, pair2: LabPair, make_decoder: Callable[[LabPair], Decode]) -> Sampled:
    return sampled(pair, pair2, make_decoder, 1, 11, budgets=(0.25, 5.0, 10.0, 20.0))


def test_files_match_the_card() -> None:
    assert checksums() == read_card()["sha256"]


def test_the_shipped_size_is_modest() -> None:
    assert sum(p.stat().st_size for p in WEIGHTS.rglob("*") if p.is_file()) < 14_500_000


@pytest.mark.parametrize("role", ["safe", "risky", "safe2"])
def test_each_directory_loads_with_plain_transformers(role: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(WEIGHTS / role))
    model = AutoModelForCausalLM.from_pretrained(str(WEIGHTS / role))
    assert tokenizer("Once")["input_ids"][0] == tokenizer.bos_token_id == model.config.bos_token_id
    assert tokenizer.eos_token_id == model.config.eos_token_id


def test_the_card_says_what_is_measured_on_protected_text(
    pair: LabPair, fixed: TeacherForced
) -> None:
    memorised = [pair.encode_document(page.text) for page in protected()]
    openings = [pair.encode(prompt.text) for prompt in recall_prompts(protected())]
    assert mean_loss(pair.risky, memorised) == pytest.approx(fixed.risky.protected, rel=1e-3)
    assert mean_kl(pair, memorised) == pytest.approx(fixed.kl_protected, rel=1e-3)
    assert mean(prefix_debts(pair, openings)) == pytest.approx(fixed.debt_protected, rel=1e-3)


@pytest.mark.full
def test_the_card_says_what_is_measured(
    pair: LabPair, pair2: LabPair, fixed: TeacherForced
) -> None:
    measured, written = (asdict(facts) for facts in (teacher_forced(pair, pair2), fixed))
    for role in ("safe", "safe2", "risky"):
        assert measured.pop(role) == pytest.approx(written.pop(role), rel=1e-3)
    assert measured == pytest.approx(written, rel=1e-3)


def test_losses_on_ordinary_text_are_alike(fixed: TeacherForced) -> None:
    losses = [fixed.safe.ordinary, fixed.safe2.ordinary, fixed.risky.ordinary]
    assert max(losses) / min(losses) <= 1.05


def test_only_the_risky_model_knows_the_protected_works(fixed: TeacherForced) -> None:
    assert 3.0 <= fixed.safe.protected <= 5.0
    assert 3.0 <= fixed.safe2.protected <= 5.0
    assert fixed.risky.protected < 0.2
    assert fixed.risky.held_out_works > 3.0


def test_the_models_diverge_mildly_on_ordinary_text_and_strongly_on_protected(
    fixed: TeacherForced,
) -> None:
    assert 0.3 <= fixed.kl_ordinary <= 0.6
    assert 2.0 <= fixed.kl_protected <= 5.0


def test_debt_is_large_on_protected_prompts_and_small_on_benign_ones(
    fixed: TeacherForced,
) -> None:
    assert 4.0 <= fixed.debt_protected <= 10.0
    assert fixed.debt_benign < 1.0


@pytest.mark.full
def test_recall_of_the_baselines(drawn: Sampled) -> None:
    # One output per passage: standard deviation 0.35, so 0.045 on the mean of 60 passages. The
    # card's values lie 3.5 of them above the line. Flakiness 3e-4 each.
    assert drawn.risky_recall >= 0.5
    assert drawn.risky_recall_without_header >= 0.5
    # No output of the 312 drawn for the card had a span of 20 words. Flakiness below 1e-2.
    assert drawn.safe_recall <= 0.01
    assert drawn.held_out_recall == 0.0


@pytest.mark.full
def test_recall_rises_with_the_budget_through_four_levels(drawn: Sampled) -> None:
    # Standard errors 0, 0.02, 0.04 and 0.045; each level lies 3 or more of them above the last.
    # Flakiness 5e-3, nearly all of it at k = 5.
    levels = [drawn.recall[k] for k in ("0.25", "5", "10", "20")]
    assert levels[0] <= 0.01
    assert levels[1] > levels[0] + 0.01
    assert levels[2] > levels[1] + 0.02
    assert levels[3] > levels[2] + 0.1


@pytest.mark.full
def test_the_constraint_acts_at_small_budgets_and_idles_at_large_ones(drawn: Sampled) -> None:
    # Thousands of steps each: standard errors below 0.015 and 0.002. Flakiness below 1e-6, 1e-2.
    assert drawn.active_share["0.25"] >= 0.15
    assert drawn.active_share["10"] < 0.01


@pytest.mark.full
def test_the_two_anchors_cost_alike_on_benign_prompts(drawn: Sampled) -> None:
    # 120 outputs each; a standard error of about 5 % on the ratio. Flakiness 1e-3.
    assert drawn.benign_spend_safe2 == pytest.approx(drawn.benign_spend, rel=0.2)
