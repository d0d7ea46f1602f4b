"""Snapshots: what a command says of stored records, as plain files.

`python -m pytest tests/test_frozen.py --update-snapshots` writes them anew. A change that nobody
meant shows in `git diff`; one that was meant is named in the changelog.
"""

from __future__ import annotations

import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# A fraction that is neither part of a name nor a budget.
_NUMBER = re.compile(r"(?<![\w.])(?<!k = )(\d+(\.\d+)?e[+-]?\d+|\d+\.\d+)(?![\w.]*\.\d)")


def compare(name: str, text: str, *, update: bool) -> None:
    """Compares a text with the snapshot of that name, or makes it the snapshot."""
    path = HERE / f"{name}.txt"
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    if update:
        path.write_text(text)
    assert path.exists(), f"no snapshot {path.name}; --update-snapshots writes it"
    assert text.splitlines() == path.read_text().splitlines(), f"{path.name} differs"


def plain(text: str) -> str:
    """Returns JSON with nine digits of every number, and of long lists the start and a digest.

    Digests are of what is left out; the last digits of sums differ between machines.
    """
    return json.dumps(_short(json.loads(text)), indent=1, ensure_ascii=False)


def masked(text: str) -> str:
    """Returns a text without its fractions, and without columns and breaks, which they move.

    Whole numbers stay: in what is computed from models they count records. Which of several records
    with the same noise leans most follows from last bits.
    """
    text = text.replace("\n ", " ")
    text = re.sub(r"replayed in .* s \(.* a second\)", "replayed in # s", text)
    text = re.sub(r"trajectory +\d+, +step +\d+\)", "trajectory #, step #)", text)
    lines = (re.sub(" +", " ", _NUMBER.sub("#", line)) for line in text.splitlines())
    return re.sub(r"#( #)+", "#", "\n".join(lines))


def visible(html: str) -> str:
    """Returns the words of a page, without scripts, styles and drawings."""
    reader = _Words()
    reader.feed(html)
    return "\n".join(reader.words)


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: _short(part) for key, part in value.items() if key not in ("made", "seconds")}
    if not isinstance(value, list):
        return value
    parts = [_short(part) for part in value]
    if len(parts) <= 8 or not isinstance(parts[0], dict | list):
        return parts
    rest = json.dumps(parts[3:]).encode()
    return [*parts[:3], f"{len(parts) - 3} more: {hashlib.sha256(rest).hexdigest()[:16]}"]


class _Words(HTMLParser):
    hidden = ("script", "style", "svg")

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.depth += tag in self.hidden

    def handle_endtag(self, tag: str) -> None:
        self.depth -= tag in self.hidden

    def handle_data(self, data: str) -> None:
        if not self.depth and data.strip():
            self.words.append(" ".join(data.split()))
