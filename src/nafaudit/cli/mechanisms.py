"""`nafaudit mechanisms`: what can be audited."""

from __future__ import annotations

import typer


def mechanisms() -> None:
    """List what can be audited: formula, guarantee, reference.

    Example: nafaudit mechanisms
    """
    from nafaudit.mechanisms.cards import CARDS

    for card in CARDS:
        typer.echo(f"{card.name}\n  rule       {card.formula}\n  promise    {card.guarantee}")
        typer.echo(f"  reference  {card.reference}")
