"""One place from which the lab's tests get their pairs and their decoder."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from nafaudit.workshop.memorise import LabDecoder
from nafaudit.workshop.pair_facts import Decode, LabPair, load_pair


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Fixes the thread count: sampled numbers then repeat on one kind of CPU."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def pair() -> LabPair:
    """The shipped pair."""
    return load_pair()


@pytest.fixture(scope="session")
def pair2() -> LabPair:
    """The shipped risky model with the second anchor."""
    return load_pair(anchor="safe2")


@pytest.fixture(scope="session")
def make_decoder() -> Callable[[LabPair], Decode]:
    """Makes a budgeted decoder; swap the engine in here."""
    return LabDecoder


@pytest.fixture(scope="session")
def decode(pair: LabPair, make_decoder: Callable[[LabPair], Decode]) -> Decode:
    """The shipped pair's budgeted decoder."""
    return make_decoder(pair)
