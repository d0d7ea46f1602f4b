"""`nafaudit selftest`, `nafaudit conform` and `nafaudit mechanisms`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nafaudit.cli.output import echo, hand_over, printed
from nafaudit.core.options import Group, option
from nafaudit.views.progress import ProgressLine

if TYPE_CHECKING:
    from nafaudit.core.settings import ConformSettings


@dataclass(frozen=True, kw_only=True)
class SelftestSettings(Group):
    """Everything that `nafaudit selftest` takes."""

    full: bool = option(
        False,
        "The published table: every fault; about an hour with --jobs 2.",
        unset="-",
        common=True,
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
    from nafaudit.answers import answer_selftest
    from nafaudit.views.selftest import selftest_page

    out = settings.out
    # It is silent elsewhere than on a terminal.
    progress = ProgressLine(quiet or not sys.stderr.isatty())
    found = answer_selftest(
        settings.full,
        settings.seed,
        settings.jobs,
        lambda text: progress.line(text, 0.0, finished=True),
        *((f"saved: {out}",) if out else ()),
    )
    progress.close()
    if out is not None and out.suffix == ".json":
        _save(out, json.dumps(found.to_json(), indent=2) + "\n")
    elif out is not None:
        _save(out, selftest_page(found.result, __version__))
    return printed(found, "nafaudit run", as_json=as_json)


def _save(out: Path, text: str) -> None:
    from nafaudit.core.errors import InputError

    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--out {out} cannot be written: {error.strerror}.") from error


def conform(settings: ConformSettings, *, quiet: bool, as_json: bool) -> int:
    """Does a decoder, or a step-level rule, keep the contract? For CI.

    Tries it on the lab pair and answers for every item: YES, NO, or UNKNOWN where it does not
    show enough, under the promise that it was held to. Exit status: 0 nothing broken, 1 something
    is, 2 it cannot be built.

    Example: nafaudit conform mymodule:Decoder --no-prefix-debt
    """
    from nafaudit.answers import answer_conform
    from nafaudit.views.junit import conform_suites

    # It is silent elsewhere than on a terminal.
    progress = ProgressLine(quiet or not sys.stderr.isatty())
    try:
        found = answer_conform(settings, lambda text: progress.line(text, 0.0, finished=True))
    finally:
        progress.close()
    then = "mend what is answered NO (docs/conformance.md)"
    if found.result.conforms:
        then = f"nafaudit run --decoder {settings.decoder} (a rule: --mechanism)"
    return hand_over(
        "nafaudit conform",
        settings,
        lambda: conform_suites(found.result),
        found.document,
        printed(found, then, as_json=as_json),
    )


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
    from nafaudit.core.text import plain
    from nafaudit.mechanisms.cards import CARDS
    from nafaudit.views.selftest import mechanisms_document
    from nafaudit.views.terminal import terminal

    name, names = settings.name, [card.name for card in CARDS]
    if name is not None and name not in names:
        raise InputError(
            f"unknown mechanism {name!r}{nearest(name, names)} Known: {', '.join(names)}."
        )
    chosen = [card for card in CARDS if name in (None, card.name)]
    if as_json:
        echo(json.dumps({"mechanisms": plain(chosen)}, indent=2))
    else:
        echo(terminal(mechanisms_document(chosen), f"nafaudit run --mechanism {chosen[-1].name}"))
