"""What `make audit` installs is enough for every command whose models are at hand."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.commands import WITHOUT, call

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Imported where an option asks for them only; without them the option names its own extra.
OPTIONAL = {"ray": "ray"}


def _name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def _with(wanted: list[str]) -> set[str]:
    """The distributions that these requirements bring along, as they are installed here."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in wanted]
    while waiting:
        one = waiting.pop()
        extras = {"", *one.extras}
        if _name(one.name) in found and not one.extras:
            continue
        found.add(_name(one.name))
        try:
            needs = importlib.metadata.requires(one.name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for need in map(Requirement, needs):
            if need.marker is None or any(need.marker.evaluate({"extra": e}) for e in extras):
                waiting.append(need)
    return found


@pytest.fixture(scope="module")
def missing() -> set[str]:
    """Modules that are installed here, and not by `make audit`."""
    declared = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["models"]
    there = {"nafaudit", *_with(declared)}
    owners = importlib.metadata.packages_distributions()
    absent = {module for module, of in owners.items() if not there & set(map(_name, of))}
    assert {"pytest", "ray", "gguf"} <= absent and "torch" not in absent
    return absent


def test_make_audit_installs_that_extra_and_no_other() -> None:
    recipe = re.search(r"^\$\(VENV\)/\.models:.*\n\t(.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert recipe is not None and recipe[1] == "$(PIP) -e '.[models]'"


def test_nothing_is_imported_that_it_does_not_install(missing: set[str]) -> None:
    needed = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                needed |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                needed.add(str(node.module).split(".")[0])
    assert needed & missing <= OPTIONAL.keys()
    assert set(OPTIONAL.values()) <= PROJECT["optional-dependencies"].keys()


SEARCH = (
    "search --pair tiny --k 2 --max-new-tokens 6 --shortest 2 --searches 1 --pool 4 --generations 1"
    " --proposals 6 --screened 4 --draws 8 --finalists 1 --fresh 20 --heldout 2 --heldout-draws 1 "
    "--quiet"
)


@pytest.mark.full
def test_a_search_which_imports_by_name_needs_nothing_else(
    missing: set[str], tmp_path: Path
) -> None:
    code = [sys.executable, "-c", WITHOUT, ",".join(sorted(missing))]
    done = call(*SEARCH.split(), cwd=tmp_path, code=code)
    assert done.returncode in (0, 3), done.stderr
