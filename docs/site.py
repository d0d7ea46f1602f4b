"""Makes the site of the pages: what they link to in the repository, and the reference.

A hook of mkdocs. Pages link to files of the repository as they lie beside them, so that links work
there; on the site such a file is a copy: Markdown as a page, anything else as text.
"""

from __future__ import annotations

import inspect
import posixpath
import re
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(\]\()([^)#\s]*)((?:#[^)]*)?\))")
FENCE = re.compile(r"^(?:```.*?^```$|(?: {4}[^\n]*\n)+)", re.M | re.S)
# Reached by the menu, whether or not a page links to them.
ALWAYS = ("CHANGELOG.md", "CONTRIBUTING.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the copies, and the generated pages."""
    made = {
        "reference/commands.md": _commands(),
        "reference/python.md": _python(),
    }
    waiting = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    waiting += [*ALWAYS, "README.md"]
    seen = set(waiting)
    while waiting:
        page = waiting.pop()
        text = (ROOT / page).read_text(encoding="utf-8")
        if not page.startswith("docs/") and page != "README.md":
            made[_place(page)] = text
        for _, link, _ in LINK.findall(FENCE.sub("", text)):
            target = _target(page, link)
            if target is None or target in seen or target.startswith("docs/"):
                continue
            seen.add(target)
            if target.endswith(".md"):
                waiting.append(target)
            elif (ROOT / target).is_dir():
                names = sorted(path.name for path in (ROOT / target).iterdir() if path.is_file())
                for name in names:
                    file = f"{target}/{name}"
                    if file not in seen and not name.startswith("."):
                        seen.add(file)
                        made[_place(file)] = (ROOT / file).read_bytes()
                shown = (f"- [{name}]({posixpath.basename(_place(name))})" for name in names)
                made[_place(target)] = f"# {target}\n\n" + "\n".join(shown) + "\n"
            else:
                made[_place(target)] = (ROOT / target).read_bytes()
    for place, content in made.items():
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lets links to the repository lead to the copies; the first page is the repository's."""
    place = page.file.src_uri
    source = _source(place)
    if source is None:
        return markdown
    text = _relinked(markdown, source, place)
    if place == "README.md":
        first = (ROOT / "README.md").read_text(encoding="utf-8")
        text = f"{_relinked(first, 'README.md', place)}\n{text.replace('# ', '## ', 1)}"
    return text


def _relinked(text: str, source: str, place: str) -> str:
    """Writes links as seen from `place` on the site that were written as seen from `source`."""

    def moved(found: re.Match[str]) -> str:
        target = _target(source, found[2])
        if target is None:
            return found[0]
        if target == "README.md":
            there = "README.md"
        elif target.startswith("docs/"):
            there = target.removeprefix("docs/")
        else:
            there = _place(target)
        there = posixpath.relpath(there, posixpath.dirname(place) or ".")
        return f"{found[1]}{there}{found[3]}"

    return LINK.sub(moved, text)


def _target(page: str, link: str) -> str | None:
    """Returns the file of the repository that a link of a page leads to; None for another."""
    if not link or "://" in link or link.startswith("mailto:"):
        return None
    target = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    return target if (ROOT / target).exists() else None


def _place(target: str) -> str:
    """Returns where a file of the repository is on the site."""
    if target.endswith(".md"):
        return f"repository/{target}"
    if (ROOT / target).is_dir():
        return f"repository/{target}/index-of.md"
    plain = Path(target).suffix in (".png", ".svg", ".txt", ".csv", ".json", ".jsonl")
    return f"repository/{target}" if plain else f"repository/{target}.txt"


def _source(place: str) -> str | None:
    """Returns the file of the repository that a page of the site is; None for a generated one."""
    if place.startswith("repository/"):
        source = place.removeprefix("repository/")
        return source if (ROOT / source).is_file() else None
    return f"docs/{place}" if (ROOT / "docs" / place).is_file() else None


def _commands() -> str:
    """Returns the help of every command."""
    from nafaudit.cli.main import app

    def parts(group: Any, before: str) -> list[str]:
        found = []
        for name in group.list_commands(click.Context(group)):
            with click.Context(group, info_name=before) as parent:
                command = group.get_command(parent, name)
                whole = f"{before} {name}"
                if isinstance(command, click.Group):
                    found += parts(command, whole)
                    continue
                with click.Context(command, parent=parent, info_name=name) as context:
                    context.meta["nafaudit.every_option"] = True
                    context.max_content_width = context.terminal_width = 88
                    text = command.get_help(context)
            found += [f"## {whole}", "", "```text", text, "```", ""]
        return found

    lead = "# Commands\n\nWhat `nafaudit COMMAND --help-all` prints.\n\n"
    return lead + "\n".join(parts(app, "nafaudit"))


def _python() -> str:
    """Returns the page on what is public in Python, from its docstrings."""
    import nafaudit

    names = [name for name in nafaudit.__all__ if not name.startswith("_")]
    lines = ["# Python", "", "```text", inspect.getdoc(nafaudit) or "", "```", ""]
    for name in sorted(names, key=lambda name: (name[0].isupper(), name)):
        place = nafaudit._PLACES.get(name, "api")
        lines += [f"::: nafaudit.{place}.{name}", ""]
    return "\n".join(lines)
