"""`nafaudit mechanisms`: what can be audited."""

from __future__ import annotations

import textwrap

import typer


def mechanisms() -> None:
    """List what can be audited: formula, guarantee, reference.

    Example: nafaudit mechanisms
    """
    from nafaudit.mechanisms.cards import CARDS

    for card in CARDS:
        typer.echo(card.name)
        for label, text in (
            ("rule", card.formula),
            ("promise", card.guarantee),
            ("reference", card.reference),
        ):
            indent = " " * 13
            typer.echo(
                textwrap.fill(text, 79, initial_indent=f"  {label:11}", subsequent_indent=indent)
            )
