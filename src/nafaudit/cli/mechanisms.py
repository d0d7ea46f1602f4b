"""`nafaudit mechanisms`: what can be audited."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nafaudit.cli.echo import echo
from nafaudit.core.options import Group, option

if TYPE_CHECKING:
    from nafaudit.mechanisms.cards import Card, Option


@dataclass(frozen=True, kw_only=True)
class MechanismsSettings(Group):
    """Everything that `nafaudit mechanisms` takes."""

    name: str | None = option(None, "Only this one.", argument=True)


def mechanisms(settings: MechanismsSettings, *, as_json: bool) -> None:
    """Lists what can be audited: what it serves and promises, and how that is counted.

    Options follow a name: --mechanism renyi:4, --mechanism anchored:cap=20,bank=5.

    Example: nafaudit mechanisms renyi
    """
    from nafaudit.core.errors import InputError, nearest
    from nafaudit.mechanisms.cards import CARDS

    name, names = settings.name, [card.name for card in CARDS]
    if name is not None and name not in names:
        raise InputError(
            f"unknown mechanism {name!r}{nearest(name, names)} Known: {', '.join(names)}."
        )
    chosen = [card for card in CARDS if name in (None, card.name)]
    if as_json:
        echo(json.dumps({"mechanisms": [_plain(card) for card in chosen]}, indent=2))
        return
    for card in chosen:
        _print(card)


def _print(card: Card) -> None:
    echo(card.name)
    tight = "reached by some pair of models" if card.promise.tight else "-"
    lines = [
        ("rule", card.formula),
        ("charge", card.currency),
        ("promise", card.guarantee),
        ("tight", tight),
        ("reference", card.reference),
        *(("option", _option(option)) for option in card.options),
    ]
    for label, text in lines:
        indent = " " * 13
        echo(textwrap.fill(text, 79, initial_indent=f"  {label:11}", subsequent_indent=indent))


def _option(option: Option) -> str:
    value = option.default
    written = f"{value:g}" if isinstance(value, int | float) else value
    default = f"; unless told {written}" if written else ""
    return f"{option.name}: {option.text} ({option.allowed}{default})"


def _plain(card: Card) -> dict[str, Any]:
    from dataclasses import asdict

    plain = asdict(card) | {"guarantee": card.guarantee}
    for shown, own in zip(plain["options"], card.options, strict=True):
        shown["allowed"] = own.allowed
        for key in ("default", "least", "most"):
            # JSON has no infinity.
            shown[key] = "inf" if shown[key] == float("inf") else shown[key]
    return plain
