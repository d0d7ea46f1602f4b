"""The `nafaudit` command: which verbs there are, and which exit status an error gets."""

from __future__ import annotations

import gc
import io
import sys

import click

from nafaudit import __version__
from nafaudit.cli.command import Verb, Verbs
from nafaudit.cli.output import note
from nafaudit.core.errors import NafauditError

_DESIGN = "TOML file with the names of these options."

VERBS: dict[str, Verb | click.Group] = {
    "run": Verb("cli.run:run", ("core.settings:GatedRunSettings",), design=_DESIGN),
    "search": Verb(
        "cli.search:search",
        ("search.settings:SearchSettings", "paper.settings:PaperSettings"),
        load="answers:search_settings",
        design=_DESIGN,
    ),
    "check": Verb("cli.records:check", ("store.importers.entry:CheckSettings",)),
    "verify": Verb("cli.records:verify", ("core.settings:VerifySettings",)),
    "report": Verb("cli.records:report", ("cli.records:ReportSettings",)),
    "compare": Verb("cli.records:compare", ("cli.records:CompareSettings",)),
    "certify": Verb("cli.worth:certify", ("worth.settings:CertifySettings",)),
    "attack": Verb("cli.worth:attack", ("worth.settings:AttackSettings",)),
    "frontier": Verb("cli.worth:frontier", ("worth.settings:FrontierSettings",)),
    "plan": Verb(
        "cli.run:plan",
        ("core.settings:PlanSettings",),
        design="TOML file with the names of nafaudit run's options.",
    ),
    "import": Verb("cli.records:import_", ("store.importers.entry:ImportSettings",)),
    "export": Verb("cli.records:export", ("cli.records:ExportSettings",)),
    "schema": Verb("cli.siblings:schema", ("cli.siblings:SchemaSettings",)),
    "conform": Verb("cli.selftest:conform", ("core.settings:ConformSettings",)),
    "selftest": Verb("cli.selftest:selftest", ("cli.selftest:SelftestSettings",)),
    "mechanisms": Verb("cli.selftest:mechanisms", ("cli.selftest:MechanismsSettings",)),
    "paper": Verb("cli.siblings:paper", ("cli.siblings:PaperPageSettings",)),
    "paper run": Verb("cli.siblings:paper_run", ("paper.whole:PaperRunSettings",)),
    "checklist": Verb("cli.siblings:checklist", ("cli.siblings:ChecklistSettings",)),
    "lab": Verbs(
        "lab",
        {
            "train": Verb("cli.siblings:train", ("cli.siblings:TrainSettings",)),
            "workload": Verb("cli.siblings:workload", ("cli.siblings:LabWorkloadSettings",)),
            "digests": Verb("cli.siblings:digests", ("cli.siblings:DigestsSettings",)),
            "memorise": Verb("cli.siblings:memorise", ("cli.siblings:MemoriseSettings",)),
        },
        help="The embedded world: its models, text and prompts.",
    ),
}

PARTS = {
    "Audit": ("run", "plan", "certify", "frontier"),
    "Adversary": ("search", "attack"),
    "Records": ("check", "report", "compare", "import", "export", "schema"),
    "Trust": (
        "verify",
        "conform",
        "selftest",
        "mechanisms",
        "paper",
        "paper run",
        "checklist",
        "lab",
    ),
}
"""Commands as the help groups them, in the order in which they are used."""


def _print_version(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"nafaudit {__version__}")
        context.exit()


app = Verbs(
    "nafaudit",
    VERBS,
    PARTS,
    help="Is a copyright-protecting decoder's promise kept, was it ever tested, what is it worth?"
    "\n\nExit status: 0 within, 1 violated or refuted, 2 bad usage or input, 3 inconclusive, "
    "70 our fault.\n\nEvery word is explained in docs/glossary.md, and at the end of a report's "
    "page.",
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Print the version.",
        )
    ],
)


def main() -> None:
    """Runs the command; the exit status is the one that its help explains."""
    # Rows of a large run are many objects without a cycle, which need not be looked for so often.
    gc.set_threshold(10_000)
    try:
        # Not app.main(), which answers a closed pipe with 1, the status of a violation.
        with app.make_context("nafaudit", sys.argv[1:]) as context:
            app.invoke(context)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.ClickException as error:
        said = io.StringIO()
        error.show(file=said)
        note(said.getvalue().rstrip("\n"))
        sys.exit(error.exit_code)
    except NafauditError as error:
        text = str(error)
        if len(text) > 4000:
            # The middle of an endless value: place and remedy are at the ends of a message.
            text = f"{text[:2000]} [...] {text[-1000:]}"
        note(f"nafaudit: {text}")
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        sys.exit(130)
    except SystemExit as end:
        # Not ours: code that was loaded for this command. Its status must not pass for an answer.
        note(f"nafaudit: code that was given ended the program (status {end.code}); no answer.")
        sys.exit(2)
    except Exception as error:
        missing = error.name if isinstance(error, ImportError) else None
        if missing in ("torch", "transformers", "tokenizers", "safetensors"):
            note(
                f"nafaudit: this command runs models and needs {missing}; install it with "
                "pip install 'nafaudit[models]'."
            )
            sys.exit(2)
        # A crash of ours must never look like a violation to a script, which reads 1 as one.
        import traceback

        traceback.print_exception(error)
        note("nafaudit: this is a fault of nafaudit; please report the lines above.")
        sys.exit(70)


if __name__ == "__main__":
    # Else `python -m nafaudit.cli.main run` does nothing, with the status of a kept promise.
    main()
