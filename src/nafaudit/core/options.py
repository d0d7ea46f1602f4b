"""Options: each is declared once, for the command line, design files and Python.

A group of options is a frozen dataclass that derives from `Group` and whose fields are made by
`option`; the settings of a command inherit the groups that it has. Names are flat everywhere: the
field `temperature` is `--temperature` on the command line, `temperature = 1` in a design file and
`temperature=1` in Python. A wrong name or value is an error that says what was given, what is
allowed and what to do, before any model loads.
"""

from __future__ import annotations

import numbers
import tomllib
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from nafaudit.core.errors import InputError, nearest, reject_unknown


@dataclass(frozen=True)
class OptionInfo:
    """Everything that is known of one option besides its type and default.

    Attributes:
        help: A sentence without its default, which is added.
        section: Heading of the help under which it stands.
        common: True for an option that most users meet first.
        least: Smallest value that is allowed; in a list, of each entry.
        above: Value that it must exceed.
        below: Value that it must stay under.
        unit: Follows the limit in an error, with a space before it.
        why: Follows an error on a value out of range.
        choices: Words that are allowed.
        unset: Stands for the default in the help; `-` if nothing is to be said.
        form: What a list or table must be on the command line, with an example.
        file_form: What it must be in a design file.
        read: Reads the value from a design file: takes it, the option's name and the file.
        split: False if the parts of a list are separate words, as an entry may have commas.
        metavar: Placeholder in the help.
        name: The user's name of it, if that is not the field's.
        bare: Value of the option if it stands without one.
        argument: True if it is given by its place instead of its name.
        hidden: True if the help leaves it out.
    """

    help: str
    section: str = "Options"
    common: bool = False
    least: float | None = None
    above: float | None = None
    below: float | None = None
    unit: str = ""
    why: str = ""
    choices: tuple[str, ...] = ()
    unset: str = ""
    form: str = ""
    file_form: str = ""
    read: Callable[[Any, str, Path], Any] | None = None
    split: bool = True
    metavar: str = ""
    name: str = ""
    bare: str = ""
    argument: bool = False
    hidden: bool = False


def option(default: Any, text: str, **known: Any) -> Any:
    """Returns a dataclass field that is an option; `...` as the default makes it required."""
    about = {"option": OptionInfo(text, **known)}
    if default is ...:
        return field(metadata=about)
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=about)
    return field(default=default, metadata=about)


@dataclass(frozen=True)
class Declared:
    """An option of a settings class.

    Attributes:
        field: Its name as a field of the class.
        type: As annotated.
        default: `dataclasses.MISSING` if it must be given.
        about: What else is known.
    """

    field: str
    type: Any
    default: Any
    about: OptionInfo

    @property
    def name(self) -> str:
        """Name in design files and in Python."""
        return self.about.name or self.field

    @property
    def flag(self) -> str:
        """Name on the command line, without its dashes."""
        return self.name.replace("_", "-")

    @property
    def kinds(self) -> tuple[Any, ...]:
        """Types that it may have, None apart."""
        given = get_args(self.type) if isinstance(self.type, types.UnionType) else (self.type,)
        return tuple(kind for kind in given if kind is not type(None))

    @property
    def shape(self) -> Any:
        """`tuple` for lists, `Mapping` for tables, else the type itself."""
        return get_origin(self.kinds[0]) or self.kinds[0]

    @property
    def entry(self) -> Any:
        """Type of the entries of a list, or of the values of a table."""
        parts = get_args(self.kinds[0])
        return parts[0] if self.shape is tuple else parts[1]

    def default_words(self) -> str:
        """Returns the default as the help shows it; empty if there is nothing to say."""
        if self.about.unset:
            return "" if self.about.unset == "-" else self.about.unset
        if self.default is MISSING or self.default in (None, (), {}):
            return ""
        if isinstance(self.default, bool):
            return "yes" if self.default else "no"
        listed = self.default if isinstance(self.default, tuple) else (self.default,)
        return ",".join(f"{v:g}" if isinstance(v, float) else str(v) for v in listed)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Options that belong together; subclasses check what their options mean for each other.

    Attributes:
        unlisted: Options that the command line does not have, as a class inherits them only for
            what is shared with other commands.
        refused: Options that are known only to be refused, with the reason.
    """

    unlisted: ClassVar[frozenset[str]] = frozenset()
    refused: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        for one in declared(type(self)):
            value = getattr(self, one.field)
            for each in value if isinstance(value, tuple) else (value,):
                _check(one, each)

    @classmethod
    def defaults(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Defaults that depend on what is given, such as those of a protocol."""
        return {}


S = TypeVar("S", bound=Group)


_DECLARED: dict[type[Group], tuple[Declared, ...]] = {}


def declared(settings: type[Group]) -> tuple[Declared, ...]:
    """Returns every option of a settings class, in order."""
    if settings in _DECLARED:
        return _DECLARED[settings]
    hints = get_type_hints(settings)
    found = []
    for one in fields(settings):
        if "option" in one.metadata:
            made = one.default_factory is not MISSING
            default = one.default_factory() if made else one.default  # type: ignore[operator]
            found.append(Declared(one.name, hints[one.name], default, one.metadata["option"]))
    _DECLARED[settings] = tuple(found)
    return _DECLARED[settings]


def build(settings: type[S], given: Mapping[str, Any], where: str = "") -> S:
    """Makes settings of flat names.

    Args:
        settings: Their class.
        given: Values by the names of the options; None means not given.
        where: The file that they come from, for errors.

    Raises:
        InputError: A name is unknown, or a value is not allowed.
    """
    known = {one.name: one for one in declared(settings)}
    found = _recognised(settings, given, where)
    found = {name: _typed(known[name], value, where) for name, value in found.items()}
    values = settings.defaults(found) | found
    return settings(**{known[name].field: value for name, value in values.items()})


def load(settings: type[S], design: Path | None, given: Mapping[str, Any]) -> S:
    """Merges defaults, a design file and what else is given, in this order.

    Args:
        settings: Class of the settings.
        design: A TOML file with the names of its options, or None.
        given: Values from the command line or from Python; None means not given.
    """
    found = {} if design is None else read_design(settings, design)
    return build(settings, found | {name: v for name, v in given.items() if v is not None})


def read_design(settings: type[Group], path: Path) -> dict[str, Any]:
    """Reads the options that a design file gives.

    Raises:
        InputError: It cannot be read, or has a key or a value that is not allowed.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror}; give a TOML file with the names of the command's options."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a TOML file: {error}.") from error
    named = {key.replace("-", "_"): value for key, value in data.items()}
    for key in data:
        if "-" in key and key.replace("-", "_") in data:
            raise InputError(
                f"{path}: {key} and {key.replace('-', '_')} are one key; give it once."
            )
    known = {one.name: one for one in declared(settings)}
    if isinstance(named.get("classes"), dict) and "corpus" in known:
        # `classes = [...]` chooses classes, `[classes.NAME]` says what they are.
        named["corpus"] = named.pop("classes")
    found = {}
    for name, value in _recognised(settings, named, str(path)).items():
        read = known[name].about.read
        found[name] = read(value, name, path) if read else _typed(known[name], value, str(path))
    return found


def _recognised(settings: type[Group], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns what is given, if every name is an option's."""
    found = {name: value for name, value in given.items() if value is not None}
    for name in found:
        if name in settings.refused:
            reason = settings.refused[name]
            at = f"{where}: " if where else ""
            flag = name.replace("_", "-")
            raise InputError(f"{at}{flag} = {found[name]} is refused: {reason}")
    reject_unknown(found, [one.name for one in declared(settings)], where)
    return found


def _typed(one: Declared, value: Any, where: str) -> Any:
    """Returns a value of a design file or of Python, if it has the type of its option."""
    at = f"{where}: " if where else ""
    if one.shape is tuple:
        values = list(value) if isinstance(value, list | tuple | set | frozenset) else [value]
        if all(_is(one.entry, each) for each in values):
            return tuple(one.entry(each) for each in values)
        kind = "a list of names" if one.entry in (str, Path) else "a number or a list of numbers"
        raise InputError(f"{at}{one.name} must be {one.about.file_form or kind}, got {value!r}.")
    if one.shape is Mapping:
        simple = one.entry in (int, str)
        if isinstance(value, Mapping) and (
            not simple or all(_is(one.entry, each) for each in value.values())
        ):
            return dict(value)
        kind = "a table of whole numbers" if one.entry is int else "a table of names"
        raise InputError(f"{at}{one.name} must be {one.about.file_form or kind}, got {value!r}.")
    for kind in one.kinds:
        if _is(kind, value):
            return kind(value)
    names = " or ".join("str" if kind is Path else kind.__name__ for kind in one.kinds)
    raise InputError(f"{at}{one.name} must be {names}, got {value!r}.")


def _is(kind: Any, value: Any) -> bool:
    """Returns True if a value can stand for one of a type without a change of meaning."""
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if kind in (str, Path):
        return isinstance(value, str | Path)
    return isinstance(value, numbers.Integral if kind is int else numbers.Real)


def from_words(one: Declared, words: Sequence[str]) -> Any:
    """Reads a list or a table as the command line has it: repeated, or between commas.

    Raises:
        InputError: It is none.
    """
    about, parts = one.about, list(words)
    if about.split:
        parts = [part.strip() for word in words for part in word.split(",") if part.strip()]
    if one.shape is tuple:
        whole = one.entry is not int or all(part.isdecimal() for part in parts)
        try:
            if whole:
                return tuple(one.entry(part) for part in parts)
        except ValueError:
            pass
        form = about.form or ("names, as a,b" if one.entry in (str, Path) else "numbers, as 3,5")
        raise InputError(f"{one.flag} must be {form}, got {','.join(words)!r}.")
    found: dict[str, Any] = {}
    for part in parts:
        name, _, value = part.rpartition("=") if one.entry is int else part.partition("=")
        good = value.strip().isdecimal() if one.entry is int else bool(value)
        if not name or not good:
            raise InputError(f"{one.flag} must be {about.form}, got {part!r}.")
        if name in found:
            raise InputError(f"{one.flag} of {name!r} is given twice; give it once.")
        found[name] = one.entry(value)
    return found


def _check(one: Declared, value: Any) -> None:
    """Raises for a value out of the range of its option."""
    about = one.about
    if value is None:
        return
    if about.choices and value not in about.choices:
        known = " or ".join(about.choices)
        raise InputError(
            f"{one.flag} must be {known}, got {value!r}{nearest(str(value), about.choices)}"
        )
    must = ""
    if about.below is not None and about.above is not None:
        if not about.above < value < about.below:
            must = f"above {about.above:g} and below {about.below:g}"
    elif about.above is not None and not value > about.above:
        must = f"above {about.above:g}"
    elif about.least is not None and not value >= about.least:
        must = f"at least {about.least:g}"
    if must:
        why = f" {about.why}" if about.why else ""
        raise InputError(f"{one.flag} must be {must}{about.unit}, got {value}.{why}")
