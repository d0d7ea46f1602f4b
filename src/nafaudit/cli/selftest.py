"""`nafaudit selftest` and `nafaudit conform`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nafaudit.cli.echo import echo
from nafaudit.core.options import Group, option

if TYPE_CHECKING:
    from nafaudit.core.settings import ConformSettings
    from nafaudit.selftest.conform import Item


@dataclass(frozen=True, kw_only=True)
class SelftestSettings(Group):
    """Everything that `nafaudit selftest` takes."""

    full: bool = option(
        False, "The published table: every fault; about 12 minutes.", unset="-", common=True
    )
    seed: int = option(0, "Of worlds, prompts and draws.", least=0, common=True)
    out: Path | None = option(
        None, "Where to save: a .json file, or the page of docs/selftest.md as .md.", common=True
    )
    jobs: int = option(1, "Processes; the result is the same.", least=1, common=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        from nafaudit.core.errors import InputError

        # Said before minutes are spent.
        if self.out is None:
            return
        if self.out.suffix not in (".json", ".md"):
            raise InputError(f"--out {self.out} must end in .json or .md: that chooses the format.")
        if self.out.is_dir() or not self.out.parent.is_dir():
            raise InputError(
                f"--out {self.out} cannot be written: name a file in an existing directory."
            )


def selftest(settings: SelftestSettings, *, quiet: bool, as_json: bool) -> int:
    """Can the auditor be trusted? Faulty decoders caught, false alarms, calibration of bounds.

    Faults are decoders that are wrong in one way each, audited in small worlds by the checks of a
    real run. Exit status: 0 every fault is caught that must be and false alarms are within their
    level, 1 otherwise.

    Example: nafaudit selftest
    """
    from nafaudit import __version__
    from nafaudit.selftest import run, table

    out = settings.out
    found = run.selftest(
        full=settings.full, seed=settings.seed, jobs=settings.jobs, note=_progress(quiet)
    )
    told = json.dumps(table.as_json(found), indent=2)
    if out is not None:
        _save(out, told + "\n" if out.suffix == ".json" else table.as_markdown(found, __version__))
    echo(told if as_json else table.as_text(found) + (f"\nsaved: {out}" if out else ""))
    return 0 if found.passed else 1


def _save(out: Path, text: str) -> None:
    from nafaudit.core.errors import InputError

    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--out {out} cannot be written: {error.strerror}.") from error


def _progress(quiet: bool) -> Callable[[str], None]:
    """One line that is written over on a terminal; silence elsewhere."""
    if quiet or not sys.stderr.isatty():
        return lambda _: None

    def note(text: str) -> None:
        click.echo(f"\r{text[:78]:<78}", nl=False, err=True)

    return note


def conform(settings: ConformSettings, *, as_json: bool) -> int:
    """Does a decoder, or a step-level rule, keep the contract? For CI.

    Tries it on the lab pair and answers for every item: YES, NO, or UNKNOWN where it does not
    show enough; the first line says which promise it was held to. Exit status: 0 nothing broken,
    1 something is, 2 it cannot be built.

    Example: nafaudit conform mymodule:Decoder --no-prefix-debt
    """
    from nafaudit.selftest import conform as suite

    decoder = settings.decoder
    found = suite.examine(
        decoder,
        python=settings.decoder_python,
        timeout=settings.timeout,
        promise={name: getattr(settings, name) for name in suite.PROMISE},
    )
    items = found.items
    broken = any(item.answer is suite.Conforms.NO for item in items)
    if as_json:
        rows = [{"name": i.name, "answer": str(i.answer), "text": i.text} for i in items]
        echo(
            json.dumps(
                {
                    "promise": found.promise,
                    "decoder": decoder,
                    "conforms": not broken,
                    "items": rows,
                },
                indent=2,
            )
        )
    else:
        _print(found.promise, decoder, items, broken)
    return int(broken)


def _print(promise: str, decoder: str, items: list[Item], broken: bool) -> None:
    from textwrap import wrap

    from nafaudit.selftest.conform import Conforms

    for line in wrap(f"promise: {promise}", 79, subsequent_indent="  "):
        echo(line)
    for item in items:
        head, *more = wrap(item.text, 55) or [""]
        echo(f"{item.name:<13}{item.answer:<9}{head}")
        for line in more:
            echo(" " * 22 + line)
    unknown = sum(item.answer is Conforms.UNKNOWN for item in items)
    verdict = "breaks the contract" if broken else "breaks no item"
    rest = f"; {unknown} of {len(items)} items cannot be told" if unknown else ""
    for line in wrap(f"{decoder} {verdict}{rest}", 79):
        echo(line)
