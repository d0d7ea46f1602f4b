"""Trains the lab's tokenizer and models from its text alone, bit for bit.

A base model reads both ordinary corpora. From it the safe model goes on with corpus A, the risky
model with corpus B and the protected works, and a second safe anchor with corpus A in another
order from another seed. All runs in this process on a fixed number of threads, because the order
of a sum, and so its last bit, depends on that number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from nafaudit.lab.shipped import ROLES, Role
from nafaudit.workshop import packing
from nafaudit.workshop.grammar import Corpus, sample
from nafaudit.workshop.works import protected

BOS = "<|begin|>"
EOS = "<|end|>"


def train_tokenizer(texts: Iterable[str], vocabulary_size: int) -> PreTrainedTokenizerFast:
    """Trains the tokenizer; encoding puts the begin token first, documents end with the end token.

    Args:
        texts: ordinary documents.
        vocabulary_size: tokens in all, the 256 bytes and the two special tokens included.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A {BOS} $B",
        special_tokens=[(BOS, tokenizer.token_to_id(BOS))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=EOS,
        clean_up_tokenization_spaces=False,
    )


Log = Callable[[str], None]


@dataclass(frozen=True)
class Shape:
    """Size of every model of the lab."""

    vocabulary: int = 2048
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    mlp: int = 352
    positions: int = 1024


@dataclass(frozen=True)
class Phase:
    """One stretch of training.

    Attributes:
        steps: optimiser steps.
        learning_rate: peak of the cosine schedule.
        ordinary_rows: rows of ordinary text in a batch.
        protected_rows: rows of protected text in a batch.
    """

    steps: int
    learning_rate: float
    ordinary_rows: int
    protected_rows: int = 0


@dataclass(frozen=True)
class Recipe:
    """Everything that determines the weights.

    Attributes:
        shape: size of the models.
        width: tokens in a training row.
        base: the phase that all models share, on corpora A and B.
        safe: the safe anchors' phase, on corpus A.
        risky: the risky model's phase, on corpus B and the protected works.
        tokenizer_documents: ordinary documents, half of each corpus, that train the tokenizer.
        seed: start of every random choice.
        threads: torch threads; part of the recipe, because sums depend on it in the last bit.
    """

    shape: Shape = Shape()
    width: int = 192
    base: Phase = Phase(steps=700, learning_rate=4e-3, ordinary_rows=10)
    safe: Phase = Phase(steps=120, learning_rate=2.5e-3, ordinary_rows=10)
    risky: Phase = Phase(steps=750, learning_rate=3e-3, ordinary_rows=4, protected_rows=8)
    tokenizer_documents: int = 8000
    seed: int = 1
    threads: int = 2


DEFAULT = Recipe()
SHORT = Recipe(
    base=Phase(steps=4, learning_rate=4e-3, ordinary_rows=2),
    safe=Phase(steps=2, learning_rate=2.5e-3, ordinary_rows=2),
    risky=Phase(steps=2, learning_rate=2.5e-3, ordinary_rows=1, protected_rows=1),
    tokenizer_documents=400,
    threads=1,
)
"""A recipe of a few steps, for tests."""


def train(
    out_dir: Path,
    recipe: Recipe = DEFAULT,
    *,
    roles: tuple[Role, ...] = ROLES,
    log: Log = print,
) -> None:
    """Trains the models and writes each with its tokenizer.

    Writes one directory per role under ``out_dir``; every directory loads on its own with
    Transformers. A model's bytes do not depend on which other roles are trained.
    Torch's thread count and determinism switch are put back afterwards.

    Args:
        out_dir: directory of the models; created when missing.
        recipe: settings of the training.
        roles: models to train; without ``safe2`` it takes about a tenth less time.
        log: called with one line about every fiftieth step.
    """
    with determinism(recipe.threads):
        half = recipe.tokenizer_documents // 2
        texts = sample("A", "tokenizer", half) + sample("B", "tokenizer", half)
        tokenizer = train_tokenizer(texts, recipe.shape.vocabulary)
        trainer = _Trainer(tokenizer, recipe, log)
        base = trainer.train(trainer.new_model(), "base", recipe.base, ("A", "B"))
        for role in roles:
            phase: Phase = recipe.risky if role == "risky" else recipe.safe
            corpus: Corpus = "B" if role == "risky" else "A"
            model = trainer.new_model()
            model.load_state_dict(base.state_dict())
            save(trainer.train(model, role, phase, (corpus,)), tokenizer, out_dir / role)


@contextmanager
def determinism(threads: int) -> Iterator[None]:
    """Makes torch repeatable bit for bit, and restores its switches afterwards."""
    memory: Any = torch.utils.deterministic  # torch sets this flag through a module class
    before = (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        memory.fill_uninitialized_memory,
    )
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False  # saves 6 % of the time
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])
        memory.fill_uninitialized_memory = before[2]


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Writes one model and its tokenizer, as safetensors and JSON."""
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(str(directory), safe_serialization=True)
    tokenizer.save_pretrained(str(directory))


class _Trainer:
    """Trains the phases of one recipe."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, recipe: Recipe, log: Log) -> None:
        self._tokenizer = tokenizer
        self._recipe = recipe
        self._log = log

    def new_model(self) -> LlamaForCausalLM:
        torch.manual_seed(self._recipe.seed)
        shape = self._recipe.shape
        config = LlamaConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.hidden,
            intermediate_size=shape.mlp,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.heads,
            max_position_embeddings=shape.positions,
            tie_word_embeddings=True,
            attn_implementation="eager",  # faster than fused attention at this size
            bos_token_id=self._tokenizer.bos_token_id,
            eos_token_id=self._tokenizer.eos_token_id,
            pad_token_id=self._tokenizer.pad_token_id,
        )
        return LlamaForCausalLM(config)

    def train(
        self, model: LlamaForCausalLM, name: str, phase: Phase, corpora: tuple[Corpus, ...]
    ) -> LlamaForCausalLM:
        optimiser = torch.optim.AdamW(
            model.parameters(),
            lr=phase.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=0.01,
            fused=True,
        )
        batches = self._batches(name, phase, corpora)
        model.train()
        for step in range(phase.steps):
            for group in optimiser.param_groups:
                group["lr"] = phase.learning_rate * schedule(step, phase.steps)
            batch = next(batches)
            ids = torch.tensor([row.ids for row in batch])
            targets = torch.tensor([row.targets for row in batch])[:, 1:]
            logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
            loss = functional.cross_entropy(
                logits.flatten(0, 1), targets.flatten(), ignore_index=packing.IGNORED
            )
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            if step % 50 == 0 or step == phase.steps - 1:
                self._log(f"{name:6} step {step:4} of {phase.steps}  loss {loss.item():.3f}")
        return model.eval()

    def _batches(
        self, name: str, phase: Phase, corpora: tuple[Corpus, ...]
    ) -> Iterator[list[packing.TrainingRow]]:
        stream, width = f"{name}/{self._recipe.seed}", self._recipe.width
        begin, end = self._tokenizer.bos_token_id, self._tokenizer.eos_token_id
        assert isinstance(begin, int)
        assert isinstance(end, int)
        plain, secret = (
            packing.pack(texts, self._encode, (begin, end), width)
            for texts in (
                packing.ordinary(corpora, stream),
                packing.memorised(protected(), stream),
            )
        )
        while True:
            batch = [next(plain) for _ in range(phase.ordinary_rows)]
            yield batch + [next(secret) for _ in range(phase.protected_rows)]

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


def schedule(step: int, steps: int) -> float:
    """Returns the rate over its peak: a linear rise over a twentieth, then a cosine to 0.05."""
    rise = max(1, steps // 20)
    if step < rise:
        return (step + 1) / rise
    progress = (step - rise) / max(1, steps - rise)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress))
