"""Commands that are generated from settings classes: options, help and its sections."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from nafaudit.core.options import Declared, Group

_SECTIONS = (
    *("Arguments", "What is audited", "Prompts", "The search", "The attack", "Proposer"),
    *("Confirmation on fresh draws", "Study", "Protocol", "Decoding"),
    *("Of an imported log", "Machine and output", "Options", "For CI"),
)
"""Headings of the help, in this order."""

_ALL = "nafaudit.every_option"
"""Says in a context that all options are asked for."""

_MOST = 15
"""Options that `--help` shows; a command with more of them shows the rest in `--help-all`."""


@dataclass(frozen=True)
class Verb:
    """A command by the places of its parts, `module:name`, which are imported when it is used.

    Attributes:
        answer: Function that takes the settings, and `quiet` and `as_json` if it has them. It
            returns the exit status; None is 0. Its docstring is the help.
        settings: Classes of its settings. If there are several, their options are put together,
            and `load` chooses.
        load: Makes settings of a design file and what else is given; `options.load` if empty.
        design: What its design file holds; empty if it reads none.
    """

    answer: str
    settings: tuple[str, ...]
    load: str = ""
    design: str = ""


def place(name: str) -> Any:
    """Returns the object at `module:name`."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"nafaudit.{module}"), attribute)


class Verbs(click.Group):
    """A group whose commands are made when they are asked for, and listed with whole sentences.

    Args:
        name: The group.
        verbs: Its commands, by name.
        parts: Headings of the help, each with the names of its commands; one if left out.
        how: What click takes besides.
    """

    def __init__(
        self,
        name: str,
        verbs: Mapping[str, Verb | click.Group],
        parts: Mapping[str, Sequence[str]] | None = None,
        **how: Any,
    ) -> None:
        super().__init__(name, no_args_is_help=True, **how)
        self.verbs, self.parts = verbs, parts or {"Commands": list(verbs)}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns names in the order of their table."""
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns a command with all of its options."""
        found = self.verbs.get(cmd_name)
        return Command(cmd_name, found) if isinstance(found, Verb) else found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns the command that is asked for; of an unknown one, the nearest is named.

        A name of two words, as `paper run`, is a command beside the one of its first word.
        """
        if (both := " ".join(args[:2])) in self.verbs and len(args) > 1:
            return both, self.get_command(ctx, both), args[2:]
        close = difflib.get_close_matches(args[0], self.verbs, n=1)
        if args[0] not in self.verbs and close:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {close[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes every command with the first paragraph of its help; half of it helps no choice."""
        rows = {}
        for name, verb in self.verbs.items():
            text = verb.help if isinstance(verb, click.Group) else place(verb.answer).__doc__
            rows[name] = (name, " ".join((text or "").split("\n\n")[0].split()))
        for title, names in self.parts.items():
            with formatter.section(title):
                # One column of names for all parts.
                widest = max(map(len, rows))
                formatter.write_dl([(f"{name:<{widest}}", rows[name][1]) for name in names])


class Command(click.Command):
    """A command that is made of a settings class.

    Args:
        name: The verb.
        verb: Its parts.
    """

    def __init__(self, name: str, verb: Verb) -> None:
        from nafaudit.core.options import declared

        self._verb, self._answer = verb, place(verb.answer)
        self._kinds: list[type[Group]] = [place(one) for one in verb.settings]
        self._known: dict[str, Declared] = {}
        for kind in self._kinds:
            listed = [one for one in declared(kind) if one.field not in kind.unlisted]
            for one in listed:
                self._known.setdefault(one.name, one)
        self._sections: dict[str, str] = {}
        self._about: dict[str, tuple[str, str]] = {}
        params: list[click.Parameter] = []
        if verb.design:
            params.append(self._argument("design", "[design]", "<path>", verb.design))
        # What most users meet first stands first in its section.
        ordered = sorted(self._known.values(), key=lambda one: not one.about.common)
        params += [self._parameter(one) for one in ordered]
        taken = inspect.signature(self._answer).parameters
        last = "Machine and output" if "Machine and output" in self._sections.values() else ""
        for key, flag, text in (
            ("quiet", "--quiet", "No progress."),
            ("as_json", "--json", "Print one JSON object instead."),
        ):
            if key in taken:
                self._sections[key] = last or "Options"
                params.append(click.Option([flag, key], is_flag=True, help=text))
        refused = dict.fromkeys(key for kind in self._kinds for key in kind.refused)
        for key in (key for key in refused if key not in self._known):
            # With or without a value, so that it is refused and not misread.
            names = [f"--{key.replace('_', '-')}", key]
            params.append(click.Option(names, hidden=True, is_flag=False, flag_value="True"))
        shown = sum(isinstance(one, click.Option) and not one.hidden for one in params)
        self._long = shown + 1 > _MOST  # with --help
        grouped = ", in groups" if len(set(self._sections.values())) > 1 else ""
        params.append(
            click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                hidden=not self._long,
                callback=self._print_all,
                help=f"Show all {shown} options{grouped}, and exit.",
            )
        )
        super().__init__(name, params=params, help=inspect.getdoc(self._answer))

    def _print_all(self, ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
        if wanted and not ctx.resilient_parsing:
            ctx.meta[_ALL] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

    def _argument(self, name: str, usage: str, shown: str, text: str, **how: Any) -> click.Argument:
        label = usage.strip("[]")
        if how.get("nargs") == -1 and "..." not in label:
            label += "..."
        self._about[name] = (f"{label} {shown}", text)
        return _Argument([name], usage=usage, type=click.Path(path_type=Path), **how)

    def _parameter(self, one: Declared) -> click.Parameter:
        """Returns the parameter of an option, whose value is None if it is not given."""
        about, words, required = one.about, one.default_words(), one.default is MISSING
        text = f"{about.help} Default: {words}." if words else about.help
        kind = (one.entry if one.shape is tuple else one.kinds[0]) if one.kinds else str
        shown = about.metavar or ("" if kind is bool else f"<{kind.__name__.lower()}>")
        if about.argument:
            many, end = one.shape is tuple, "  [required]" if required else ""
            usage = about.metavar or (one.name if required else f"[{one.name}]")
            shown = f"<{'path' if issubclass(kind, Path) else kind.__name__}>"
            made = self._argument(
                one.name, usage, shown, text + end, required=required, nargs=-1 if many else 1
            )
            made.type = click.Path(path_type=Path) if kind is Path else click.STRING
            return made
        self._sections[one.name] = about.section
        names = [f"--{one.flag}", one.name]
        how: dict[str, Any] = {"help": text, "hidden": about.hidden}
        if kind is bool:
            names[0] += "" if one.default is False else f"/--no-{one.flag}"
            return click.Option(names, is_flag=True, default=None, **how)
        if one.shape not in (str, int, float, Path):
            return click.Option(names, multiple=True, type=str, metavar=about.metavar, **how)
        made_of = click.Path(path_type=Path) if kind is Path else kind
        return click.Option(
            names, type=made_of, required=required, show_default=False, metavar=shown, **how
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Writes the value that an option without one means; a file after it is the design."""
        bare = {f"--{one.flag}": one.about.bare for one in self._known.values() if one.about.bare}
        words = list(args)
        for number, word in enumerate(args):
            after = args[number + 1] if number + 1 < len(args) else "-"
            if word in bare and (
                after.startswith("-") or after.endswith(".toml") or Path(after).is_file()
            ):
                words[number] = f"{word}={bare[word]}"
        try:
            return super().parse_args(ctx, words)
        except click.NoSuchOption as error:
            # What is known only to be refused must not be suggested.
            hidden = {n for one in self.params for n in one.opts if getattr(one, "hidden", False)}
            near = [name for name in error.possibilities or () if name not in hidden]
            raise click.NoSuchOption(error.option_name, possibilities=near, ctx=ctx) from None

    def invoke(self, ctx: click.Context) -> None:
        """Makes the settings, lets the command answer, and exits with its status."""
        from nafaudit.answers import settings_of
        from nafaudit.core.options import from_words

        values = dict(ctx.params)
        design, shown = values.pop("design", None), {}
        for key in ("quiet", "as_json"):
            if key in values and key not in self._known:
                shown[key] = values.pop(key)
        for key, one in self._known.items():
            if one.shape not in (str, int, float, bool, Path) and not one.about.argument:
                values[key] = from_words(one, values[key]) if values[key] else None
            elif values[key] == ():
                values[key] = None
        if self._verb.load:
            settings = place(self._verb.load)(design, values)
        else:
            settings = settings_of(self._kinds[0], design, values)
        ctx.exit(self._answer(settings, **shown) or 0)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes arguments, then one list per section; of many options, those used first."""
        short = self._long and not ctx.meta.get(_ALL)
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in sorted(self.get_params(ctx), key=self._place_in_help):
            name = param.name or ""
            record = self._about.get(name) or param.get_help_record(ctx)
            if record is None:
                continue
            title = "Arguments" if name in self._about else self._sections.get(name, "Options")
            if short and title != "Arguments":
                known = self._known.get(name)
                if name not in ("as_json", "help_all") and not (known and known.about.common):
                    continue
                title = "Options"
            sections.setdefault(title, []).append(record)
        for title in sorted(sections, key=_SECTIONS.index):
            with formatter.section(title):
                formatter.write_dl(sections[title])

    def _place_in_help(self, param: click.Parameter) -> int:
        """Returns the place of an option in the help: that of its section."""
        return _SECTIONS.index(self._sections.get(param.name or "", "Options"))


class _Argument(click.Argument):
    """An argument that the line on usage writes as it is declared."""

    def __init__(self, names: list[str], *, usage: str, required: bool = False, **how: Any) -> None:
        super().__init__(names, required=required, **how)
        self._usage = usage

    def make_metavar(self, ctx: click.Context) -> str:
        """Returns the argument as it stands in the line on usage."""
        return self._usage + ("..." if self.nargs == -1 and "..." not in self._usage else "")
