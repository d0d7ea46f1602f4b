"""Text and numbers for people, and results as plain data for programs.

Token ids become text without a tokenizer library, for people and never for a decision. Hostile
text is made visible: nothing hidden, nothing that changes the direction of writing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

ON_FILES = "in the files: "
"""Heads a remark on the files of a run or a log; it is no answer of a check."""

SNIPPET = 280
"""Characters of a reference that are shown: enough to recognise a passage, not to replace it."""

_SENTENCEPIECE_SPACE = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LONGEST_NAME = 120
# Controls but tab and newline; marks that reorder or hide text; halves of surrogate pairs.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
_IN_SCRIPT = {
    "<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"
}  # fmt: skip


@cache
def _byte_alphabet() -> dict[str, int]:
    """Returns the characters by which byte-level tokenizers write bytes (Radford et al. 2019).

    Printable Latin-1 characters stand for themselves; the other bytes, in order, for the
    characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def token_bytes(token: str, *, byte_level: bool) -> bytes:
    """Returns the bytes that a token stands for.

    Args:
        token: As the vocabulary writes it.
        byte_level: True for byte-level BPE; otherwise SentencePiece conventions are assumed.
    """
    if byte_level and all(character in _byte_alphabet() for character in token):
        return bytes(_byte_alphabet()[character] for character in token)
    if match := _BYTE_TOKEN.fullmatch(token):
        return bytes.fromhex(match[1])
    return token.replace(_SENTENCEPIECE_SPACE, " ").encode(errors="replace")


def detokenize(tokens: Iterable[int], pieces: Sequence[bytes | None]) -> str:
    """Joins the pieces of token ids; unknown ids and special tokens (no piece) add nothing."""
    joined = b"".join(pieces[t] or b"" for t in tokens if 0 <= t < len(pieces))
    return joined.decode("utf-8", errors="replace")


def visible(text: str) -> str:
    """Writes control characters and direction marks as their code points."""
    if text.isprintable():
        return text
    return _UNSEEN.sub(lambda match: f"\u27e8{ord(match[0]):04X}\u27e9", text)


def name(text: str) -> str:
    """Writes an id or a class on one line, cut if it is very long."""
    return cut(visible(" ".join(text.split())), _LONGEST_NAME) or "(empty)"


def cut(text: str, most: int) -> str:
    """Returns the start of a text."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "\u2026"


def cut_front(text: str, most: int) -> str:
    """Returns the end of a text."""
    return text if len(text) <= most else "\u2026" + text[-(most - 1) :].lstrip()


def script_json(data: Any) -> str:
    """Writes JSON for a script element: strict, without a character that could end the element."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Ten times as fast as `translate`.
    for character, escaped in _IN_SCRIPT.items():
        text = text.replace(character, escaped)
    return text


def counted(number: int, one: str, several: str = "") -> str:
    """Returns a number with its noun: 1 class, 2 classes.

    Args:
        number: How many.
        one: The noun of one.
        several: The noun of several; with an s if empty.
    """
    return f"{number} {one if number == 1 else several or f'{one}s'}"


def percent(share: float, unknown: str = "\u2013") -> str:
    """Writes a share in percent; only an exact 0 or 1 is written as 0% or 100%."""
    if not math.isfinite(share):
        return unknown
    whole = 0.0995 <= share < 0.995 or share in (0.0, 1.0)
    return f"{share:.0%}" if whole else f"{share:.1%}"


def nats(value: float, unknown: str = "\u2013") -> str:
    """Writes an amount of divergence, to about three digits."""
    if math.isnan(value):
        return unknown
    if math.isinf(value):
        return "\u221e" if value > 0 else "-\u221e"
    size = abs(value)
    if size >= 1e6:
        return f"{value:.1e}"
    return f"{value:.2f}" if size < 10 else f"{value:.1f}" if size < 100 else f"{value:.0f}"


def duration(seconds: float) -> str:
    """Returns seconds in the units that matter."""
    whole = round(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 172_800:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d"


def plain(value: Any) -> Any:
    """Returns a result as strict JSON has it; NaN and infinities are strings.

    A dataclass becomes an object of its fields, in their order. A field's metadata may say
    `json=NAME` for another name, `json=None` for a field that is left out, or `json=...` for one
    whose own fields stand in its place; `optional=True` leaves a field out while it is empty.
    Properties named in the class attribute `json_properties` follow; a class attribute `json_order`
    names all fields and properties instead. A named tuple becomes an object too.
    """
    if is_dataclass(value) and not isinstance(value, type):
        found: dict[str, Any] = {}
        about: dict[str, Mapping[str, Any]] = {one.name: one.metadata for one in fields(value)}
        names = (*about, *getattr(value, "json_properties", ()))
        for name in getattr(value, "json_order", names):
            metadata, part = about.get(name, {}), getattr(value, name)
            key = metadata.get("json", name)
            if key is ...:
                found |= plain(part)
            elif key is not None and (part or not metadata.get("optional")):
                found[key] = plain(part)
        return found
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        return as_number(value)
    return str(value) if isinstance(value, Enum | Path) else value


def value_at(result: Any, path: str) -> Any:
    """Returns the part of a result that its JSON has at a path such as `spend.mean`.

    The empty path is the whole result.
    """
    for key in path.split(".") if path else ():
        if isinstance(result, Mapping):
            result = next(part for own, part in result.items() if str(own) == key)
        else:
            result = _member(result, key)
    return result


def _member(result: Any, key: str) -> Any:
    inlined = []
    for field in fields(result) if is_dataclass(result) else ():
        if field.metadata.get("json", field.name) == key:
            return getattr(result, field.name)
        if field.metadata.get("json") is ...:
            inlined.append(getattr(result, field.name))
    for part in inlined:
        if key in plain(part):
            return _member(part, key)
    return getattr(result, key)


def as_number(value: float) -> float | str:
    """Returns a number as strict JSON has it, which knows neither NaN nor infinity."""
    return value if math.isfinite(value) else str(value)
