"""Reads the records of a log file one at a time; an error names file and line.

A file is plain or gzipped UTF-8, and holds JSON Lines, one JSON array, one JSON object, or a table
with a header. Nothing larger than `MAX_RECORD` is ever held.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import hashlib
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, cast

from nafaudit.core.errors import InputError

# A trajectory of 200 steps takes 0.1 MB in the paper's schema.
MAX_RECORD = 64 * 2**20
_CHUNK = 2**20
_SPACE = re.compile(r"[ \t\r\n]*")

Layout = Literal["lines", "array", "object", "table"]


@dataclass(frozen=True)
class LogRecord:
    """One record of a log.

    Attributes:
        where: `file:line`, for messages.
        data: Its fields; cells of a table are strings.
        constants: How many non-strict numbers (`NaN`, `Infinity`) it holds.
    """

    where: str
    data: dict[str, Any]
    constants: int = 0


@dataclass(frozen=True)
class LogFile:
    """A log file whose layout is known."""

    path: Path
    layout: Layout
    has_mark: bool = False

    def records(self) -> Iterator[LogRecord]:
        """Streams the records."""
        read: dict[Layout, Callable[[Path], Iterator[LogRecord]]] = {
            "lines": _json_lines,
            "array": _json_array,
            "object": _json_object,
            "table": _table,
        }
        yield from read[self.layout](self.path)


def open_source(path: Path) -> LogFile:
    """Finds out how a file is laid out; raises InputError for an empty one."""
    with _open(path) as stream:
        chunk = _read(path, stream, _CHUNK, line=False)
        has_mark = chunk.startswith(codecs.BOM_UTF8)
        chunk = chunk.removeprefix(codecs.BOM_UTF8)
        while chunk and not chunk.strip():
            chunk = _read(path, stream, _CHUNK, line=False)
    if not chunk:
        raise InputError(f"{path}: the file is empty; give a log with at least one record.")
    start = chunk.strip()[:1]
    if start == b"[":
        return LogFile(path, "array", has_mark)
    if start != b"{":
        return LogFile(path, "table", has_mark)
    line = next(line for _, line in _lines(path) if line.strip("\ufeff \t\r\n"))
    try:
        json.loads(line.removeprefix("\ufeff"))
    except json.JSONDecodeError:
        # What is no whole object begins one that runs over several lines, or is broken.
        return LogFile(path, "object", has_mark)
    except (ValueError, RecursionError):
        pass
    return LogFile(path, "lines", has_mark)


def file_hash(path: Path) -> str:
    """Computes the SHA-256 of a file."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise _cannot_read(path, error) from error


def _open(path: Path) -> IO[bytes]:
    try:
        if not path.is_file():
            raise OSError(None, "not a file" if path.exists() else os.strerror(2))
        with path.open("rb") as stream:
            zipped = stream.read(2) == b"\x1f\x8b"
        return cast(IO[bytes], gzip.open(path)) if zipped else path.open("rb")
    except (OSError, ValueError) as error:
        raise _cannot_read(path, error) from error


def _cannot_read(path: Path, error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or str(error)
    return InputError(f"{path}: cannot be read: {reason}.")


def _read(path: Path, stream: IO[bytes], size: int, *, line: bool) -> bytes:
    try:
        return stream.readline(size) if line else stream.read(size)
    except (OSError, EOFError, zlib.error) as error:
        raise _cannot_read(path, error) from error


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields numbered lines with their ends."""
    with _open(path) as stream:
        number = 0
        while raw := _read(path, stream, MAX_RECORD + 1, line=True):
            number += 1
            if len(raw) > MAX_RECORD:
                raise InputError(
                    f"{path}:{number}: a line of more than {MAX_RECORD >> 20} MiB; a log has one "
                    "record per line."
                )
            yield number, _text(raw, f"{path}:{number}")


def _text(raw: bytes, where: str) -> str:
    if b"\0" in raw:
        raise InputError(f"{where}: a NUL byte; this is no text file (UTF-16 would look so too).")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: not UTF-8 (byte {error.start} of the line); convert it, for example with "
            "iconv."
        ) from error


class _Strict:
    """A JSON decoder that counts what strict JSON forbids and refuses a key that occurs twice."""

    def __init__(self) -> None:
        self.constants = 0
        self.decoder = json.JSONDecoder(
            object_pairs_hook=self._object, parse_constant=self._constant
        )

    def _constant(self, name: str) -> float:
        self.constants += 1
        return float(name)

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise _TwiceError(twice[:80])
        return found

    def record(self, text: str, where: str) -> LogRecord:
        """Parses one object."""
        self.constants = 0
        try:
            data = self.decoder.decode(text)
        except json.JSONDecodeError as error:
            raise not_json(where, error) from error
        except (ValueError, RecursionError) as error:
            raise unusable(where, error) from error
        return self.as_record(data, where)

    def as_record(self, data: object, where: str) -> LogRecord:
        if not isinstance(data, dict):
            raise InputError(f"{where}: a JSON object is needed, got {type(data).__name__}.")
        return LogRecord(where, data, self.constants)


class _TwiceError(ValueError):
    """A key occurs twice in one object."""


def not_json(where: str, error: json.JSONDecodeError) -> InputError:
    """Returns the error for malformed or truncated JSON."""
    return InputError(f"{where}: not JSON ({error.msg}, column {error.colno}); is it cut off?")


def unusable(where: str, error: Exception) -> InputError:
    """Returns the error for JSON with a repeated key, or nested or long beyond measure."""
    if isinstance(error, _TwiceError):
        return InputError(f"{where}: key {str(error)!r} occurs twice; which one is meant?")
    if isinstance(error, RecursionError):
        return InputError(f"{where}: nested too deeply to be a log.")
    return InputError(f"{where}: a number with too many digits ({error}).")


def _json_lines(path: Path) -> Iterator[LogRecord]:
    strict = _Strict()
    for number, line in _lines(path):
        if number == 1:
            line = line.removeprefix("\ufeff")
        if line.strip():
            yield strict.record(line.strip(" \t\r\n"), f"{path}:{number}")


def _json_object(path: Path) -> Iterator[LogRecord]:
    with _open(path) as stream:
        raw = _read(path, stream, MAX_RECORD + 1, line=False)
    if len(raw) > MAX_RECORD:
        raise InputError(f"{path}: one object of more than {MAX_RECORD >> 20} MiB.")
    text = _text(raw, str(path)).removeprefix("\ufeff")
    strict = _Strict()
    try:
        data = strict.decoder.decode(text)
    except json.JSONDecodeError as error:
        raise not_json(f"{path}:{error.lineno}", error) from error
    except (ValueError, RecursionError) as error:
        raise unusable(f"{path}:1", error) from error
    yield strict.as_record(data, f"{path}:1")


def _json_array(path: Path) -> Iterator[LogRecord]:
    """Streams the objects of one array.

    A buffer grows until it holds the next object whole, doubling each time, so that every byte
    is parsed about twice at most.
    """
    strict = _Strict()
    with _open(path) as stream:
        feed = _Feed(path, stream)
        feed.expect("[")
        if feed.peek() == "]":
            feed.expect("]")
        else:
            while True:
                if feed.peek() != "{":
                    found = repr(feed.peek()) if feed.peek() else "the end of the file"
                    raise InputError(f"{feed.where}: an object is needed here, got {found}.")
                yield feed.value(strict)
                if feed.peek() == "]":
                    feed.expect("]")
                    break
                feed.expect(",")
        if feed.peek():
            raise InputError(f"{feed.where}: something follows the end of the array.")


class _Feed:
    """Text of a file, taken from the front."""

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self._path, self._stream = path, stream
        self._pending = b""
        self._line = 1
        self._text = ""
        self._at = 0
        self._at_end = False
        self._more(_CHUNK)
        self._text = self._text.removeprefix("\ufeff")

    @property
    def where(self) -> str:
        return f"{self._path}:{self._line}"

    def _more(self, size: int) -> None:
        """Reads on by about `size` bytes, up to a whole character."""
        raw = _read(self._path, self._stream, size, line=False)
        self._at_end = len(raw) < size
        raw = self._pending + raw
        cut = len(raw)
        # Where the last whole character ends; one has at most 4 bytes.
        for back in () if self._at_end else range(1, min(4, len(raw)) + 1):
            byte = raw[-back]
            if byte & 0xC0 != 0x80:
                needs = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
                cut = len(raw) if needs <= back else len(raw) - back
                break
        self._pending = raw[cut:]
        self._text = self._text[self._at :] + _text(raw[:cut], self.where)
        self._at = 0

    def _take_to(self, end: int) -> None:
        self._line += self._text.count("\n", self._at, end)
        self._at = end

    def peek(self) -> str:
        """Returns the next character that is no white space; empty at the end."""
        while True:
            space = _SPACE.match(self._text, self._at)
            self._take_to(space.end() if space else self._at)
            if self._at < len(self._text) or self._at_end:
                return self._text[self._at : self._at + 1]
            self._more(_CHUNK)

    def expect(self, character: str) -> None:
        found = self.peek()
        if found != character:
            raise InputError(
                f"{self.where}: {character!r} is needed here, got "
                f"{repr(found) if found else 'the end of the file'}; is it cut off?"
            )
        self._take_to(self._at + 1)

    def value(self, strict: _Strict) -> LogRecord:
        """Takes the object at the front."""
        while True:
            strict.constants = 0
            try:
                data, end = strict.decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                held = len(self._text) - self._at
                if self._at_end or held > MAX_RECORD:
                    line = self._line + self._text.count("\n", self._at, error.pos)
                    raise not_json(f"{self._path}:{line}", error) from error
                self._more(max(_CHUNK, held))
                continue
            except (ValueError, RecursionError) as error:
                raise unusable(self.where, error) from error
            record = strict.as_record(data, self.where)
            self._take_to(end)
            return record


def _table(path: Path) -> Iterator[LogRecord]:
    last = 0

    def text() -> Iterator[str]:
        nonlocal last
        for number, line in _lines(path):
            last = number
            yield line.removeprefix("\ufeff") if number == 1 else line

    lines = text()
    first = next((line for line in lines if line.strip()), "")
    delimiter = max(",;\t", key=first.count)
    try:
        names = [
            name.strip() for name in next(csv.reader([first], delimiter=delimiter, strict=True))
        ]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"{path}:{last}: column {twice[:80]!r} occurs twice.")
        for cells in csv.reader(lines, delimiter=delimiter, strict=True):
            if not cells:
                continue
            if len(cells) != len(names):
                raise InputError(
                    f"{path}:{last}: {len(cells)} cells where the header has {len(names)}; is it "
                    "cut off?"
                )
            yield LogRecord(f"{path}:{last}", dict(zip(names, cells, strict=True)))
    except csv.Error as error:
        raise InputError(f"{path}:{last}: not a table ({error}).") from error
