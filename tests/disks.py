"""Disks that really fail, for tests: full ones and read-only ones.

Work is done in a child with mounts of its own, which end with it. Where the machine forbids that, a
full disk is a limit on the size of a file (writes fail just as well) and a read-only place is one
below a regular file.
"""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tests import forks

_PAGE = 4096
_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000


@cache
def can_mount() -> bool:
    """True if a private mount can be made here."""

    def work() -> None:
        _own_mounts()
        _sh("mount -t tmpfs none /mnt")

    return forks.run(work, Path.cwd()).returncode == 0


def on_a_full_disk(
    work: Callable[[], object], run: Path, room: int, cwd: Path
) -> subprocess.CompletedProcess[str]:
    """Works while the run directory `run`, relative to cwd, lies on a disk with little room.

    Afterwards `run` holds what was left there.

    Args:
        work: What to do, in a child.
        run: An existing run directory.
        room: Bytes that may still be written there.
        cwd: Where to do it.
    """
    if not can_mount():
        return run_there(work, cwd, file_limit=room)
    files = [path for path in (cwd / run).rglob("*") if path.is_file()]
    used = sum(-(-path.stat().st_size // _PAGE) * _PAGE for path in files)

    def there() -> None:
        _own_mounts()
        _sh(
            f"mkdir disk; mount -t tmpfs -o size={used + room} none disk; "
            'cp -r "$0/." disk; mv "$0" kept; ln -s disk "$0"',
            run.name,
        )
        try:
            work()
        finally:
            _sh('rm "$0"; cp -r disk "$0"', run.name)

    return forks.run(there, cwd)


def on_a_read_only_disk(
    work: Callable[[], object], run: Path, cwd: Path
) -> subprocess.CompletedProcess[str]:
    """Works while the directory `run` cannot be written."""
    if not can_mount():
        hidden = (cwd / run).rename(cwd / f"{run.name}.hidden")
        (cwd / run).touch()
        try:
            return run_there(work, cwd)
        finally:
            (cwd / run).unlink()
            hidden.rename(cwd / run)

    def there() -> None:
        _own_mounts()
        _sh('mount --bind "$0" "$0"; mount -o remount,bind,ro "$0"', run.name)
        work()

    return forks.run(there, cwd)


def run_there(
    work: Callable[[], object], cwd: Path, file_limit: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Works in a directory, in a child; no file may grow beyond the limit."""

    def there() -> None:
        if file_limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
        work()

    return forks.run(there, cwd)


def _own_mounts() -> None:
    """Gives this process, a child, mounts that nobody else sees, and the right to make them."""
    user, group = os.geteuid(), os.getegid()
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_MOUNTS | _NEW_USER):
        raise OSError(ctypes.get_errno(), "unshare")
    me = Path("/proc/self")
    (me / "setgroups").write_text("deny")
    (me / "uid_map").write_text(f"0 {user} 1")
    (me / "gid_map").write_text(f"0 {group} 1")
    _sh("mount --make-rprivate /")


def _sh(script: str, *arguments: str) -> None:
    subprocess.run(["sh", "-e", "-c", script, *arguments], check=True)
