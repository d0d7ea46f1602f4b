"""What people see in a terminal: no line is wider than it, and verdicts have a colour."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import shutil
import struct
import sys
import termios
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.commands import call, typed
from tests.forks import fork, nafaudit
from tests.runs import make

MARK = "#####"
STORED = ("own", "violated", "box", "imported", "sequence", "search", "paper-search")
SMALL = "--limit 2 --max-new-tokens 8"
TINY = (
    "search --prompts prompts.jsonl --max-new-tokens 8 --k 1 --shortest 5 --searches 1 --pool 3 "
    "--generations 1 --proposals 6 --screened 3 --draws 8 --survivors 1 --parents 2 --finalists 1 "
    "--fresh 3 --heldout 2 --heldout-draws 2"
)
FAIL = (
    *("runn", "run --top 3", "run --top-p 0.9", "run --mechanism anchord", "check nowhere"),
    *("run --prompts nowhere.jsonl", "search --k 0", "check own --max-new-tokens 3"),
    "verify sequence",
)
# Dear ones, whose documents have the same writer as the rest: tried in the second tier.
DEAR = (
    *(f"verify {name} --sample 2" for name in ("own", "violated --plugin halfway.py")),
    "certify passages.jsonl --k 1 --max-new-tokens 50 --out certificate",
    "frontier --limit 2 --k 1 --mechanism anchored --mechanism renyi:2 --out frontier",
    "attack --limit 2 --k 5 --modes oracle --attempts 1 --out attack",
    "lab digests --set default",
)
COMMANDS = (
    *("--help", "lab --help", "run --help", "run --help-all", "search --help-all"),
    *(f"{name} --help" for name in ("check", "verify", "conform", "frontier", "lab memorise")),
    *(f"check {name}" for name in STORED),
    *(f"report {name}" for name in ("own", "search")),
    "compare own later",
    "compare own violated",
    *(f"checklist {name}" for name in ("own", "search", "paper-search")),
    "checklist --paper",
    "export own --paper --out log",
    "import log/trajectories_k0.25_test.jsonl --max-new-tokens 12 --out again",
    "check log/trajectories_k0.25_test.jsonl",
    "mechanisms",
    "mechanisms renyi",
    "paper",
    "plan --seconds 0 --prompts prompts.jsonl",
    "plan --pair paper --protocol paper --gpu h100 --gpus 8",
    f"run {SMALL} --trajectories 1 --k 1 --out small",
    f"{TINY} --out tiny",
    "lab workload --out lab",
    *FAIL,
)


def _next_can_be_typed(text: str) -> None:
    """The last lines say what to do; a command is read as the command line reads it."""
    *_, last = text.split("next: ")
    assert last != text and len(last.strip().split("\n")) <= 2, text
    for command in re.findall(r"nafaudit [a-z][^,;:()]*", last.replace("\\\n", " ")):
        assert typed(command) is not None or command.split()[1] in ("paper",), command


def _in_turn(commands: tuple[str, ...]) -> None:
    for line in commands:
        sys.stderr.flush()
        sys.stdout.write(f"{MARK} {line}\n")
        sys.stdout.flush()
        try:
            nafaudit(*line.split())()
        except SystemExit as end:
            sys.stdout.write(f"{MARK} status {end.code}\n")
            sys.stdout.flush()


def said(width: int, commands: tuple[str, ...], cwd: Path, **more: str) -> dict[str, str]:
    """What a terminal of this width got from each command, colours included."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    with Path(os.devnull).open() as nothing:
        child = fork(
            lambda: _in_turn(commands),
            cwd=cwd,
            streams=(nothing.fileno(), follower, follower),
            environment=kept | {"TERM": "xterm-256color"} | more,
        )
    os.close(follower)
    parts = []
    try:
        while part := os.read(leader, 65536):
            parts.append(part)
    except OSError:  # how Linux says that the other end was closed
        pass
    os.close(leader)
    assert os.waitpid(child, 0)[1] == 0
    text = b"".join(parts).decode().replace("\r\n", "\n")
    found: dict[str, str] = {}
    for block in text.split(f"{MARK} ")[1:]:
        name, _, rest = block.partition("\n")
        if not name.startswith("status"):
            found[name] = rest
    return found


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in make.INPUTS:
        source, copy = make.HERE / name, tmp_path / Path(name).name
        shutil.copytree(source, copy) if source.is_dir() else shutil.copy(source, copy)
    for name in STORED:
        shutil.copytree(make.HERE / "c049abe" / name, tmp_path / name)
    shutil.copytree(make.HERE / "89722fc" / "own", tmp_path / "later")
    return tmp_path


@pytest.mark.parametrize(
    ("width", "commands"),
    [
        (80, COMMANDS),
        *(pytest.param(n, (*COMMANDS, *DEAR), marks=pytest.mark.full) for n in (60, 80, 120)),
    ],
    ids=["80", "60-dear", "80-dear", "120-dear"],
)
def test_no_line_is_wider_than_the_terminal(
    width: int, commands: tuple[str, ...], place: Path
) -> None:
    found = said(width, commands, place)
    assert list(found) == list(commands)
    wide = [
        f"{command}: {part}"
        for command, text in found.items()
        for line in plain(text).split("\n")
        for part in line.split("\r")
        if cell_len(part) > width
    ]
    assert wide == []
    assert "Traceback" not in "".join(found.values())
    with contextlib.chdir(place):
        for command, text in found.items():
            if "--help" not in command and command not in FAIL:
                _next_can_be_typed(plain(text))
    # Each rewriting of the progress line stays on its line.
    for text in (found[one] for one in COMMANDS if one.startswith(("run --limit", TINY))):
        assert len(re.findall(r"\d+/\d+ trajectories", text.split("\r")[-1])) == 1
        assert all("\n" not in one for one in text.split("\r")[1:-1])


def test_a_run_says_before_it_decodes_that_a_verdict_needs_more(tmp_path: Path) -> None:
    small = f"run {SMALL} --k 1 --out small"
    few = call(*small.split(), "--trajectories", 9, cwd=tmp_path)
    remark = "needs 20 trajectories of a budget; 2 prompts with 9 each are 18"
    assert remark in few.stderr and few.returncode == 3
    assert few.stderr.index(remark) < few.stderr.index("/54 trajectories")
    (option,) = re.findall(r"add (--trajectories \d+)", few.stderr)
    enough = call(*small.split(), *option.split(), cwd=tmp_path)
    assert "a verdict needs" not in enough.stderr and enough.returncode == 0
    # What is recorded already counts, whatever is asked for.
    fewer = call(*small.split(), "--trajectories", 9, cwd=tmp_path)
    assert "a verdict needs" not in fewer.stderr and fewer.returncode == 0


def test_verdicts_have_a_colour_on_a_terminal(place: Path) -> None:
    asked = ("check own", "check violated", "checklist own", "check own --json")
    found = said(80, asked, place)
    assert "\x1b[1;32mWITHIN\x1b[0m" in found["check own"]
    assert "\x1b[1;31mVIOLATED\x1b[0m" in found["check violated"]
    assert "\x1b[1;31mFAIL\x1b[0m" in found["checklist own"]
    assert "\x1b" not in found["check own --json"]
    for text in said(80, asked, place, NO_COLOR="1").values():
        assert not re.search(r"\x1b\[[0-9;]*3[0-7]", text)
