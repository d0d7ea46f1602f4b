"""Shared fixtures: tiny random checkpoints, built once per session and loaded from disk."""

from __future__ import annotations

import csv
import gc
import os
import sys
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import nafaudit  # noqa: F401  before torch computes
from tests import forks, snapshots
from tests.vendors import arithmetic

# A process that a test starts reads what was compiled before, also where Python was told to keep
# no bytecode: else each compiles the whole house.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Nothing here may reach for a model hub.
os.environ["HF_HUB_OFFLINE"] = "1"
# Before torch is loaded: threads that wait for a core that another test has must not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
if kind := os.environ.get(arithmetic.VARIABLE):
    import torch

    arithmetic.install(kind, torch.nn.functional, torch)
    vendors = str(Path(arithmetic.__file__).parent)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([vendors, *filter(None, paths)]))

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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option that writes snapshots anew."""
    parser.addoption("--update-snapshots", action="store_true", help="Write tests/snapshots anew.")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Looks for no cycles among what is imported: nothing of it is freed before the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
def snapshot(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with the snapshot of a name."""
    update = bool(request.config.getoption("--update-snapshots"))
    return lambda name, text: snapshots.compare(name, text, update=update)


def needs_free_rows(*models: Any, width: int) -> None:
    """Skips a test of what only holds where products do not depend on their number of rows."""
    from nafaudit.engine.proof import numerics_of

    if (how := numerics_of(models, width)).constant:
        pytest.skip(f"not tested here: {how.why}")


@pytest.fixture
def forked_decoders() -> Iterator[None]:
    """Black boxes are forks of this process, as importing torch takes seconds."""
    with forks.decoders():
        yield


@pytest.fixture(autouse=True, scope="session")
def _loaded_once() -> Iterator[None]:
    if "nafaudit.runner.workbench" not in sys.modules:  # a few light files, which must stay light
        yield
        return
    from tests import loaded

    with loaded.once():
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
