"""Help in plain text: options under the titles of their sections, commands with whole sentences."""

from __future__ import annotations

from typing import Any

from typer.core import TyperArgument, TyperGroup

from nafaudit.cli.options import BareRay


class SectionedCommand(BareRay):
    """A command whose options are grouped by their `rich_help_panel`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes arguments, then one list per panel in the order of their first options."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                plain = "Arguments" if isinstance(param, TyperArgument) else "Options"
                panel = getattr(param, "rich_help_panel", None) or plain
                sections.setdefault(panel, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class SentenceGroup(TyperGroup):
    """Commands whose first lines are shown whole: half a question helps nobody to choose."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes every command with the first paragraph of its help."""
        shown = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, " ".join((command.help or "").split("\n\n")[0].split()))
            for name, command in shown
            if command is not None and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
