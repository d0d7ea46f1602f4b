"""Answers of a language model: how they are read, and their journal.

The journal of a proposer: what a model said cannot be had again, so it is on disk before use.

One line per attempt, appended and synced, each with its own SHA-256. A search that was killed reads
the lines back in the place of asking again, and so goes the way it went.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nafaudit.core.errors import StoreError
from nafaudit.search.filters import canonical
from nafaudit.search.llm_chat import ANSWER, ANSWERED, FAILURES, ROW, ChatAnswer, fits
from nafaudit.store.files import append_line, cut_torn_tail, whole_lines

FILE = "answers.jsonl"


def digest_of(data: Any) -> str:
    """SHA-256 of plain data."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


class Answers:
    """Every attempt of every call, by the call's digest; to be opened by whoever holds the run.

    Args:
        path: The file; it need not exist.

    Raises:
        StoreError: A line is not what was written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._said: dict[str, list[ChatAnswer]] = {}
        cut_torn_tail(path)
        for number, line in enumerate(whole_lines(path), start=1):
            call, answer = _read(line, f"{path}:{number}")
            self._said.setdefault(call, []).append(answer)

    def __len__(self) -> int:
        return sum(map(len, self._said.values()))

    def of(self, call: str) -> list[ChatAnswer]:
        """What was said to a call so far, attempt by attempt."""
        return list(self._said.get(call, ()))

    def add(self, call: str, answer: ChatAnswer) -> None:
        """Writes an attempt down; when this returns it is on disk."""
        entry = {"call": call, **asdict(answer)}
        # Escaped: a model may write halves of surrogate pairs, which no encoder can.
        append_line(self._path, json.dumps(entry | {"sha256": digest_of(entry)}))
        self._said.setdefault(call, []).append(answer)


def _read(line: bytes, where: str) -> tuple[str, ChatAnswer]:
    try:
        entry = json.loads(line)
        if entry.pop("sha256") != digest_of(entry):
            raise ValueError("its SHA-256 differs")
        return entry.pop("call"), ChatAnswer(**entry)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"{where} is not what was written ({error}): it was damaged or edited. Restore it, or "
            "start a new search with another --out."
        ) from error


COMPLETE, SHORT, TRUNCATED, REFUSED, INVALID = (
    "complete", "short", "truncated", "refused", "invalid",
)  # fmt: skip
OUTCOMES = (COMPLETE, SHORT, TRUNCATED, REFUSED, INVALID, *FAILURES)
"""All that was asked for; fewer; cut off by a limit of length; refused; not the JSON asked for."""

LEAST_WORDS = 8
MOST_CHARACTERS = 20_000
# Where a refusal says so: at its start. A story may well contain these words later.
_START = 160
_REFUSAL = re.compile(
    r"\b(i (can ?not|can['\u2019]t|won['\u2019]t|am unable|am not able|must decline)|"
    r"i['\u2019]m (sorry|unable|not able)|sorry, but i|as an ai\b|unable to (help|assist|comply))",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Suggestion:
    """A prompt as a model wrote it, with the numbers of the parents that it names."""

    text: str
    parents: tuple[int, ...]


@dataclass(frozen=True)
class ParsedAnswer:
    """An answer, judged.

    Attributes:
        outcome: One of `OUTCOMES`.
        rows: Prompts that can be used, at most as many as were asked for.
        unfit: Entries that cannot: of another form, too short, refused, or there already.
    """

    outcome: str
    rows: tuple[Suggestion, ...] = ()
    unfit: int = 0


def read(answer: ChatAnswer, wanted: int, have: Collection[str] = ()) -> ParsedAnswer:
    """Judges an answer by the schema.

    Entries before a torn end are whole and count.

    Args:
        answer: What came back.
        wanted: How many prompts were asked for.
        have: Texts that earlier attempts gave, in canonical form.
    """
    if answer.status != ANSWERED:
        return ParsedAnswer(answer.status)
    if answer.refusal or answer.finish == "content_filter":
        return ParsedAnswer(REFUSED)
    # What a model thought before its answer is no part of it.
    text = answer.text.rpartition("</think>")[2]
    entries, torn = _entries(text)
    if entries is None:
        if torn or answer.finish == "length":
            return ParsedAnswer(TRUNCATED)
        return ParsedAnswer(REFUSED if _refuses(text) else INVALID)
    rows = _usable(entries, have)
    unfit, rows = len(entries) - len(rows), rows[:wanted]
    return ParsedAnswer(_outcome(answer, entries, len(rows), wanted, torn), tuple(rows), unfit)


def _outcome(answer: ChatAnswer, entries: list[Any], found: int, wanted: int, torn: bool) -> str:
    if found >= wanted:
        return COMPLETE
    if torn or answer.finish == "length":
        return TRUNCATED
    texts = [entry["text"] for entry in entries if fits(entry, ROW)]
    return REFUSED if texts and all(map(_refuses, texts)) else SHORT


def _usable(entries: list[Any], have: Collection[str]) -> list[Suggestion]:
    seen, rows = set(have), []
    for entry in entries:
        if not fits(entry, ROW) or not _fit(entry["text"]):
            continue
        plain = canonical(entry["text"])
        if plain not in seen:
            seen.add(plain)
            rows.append(Suggestion(entry["text"].strip(), tuple(entry["parents"])))
    return rows


def _fit(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    words = len(text.split())
    return words >= LEAST_WORDS and len(text) <= MOST_CHARACTERS and not _refuses(text)


def _refuses(text: str) -> bool:
    return _REFUSAL.search(text.strip()[:_START]) is not None


def _entries(text: str) -> tuple[list[Any] | None, bool]:
    """The list of candidates, or None; and whether the text breaks off before its end."""
    start = text.find("{")
    if start < 0:
        return None, False
    body = text[start:]
    try:
        found, _ = json.JSONDecoder().raw_decode(body)
    except ValueError:
        return (_whole_entries(body), True) if _unclosed(body) else (None, False)
    except RecursionError:
        return None, False
    # Single entries are judged one by one: a bad one does not spoil the others.
    whole = fits(found, ANSWER | {"properties": {"candidates": {"type": "array"}}})
    return (found["candidates"], False) if whole else (None, False)


def _whole_entries(body: str) -> list[Any] | None:
    """Entries before a torn end; None if not even the list begins."""
    opening = re.match(r'\{\s*"candidates"\s*:\s*\[', body)
    if opening is None:
        return None
    found: list[Any] = []
    place, decoder = opening.end(), json.JSONDecoder()
    while True:
        place += len(body[place:]) - len(body[place:].lstrip(" \t\r\n,"))
        try:
            entry, place = decoder.raw_decode(body, place)
        except (ValueError, RecursionError):
            return found
        found.append(entry)


def _unclosed(body: str) -> bool:
    """True if a text ends within a string, an object or a list."""
    depth, quoted, escaped = 0, False, False
    for char in body:
        if escaped:
            escaped = False
        elif quoted:
            escaped, quoted = char == "\\", char != '"'
        elif char == '"':
            quoted = True
        else:
            depth += (char in "{[") - (char in "}]")
    return quoted or depth > 0
