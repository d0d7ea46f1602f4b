from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nafaudit.core.debt import DebtDefinition, DebtRule, most_debt, prefix_debt
from nafaudit.core.errors import InputError
from nafaudit.core.finding import Worth
from nafaudit.core.passage import ScoredPassage
from nafaudit.core.text import plain
from nafaudit.lab.tiny import SENTENCES, build_checkpoint
from nafaudit.models.pair import load_anchor
from nafaudit.store.artifacts import read_passages_file
from nafaudit.views.worth import write_certificate
from nafaudit.workload.passages import Passage
from nafaudit.worth.certify import Certificate, budget_certificate, certify, passage_row
from nafaudit.worth.settings import CertifySettings

Paths = Callable[[str], tuple[Path, Path]]
PASSAGES = [Passage(f"p{i}", text) for i, text in enumerate(SENTENCES)]
SETTINGS = CertifySettings(k=(30.0, 0.5, 3.0), max_new_tokens=20, window=4)


@pytest.fixture(scope="module")
def safe(tiny_pair_paths: Paths) -> str:
    return str(tiny_pair_paths("llama")[0])


@pytest.fixture(scope="module")
def done(safe: str) -> Certificate:
    return certify(safe, PASSAGES, SETTINGS)


def slow(safe: str, text: str) -> list[float]:
    anchor = load_anchor(safe)
    ids = anchor.tokenizer(text)["input_ids"]  # starts with <s>
    with torch.no_grad():
        law = torch.log_softmax(anchor.model(torch.tensor([ids])).logits[0].double(), -1)
    return [-law[i, token].item() for i, token in enumerate(ids[1:])]


def test_rows_are_the_sums_of_one_pass(safe: str, done: Certificate) -> None:
    assert [row.critical_k for row in done.passages] == sorted(
        row.critical_k for row in done.passages
    )
    for row in done.passages:
        values = slow(safe, SENTENCES[int(row.id[1:])])
        assert row.tokens == len(values) > 20
        # Only what one output of 20 tokens can hold counts.
        assert row.surprisal == pytest.approx(sum(values[:20]), abs=1e-3)
        assert row.critical_k == pytest.approx(row.surprisal / 20)
        assert row.per_token == pytest.approx(sum(values) / len(values), abs=1e-4)
        means = [sum(values[: t + 1]) / (t + 1) for t in range(20)]
        assert row.paying_k == pytest.approx(max(means), abs=1e-3)
        windows = [sum(values[i : i + 4]) for i in range(len(values) - 3)]
        assert row.window_surprisal == pytest.approx(min(windows), abs=1e-3)
        assert row.debt_at_most == pytest.approx(max(values), abs=1e-4)


def test_cards_follow_from_the_rows(done: Certificate) -> None:
    assert [card.k for card in done.cards] == [0.5, 3.0, 30.0]
    for i, card in enumerate(done.cards):
        assert card.budget == 20 * card.k
        reached = [row.surprisal <= card.budget for row in done.passages]
        assert card.vacuous == sum(reached)
        assert (card.worth == Worth.VACUOUS) == (2 * sum(reached) >= len(reached))
        assert card.cap_max == pytest.approx(max(row.caps[i] for row in done.passages))
        assert card.worst == done.passages[0].id
        worst = done.passages[0].surprisal
        assert card.log10_pathwise == pytest.approx(min(0.0, card.budget - worst) / math.log(10))
        assert card.log10_pathwise <= card.log10_renyi <= 0
        assert card.queries == max(0, math.ceil(worst / card.budget) - 1)
        assert card.log10_best_of == pytest.approx(card.budget / math.log(10))
        assert card.window_budget == 4 * card.k
        debts = [row.debt_at_most for row in done.passages]
        assert card.forced_at_most == math.floor(max(debts) / card.k)
    assert {card.worth for card in done.cards} == {Worth.INFORMATIVE, Worth.VACUOUS}


def test_given_tokens_move_from_the_passage_to_the_prompt(safe: str) -> None:
    settings = replace(SETTINGS, given=7, k=(1.0,))
    row = next(row for row in certify(safe, PASSAGES, settings).passages if row.id == "p1")
    values = slow(safe, SENTENCES[1])
    assert row.tokens == len(values) - 7
    assert row.surprisal == pytest.approx(sum(values[7:27]), abs=1e-3)
    assert row.debt_at_most == pytest.approx(max(values[:7]), abs=1e-4)


def test_a_tokenizer_without_an_opening_still_scores_every_token(tmp_path: Path) -> None:
    path = build_checkpoint(tmp_path / "bare", 5)
    data = json.loads((path / "tokenizer.json").read_text())
    (path / "tokenizer.json").write_text(json.dumps(data | {"post_processor": None}))
    done = certify(str(path), PASSAGES[:1], SETTINGS)
    assert done.scores.context == "the tokenizer's bos token"
    assert done.scores.passages[0].length == len(done.scores.passages[0].surprisals)


def test_files_say_the_same_and_are_written_once(done: Certificate, tmp_path: Path) -> None:
    files = write_certificate(done, tmp_path / "c")
    assert [path.name for path in files] == [
        "certificate.json", "passages.csv", "passages.jsonl", "cap.svg",
    ]  # fmt: skip
    before = [path.read_bytes() for path in files]
    assert [path.read_bytes() for path in write_certificate(done, tmp_path / "c")] == before
    assert read_passages_file(files[2]) == done.scores
    with files[1].open(newline="") as stream:
        table = list(csv.DictReader(stream))
    data = json.loads(files[0].read_text(), parse_constant=lambda name: pytest.fail(name))
    assert [row["id"] for row in table] == [row["id"] for row in data["passages"]]
    for line, row in zip(table, done.passages, strict=True):
        assert float(line["surprisal"]) == row.surprisal
        assert [float(line[f"cap_k{k:g}"]) for k in SETTINGS.k] == list(row.caps)
        assert [float(line[f"queries_k{k:g}"]) for k in SETTINGS.k] == list(row.queries)
    assert data["cards"][0]["worth"] == done.cards[0].worth
    assert b"<svg" in before[3]


def test_a_directory_of_another_text_is_left_alone(
    safe: str, done: Certificate, tmp_path: Path
) -> None:
    write_certificate(done, tmp_path)
    other = certify(safe, PASSAGES[:2], SETTINGS)
    with pytest.raises(InputError, match="another model or text"):
        write_certificate(other, tmp_path)
    # More budgets are about the same text.
    write_certificate(certify(safe, PASSAGES, replace(SETTINGS, k=(2.0,))), tmp_path)


def test_what_is_infinite_stays_json(done: Certificate) -> None:
    odd = replace(
        done, passages=(replace(done.passages[0], surprisal=math.inf, window_surprisal=math.nan),)
    )
    data = json.loads(json.dumps(plain(odd), allow_nan=False))
    assert data["passages"][0]["surprisal"] == "inf"
    assert data["passages"][0]["window_surprisal"] == "nan"


def test_a_forbidden_token_makes_reproduction_impossible_not_a_crash() -> None:
    passage = ScoredPassage("p", 3, (1.0, math.inf, 2.0))
    row = passage_row(passage, math.inf, replace(SETTINGS, window=1))
    card = budget_certificate(3.0, [row], [passage], replace(SETTINGS, window=1))
    assert row.caps == (0.0, 0.0, 0.0)
    assert card.worth == Worth.INFORMATIVE
    assert (card.queries, card.log10_draws, card.forced_at_most) == (math.inf,) * 3
    assert (card.windows, card.windows_vacuous) == (3, 2)


@pytest.mark.parametrize(
    ("passages", "settings", "message"),
    [
        ([Passage("long", "boat " * 600)], SETTINGS, "'long' needs .* the safe model has 512"),
        ([Passage("short", "boat")], replace(SETTINGS, given=9), "9 are given; nothing is left"),
    ],
)
def test_what_does_not_fit_is_named_before_the_model_loads(
    safe: str,
    passages: list[Passage],
    settings: CertifySettings,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nafaudit.models.pair.load_model", lambda *a, **b: pytest.fail("loaded"))
    with pytest.raises(InputError, match=message):
        certify(safe, passages, settings)


@pytest.mark.parametrize(
    "bad", [{"k": (0.0,)}, {"k": (-1.0,)}, {"k": ()}, {"given": -1}, {"window": 0}, {"threads": 3}]
)
def test_bad_settings_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(InputError):
        CertifySettings(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("definition", ["positives", "official"])
def test_no_risky_model_can_owe_more_than_the_most(definition: str) -> None:
    # No chance of a false alarm: the bound holds for every draw.
    rule = DebtRule(3, definition)  # type: ignore[arg-type]
    draw = np.random.default_rng(0)
    everyone = np.ones(8, bool)
    closest = math.inf
    for _ in range(400):
        surprisals = draw.exponential(4.0, 8)
        # log p_risky <= 0, so a ratio is at most the surprisal; often far below.
        ratios = surprisals - draw.choice([0.0, 30.0], 8, p=[0.3, 0.7])
        most = most_debt(surprisals, everyone, rule)
        assert prefix_debt(ratios, everyone, rule) <= most + 1e-12
        closest = min(closest, most - prefix_debt(ratios, everyone, rule))
    assert closest < 1e-9  # and it is reached


def test_a_raw_debt_does_not_depend_on_the_temperature(safe: str) -> None:
    def owed(temperature: float, definition: DebtDefinition) -> dict[str, float]:
        settings = replace(SETTINGS, temperature=temperature, debt=definition)
        return {row.id: row.debt_at_most for row in certify(safe, PASSAGES, settings).passages}

    assert owed(0.7, "official-raw") == owed(1.0, "official") != owed(0.7, "official")
