"""Shared fixtures: tiny random checkpoints, built once per session and loaded from disk."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

# Nothing here may reach for a model hub.
os.environ["HF_HUB_OFFLINE"] = "1"

settings.register_profile("nafaudit", deadline=None, derandomize=True)
settings.load_profile("nafaudit")

GOLDEN = Path(__file__).parent / "golden"


def golden(name: str) -> list[dict[str, str]]:
    """Rows of a table of reference values."""
    with (GOLDEN / f"{name}.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="session")
def tiny_pair_paths(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], tuple[Path, Path]]:
    """Builds (once) and returns the checkpoints of a tiny pair of an architecture."""
    from nafaudit.lab.tiny import build_pair

    directory = tmp_path_factory.mktemp("pairs")

    @cache
    def paths(architecture: str = "llama") -> tuple[Path, Path]:
        return build_pair(directory, architecture)

    return paths


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
