"""Options that several commands have, declared and read in one way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from nafaudit.core.errors import InputError
from nafaudit.core.trust import Trust

if TYPE_CHECKING:
    from nafaudit.core.settings import Settings
    from nafaudit.workload.passages import Passage


def panel(title: str) -> Callable[..., Any]:
    """Declares options that stand under one title of the help."""
    return partial(typer.Option, rich_help_panel=title)


# The sections that several commands have.
audited_option, prompts_option = panel("What is audited"), panel("Prompts")
protocol_option, decoding_option = panel("Protocol"), panel("Decoding")
machine_option = panel("Machine and output")

Pair = Annotated[str | None, audited_option(help="A registered pair. Default: lab.")]
Safe = Annotated[str | None, audited_option(help="Safe checkpoint: directory or hub id.")]
Risky = Annotated[str | None, audited_option(help="Risky checkpoint: directory or hub id.")]
Mechanism = Annotated[
    str | None,
    audited_option(help="Name, or package.module:Class. Default: anchored."),
]
RemoteCode = Annotated[
    list[str] | None,
    audited_option(
        metavar="OWNER/NAME@COMMIT", help="Let this repository's own code run. Default: none."
    ),
]
PickleWeights = Annotated[
    bool | None,
    audited_option(
        "--allow-pickle-weights", help="Read weights that are not safetensors. Default: no."
    ),
]

Prompts = Annotated[
    str | None,
    prompts_option(help="JSON Lines file of prompts. Default: the pair's own."),
]
Data = Annotated[
    str | None,
    prompts_option(help="Directory with the paper's six files of prompts."),
]
Classes = Annotated[
    list[str] | None,
    prompts_option(metavar="NAME,...", help="Only these classes. Default: all."),
]
Cap = Annotated[
    list[str] | None,
    prompts_option(metavar="CLASS=N", help="Most prompts of a class; may be repeated."),
]
ChatTemplate = Annotated[
    bool | None,
    prompts_option(
        "--chat-template", help="Put prompts into the model's chat template. Default: no."
    ),
]

Variant = Annotated[
    str | None,
    protocol_option(help="Where the paper's text and code differ: code or text. Default: code."),
]

Temperature = Annotated[
    float | None,
    decoding_option(help="On both models, before the solve. Default: 1."),
]
RepetitionPenalty = Annotated[
    float | None,
    decoding_option(help="On both models, before the solve. Default: 1."),
]
PrefixN = Annotated[
    int | None,
    decoding_option(help="Prompt tokens that make up the debt. Default: 5."),
]
PrefixDebt = Annotated[
    bool | None,
    decoding_option(help="Charge prompts a prefix debt. Default: yes."),
]
Debt = Annotated[
    str | None,
    decoding_option(help="Default: positives. Or official; with -raw, before temperature."),
]
# Taken only to be refused with the reason.
Refused = Annotated[str | None, typer.Option(hidden=True)]
RefusedGreedy = Annotated[bool | None, typer.Option("--greedy", hidden=True)]

Batch = Annotated[
    int | None,
    machine_option(help="Rows decoded together; changes speed only. Default: 32."),
]
Threads = Annotated[
    int | None,
    machine_option(help="Torch threads, 1 or 2; two where no bit changes. Default: 1."),
]
Mixed = Annotated[
    bool | None,
    machine_option(
        "--mixed", help="Continue a run that a machine of other arithmetic began. Default: no."
    ),
]
Device = Annotated[str | None, machine_option(help="Torch device. Default: cpu.")]
Dtype = Annotated[
    str | None,
    machine_option(help="Precision of the forward passes. Default: float32."),
]
Quiet = Annotated[bool, machine_option("--quiet", help="No progress.")]
Json = Annotated[bool, machine_option("--json", help="Print one JSON object instead.")]


def trust(remote_code: Sequence[str] | None, pickle: bool | None) -> Trust:
    """What checkpoints are permitted."""
    return Trust(names(remote_code) or (), bool(pickle))


def refuse_code_of(design: Path | None, settings: Settings, typed: Mapping[str, Any]) -> None:
    """Raises if a design file, which may come from another person, names code that was not typed.

    Args:
        design: The file, if any.
        settings: What came of the file and the command line.
        typed: What the command line gave; only options that the command has are looked at.
    """
    if design is None:
        return
    from nafaudit.mechanisms.cards import parse

    runs = {
        "mechanism": ":" in settings.mechanism and parse(settings.mechanism) is None,
        "decoder": ":" in (settings.decoder or ""),
        "decoder_python": settings.decoder_python is not None,
    }
    for name, is_code in runs.items():
        if is_code and name in typed and typed[name] is None:
            value = getattr(settings, name)
            raise InputError(
                f"{design}: {name} = {value!r} is code, and none runs merely because a file names "
                f"it. If you trust it, type it too: --{name.replace('_', '-')} {value}"
            )


def budgets(values: Sequence[str] | None) -> tuple[float, ...] | None:
    """Reads --k 1 --k 3 and --k 1,3,5 alike."""
    return numbers(values, "k must be numbers, for example --k 1,3,5 (inf or -1: risky model only)")


def numbers(values: Sequence[str] | None, must: str) -> tuple[float, ...] | None:
    """The same for any list of numbers; `must` says what they have to be."""
    if not values:
        return None
    try:
        return tuple(float(part) for part in _parts(values))
    except ValueError:
        raise InputError(f"{must}, got {','.join(values)!r}.") from None


def whole_numbers(values: Sequence[str] | None, name: str) -> tuple[int, ...] | None:
    """Reads --window 20 --window 50 and --window 20,50 alike."""
    if not values:
        return None
    if not all(part.isdecimal() for part in _parts(values)):
        raise InputError(f"{name} must be whole numbers, got {','.join(values)!r}.")
    return tuple(int(part) for part in _parts(values))


def protected(
    path: Path | None, pair: str, own: str | None, command: str
) -> tuple[list[Passage], str]:
    """The protected passages that a command is about, and what to call them.

    Args:
        path: File that was given, if any.
        pair: Named pair, whose passages are the default.
        own: A checkpoint of the user's own, which has none.
        command: For the error.
    """
    from nafaudit.runner.pairs import named_pair
    from nafaudit.workload.passages import check_passages, read_passages

    if path is not None:
        return read_passages(path), str(path)
    if own is not None:
        raise InputError(
            f"your own models have no passages yet: give a file, for example nafaudit {command} "
            "passages.txt --safe PATH."
        )
    passages = named_pair(pair).passages()
    check_passages(passages, f"pair {pair}")
    return passages, f"the passages of pair {pair}"


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
