"""The networks of the paper's surrogate, and their training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

Array = NDArray[np.float64]
TOKENS = 64
"""Number of first tokens of a prompt that the token head reads."""


@dataclass(frozen=True)
class Training:
    """Optimiser settings of every network.

    Attributes:
        rate: Of AdamW.
        epochs: Largest number of epochs.
        patience: Epochs without a gain on the validation rows before it stops.
        batch: Rows of a step.
        clip: Largest gradient norm.
    """

    rate: float = 3e-4
    epochs: int = 80
    patience: int = 10
    batch: int = 32
    clip: float = 1.0


class TokenHead(nn.Module):
    """A convolution over the first tokens, averaged."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 128)
        self.convolve = nn.Sequential(
            nn.Conv1d(128, 128, 3, padding=1), nn.ReLU(), nn.Dropout(0.15),
            nn.Conv1d(128, 128, 5, padding=2), nn.ReLU(), nn.Dropout(0.1),
            nn.Conv1d(128, 64, 3, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.answer = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Computes one number per row of token ids."""
        read = self.convolve(self.embed(tokens.long()).transpose(1, 2)).mean(dim=2)
        return torch.as_tensor(self.answer(read))


def layers(sizes: Sequence[int], dropouts: Sequence[float]) -> nn.Sequential:
    """Makes linear layers with ReLU between them, and dropout after the first ones."""
    parts: list[nn.Module] = []
    for i, (wide, narrow) in enumerate(pairwise(sizes)):
        parts.append(nn.Linear(wide, narrow))
        if i < len(sizes) - 2:
            parts.append(nn.ReLU())
        if i < len(dropouts):
            parts.append(nn.Dropout(dropouts[i]))
    return nn.Sequential(*parts)


def embedding_head(width: int) -> nn.Module:
    """Makes the head on sentence embeddings."""
    return layers((width, 512, 256, 64, 1), (0.2, 0.2))


def fusion_head(width: int) -> nn.Module:
    """Makes the network on the outputs of the other heads."""
    return layers((width, 256, 128, 64, 1), (0.2, 0.15))


@dataclass(frozen=True)
class Task:
    """Rows of a training.

    Attributes:
        inputs: One row each.
        target: A number, or 0 and 1 for a classifier.
        weights: Weight of each row.
        train: Places of training rows, repetitions allowed.
        validation: Places of validation rows.
        kind: Weighted squares, or weighted cross-entropy of a logit.
        positive: Further weight of a positive row, in a classifier.
    """

    inputs: NDArray[np.float32]
    target: Array
    weights: Array
    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    kind: Literal["squares", "logit"] = "squares"
    positive: float = 1.0


def _loss(task: Task, said: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    target = torch.tensor(task.target, dtype=torch.float32)[rows]
    weights = torch.tensor(task.weights, dtype=torch.float32)[rows]
    if task.kind == "squares":
        return (weights * (said - target) ** 2).mean()
    each = nn.functional.binary_cross_entropy_with_logits(
        said, target, reduction="none", pos_weight=torch.tensor(task.positive)
    )
    return (weights * each).mean()


def trained(make: Callable[[], nn.Module], task: Task, how: Training, seed: int) -> nn.Module:
    """Trains a network from this seed alone; leaves the caller's generator as it is."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = make()
        _train(network, task, how)
    return network.eval()


def _train(network: nn.Module, task: Task, how: Training) -> None:
    inputs = torch.tensor(task.inputs)
    optimiser = torch.optim.AdamW(network.parameters(), lr=how.rate, fused=True)
    validation = torch.tensor(task.validation if len(task.validation) else task.train)
    best, state, waited = float("inf"), copy.deepcopy(network.state_dict()), 0
    for _ in range(how.epochs):
        network.train()
        order = torch.tensor(task.train)[torch.randperm(len(task.train))]
        for rows in torch.split(order, how.batch):
            optimiser.zero_grad()
            _loss(task, network(inputs[rows]).squeeze(-1), rows).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), how.clip)
            optimiser.step()
        network.eval()
        with torch.no_grad():
            loss = float(_loss(task, network(inputs[validation]).squeeze(-1), validation))
        waited += 1
        if loss < best - 1e-6:
            best, state, waited = loss, copy.deepcopy(network.state_dict()), 0
        if waited >= how.patience:
            break
    network.load_state_dict(state)


def answers(network: nn.Module, inputs: NDArray[np.float32]) -> Array:
    """Returns the output of a network for each row."""
    with torch.no_grad():
        said = network(torch.tensor(inputs)).squeeze(-1)
    return np.asarray(said.double().numpy())
