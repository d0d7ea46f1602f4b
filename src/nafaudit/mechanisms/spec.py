"""The grammar of `--mechanism NAME[:option=value,...]`, read once, before any model loads."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nafaudit.core.errors import InputError, nearest
from nafaudit.mechanisms.cards import CARDS, Card, Option

Value = float | int | str


@dataclass(frozen=True)
class Spec:
    """A registered mechanism and its options.

    Attributes:
        card: Which one.
        given: Every option, those that were not given at their default.
    """

    card: Card
    given: Mapping[str, Value]

    @property
    def name(self) -> str:
        """The specification as records carry it: what differs from the defaults, in one order."""
        told = [
            f"{option.name}={_written(self.given[option.name])}"
            for option in self.card.options
            if option.name in self.given and self.given[option.name] != option.default
        ]
        return ":".join([self.card.name, ",".join(told)] if told else [self.card.name])

    def number(self, name: str) -> float:
        """An option that is a number."""
        return float(self.given[name])

    def count(self, name: str) -> int:
        """An option that is a whole number."""
        return int(self.given[name])

    def word(self, name: str) -> str:
        """An option that is a word or a file; empty if it was not given."""
        return str(self.given.get(name, ""))


def parse(spec: str) -> Spec | None:
    """Reads a specification; None if its name is not registered.

    Raises:
        InputError: An option is unknown, given twice or missing, or has a value that is not
            allowed; the message names it, what is allowed, and the nearest good name.
    """
    name, _, rest = spec.partition(":")
    found = next((card for card in CARDS if card.name == name), None)
    if found is None:
        return None
    given: dict[str, Value] = {}
    for place, part in enumerate(rest.split(",") if rest else ()):
        key, equals, value = part.partition("=")
        if not equals and place == 0 and found.options:
            key, value = found.options[0].name, part
        option = _option(found, key.strip(), spec)
        if option.name in given:
            raise InputError(f"mechanism {spec!r}: {option.name} is given twice; give it once.")
        given[option.name] = _value(option, value.strip(), spec)
    for option in found.options:
        if option.name in given:
            continue
        if option.default is None and option.kind != "file":
            raise InputError(
                f"mechanism {spec!r} needs {option.name} ({option.text}), for example "
                f"{found.name}:{option.name}=4; it is {option.allowed}."
            )
        if option.default is not None:
            given[option.name] = option.default
    return Spec(found, given)


def verified_with(spec: str) -> str:
    """What has to follow `nafaudit verify RUN` for this mechanism: a plug-in's file, or nothing."""
    file, colon, _ = spec.rpartition(":")
    if not colon or parse(spec) is not None:
        return ""
    return f" --plugin {shlex.quote(file) if file.endswith('.py') else 'FILE'}"


def unknown(spec: str) -> InputError:
    """What to say of a name that is neither registered nor a class."""
    known = [card.name for card in CARDS]
    return InputError(
        f"unknown mechanism {spec!r}{nearest(spec.partition(':')[0], known)} Known: "
        f"{', '.join(known)} (nafaudit mechanisms); your own is package.module:Class or "
        "file.py:Class."
    )


def _option(card: Card, name: str, spec: str) -> Option:
    for option in card.options:
        if option.name == name:
            return option
    names = [option.name for option in card.options]
    takes = f"Its options: {', '.join(names)}." if names else "It takes none."
    raise InputError(
        f"mechanism {spec!r}: {card.name} has no option {name!r}{nearest(name, names)} {takes}"
    )


def _value(option: Option, value: str, spec: str) -> Value:
    wrong = InputError(
        f"mechanism {spec!r}: {option.name} must be {option.allowed} ({option.text}), got "
        f"{value!r}{nearest(value, option.words)}"
    )
    if option.kind == "word":
        if value not in option.words:
            raise wrong
        return value
    if option.kind == "file":
        if not Path(value).is_file():
            raise InputError(
                f"mechanism {spec!r}: {option.name} must be a file ({option.text}); there is none "
                f"at {value!r}."
            )
        return value
    try:
        number = int(value) if option.kind == "count" else float(value)
    except ValueError:
        raise wrong from None
    if not option.least <= number <= option.most:  # NaN is not
        raise wrong
    return number


def _written(value: Value) -> str:
    """A value that reads back as itself."""
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value)
