"""`nafaudit selftest`, `nafaudit conform` and `nafaudit mechanisms`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nafaudit.cli.output import ProgressLine, echo
from nafaudit.core.options import Group, option

if TYPE_CHECKING:
    from nafaudit.core.settings import ConformSettings


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
    from nafaudit.core.text import plain
    from nafaudit.selftest import run
    from nafaudit.views.selftest import selftest_document, selftest_page
    from nafaudit.views.terminal import terminal

    out = settings.out
    # It is silent elsewhere than on a terminal.
    progress = ProgressLine(quiet or not sys.stderr.isatty())
    found = run.selftest(
        full=settings.full,
        seed=settings.seed,
        jobs=settings.jobs,
        on_progress=lambda text: progress.line(text, 0.0, finished=True),
    )
    progress.close()
    data = json.dumps(plain(found), indent=2)
    if out is not None:
        _save(out, data + "\n" if out.suffix == ".json" else selftest_page(found, __version__))
    files = (f"saved: {out}",) if out else ()
    echo(data if as_json else terminal(selftest_document(found, files), "nafaudit run"))
    return found.overall.exit_status


def _save(out: Path, text: str) -> None:
    from nafaudit.core.errors import InputError

    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--out {out} cannot be written: {error.strerror}.") from error


def conform(settings: ConformSettings, *, as_json: bool) -> int:
    """Does a decoder, or a step-level rule, keep the contract? For CI.

    Tries it on the lab pair and answers for every item: YES, NO, or UNKNOWN where it does not
    show enough; the first line says which promise it was held to. Exit status: 0 nothing broken,
    1 something is, 2 it cannot be built.

    Example: nafaudit conform mymodule:Decoder --no-prefix-debt
    """
    from nafaudit.core.text import plain
    from nafaudit.selftest import conform as suite
    from nafaudit.views.selftest import conform_document
    from nafaudit.views.terminal import terminal

    found = suite.examine(
        settings.decoder,
        python=settings.decoder_python,
        timeout=settings.timeout,
        promise={name: getattr(settings, name) for name in suite.PROMISE},
    )
    then = "mend what is answered NO (docs/conformance.md)"
    if found.conforms:
        then = f"nafaudit run --decoder {settings.decoder}, or --mechanism if it is a rule"
    echo(json.dumps(plain(found), indent=2) if as_json else terminal(conform_document(found), then))
    return found.overall.exit_status


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
