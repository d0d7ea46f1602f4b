"""`nafaudit mechanisms`: what can be audited."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from nafaudit.cli import options


def mechanisms(
    name: Annotated[str | None, typer.Argument(help="Only this one.")] = None,
    as_json: options.Json = False,
) -> None:
    """Lists what can be audited: what it serves and promises, and how that is counted.

    Options follow a name: --mechanism renyi:4, --mechanism anchored:cap=20,bank=5.

    Example: nafaudit mechanisms renyi
    """
    from nafaudit.cli.echo import echo
    from nafaudit.core.errors import InputError, nearest
    from nafaudit.core.text import plain
    from nafaudit.mechanisms.cards import CARDS
    from nafaudit.views.selftest import mechanisms_document
    from nafaudit.views.terminal import terminal

    names = [card.name for card in CARDS]
    if name is not None and name not in names:
        raise InputError(
            f"unknown mechanism {name!r}{nearest(name, names)} Known: {', '.join(names)}."
        )
    chosen = [card for card in CARDS if name in (None, card.name)]
    if as_json:
        echo(json.dumps({"mechanisms": plain(chosen)}, indent=2))
    else:
        echo(terminal(mechanisms_document(chosen)))
