"""Reading prompts from JSON Lines, with an error that names file, line and remedy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from nafaudit.core.errors import InputError


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        id: Unique within a workload; part of the key of every draw.
        text: What the models are given.
        label: Its class.
        reference: Text that an output is compared with; empty if there is none.
    """

    id: str
    text: str
    label: str = "prompt"
    reference: str = ""


@dataclass(frozen=True)
class TokenizedPrompt:
    """A prompt with the token ids that the models are given."""

    prompt: Prompt
    tokens: tuple[int, ...]


def read_prompts(path: Path) -> list[Prompt]:
    """Reads one JSON object per line: `id` and `text`, optionally `class` and `reference`.

    Blank lines are skipped; a missing id becomes `<file name>:<line>`.
    """
    try:
        # Not splitlines: a JSON string may hold U+2028 and the like.
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give a JSON Lines file of prompts.") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not UTF-8 (byte {error.start}); convert it, for example with iconv."
        ) from error
    prompts = [
        _prompt(line, f"{path}:{number}", f"{path.stem}:{number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    check_prompts(prompts, str(path))
    return prompts


def check_prompts(prompts: Sequence[Prompt], where: str) -> None:
    """Raises if there is no prompt or if two share an id."""
    if not prompts:
        raise InputError(f"{where}: no prompts; one JSON object with 'id' and 'text' per line.")
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise InputError(
                f"{where}: prompt id {prompt.id!r} occurs twice; ids key the draws, so they "
                "must be unique."
            )
        seen.add(prompt.id)


def workload_hash(prompts: Iterable[TokenizedPrompt]) -> str:
    """SHA-256 of all prompts and their token ids, whatever their order."""
    rows = sorted(json.dumps(asdict(prompt), sort_keys=True) for prompt in prompts)
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def _prompt(line: str, where: str, default_id: str) -> Prompt:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not JSON ({error.msg} at column {error.colno}).") from error
    if not isinstance(row, dict):
        raise InputError(f"{where}: a JSON object is needed, got {type(row).__name__}.")
    if "text" not in row:
        raise InputError(f"{where}: no 'text'; keys are 'id', 'text', 'class', 'reference'.")
    fields = {"id": default_id, "class": "prompt", "reference": ""} | row
    for name in ("id", "text", "class", "reference"):
        if not isinstance(fields[name], str):
            raise InputError(f"{where}: {name!r} must be a string, got {fields[name]!r}.")
        if any("\ud800" <= character <= "\udfff" for character in fields[name]):
            raise InputError(f"{where}: {name!r} holds half of a surrogate pair; mend the text.")
    if not fields["text"].strip():
        raise InputError(f"{where}: 'text' is empty; give the prompt's text.")
    return Prompt(fields["id"], fields["text"], fields["class"], fields["reference"])
