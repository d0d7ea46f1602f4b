"""Help in sections: options that name a panel stand under its title, in plain text."""

from __future__ import annotations

from typing import Any

from typer.core import TyperArgument

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
