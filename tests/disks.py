"""Disks that really fail, for tests: full ones and read-only ones.

A mount of its own is made in a private namespace, which ends with the command. Where the
machine forbids that, a full disk is a limit on the size of a file (writes fail just as well)
and a read-only place is one below a regular file.
"""

from __future__ import annotations

import os
import resource
import shlex
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PAGE = 4096


@cache
def can_mount() -> bool:
    """True if a private mount can be made here."""
    try:
        done = subprocess.run(
            ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True
        )
    except FileNotFoundError:
        return False
    return done.returncode == 0


def on_a_full_disk(
    command: Sequence[str], run: Path, room: int, cwd: Path
) -> subprocess.CompletedProcess[str]:
    """Runs a command whose run directory `run`, relative to cwd, lies on a disk with little room.

    Afterwards `run` holds what the command left there.

    Args:
        command: What to run.
        run: An existing run directory.
        room: Bytes that may still be written there.
        cwd: Where to run it.
    """
    if not can_mount():
        return run_there(command, cwd, file_limit=room)
    files = [path for path in (cwd / run).rglob("*") if path.is_file()]
    used = sum(-(-path.stat().st_size // _PAGE) * _PAGE for path in files)
    name, line = shlex.quote(run.name), shlex.join(command)
    script = (
        f"set -e; mkdir disk; mount -t tmpfs -o size={used + room} none disk; "
        f"cp -r {name}/. disk; mv {name} kept; ln -s disk {name}; "
        f"set +e; {line}; status=$?; set -e; "
        f"rm {name}; cp -r disk {name}; exit $status"
    )
    return run_there(["unshare", "-rm", "sh", "-c", script], cwd)


def on_a_read_only_disk(
    command: Sequence[str], run: Path, cwd: Path
) -> subprocess.CompletedProcess[str]:
    """Runs a command while the directory `run` cannot be written."""
    if not can_mount():
        hidden = (cwd / run).rename(cwd / f"{run.name}.hidden")
        (cwd / run).touch()
        try:
            return run_there(command, cwd)
        finally:
            (cwd / run).unlink()
            hidden.rename(cwd / run)
    name, line = shlex.quote(run.name), shlex.join(command)
    script = f"mount --bind {name} {name} && mount -o remount,bind,ro {name} && exec {line}"
    return run_there(["unshare", "-rm", "sh", "-c", script], cwd)


def run_there(
    command: Sequence[str], cwd: Path, file_limit: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command in a directory; no file may grow beyond the limit."""

    def limit() -> None:
        if file_limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))

    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        preexec_fn=limit,
    )
