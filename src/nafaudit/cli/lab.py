"""`nafaudit lab`: build the embedded pair, or a real one; see which bits a machine computes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nafaudit.cli import options
from nafaudit.cli.memorise import memorise
from nafaudit.cli.sections import SentenceGroup

if TYPE_CHECKING:
    from nafaudit.lab.digests import Compared

app = typer.Typer(
    cls=SentenceGroup,
    help="The embedded world: its models, text and prompts.",
    no_args_is_help=True,
)


@app.command()
def train(
    out: Annotated[Path, typer.Option(help="Where the models go.")] = Path("lab-weights"),
    everything: Annotated[
        bool, typer.Option("--all", help="Also the second anchor, and the card with its numbers.")
    ] = False,
) -> None:
    """Trains the lab's pair from its text; the same recipe gives the same bytes.

    Example: nafaudit lab train --out lab-weights
    """
    import torch

    from nafaudit.lab.card import write_card
    from nafaudit.lab.facts import measure_facts
    from nafaudit.lab.pair import ROLES
    from nafaudit.lab.recipe import DEFAULT
    from nafaudit.lab.recipe import train as train_roles
    from nafaudit.runner.lab_decoder import LabDecoder

    roles = ROLES if everything else ("safe", "risky")
    train_roles(out, DEFAULT, roles=roles, log=lambda line: typer.echo(line, err=True))
    if everything:
        typer.echo("measuring what the pair shows", err=True)
        torch.set_num_threads(1)
        write_card(out, DEFAULT, measure_facts(LabDecoder, out))
    typer.echo(f"models: {out}")


@app.command()
def workload(
    out: Annotated[Path, typer.Option(help="Where the six files go.")] = Path("lab-workload"),
    seed: Annotated[int, typer.Option(help="Of every choice but passages and facts.")] = 0,
) -> None:
    """Writes the lab's prompts as the paper's six JSON Lines files.

    Example: nafaudit lab workload --out lab-workload
    """
    from nafaudit.lab.workload import write_workload

    for path in write_workload(out, seed):
        typer.echo(path)


@app.command()
def digests(
    sets: Annotated[
        str,
        typer.Option(
            "--set",
            metavar="NAME[,NAME...]",
            help="Variables to compute under: default, strict, trio, avx2-strict, trio-strict.",
        ),
    ] = "default,strict,trio",
    as_json: options.Json = False,
) -> None:
    """Shows which last bits this machine computes, beside golden values from another.

    default sets no variable; strict is MKL_CBWR=AUTO,STRICT; trio is MKL_CBWR=COMPATIBLE with
    vector code of AVX2 at most. Each has a process of its own. The exit status is 0 whether they
    agree or not.

    Example: nafaudit lab digests --set strict
    """
    from nafaudit.cli.echo import echo
    from nafaudit.core.errors import InputError, nearest
    from nafaudit.lab.digests import SETS, compare

    names = list(dict.fromkeys(name.strip() for name in sets.split(",")))
    for name in names:
        if name not in SETS:
            raise InputError(
                f"unknown set {name!r}{nearest(name, list(SETS))} Known: {', '.join(SETS)}."
            )
    found = [compare(name) for name in names]
    echo(json.dumps(_digests_json(found), indent=2) if as_json else _digests_text(found))


def _digests_json(found: Sequence[Compared]) -> dict[str, Any]:
    from nafaudit.lab.digests import GOLDEN_CPU, GOLDEN_TORCH, SETS
    from nafaudit.runner.recording import machine_facts

    facts = machine_facts()
    return {
        "machine": {name: facts[name] for name in ("machine", "processor", "torch")},
        "golden": {"processor": GOLDEN_CPU, "torch": GOLDEN_TORCH},
        "sets": [
            {
                "set": one.name,
                "environment": dict(SETS[one.name]),
                "agrees": one.agrees,
                "agreeing": one.agreeing,
                "failure": one.failure or None,
                "products": [
                    {
                        "product": name,
                        "digest": one.digests.get(name),
                        "golden": value,
                        "agrees": one.digests.get(name) == value,
                    }
                    for name, value in one.golden.items()
                ],
            }
            for one in found
        ],
        "conclusion": _concluded(found, facts),
    }


def _digests_text(found: Sequence[Compared]) -> str:
    from nafaudit.lab.digests import SETS
    from nafaudit.runner.recording import machine_facts

    lines: list[str] = []
    for one in found:
        variables = " ".join(f"{key}={value}" for key, value in SETS[one.name].items())
        lines += [f"{one.name}: {variables or 'no variable set'}"]
        lines += [f"  {'product':<24}{'here':<14}{'golden':<14}"]
        lines += [
            f"  {name:<24}{one.digests.get(name, '-'):<14}{value:<14}"
            + ("agrees" if one.digests.get(name) == value else "differs")
            for name, value in one.golden.items()
            if not one.failure
        ]
        lines.append("")
    return "\n".join([*lines, *_concluded(found, machine_facts())])


def _concluded(found: Sequence[Compared], facts: dict[str, Any]) -> list[str]:
    """Whether this machine agrees under each set, and what that was compared with."""
    from nafaudit.lab.digests import GOLDEN_CPU, GOLDEN_TORCH

    lines = []
    for one in found:
        n = len(one.golden)
        if one.failure:
            said = f"the products could not be computed ({one.failure})."
        elif one.agrees:
            said = f"this machine agrees with the golden values, in all {n} products."
        else:
            said = f"this machine does not agree: {n - one.agreeing} of {n} products differ."
        lines.append(f"{one.name}: {said}")
    here = facts["torch"].split("+")[0]
    lines.append(f"golden values: {GOLDEN_CPU}, torch {GOLDEN_TORCH}, one thread")
    lines.append(f"this machine: {facts['processor'] or facts['machine']}, torch {here}")
    if here != GOLDEN_TORCH:
        lines.append(
            f"torch is {here} here, not {GOLDEN_TORCH}: digests may differ for that reason alone."
        )
    return lines


app.command()(memorise)
