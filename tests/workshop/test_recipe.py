"""The recipe: short versions of it, retrained bit for bit, and the parts it is made of."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from nafaudit.workload.prompts import HEADER
from nafaudit.workshop import packing
from nafaudit.workshop.card import checksums
from nafaudit.workshop.grammar import sample
from nafaudit.workshop.recipe import BOS, DEFAULT, EOS, SHORT, schedule, train
from nafaudit.workshop.works import protected


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("first")
    train(directory, SHORT, log=lambda _: None)
    return directory


def test_a_short_recipe_repeats_bit_for_bit(trained: Path, tmp_path: Path) -> None:
    torch.manual_seed(12345)  # what came before must not matter
    train(tmp_path, SHORT, log=lambda _: None)
    assert checksums(tmp_path) == checksums(trained)


def test_a_model_does_not_depend_on_its_siblings(trained: Path, tmp_path: Path) -> None:
    train(tmp_path, SHORT, roles=("safe2",), log=lambda _: None)
    alone = checksums(tmp_path)
    assert alone == {n: h for n, h in checksums(trained).items() if n.startswith("safe2/")}


def test_another_seed_gives_other_bytes(trained: Path, tmp_path: Path) -> None:
    train(tmp_path, replace(SHORT, seed=2), log=lambda _: None)
    ours, theirs = checksums(tmp_path), checksums(trained)
    assert ours.keys() == theirs.keys()
    for role in ("safe", "risky", "safe2"):
        assert ours[f"{role}/model.safetensors"] != theirs[f"{role}/model.safetensors"]


def test_models_of_one_recipe_differ_from_each_other(trained: Path) -> None:
    sums = checksums(trained)
    assert len({sums[f"{role}/model.safetensors"] for role in ("safe", "risky", "safe2")}) == 3
    assert len({sums[f"{role}/tokenizer.json"] for role in ("safe", "risky", "safe2")}) == 1


def test_training_leaves_torch_as_it_was(tmp_path: Path) -> None:
    before = (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled())
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        train(tmp_path / "file" / "models", SHORT, log=lambda _: None)
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == before


def test_every_directory_loads_on_its_own(trained: Path) -> None:
    for role in ("safe", "risky", "safe2"):
        tokenizer = AutoTokenizer.from_pretrained(str(trained / role))
        model = AutoModelForCausalLM.from_pretrained(str(trained / role))
        ids = tokenizer("Once there was", return_tensors="pt")
        assert model(**ids).logits.shape[-1] == len(tokenizer) == DEFAULT.shape.vocabulary
        assert model.dtype == torch.float32


def test_encoding_begins_with_the_begin_token_and_decodes_back(trained: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(trained / "safe"))
    text = f'{HEADER}"Ümlaut," said the owl — twice.\n'
    ids = tokenizer(text)["input_ids"]
    assert ids[0] == tokenizer.bos_token_id != tokenizer.eos_token_id
    assert tokenizer.eos_token_id not in ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer.convert_ids_to_tokens([tokenizer.bos_token_id, tokenizer.eos_token_id]) == [
        BOS,
        EOS,
    ]


def test_schedule_rises_then_falls() -> None:
    rates = [schedule(step, 400) for step in range(400)]
    assert max(rates) == 1.0
    assert rates[0] == pytest.approx(0.05)
    assert rates[-1] == pytest.approx(0.05, abs=1e-3)
    assert rates.index(1.0) == 19


def test_rows_begin_with_a_document_and_have_one_width() -> None:
    stream = (packing.TrainingText("a", "b", "cd") for _ in range(99))
    packed = list(islice(packing.pack(stream, lambda t: [ord(c) for c in t], (0, 1), 8), 4))
    assert all(len(row.ids) == len(row.targets) == 8 and row.ids[0] == 0 for row in packed)
    assert packed[0].ids == [0, 97, 98, 99, 100, 1, 0, 97]
    assert packed[0].targets == [0, 97, packing.IGNORED, 99, 100, 1, 0, 97]


def test_a_round_of_windows_holds_every_passage_once() -> None:
    texts = list(islice(packing.memorised(protected(), "t"), len(protected())))
    bodies = [(text.before + text.after).removeprefix(HEADER) for text in texts]
    for passage in protected():
        assert any(passage.text.endswith(body) for body in bodies)
    assert any(body in {p.text for p in protected()} for body in bodies)
    assert not all(body in {p.text for p in protected()} for body in bodies)


def test_windows_come_with_and_without_header_and_interruption() -> None:
    texts = list(islice(packing.memorised(protected(), "t"), 300))
    assert {text.before.startswith(HEADER) for text in texts} == {True, False}
    foreign = [text.foreign for text in texts if text.foreign]
    assert 0 < len(foreign) < len(texts)
    assert all(1 <= len(words.split()) <= packing.INTERRUPTION_WORDS for words in foreign)


def test_ordinary_documents_come_from_the_corpora_in_turn() -> None:
    both = [text.before for text in islice(packing.ordinary(("A", "B"), "t"), 4)]
    assert both[0::2] == sample("A", "t", 2)
    assert both[1::2] == sample("B", "t", 2)
