"""What is released: versions agree, the core runs where POSIX modules are absent, a wheel works."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from nafaudit import __version__
from tests.commands import call
from tests.test_frozen import NEW, OLD, stored

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# What Windows lacks, and some of it elsewhere, is not there. Whoever catches ImportError goes on.
ABSENT = """
import glob, json, os, sys
gone = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "posixpath_"}
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in gone or name.split(".")[0] in ("torch", "transformers", "tokenizers"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
for name in gone:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Absent())
for name in ("killpg", "setsid", "fork", "getuid", "sched_getaffinity", "unshare", "sysconf"):
    if hasattr(os, name):
        delattr(os, name)
from nafaudit.cli.main import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["nafaudit", *(path for word in words for path in sorted(glob.glob(word)) or [word])]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
assert "fcntl" not in sys.modules
"""


def test_one_version_is_said_everywhere() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert heading is not None
    found = {__version__, PROJECT["version"], str(cited["version"]), heading[1]}
    assert found == {__version__}


def test_the_citation_has_what_the_format_asks_for() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    assert cited["cff-version"] == "1.2.0" and cited["type"] == "software"
    assert cited["license"] == PROJECT["license"]
    paper = cited["references"][0]
    assert {"type", "title", "authors"} <= set(paper)
    assert paper["title"] == "An Empirical Audit of k-NAF Budget Accounting for Anchored Decoding"


@pytest.mark.parametrize("commit", (pytest.param(OLD, marks=pytest.mark.full), NEW))
def test_the_core_runs_where_posix_modules_are_absent(commit: str, tmp_path: Path) -> None:
    """Locks, users and terminals of POSIX; not what the standard library itself rests on."""
    run = stored("own", tmp_path, commit)
    commands = (
        f"check {run} --junit a.xml",
        f"report {run}",
        f"export {run} --out out",
        "import out/*.jsonl --out again",
        f"compare {run} {run}",
    )
    # One process for all: a command that fails ends it.
    words = json.dumps([command.split() for command in commands])
    done = call(words, cwd=tmp_path, code=[sys.executable, "-c", ABSENT])
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "a.xml").is_file() and (tmp_path / "again" / "design.json").is_file()
    assert done.stdout.count("next: ") == len(commands), done.stdout


def _core() -> set[str]:
    """Distributions that the core needs, as they are installed here."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in PROJECT["dependencies"]]
    while waiting:
        one = waiting.pop()
        if one.name.lower() in found:
            continue
        found.add(one.name.lower())
        for need in map(Requirement, importlib.metadata.requires(one.name) or []):
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                waiting.append(need)
    return found


@pytest.mark.full
def test_a_wheel_has_what_it_needs_and_checks_a_run_without_torch(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--no-isolation", "-o", str(tmp_path / "dist")]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True, text=True)
    wheel = next((tmp_path / "dist").glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "src/nafaudit"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    lacking = {name.removeprefix("src/") for name in tracked} - inside
    assert lacking == set()
    with tarfile.open(next((tmp_path / "dist").glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "pyproject.toml", "src/nafaudit/py.typed"} <= names
    # A fresh environment: the wheel, and of what is installed here only what the core asks for.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    site = next((tmp_path / "venv" / "lib").glob("python*")) / "site-packages"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site)]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    for name in _core():
        for file in importlib.metadata.files(name) or []:
            first = file.parts[0]
            if first not in ("..", "__pycache__") and not (site / first).exists():
                (site / first).symlink_to(
                    Path(str(file.locate())).parents[len(file.parts) - 2]
                    if len(file.parts) > 1
                    else Path(str(file.locate()))
                )
    run = stored("own", tmp_path, NEW)
    code = [str(python), "-m", "nafaudit"]
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        [*code, "check", run], cwd=tmp_path, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0 and done.stdout.startswith("WITHIN"), done.stderr
    done = subprocess.run(
        [*code, "run"], cwd=tmp_path, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 2 and "install it with" in done.stderr
