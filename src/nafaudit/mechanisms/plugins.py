"""Other people's classes: found by name, and known by the hash of their source.

Without it every door would load and identify plug-ins in its own way.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from nafaudit.core.errors import InputError


def load_class(spec: str, what: str = "mechanism") -> Any:
    """Returns the class that `package.module:Class` or `file.py:Class` names.

    Args:
        spec: The name; a file is found from the current directory.
        what: What the class should be, for the error.

    Raises:
        InputError: It cannot be imported; the message says why.
    """
    module_name, _, class_name = spec.rpartition(":")
    # A console script does not look in the directory it is called from; its user expects it to.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        if module_name.endswith(".py"):
            return getattr(_module_of(Path(module_name)), class_name)
        return getattr(importlib.import_module(module_name), class_name)
    except (Exception, SystemExit) as error:  # anything may happen while their code is imported
        raise InputError(
            f"cannot build {what} {spec!r}: {type(error).__name__}: {error}. Give "
            "package.module:Class, importable from here, or file.py:Class."
        ) from error


def build(spec: str, *arguments: object, what: str = "mechanism") -> Any:
    """Loads a class and makes one of it."""
    made = load_class(spec, what)
    try:
        return made(*arguments)
    except (Exception, SystemExit) as error:
        how = "with one argument, the world" if arguments else "without arguments"
        raise InputError(
            f"cannot build {what} {spec!r}: {type(error).__name__}: {error}. Its class is built "
            f"{how}."
        ) from error


def source_hash(plugin: object) -> str:
    """Short hash of the module's source: an edited plug-in is another plug-in."""
    module = inspect.getmodule(type(plugin))
    try:
        source = inspect.getsource(module) if module else ""
    except (OSError, TypeError):
        source = ""
    return hashlib.sha256(source.encode()).hexdigest()[:12]


def _module_of(path: Path) -> ModuleType:
    """Imports a file under its own name; what stands beside it can be imported by it."""
    where = path.resolve()
    if not where.is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r}")
    found = importlib.util.spec_from_file_location(where.stem, where)
    if found is None or found.loader is None:
        raise ImportError(f"{str(path)!r} is not a Python file")
    if (beside := str(where.parent)) not in sys.path:
        sys.path.append(beside)
    module = importlib.util.module_from_spec(found)
    # inspect finds the source of a class through the table of modules.
    sys.modules[where.stem] = module
    found.loader.exec_module(module)
    return module
