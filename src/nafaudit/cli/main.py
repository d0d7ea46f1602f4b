"""The `nafaudit` command: which verbs there are, and which exit status an error gets."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from nafaudit import __version__
from nafaudit.cli import (
    attack,
    certify,
    check,
    checklist,
    compare,
    conform,
    export,
    frontier,
    import_,
    lab,
    mechanisms,
    paper,
    plan,
    report,
    run,
    search,
    selftest,
    verify,
)
from nafaudit.cli.sections import SectionedCommand, SentenceGroup
from nafaudit.core.errors import NafauditError

app = typer.Typer(
    name="nafaudit",
    cls=SentenceGroup,
    help="Is a copyright-protecting decoder's promise kept, was it ever tested, what is it worth?"
    "\n\nExit status: 0 within, 1 violated, 2 bad usage or input, 3 inconclusive, 70 our fault.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"nafaudit {__version__}")
        raise typer.Exit


app.command("run", cls=SectionedCommand)(run.run)
app.command("search", cls=SectionedCommand)(search.search)
app.command("check")(check.check)
app.command("verify")(verify.verify)
app.command("report")(report.report)
app.command("compare")(compare.compare)
app.command("certify")(certify.certify)
app.command("attack", cls=SectionedCommand)(attack.attack)
app.command("frontier")(frontier.frontier)
app.command("plan")(plan.plan)
app.command("import")(import_.import_)
app.command("export")(export.export)
app.command("conform")(conform.conform)
app.command("selftest")(selftest.selftest)
app.command("mechanisms")(mechanisms.mechanisms)
app.command("paper")(paper.paper)
app.command("checklist")(checklist.checklist)
app.add_typer(lab.app, name="lab")


def main() -> None:
    """Entry point: 0 within, 1 violated, 2 bad input, 3 inconclusive, 70 our own fault."""
    try:
        app(prog_name="nafaudit", standalone_mode=True)
    except NafauditError as error:
        typer.echo(f"nafaudit: {_shortened(str(error))}", err=True)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        sys.exit(130)
    except ImportError as error:
        if error.name in ("torch", "transformers", "tokenizers", "safetensors"):
            typer.echo(
                f"nafaudit: this command runs models and needs {error.name}; install it with "
                "pip install 'nafaudit[models]'.",
                err=True,
            )
            sys.exit(2)
        _report_fault(error)
    except Exception as error:
        _report_fault(error)


def _shortened(text: str) -> str:
    """A message without the middle of an endless value: place and remedy are at its ends."""
    return text if len(text) <= 4000 else f"{text[:2000]} [...] {text[-1000:]}"


def _report_fault(error: BaseException) -> None:
    """A crash of ours must never look like a violation to a script, which reads 1 as one."""
    import traceback

    traceback.print_exception(error)
    typer.echo("nafaudit: this is a fault of nafaudit; please report the lines above.", err=True)
    sys.exit(70)


if __name__ == "__main__":
    # Else `python -m nafaudit.cli.main run` does nothing, with the status of a kept promise.
    main()
