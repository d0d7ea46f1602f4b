"""Writes files such that a kill or a power cut leaves the old one or the new one.

Steps: write a temporary file beside the target, sync it, rename it over the target, sync the
directory. Costs two syncs a file. A leftover temporary file (its name starts with a dot) is
never read. Scope: one file at a time; the journal orders several (`nafaudit.store.run`).
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nafaudit.core.errors import InputError, StoreError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file whole, or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _write_synced(temporary, content)
        # Not rename, which Windows refuses where there is a file already.
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        # Where nothing can be written, nothing can be removed either.
        with suppress(OSError):
            temporary.unlink()
        raise cannot_write(path, error) from error


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Opens a name beside `path`; what is written there gets its name at the end, else is removed.

    Raises:
        StoreError: It cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield beside
        sync_directory(beside)
        beside.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        with suppress(OSError):
            beside.unlink()


def write_pending(path: Path, content: bytes) -> None:
    """Writes a file that another one will announce: it is on disk, whole, when this returns."""
    try:
        _write_synced(path, content)
        sync_directory(path.parent)
    except OSError as error:
        with suppress(OSError):
            path.unlink()
        raise cannot_write(path, error) from error


def move(path: Path, target: Path) -> None:
    """Gives a file another name on the same disk, in one step that is then durable."""
    try:
        path.replace(target)
        sync_directory(target.parent)
    except OSError as error:
        raise cannot_write(target, error) from error


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


@contextmanager
def whole_directory(out: Path, *, replace: bool = False) -> Iterator[Path]:
    """Opens a directory beside `out` that gets its name when all is written, else is removed.

    Args:
        out: The directory that is wanted.
        replace: True if what it holds may go; else it must not exist, or be empty.

    Raises:
        InputError: `out` is in the way.
        StoreError: It cannot be written.
    """
    if not replace and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} exists; an export needs a directory of its own, so name another.")
    target = out.absolute()
    beside, old = (target.with_name(f".{target.name}.{os.getpid()}.{w}") for w in ("new", "old"))
    try:
        beside.mkdir(parents=True)
        yield beside
        for file in beside.rglob("*"):
            sync_directory(file)
        if target.is_dir():
            target.rename(old)
        beside.rename(target)
    except OSError as error:
        raise cannot_write(out, error) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def make_directory(path: Path) -> None:
    """Makes a directory and those above it, all of them durable."""
    try:
        new = [place for place in (path, *path.parents) if not place.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for place in new:
            sync_directory(place.parent)
    except OSError as error:
        raise cannot_write(path, error) from error


def check_room(path: Path) -> None:
    """Checks, before long work, that a directory can be made or written to; makes nothing.

    Raises:
        StoreError: It cannot.
    """
    place = next(one for one in (path, *path.absolute().parents) if os.path.lexists(one))
    if not place.is_dir():
        raise cannot_write(path, NotADirectoryError())
    if not os.access(place, os.W_OK | os.X_OK):
        raise cannot_write(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def append_line(path: Path, line: str) -> None:
    """Appends one line and waits until it is on disk; if that fails, takes back its start."""
    is_new = not path.exists()
    try:
        with path.open("ab", buffering=0) as stream:
            before = stream.tell()
            try:
                content = line.encode() + b"\n"
                if stream.write(content) != len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(stream.fileno())
            except OSError:
                stream.truncate(before)
                raise
        if is_new:
            sync_directory(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error


def whole_lines(path: Path) -> list[bytes]:
    """Returns the lines of a file that were written to their end; none if there is no file."""
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def cut_torn_tail(path: Path) -> None:
    """Takes off what a kill left of a last line, so that the next append starts a new one."""
    if not path.exists():
        return
    whole = sum(len(line) + 1 for line in whole_lines(path))
    try:
        if whole < path.stat().st_size:
            os.truncate(path, whole)
    except OSError as error:
        raise cannot_write(path, error) from error


def sync_directory(path: Path) -> None:
    """Makes renames within a directory, or what a file holds, durable."""
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no directory
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Holds a lock file; a second process gets an error, a killed one leaves nothing behind.

    Where there are no such locks (Windows), two processes are not kept apart.
    """
    try:
        stream = path.open("a+")
    except OSError as error:
        raise cannot_write(path, error) from error
    with stream:
        try:
            if fcntl is not None:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(
                f"{path.parent} is being written by another process; wait for it, or give this "
                "one its own --out."
            ) from None
        yield


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Holds Ctrl-C back until the block is done, so that a part is written once or not at all."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if caught:
        raise KeyboardInterrupt


def cannot_write(path: Path, error: OSError) -> StoreError:
    """Returns an error that says what failed and that nothing recorded is lost."""
    if isinstance(error, FileExistsError | NotADirectoryError):
        return StoreError(f"cannot write {path}: it is a file, or lies below one; name another.")
    return StoreError(
        f"cannot write {path}: {error.strerror or error}. What was recorded before is safe; "
        "make room or permission and run the same command again."
    )
