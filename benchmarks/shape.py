"""The shape of the source: files, lines, functions, and how many files a command enters.

    python -m benchmarks.shape [TREE] [--json]

TREE is a checkout of this project; without it, this one. Printed beside the aims of
docs/decisions/006-one-house.md; nothing is asserted.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
ROOMS_ON_TOP = ("paper", "workshop")
AIMS = {
    "lines of source": "<= 42,000",
    "of which without paper/ and workshop/": "<= 34,500",
    "files": "<= 200",
    "functions of at most 5 lines": "<= 35 %",
    "files entered by run": "<= 70",
    "files entered by check": "<= 30",
    "files entered by verify": "<= 30",
    "files that lay out a text table": "1",
    "largest group of options, in fields": "<= 15",
    "file names used twice": "<= 20",
    "class names used twice": "<= 5",
    "words of README and docs": "<= 30,000",
}
COMMANDS = {
    "run": ("run", "--limit", "2", "--trajectories", "1", "--max-new-tokens", "4", "--out", "new"),
    "check": ("check", "own"),
    "verify": ("verify", "own", "--quiet"),
}
PADDING = re.compile(r"[<>][{\d]")
# Follows every call of this process, and names the files whose functions ran outside of an import.
FOLLOWER = """
import atexit, inspect, sys
from pathlib import Path
root, to = Path(sys.argv[1]).resolve(), sys.argv[2]
entered, importing = set(), 0
def follow(frame, event, value):
    global importing
    code = frame.f_code
    if code.co_name == "<module>":
        importing += {"call": 1, "return": -1}.get(event, 0)
    elif event == "call" and not importing and code.co_flags & inspect.CO_OPTIMIZED:
        entered.add(code.co_filename)
def write():
    sys.setprofile(None)
    inside = {name for name in entered if root in Path(name).parents}
    Path(to).write_text("\\n".join(sorted(inside)))
sys.argv = ["nafaudit", *sys.argv[3:]]
atexit.register(write)
from nafaudit.cli.main import main
sys.setprofile(follow)
main()
"""


def shape(tree: Path, commands: Iterable[str] = COMMANDS) -> dict[str, int | float]:
    """Measures a checkout; names and order are those of `AIMS`."""
    package = tree / "src" / "nafaudit"
    texts = {path: path.read_text() for path in sorted(package.rglob("*.py"))}
    modules = {path: ast.parse(text) for path, text in texts.items()}
    lines = {path: text.count("\n") for path, text in texts.items()}
    functions = [
        node.end_lineno - node.lineno + 1
        for module in modules.values()
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None
    ]
    classes = [node for module in modules.values() for node in _classes(module)]
    names = Counter(path.name for path in texts if path.name not in ("__init__.py", "__main__.py"))
    on_top = sum(
        lines[path] for path in texts if path.relative_to(package).parts[0] in ROOMS_ON_TOP
    )
    entered = {f"files entered by {command}": _entered(tree, command) for command in commands}
    return {
        "lines of source": sum(lines.values()),
        "of which without paper/ and workshop/": sum(lines.values()) - on_top,
        "files": len(texts),
        "functions of at most 5 lines": sum(size <= 5 for size in functions) / len(functions),
        **entered,
        "files that lay out a text table": sum(_pads(module) for module in modules.values()),
        "largest group of options, in fields": max(
            size for module in modules.values() for size in _option_groups(module)
        ),
        "file names used twice": sum(count > 1 for count in names.values()),
        "class names used twice": sum(
            count > 1 for count in Counter(node.name for node in classes).values()
        ),
        # Rules and numbers of tables are not counted.
        "words of README and docs": sum(
            any(letter.isalpha() for letter in word)
            for path in (*tree.glob("README.md"), *tree.glob("docs/**/*.md"))
            for word in path.read_text().split()
        ),
    }


def _classes(module: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(module) if isinstance(node, ast.ClassDef))


def _option_groups(module: ast.Module) -> Iterator[int]:
    """The number of fields of each class of settings, and of parameters of each function."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef):
            yield len(node.args.args) + len(node.args.kwonlyargs)
        elif isinstance(node, ast.ClassDef):
            fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
            calls = (one.value for one in fields if isinstance(one.value, ast.Call))
            declared = any(getattr(call.func, "id", "") == "option" for call in calls)
            if declared or node.name.endswith(("Settings", "Options")):
                yield len(fields)


def _pads(module: ast.Module) -> bool:
    """Whether a file pads the cells of a table itself, or has a table drawn."""
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and node.attr in ("ljust", "rjust"):
            return True
        spec = node.format_spec if isinstance(node, ast.FormattedValue) else None
        if spec is not None and PADDING.search(ast.unparse(spec)):
            return True
        if isinstance(node, ast.ImportFrom) and node.module == "rich.table":
            return True
    return False


def _entered(tree: Path, command: str) -> int:
    """The number of files of the package whose functions ran in a command's own process."""
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(HERE / "tests" / "runs" / "c049abe" / "own", Path(place) / "own")
        to = Path(place) / "entered"
        subprocess.run(
            [
                sys.executable,
                "-c",
                FOLLOWER,
                str(tree / "src" / "nafaudit"),
                str(to),
                *COMMANDS[command],
            ],
            cwd=place,
            env=os.environ | {"PYTHONPATH": str(tree / "src")},
            stdout=subprocess.DEVNULL,
            check=False,
        )
        return len(to.read_text().split("\n"))


def main() -> None:
    """Prints the shape of a checkout beside the aims."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("tree", nargs="?", type=Path, default=HERE)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    measured = shape(given.tree.resolve())
    if given.json:
        sys.stdout.write(json.dumps(measured, indent=2) + "\n")
        return
    for name, value in measured.items():
        shown = f"{value:.0%}" if isinstance(value, float) else f"{value:,}"
        sys.stdout.write(f"{name:40}{shown:>10}   aim {AIMS[name]}\n")


if __name__ == "__main__":
    main()
