"""Hostile text made fit to be shown: nothing hidden, nothing that turns the page around."""

from __future__ import annotations

import json
import math
import re
from typing import Any

SNIPPET = 280
"""Characters of a reference that are shown: enough to recognise a passage, not to replace it."""

_LONGEST_NAME = 120
# Controls but tab and newline; marks that reorder or hide text; halves of surrogate pairs.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
_IN_SCRIPT = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)


def visible(text: str) -> str:
    """Writes control characters and direction marks as their code points."""
    return _UNSEEN.sub(lambda match: f"\u27e8{ord(match[0]):04X}\u27e9", text)


def name(text: str) -> str:
    """An id or a class on one line, cut if it is very long."""
    return cut(visible(" ".join(text.split())), _LONGEST_NAME) or "(empty)"


def cut(text: str, most: int) -> str:
    """The start of a text."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "\u2026"


def cut_front(text: str, most: int) -> str:
    """The end of a text."""
    return text if len(text) <= most else "\u2026" + text[-(most - 1) :].lstrip()


def script_json(data: Any) -> str:
    """JSON for a script element: strict, and without a character that could end the element."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_IN_SCRIPT)


def percent(share: float, unknown: str = "\u2013") -> str:
    """A share in percent: nearly all is not all, and nearly nothing is not nothing."""
    if not math.isfinite(share):
        return unknown
    whole = 0.0995 <= share < 0.995 or share in (0.0, 1.0)
    return f"{share:.0%}" if whole else f"{share:.1%}"


def nats(value: float, unknown: str = "\u2013") -> str:
    """An amount of divergence, to about three digits."""
    if math.isnan(value):
        return unknown
    if math.isinf(value):
        return "\u221e" if value > 0 else "-\u221e"
    size = abs(value)
    if size >= 1e6:
        return f"{value:.1e}"
    return f"{value:.2f}" if size < 10 else f"{value:.1f}" if size < 100 else f"{value:.0f}"
