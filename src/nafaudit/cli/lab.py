"""`nafaudit lab`: build the embedded pair, or a real one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nafaudit.cli.memorise import memorise
from nafaudit.cli.sections import SentenceGroup

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

    from nafaudit.audit.lab_decoder import LabDecoder
    from nafaudit.lab.card import write_card
    from nafaudit.lab.facts import measure_facts
    from nafaudit.lab.pair import ROLES
    from nafaudit.lab.recipe import DEFAULT
    from nafaudit.lab.recipe import train as train_roles

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


app.command()(memorise)
