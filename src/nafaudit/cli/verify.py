"""`nafaudit verify`: are the logged numbers true?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from nafaudit.cli import options


def verify(
    run: Annotated[
        Path | None, typer.Argument(help="Run directory; the latest under runs/ if left out.")
    ] = None,
    sample: Annotated[int, typer.Option(help="Replay so many trajectories; 0: all.")] = 0,
    sampler: Annotated[
        int | None,
        typer.Option(
            help="Trajectories per budget for the sampler tests; 0: none. Default: 20, or 60 where "
            "draws are not our own."
        ),
    ] = None,
    pair: Annotated[str | None, typer.Option(help="A registered pair.")] = None,
    safe: Annotated[str | None, typer.Option(help="Safe checkpoint, if it moved.")] = None,
    risky: Annotated[str | None, typer.Option(help="Risky checkpoint, if it moved.")] = None,
    plugin: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Source of the plug-in that the run was made by; it is compared, then run.",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Torch device.")] = "cpu",
    threads: Annotated[int, typer.Option(help="Torch threads.")] = 1,
    remote_code: options.RemoteCode = None,
    allow_pickle_weights: options.PickleWeights = None,
    debt: Annotated[
        str | None,
        typer.Option(help="Of an imported log: positives or official, each also with -raw."),
    ] = None,
    prefix_n: Annotated[
        int | None, typer.Option(help="Of an imported log: prompt tokens in the debt; 0: none.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Of an imported log.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Of an imported log.")] = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Are the logged numbers true? Recomputes each from the models, and the tokens from the draws.

    Nothing but the models' forward pass is shared with what wrote the run. The result is kept in
    RUN/verify.json, or only printed where RUN cannot be written. Exit status: 0 true, 1 refuted,
    3 nothing could be replayed or records are missing.

    Example: nafaudit verify --sample 200
    """
    import json

    from nafaudit.cli.show import latest_run
    from nafaudit.core.errors import InputError, StoreError
    from nafaudit.store.run import Run

    source = Run(run or latest_run())
    log_only = {
        "debt": debt,
        "prefix-n": prefix_n,
        "temperature": temperature,
        "repetition-penalty": repetition_penalty,
    }
    given = [name for name, value in log_only.items() if value is not None]
    if given and source.design["identity"]["protocol"] != "imported":
        raise InputError(f"--{given[0]} is for imported logs; this run's design says it already.")

    import torch

    from nafaudit.core.debt import DebtRule
    from nafaudit.core.design import Decoding
    from nafaudit.report.verification import verification_json, verification_text
    from nafaudit.runner.verify import VerifyOptions, decides, verify_run
    from nafaudit.store.artifacts import write_truth, write_verification

    asked = VerifyOptions(
        sample=sample,
        scored=sampler,
        pair=pair,
        safe=safe,
        risky=risky,
        device=device,
        trust=options.trust(remote_code, allow_pickle_weights),
        debt=DebtRule(5 if prefix_n is None else prefix_n, debt or "positives"),  # type: ignore[arg-type]
        decoding=Decoding(
            temperature=1.0 if temperature is None else temperature,
            repetition_penalty=1.0 if repetition_penalty is None else repetition_penalty,
        ),
        plugin=plugin,
    )
    if threads < 1:
        raise InputError(f"threads must be at least 1, got {threads}.")
    torch.set_num_threads(threads)
    found = verify_run(source, asked, _progress(quiet))
    data = verification_json(found, str(source.path), source.design["hash"])
    path, kept, failed = None, "not kept, as verdicts on a black box rest on a whole one", None
    if decides(source, asked):
        try:
            if found.truth:
                data["replayed_sha256"] = write_truth(source, found.truth)
            kept = path = str(write_verification(source, data))
        except StoreError as error:
            kept, failed = "not kept, as it could not be written", error
    if as_json:
        typer.echo(json.dumps(data | {"file": path}, indent=2))
    else:
        typer.echo(f"{verification_text(found)}\nresult: {kept}")
    if failed is not None:
        typer.echo(
            f"nafaudit: {failed} The result is printed above, but check and report do not know of "
            f"it; for that, verify a copy of {source.path} in a place that can be written.",
            err=True,
        )
    raise typer.Exit(found.exit_status)


def _progress(quiet: bool) -> Callable[[int, int], None]:
    """One line per group of trajectories, rewritten on a terminal."""
    end = "\r" if sys.stderr.isatty() else "\n"

    def show(done: int, of: int) -> None:
        if not quiet:
            sys.stderr.write(f"replayed {done}/{of} trajectories" + ("\n" if done == of else end))
            sys.stderr.flush()

    return show
