"""Calls the command line as a user would, without paying for a new process each time."""

from __future__ import annotations

import contextlib
import io
import shlex
import subprocess
import sys
from pathlib import Path
from unittest import mock

import click

NAFAUDIT = [str(Path(sys.executable).with_name("nafaudit"))]

# A finder that makes torch and its friends impossible to import.
WITHOUT_TORCH = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "tokenizers", "safetensors"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])
sys.meta_path.insert(0, Absent())
from nafaudit.cli.main import main
main()
"""
# Every argument is a command; the first that does not succeed ends it.
IN_TURN_WITHOUT_TORCH = WITHOUT_TORCH.replace(
    "\nmain()\n",
    """
for line in sys.argv[1:]:
    sys.argv = ["nafaudit", *line.split()]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    print("status 0", flush=True)
""",
)

# The modules named in its first argument, separated by commas, are not found: unlike above, whoever
# asks whether one is there is told that it is not.
WITHOUT = """
import sys
from importlib.machinery import PathFinder
absent = set(sys.argv.pop(1).split(","))
class Installed(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in absent else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Installed
from nafaudit.cli.main import main
main()
"""


def typed(line: str) -> object:
    """Reads a command as the shell and click do, and makes its settings; nothing runs.

    Returns:
        The settings, of whatever class; None for a command without any.
    """
    from nafaudit.cli.main import app

    words = shlex.split(line)
    assert words[0] == "nafaudit", line
    found: list[object] = []

    def answer(*settings: object, **shown: object) -> int:
        found.extend(settings)
        return 0

    context = click.Context(app, info_name="nafaudit")
    name, command, rest = app.resolve_command(context, words[1:])
    while isinstance(command, click.Group):
        name, command, rest = command.resolve_command(context, rest)
    assert command is not None, line
    with command.make_context(name, rest, parent=context) as inner:
        command._answer = answer  # type: ignore[attr-defined]
        with contextlib.suppress(click.exceptions.Exit):
            command.invoke(inner)
    return found[0] if found else None


def call(
    *arguments: object, cwd: Path, code: list[str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs `nafaudit arguments` in a directory.

    Args:
        arguments: What stands after `nafaudit`.
        cwd: Where.
        code: Start of a command line that runs it in a process of its own; importing torch
            takes seconds there, so the default is this process.
    """
    words = [str(word) for word in arguments]
    if code is not None:
        return subprocess.run([*code, *words], cwd=cwd, capture_output=True, text=True, timeout=240)
    from nafaudit.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    status: object = 0
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["nafaudit", *words]),
    ):
        try:
            main()
        except SystemExit as end:
            status = end.code
    returncode = status if isinstance(status, int) else 0
    return subprocess.CompletedProcess(words, returncode, out.getvalue(), err.getvalue())
