"""Options that several commands have, declared and read in one way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from nafaudit.core.errors import InputError
from nafaudit.core.trust import Trust

ChatTemplate = Annotated[
    bool | None,
    typer.Option(
        "--chat-template", help="Put prompts into the model's chat template. Default: no."
    ),
]
RemoteCode = Annotated[
    list[str] | None,
    typer.Option(
        metavar="OWNER/NAME@COMMIT", help="Let this repository's own code run. Default: none."
    ),
]
PickleWeights = Annotated[
    bool | None,
    typer.Option(
        "--allow-pickle-weights", help="Read weights that are not safetensors. Default: no."
    ),
]


def trust(remote_code: Sequence[str] | None, pickle: bool | None) -> Trust:
    """What checkpoints are permitted."""
    return Trust(names(remote_code) or (), bool(pickle))


def budgets(values: Sequence[str] | None) -> tuple[float, ...] | None:
    """Reads --k 1 --k 3 and --k 1,3,5 alike."""
    if not values:
        return None
    try:
        return tuple(float(part) for part in _parts(values))
    except ValueError:
        raise InputError(
            f"k must be numbers, for example --k 1,3,5 (inf or -1: risky model only), got "
            f"{','.join(values)!r}."
        ) from None


def names(values: Sequence[str] | None) -> tuple[str, ...] | None:
    """Reads --classes a --classes b and --classes a,b alike."""
    return tuple(_parts(values)) if values else None


def caps(values: Sequence[str] | None) -> dict[str, int] | None:
    """Reads --cap neutral=20 --cap val=10 and --cap neutral=20,val=10 alike."""
    return counts(values, "cap", "CLASS=N, for example --cap neutral=20")


def counts(values: Sequence[str] | None, option: str, form: str) -> dict[str, int] | None:
    """Reads names with whole numbers.

    Args:
        values: As given.
        option: Its name, for the error.
        form: What is allowed, with an example.
    """
    if not values:
        return None
    found: dict[str, int] = {}
    for part in _parts(values):
        name, _, most = part.rpartition("=")
        if not name or not most.strip().isdecimal():
            raise InputError(f"{option} must be {form}, got {part!r}.")
        if name in found:
            what = "of class " if option == "cap" else ""
            raise InputError(f"{option} {what}{name!r} is given twice; give it once.")
        found[name] = int(most)
    return found


class BareRay(TyperCommand):
    """A command whose --ray may stand without a value: a cluster of this machine's own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Writes the value that a bare --ray means; a file after it is the design."""
        words = list(args)
        for place, word in enumerate(args):
            after = args[place + 1] if place + 1 < len(args) else "-"
            if word == "--ray" and (
                after.startswith("-") or after.endswith(".toml") or Path(after).is_file()
            ):
                words[place] = "--ray=local"
        return super().parse_args(ctx, words)


def _parts(values: Sequence[str]) -> list[str]:
    return [part.strip() for value in values for part in value.split(",") if part.strip()]
