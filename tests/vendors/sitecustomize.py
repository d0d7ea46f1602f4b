"""Makes every Python process with this directory on its path compute as another vendor's.

Torch is not imported here: its functions are replaced when somebody imports it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

_MODULE = "torch.nn.functional"


def _install(functional: Any) -> None:
    path = Path(__file__).with_name("arithmetic.py")
    spec = importlib.util.spec_from_file_location("vendor_arithmetic", path)
    assert spec is not None and spec.loader is not None
    arithmetic = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(arithmetic)
    arithmetic.install(os.environ["NAFAUDIT_TEST_ARITHMETIC"], functional, sys.modules["torch"])


class _Finder:
    """Finds one module as always, and replaces its functions once it is there."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                _install(module)

            loader.exec_module = exec_module
        return spec


if os.environ.get("NAFAUDIT_TEST_ARITHMETIC"):
    sys.meta_path.insert(0, _Finder)
