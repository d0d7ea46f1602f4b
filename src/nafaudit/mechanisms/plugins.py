"""Loads plug-ins: classes found by name, and identified by the hash of their source."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import pickle
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from nafaudit.core.errors import InputError
from nafaudit.core.named_objects import OBJECT_PREFIX, object_named


def load_class(spec: str, what: str = "mechanism") -> Any:
    """Returns the class that `package.module:Class` or `file.py:Class` names.

    Args:
        spec: The name; a file is found from the current directory.
        what: What the class should be, for the error.

    Raises:
        InputError: It cannot be imported; the message says why.
    """
    if (given := object_named(spec)) is not None:
        return given if isinstance(given, type) else type(given)
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
    """Loads a class and makes one of it; an object that was given under the name is taken as is."""
    given = object_named(spec)
    if given is not None and not isinstance(given, type):
        return given
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
    """Returns a short hash of the module's source: an edited plug-in is another plug-in.

    Of a class without a source file, of its compiled code; of an object that differs from a new
    one of its class, of its state too.
    """
    source = _source_of(type(plugin))
    text = source or repr(_code_of(type(plugin), set()))
    state = _state_of(plugin) if object_named(_object_name(plugin)) is plugin else ""
    return _hash(f"{text}{state}" if state else text)


def name_of_object(given: Any, what: str, *, rules: bool = False) -> tuple[str, str]:
    """Names a mechanism or a decoder that is an object or a class.

    The name is the one that the command line would have, if that makes the same object again;
    otherwise it says that nothing can.

    Args:
        given: The object, or its class.
        what: mechanism or decoder, for errors.
        rules: True if a rule will do for a decoder.

    Returns:
        The name, and a remark for the user; empty if there is nothing to say.

    Raises:
        InputError: It is no mechanism or decoder; the message says what is one.
    """
    parts = ("serve",), ("plan", "choose"), ("rule", "ledger", "debt")
    wanted = (("decode",), *parts) if rules else (("decode",),) if what == "decoder" else parts
    # The parts of a whole mechanism may be set by its __init__.
    made = given() if isinstance(given, type) and what == "mechanism" and _plain(given) else given
    # Strings of bytes have a `decode` too.
    built_in = (given if isinstance(given, type) else type(given)).__module__ == "builtins"
    if built_in or not any(all(hasattr(made, name) for name in one) for one in wanted):
        form = "; or with ".join(" and ".join(one) for one in wanted)
        raise InputError(
            f"{what} must be a name, or an object with {form} (see nafaudit.protocols); got "
            f"{given if isinstance(given, type) else type(given)}."
        )
    kind = given if isinstance(given, type) else type(given)
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    simple = "." not in kind.__qualname__ and getattr(module, kind.__name__, None) is kind
    if not simple or file is None or not _source_of(kind):
        why = "its class is in no file (as in a notebook)"
        if file is not None and not simple:
            why = f"its class {kind.__qualname__} has no name of its own in a module"
    elif not isinstance(given, type) and hasattr(given, "decode"):
        why = "it is not a class, which would be built with the world"
    elif not isinstance(given, type) and not _as_new(given):
        why = f"it differs from what {kind.__name__}() makes"
    elif kind.__module__ != "__main__":
        return f"{kind.__module__}:{kind.__name__}", ""
    else:
        path = Path(file).resolve()
        beside = path.is_relative_to(Path.cwd())
        name = f"{path.relative_to(Path.cwd()) if beside else path}:{kind.__name__}"
        return name, _HERE if hasattr(given, "decode") else ""
    once = f"the {what} is an object that cannot be made again from a name, as {why}"
    if hasattr(given, "decode"):
        return _object_name(given), f"{once}; the run records it as such. {_HERE}"
    return _object_name(given), (
        f"{once}: the run records it as such, and can be verified only with the object itself, "
        f"nafaudit.verify(run, mechanism=...)."
    )


_HERE = (
    "The decoder runs in this process: no time limit holds for it, and if it ends the process, the "
    "audit ends too."
)


def _object_name(given: object) -> str:
    return f"{OBJECT_PREFIX}{(given if isinstance(given, type) else type(given)).__name__}"


def _plain(kind: type) -> bool:
    """Returns True if a class can be built without arguments."""
    try:
        kind()
    except Exception:
        return False
    return True


def _as_new(given: object) -> bool:
    """Returns True if an object is what its class makes without arguments."""
    try:
        return _state_of(given) == _state_of(type(given)())
    except Exception:  # their code; it cannot be built, or not compared
        return False


def _state_of(given: object) -> str:
    """Describes the attributes of an object; of what cannot be written, the place in memory."""
    try:
        state = vars(given)
    except TypeError:
        names = [name for kind in type(given).__mro__ for name in getattr(kind, "__slots__", ())]
        state = {name: getattr(given, name, None) for name in names}
    if not state:
        return ""
    try:
        return hashlib.sha256(pickle.dumps(sorted(state.items()), protocol=5)).hexdigest()
    except Exception:
        return repr(sorted((name, id(value)) for name, value in state.items()))


def _source_of(kind: type) -> str:
    """Returns the source of the module that defines a class; empty if there is none."""
    module = inspect.getmodule(kind)
    try:
        return inspect.getsource(module) if module else ""
    except (OSError, TypeError):
        return ""


def _code_of(thing: Any, seen: set[int]) -> Any:
    """Describes compiled code: a function or a class, and what of the same session it calls.

    Args:
        thing: A function, a class, or any value that one of them names.
        seen: What was described already.
    """
    if id(thing) in seen:
        return "again"
    seen.add(id(thing))
    if isinstance(thing, CodeType):
        constants = [_code_of(c, seen) if isinstance(c, CodeType) else repr(c)
                     for c in thing.co_consts]  # fmt: skip
        return (thing.co_code.hex(), thing.co_names, thing.co_varnames, constants)
    if isinstance(thing, type):
        bases = [
            _code_of(b, seen) for b in thing.__bases__ if not _source_of(b) and b is not object
        ]
        own = {n: _code_of(v, seen) for n, v in sorted(vars(thing).items()) if n[:2] != "__"
               or n in ("__init__", "__call__", "__post_init__")}  # fmt: skip
        return (thing.__qualname__, bases, own)
    function = getattr(thing, "__func__", getattr(thing, "fget", thing))
    code = getattr(function, "__code__", None)
    if code is None:
        return repr(thing) if isinstance(thing, str | bytes | int | float | tuple | None) else ""
    called = {}
    for name in _names_in(code):
        value = function.__globals__.get(name)
        inside = getattr(value, "__module__", None) == function.__module__
        if inside or isinstance(value, str | bytes | int | float | tuple):
            called[name] = _code_of(value, seen)
    defaults = repr(function.__defaults__), repr(function.__kwdefaults__)
    cells = [repr(c.cell_contents) for c in function.__closure__ or () if not callable(
        c.cell_contents)]  # fmt: skip
    return (_code_of(code, seen), called, defaults, cells)


def _names_in(code: CodeType) -> list[str]:
    """Returns the names that code looks up outside itself, nested functions included."""
    inner = [c for c in code.co_consts if isinstance(c, CodeType)]
    return sorted({*code.co_names, *(name for one in inner for name in _names_in(one))})


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
