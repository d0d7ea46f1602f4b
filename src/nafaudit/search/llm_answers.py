"""Reads answers of a language model, and keeps a journal of them.

A model may answer differently the next time, so each answer is on disk before it is used: one line
per attempt, appended and synced, each with its own SHA-256. A search that was killed reads these
lines instead of asking again, and so takes the same decisions.
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
    """Returns the SHA-256 of plain data."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


class Answers:
    """Every attempt of every call, by the call's digest; needs the lock of the run.

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
            try:
                entry = json.loads(line)
                if entry.pop("sha256") != digest_of(entry):
                    raise ValueError("its SHA-256 differs")
                call, answer = entry.pop("call"), ChatAnswer(**entry)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise StoreError(
                    f"{path}:{number} is not what was written ({error}): it was damaged or edited. "
                    "Restore it, or start a new search with another --out."
                ) from error
            self._said.setdefault(call, []).append(answer)

    def __len__(self) -> int:
        return sum(map(len, self._said.values()))

    def of(self, call: str) -> list[ChatAnswer]:
        """Returns the answers to a call so far, attempt by attempt."""
        return list(self._said.get(call, ()))

    def add(self, call: str, answer: ChatAnswer) -> None:
        """Appends an attempt; when this returns it is on disk."""
        entry = {"call": call, **asdict(answer)}
        # ASCII only: a model may write halves of surrogate pairs, which have no encoding.
        append_line(self._path, json.dumps(entry | {"sha256": digest_of(entry)}))
        self._said.setdefault(call, []).append(answer)


COMPLETE, SHORT, TRUNCATED, REFUSED, INVALID = (
    "complete", "short", "truncated", "refused", "invalid",
)  # fmt: skip
OUTCOMES = (COMPLETE, SHORT, TRUNCATED, REFUSED, INVALID, *FAILURES)
"""All prompts came; fewer; cut off by a limit of length; refused; not the JSON asked for."""

LEAST_WORDS = 8
MOST_CHARACTERS = 20_000
# A refusal begins with these words; a story may contain them later.
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
    """An answer, parsed and judged.

    Attributes:
        outcome: One of `OUTCOMES`.
        rows: Usable prompts, at most as many as were asked for.
        unfit: Number of other entries: of another form, too short, refused, or copies.
    """

    outcome: str
    rows: tuple[Suggestion, ...] = ()
    unfit: int = 0


def read(answer: ChatAnswer, wanted: int, have: Collection[str] = ()) -> ParsedAnswer:
    """Judges an answer by the schema.

    Entries before a torn end are whole and count.

    Args:
        answer: Answer of the model.
        wanted: Number of prompts that were asked for.
        have: Texts of earlier attempts, in canonical form.
    """
    if answer.status != ANSWERED:
        return ParsedAnswer(answer.status)
    if answer.refusal or answer.finish == "content_filter":
        return ParsedAnswer(REFUSED)
    # The reasoning before an answer is not part of it.
    text = answer.text.rpartition("</think>")[2]
    entries, torn = _entries(text)
    if entries is None:
        if torn or answer.finish == "length":
            return ParsedAnswer(TRUNCATED)
        return ParsedAnswer(REFUSED if _refuses(text) else INVALID)
    formed = [entry for entry in entries if fits(entry, ROW)]
    seen, rows = set(have), []
    for entry in formed:
        text = entry["text"]
        try:
            text.encode()
        except UnicodeEncodeError:
            continue
        fit = len(text.split()) >= LEAST_WORDS and len(text) <= MOST_CHARACTERS
        if fit and not _refuses(text) and canonical(text) not in seen:
            seen.add(canonical(text))
            rows.append(Suggestion(text.strip(), tuple(entry["parents"])))
    if len(rows) >= wanted:
        outcome = COMPLETE
    elif torn or answer.finish == "length":
        outcome = TRUNCATED
    elif formed and all(_refuses(entry["text"]) for entry in formed):
        outcome = REFUSED
    else:
        outcome = SHORT
    return ParsedAnswer(outcome, tuple(rows[:wanted]), len(entries) - len(rows))


def _refuses(text: str) -> bool:
    return _REFUSAL.search(text.strip()[:_START]) is not None


def _entries(text: str) -> tuple[list[Any] | None, bool]:
    """Returns the list of candidates, or None; and whether the text is cut off."""
    start = text.find("{")
    if start < 0:
        return None, False
    body = text[start:]
    try:
        found, _ = json.JSONDecoder().raw_decode(body)
    except ValueError:
        return (_entries_before_cut(body), True) if _unclosed(body) else (None, False)
    except RecursionError:
        return None, False
    # Entries are judged one by one, so that a bad one leaves the others.
    whole = fits(found, ANSWER | {"properties": {"candidates": {"type": "array"}}})
    return (found["candidates"], False) if whole else (None, False)


def _entries_before_cut(body: str) -> list[Any] | None:
    """Returns the whole entries of a text that is cut off; None if its list does not begin."""
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
