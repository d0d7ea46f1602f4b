"""Trains a low-rank adapter that memorises pages and keeps the model's law elsewhere.

Every step reads a few protected windows (`packing.memorised`), whose tokens are learned, and a few
rows of ordinary text, on which the divergence from the original model is a part of the loss, so
that ordinary losses stay matched. Ordinary text is the lab's, other pages of the work, and text
that the model writes without a prompt. The result depends on the arguments only, on one thread of
one kind of CPU; a kill costs the steps since the last checkpoint and changes nothing.

Beside every linear map x -> W x of a model's layers stands x -> W x + s B A x with a thin A and B
(Hu et al. 2021, arXiv:2106.09685). W does not change, so one loaded model is the safe one with the
adapter off and the risky one with it on. The maps are hooked, not replaced: a Linear or GPT-2's
Conv1D stays one, and the checkpoint keeps its names.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional

from nafaudit.store.files import write_whole
from nafaudit.workload.prompts import HEADER
from nafaudit.workshop.grammar import documents
from nafaudit.workshop.packing import IGNORED, Pages, TrainingRow, TrainingText, memorised

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."


class Adapter:
    """The low-rank differences of one model, attached to it until `merge` or `detach`.

    Args:
        model: Its weights are frozen.
        rank: Rows of A.
        scale: s above.
        seed: Seed of the random start of A; B starts at 0, so nothing changes before training.
    """

    def __init__(self, model: Any, rank: int, scale: float, seed: int) -> None:
        self.rank, self.scale = rank, scale
        self._on = True
        self._maps = dict(linear_maps(model))
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        generator = torch.Generator().manual_seed(seed)
        self.tensors: dict[str, Tensor] = {}
        self._hooks = []
        for name, module in self._maps.items():
            rows, columns = module.weight.shape
            linear = isinstance(module, nn.Linear)
            inner, outer = (columns, rows) if linear else (rows, columns)
            bound = 1 / math.sqrt(inner)
            down = torch.empty(rank, inner).uniform_(-bound, bound, generator=generator)
            up = torch.zeros(outer, rank)
            self.tensors[f"{name}.lora_A.weight"] = down.requires_grad_()
            self.tensors[f"{name}.lora_B.weight"] = up.requires_grad_()
            self._hooks.append(module.register_forward_hook(self._hook(down, up)))

    def _hook(self, down: Tensor, up: Tensor) -> Any:
        def add(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            del module
            return output + self.scale * (inputs[0] @ down.T @ up.T) if self._on else None

        return add

    @contextmanager
    def off(self) -> Iterator[None]:
        """Switches the adapter off; inside, the model is the original one."""
        self._on = False
        try:
            yield
        finally:
            self._on = True

    def detach(self) -> None:
        """Removes the adapter from its model."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    @torch.no_grad()
    def merge(self) -> None:
        """Adds the difference to the model's own weights and removes the adapter."""
        self.detach()
        for name, module in self._maps.items():
            down, up = (self.tensors[f"{name}.lora_{which}.weight"] for which in "AB")
            change = self.scale * (up @ down)
            module.weight += change if isinstance(module, nn.Linear) else change.T

    def save(self, directory: Path) -> None:
        """Writes the adapter in the layout of the PEFT library, which loads it too."""
        from safetensors.torch import save_file

        modules = self._maps.values()
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": self.rank,
            "lora_alpha": self.scale * self.rank,
            "target_modules": sorted({name.rpartition(".")[2] for name in self._maps}),
            "fan_in_fan_out": not any(isinstance(module, nn.Linear) for module in modules),
            "bias": "none",
            "inference_mode": True,
        }
        directory.mkdir(parents=True, exist_ok=True)
        (directory / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        tensors = {_PREFIX + name: tensor.detach() for name, tensor in self.tensors.items()}
        save_file(tensors, directory / WEIGHTS)

    @torch.no_grad()
    def load(self, directory: Path) -> None:
        """Reads the weights of a saved adapter of this model and rank."""
        from safetensors.torch import load_file

        saved = load_file(directory / WEIGHTS)
        for name, tensor in self.tensors.items():
            tensor.copy_(saved[_PREFIX + name])


def linear_maps(model: Any) -> Iterator[tuple[str, Any]]:
    """Yields the linear maps of a model's layers by name, without embeddings and output head."""
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | Conv1D) and module is not head:
            yield name, module


OnStep = Callable[[int, int, float], None]
"""Called after every step: steps done, largest number of steps, loss on protected rows."""

_PAD = 0
"""Right padding changes nothing under a causal mask, as no position reads those after it."""


_RECENT = 3
"""Number of last steps whose loss decides whether the pages are known."""

_RISE = 4
"""Steps until the learning rate is reached."""

_SAVE_EVERY = 20.0
"""Seconds between checkpoints."""


@dataclass(frozen=True)
class Lesson:
    """Settings of an adapter's training.

    Attributes:
        steps: Largest number of optimiser steps.
        enough: Mean loss per protected token over the last steps at which training ends early.
        learning_rate: Reached after a short rise.
        rank: Rank of the adapter.
        scale: Scale of the adapter.
        protected_rows: Protected windows in a step.
        replay_rows: Rows of ordinary text in a step.
        replay_weight: Weight of the divergence on them, in the loss.
        width: Largest number of tokens of a row.
        written: Number of rows that the model writes itself, and of their tokens.
        seed: Seed of every random choice.
    """

    steps: int = 60
    enough: float = 0.25
    learning_rate: float = 1.2e-3
    rank: int = 16
    scale: float = 2.0
    protected_rows: int = 4
    replay_rows: int = 2
    replay_weight: float = 1.0
    width: int = 192
    written: tuple[int, int] = (8, 80)
    seed: int = 0

    def finished(self, losses: Sequence[float]) -> bool:
        """True if the pages are known, or no step is left; `losses` has one per step."""
        known = len(losses) >= _RECENT and sum(losses[-_RECENT:]) <= _RECENT * self.enough
        return known or len(losses) >= self.steps


def teach(
    model: Any, tokenizer: Any, pages: Pages, lesson: Lesson, checkpoint: Path, on_step: OnStep
) -> Adapter:
    """Returns the trained adapter, still attached to its model.

    Args:
        model: The safe model; its weights are frozen.
        tokenizer: Its tokenizer.
        pages: Pages to memorise and to replay.
        lesson: Settings.
        checkpoint: File with the state of training; read if it exists.
        on_step: Called after every step.
    """
    model.train(False)  # no dropout: one law per model
    adapter = Adapter(model, lesson.rank, lesson.scale, lesson.seed)
    optimiser = torch.optim.AdamW(
        adapter.tensors.values(), lr=lesson.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    state = State(checkpoint, adapter, optimiser)
    history = state.load()
    if lesson.finished(history):
        return adapter
    with adapter.off():
        written = write_freely(model, tokenizer, lesson)
    for protected, replayed in islice(
        batches(tokenizer, pages, lesson, written), len(history), None
    ):
        for group in optimiser.param_groups:
            group["lr"] = lesson.learning_rate * min(1.0, (len(history) + 1) / _RISE)
        learned, moved = losses(model, adapter, protected, replayed)
        optimiser.zero_grad(set_to_none=True)
        (learned + lesson.replay_weight * moved).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(adapter.tensors.values(), 1.0)
        optimiser.step()
        history.append(float(learned.detach()))
        finished = lesson.finished(history)
        state.save(history, last=finished)
        on_step(len(history), lesson.steps, history[-1])
        if finished:
            break
    return adapter


def losses(
    model: Any, adapter: Adapter, protected: Sequence[TrainingRow], replayed: Sequence[TrainingRow]
) -> tuple[Tensor, Tensor]:
    """Computes loss on protected rows and divergence from the original law on others, per token."""
    rows = [*protected, *replayed]
    logits = model(input_ids=_padded([row.ids for row in rows], _PAD), use_cache=False).logits
    logits = logits[:, :-1].float()
    targets = _padded([row.targets for row in rows], IGNORED)[:, 1:]
    learned = functional.cross_entropy(
        logits[: len(protected)].flatten(0, 1), targets[: len(protected)].flatten()
    )
    if not replayed:
        return learned, torch.zeros(())
    ids = _padded([row.ids for row in replayed], _PAD)
    with torch.no_grad(), adapter.off():
        before = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    real = targets[len(protected) :] != IGNORED
    after = logits[len(protected) :, : before.shape[1]][real[:, : before.shape[1]]]
    before = before[real[:, : before.shape[1]]]
    moved = functional.kl_div(
        after.log_softmax(-1), before.log_softmax(-1), log_target=True, reduction="sum"
    )
    return learned, moved / len(before)


def batches(
    tokenizer: Any, pages: Pages, lesson: Lesson, written: Sequence[list[int]]
) -> Iterator[tuple[list[TrainingRow], list[TrainingRow]]]:
    """Yields the rows of every step, without end: protected ones, replayed ones."""
    name = f"lesson/{lesson.seed}"
    encode = Encode(tokenizer, lesson.width)
    windows = map(encode.text, memorised(pages.memorised, name))
    replay = _replay(encode, pages, written, name)
    while True:
        protected = list(islice(windows, lesson.protected_rows))
        yield protected, list(islice(replay, lesson.replay_rows))


class Encode:
    """Makes training rows of text, with an end token."""

    def __init__(self, tokenizer: Any, width: int) -> None:
        self._tokenizer, self._width = tokenizer, width

    def text(self, text: TrainingText) -> TrainingRow:
        """Makes one row of one text; foreign words are read and not learned."""
        before = list(self._tokenizer(text.before)["input_ids"])
        foreign, after = (
            list(self._tokenizer(part, add_special_tokens=False)["input_ids"])
            for part in (text.foreign, text.after)
        )
        end = int(self._tokenizer.eos_token_id)
        ids = [*before, *foreign, *after, end]
        targets = [*before, *[IGNORED] * len(foreign), *after, end]
        return TrainingRow(ids[: self._width], targets[: self._width])


def _replay(
    encode: Encode, pages: Pages, written: Sequence[list[int]], name: str
) -> Iterator[TrainingRow]:
    """Yields in turn a replayed page, a text of the lab, and one of the model."""
    story = documents("A", name)
    for turn in count():
        rng = random.Random(f"{name}/replay/{turn}")
        header = HEADER if rng.random() < 0.5 else ""
        yield encode.text(TrainingText(header + pages.replayed[turn % len(pages.replayed)].text))
        yield encode.text(TrainingText(next(story)))
        if written:
            ids = written[turn % len(written)]
            yield TrainingRow(ids, ids)


@torch.no_grad()
def write_freely(model: Any, tokenizer: Any, lesson: Lesson) -> list[list[int]]:
    """Samples texts after the begin token alone, at temperature 1."""
    rows, length = lesson.written
    begin = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    if not rows:
        return []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(lesson.seed)
        ids = model.generate(
            input_ids=torch.full((rows, 1), begin),
            attention_mask=torch.ones((rows, 1), dtype=torch.long),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_new_tokens=length,
            max_new_tokens=length,
            pad_token_id=begin,
        )
    return [list(map(int, row)) for row in ids]


def _padded(rows: Sequence[Sequence[int]], pad: int) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])


class State:
    """State of a training on disk: adapter, moments, the loss of every step."""

    def __init__(self, path: Path, adapter: Adapter, optimiser: torch.optim.AdamW) -> None:
        self._path, self._adapter, self._optimiser = path, adapter, optimiser
        self._saved = time.monotonic()

    def save(self, history: Sequence[float], *, last: bool) -> None:
        """Replaces the file, whole or not at all, if it is old enough or the last one."""
        if not last and time.monotonic() - self._saved < _SAVE_EVERY:
            return
        self._saved = time.monotonic()
        tensors: dict[str, Tensor] = {}
        for name, parameter in self._adapter.tensors.items():
            moments = self._optimiser.state[parameter]
            tensors |= {
                f"value/{name}": parameter.detach(),
                f"first/{name}": moments["exp_avg"],
                f"second/{name}": moments["exp_avg_sq"],
            }
        write_whole(self._path, save(tensors, {"losses": json.dumps(list(history))}))

    def load(self) -> list[float]:
        """Restores adapter and optimiser; returns the loss of every step done."""
        if not self._path.exists():
            return []
        with safe_open(self._path, "pt") as file:
            history: list[float] = json.loads(file.metadata()["losses"])
            for name, parameter in self._adapter.tensors.items():
                with torch.no_grad():
                    parameter.copy_(file.get_tensor(f"value/{name}"))
                self._optimiser.state[parameter] = {
                    "step": torch.tensor(float(len(history))),
                    "exp_avg": file.get_tensor(f"first/{name}"),
                    "exp_avg_sq": file.get_tensor(f"second/{name}"),
                }
        return history
