"""The `nafaudit` command: which verbs there are, and which exit status an error gets."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from nafaudit import __version__
from nafaudit.cli import mechanisms, records, run, search, selftest, siblings, worth
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
app.command("check")(records.check)
app.command("verify")(records.verify)
app.command("report")(records.report)
app.command("compare")(records.compare)
app.command("certify")(worth.certify)
app.command("attack", cls=SectionedCommand)(worth.attack)
app.command("frontier")(worth.frontier)
app.command("plan")(run.plan)
app.command("import")(records.import_)
app.command("export")(records.export)
app.command("conform")(selftest.conform)
app.command("selftest")(selftest.selftest)
app.command("mechanisms")(mechanisms.mechanisms)
app.command("paper")(siblings.paper)
app.command("checklist")(siblings.checklist)
app.add_typer(siblings.app, name="lab")


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
