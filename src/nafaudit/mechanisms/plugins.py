"""Loads plug-ins: classes found by name, and identified by the hash of their source."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
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
    return _made(load_class(spec, what), spec, *arguments, what=what)


def build_recorded(spec: str, recorded: str, file: Path) -> Any:
    """Makes one of a class that a run names, from a file that the user names.

    The source is compared before any of it runs, and what runs is what was compared. What the
    run's name could mean to Python's own search for modules is never asked.

    Args:
        spec: `package.module:Class` or `file.py:Class`, as the run says.
        recorded: Hash of the source that the run was made with.
        file: Where the user has that source.

    Raises:
        InputError: The file is not that source, or nothing can be built of it.
    """
    class_name = spec.rpartition(":")[2]
    try:
        source = file.read_bytes()
        found = _hash(importlib.util.decode_source(source))
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise InputError(
            f"plug-in {str(file)!r} cannot be read as Python source: {error}. Give the file that "
            f"defines {class_name}."
        ) from error
    if found != recorded:
        raise InputError(
            f"the run was made by {spec!r} of source {recorded}; {str(file)!r} is source {found}. "
            "Nothing of it was run. Give the file that the run was made with, unchanged."
        )
    try:
        made = getattr(_module_of_source(file.resolve(), source), class_name)
    except (Exception, SystemExit) as error:
        raise InputError(
            f"cannot build mechanism {spec!r} from {str(file)!r}: {type(error).__name__}: {error}."
        ) from error
    return _made(made, spec)


def _made(found: Any, spec: str, *arguments: object, what: str = "mechanism") -> Any:
    try:
        return found(*arguments)
    except (Exception, SystemExit) as error:
        how = "with one argument, the world" if arguments else "without arguments"
        raise InputError(
            f"cannot build {what} {spec!r}: {type(error).__name__}: {error}. Its class is built "
            f"{how}."
        ) from error


def source_hash(plugin: object) -> str:
    """Returns a short hash of the module's source: an edited plug-in is another plug-in."""
    module = inspect.getmodule(type(plugin))
    try:
        source = inspect.getsource(module) if module else ""
    except (OSError, TypeError):
        source = ""
    return _hash(source)


def _hash(source: str) -> str:
    # As inspect gives it: a last line ends.
    text = source if not source or source.endswith("\n") else f"{source}\n"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


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


class _Read(SourceFileLoader):
    """Runs source that was read already: neither the file again nor compiled code beside it."""

    def __init__(self, name: str, path: Path, source: bytes) -> None:
        super().__init__(name, str(path))
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self._source, self.path)


def _module_of_source(where: Path, source: bytes) -> ModuleType:
    """Makes a module of source; what stands beside its file, or its package, can be imported by it.

    Args:
        where: Its file.
        source: What the file holds.
    """
    package = where.name == "__init__.py"
    place = where.parent if package else where.with_suffix("")
    name, root = place.name, place.parent
    while (root / "__init__.py").is_file() and root != root.parent:
        name, root = f"{root.name}.{name}", root.parent
    # A name that no import asks for: nothing that is there is replaced, and a package that imports
    # this file does not find it half made.
    name = f"{name}@{hashlib.sha256(source).hexdigest()[:12]}"
    found = importlib.util.spec_from_file_location(
        name,
        where,
        loader=_Read(name, where, source),
        submodule_search_locations=[str(where.parent)] if package else None,
    )
    if found is None or found.loader is None:
        raise ImportError(f"{str(where)!r} is not a Python file")
    if str(root) not in sys.path:
        sys.path.append(str(root))
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
