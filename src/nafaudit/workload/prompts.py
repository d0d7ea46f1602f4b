"""Prompts and workloads, and the JSON Lines that they are read from."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from nafaudit.core.errors import InputError, nearest

CAPS = {
    "neutral": 200,
    "val": 150,
    "test": 150,
    "attack_train": 100,
    "factual": 150,
    "creative": 150,
}
"""Prompts of each class that the paper has and the lab follows, in the order of the classes."""

FILES = {
    "attack_train": "copybench_attack_train.jsonl",
    "test": "copybench_test.jsonl",
    "val": "copybench_val.jsonl",
    "neutral": "neutral.jsonl",
    "creative": "creative.jsonl",
    "factual": "factscore.jsonl",
}

HEADER = "Complete the prefix:\n"
"""The line before every prompt but the factual ones."""

_HALF = re.compile("[\ud800-\udfff]")  # of a surrogate pair, which no encoder writes


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
    # Not in a repr, which a notebook keeps: it may be protected text.
    reference: str = field(default="", repr=False)


@dataclass(frozen=True)
class TokenizedPrompt:
    """A prompt with the token ids that the models are given."""

    prompt: Prompt
    tokens: tuple[int, ...]


def workload_hash(prompts: Iterable[TokenizedPrompt]) -> str:
    """Computes the SHA-256 of all prompts and their token ids, whatever their order."""
    rows = sorted(
        json.dumps({"prompt": vars(item.prompt), "tokens": item.tokens}, sort_keys=True)
        for item in prompts
    )
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


class Record(NamedTuple):
    """One JSON object of a file.

    Attributes:
        where: `file:line`, with lines from 1.
        place: Position of its line from 0, blank lines counted.
        data: The object.
    """

    where: str
    place: int
    data: dict[str, Any]


def read_records(path: Path, what: str = "a JSON Lines file of prompts") -> Iterator[Record]:
    """Yields one record per line that is not blank.

    Args:
        path: The file, UTF-8, with or without a byte order mark.
        what: What should have been given, for the error.
    """
    # Not splitlines: a JSON string may hold U+2028 and the like.
    for index, line in enumerate(read_text(path, what).split("\n")):
        if line.strip():
            yield Record(f"{path}:{index + 1}", index, _parse(line, f"{path}:{index + 1}"))


def read_text(path: Path, what: str) -> str:
    """Reads the text of a file; the error says what should have been given."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give {what}.") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}:{line}: not UTF-8 (byte {error.start} of the file); convert it, for example "
            "with iconv."
        ) from error


def _parse(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line, parse_constant=_finite, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{where}: not JSON ({error.msg} at column {error.colno}); one object per line."
        ) from error
    except RecursionError:
        raise InputError(
            f"{where}: objects or lists nested too deeply; mend the line or leave it out."
        ) from None
    # A number that is none, or one of more digits than Python reads.
    except ValueError as error:
        raise InputError(
            f"{where}: {error}; a number must be finite: mend the line or leave it out."
        ) from None
    if not isinstance(row, dict):
        raise InputError(f"{where}: a JSON object is needed, got {type(row).__name__}.")
    return row


def _finite(digits: str) -> float:
    """Reads a number; refuses NaN, Infinity and 1e999, which no JSON file of ours could hold."""
    if not math.isfinite(value := float(digits)):
        raise ValueError(f"{digits[:20]} in a record")
    return value


def first_text(record: Record, names: Sequence[str], what: str) -> str:
    """Returns the first of some fields that is not empty; dots lead into nested objects.

    Args:
        record: Where to look.
        names: Fields in the order in which they are tried.
        what: What the text is, for the error.

    Returns:
        The text, or "" if every field is missing, null or empty.
    """
    for name in names:
        value = lookup(record.data, name)
        if value in (None, ""):
            continue
        if not isinstance(value, str):
            raise InputError(f"{record.where}: {what} {name!r} must be a string, got {value!r}.")
        return whole_text(value, record.where, name)
    return ""


def first_id(record: Record, names: Sequence[str]) -> str:
    """Returns the first of some fields that can name a prompt (text or whole number), or ""."""
    for name in names:
        value = lookup(record.data, name)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if value not in (None, ""):
            return first_text(record, (name,), "id")
    return ""


def lookup(data: Any, name: str) -> Any:
    """Returns the value of a field, or None; the dots of a name lead into nested objects."""
    if isinstance(data, dict) and name in data:
        return data[name]
    head, dot, rest = name.partition(".")
    return lookup(data.get(head), rest) if dot and isinstance(data, dict) else None


def whole_text(text: str, where: str, name: str) -> str:
    """Returns a text, or raises if no encoder could write it."""
    if _HALF.search(text):
        raise InputError(f"{where}: {name!r} holds half of a surrogate pair; mend the text.")
    return text


@dataclass(frozen=True)
class PromptSource:
    """The origin of a prompt.

    Attributes:
        where: `file:line`, or another name if it came from no file.
        record: The record as it was read.
        domain: The paper's word for the kind of text.
        split: The paper's word for the class.
        novel_source: The work or person that it is about.
    """

    where: str
    record: Mapping[str, Any] = field(default_factory=dict, repr=False)
    domain: str | None = None
    split: str | None = None
    novel_source: str | None = None


@dataclass(frozen=True)
class Sourced:
    """A prompt and its source."""

    prompt: Prompt
    source: PromptSource


@dataclass(frozen=True)
class Workload:
    """The prompts of a run, in the order in which a limit takes them.

    Ids are unique, because they key the draws.
    """

    items: tuple[Sourced, ...]

    def __post_init__(self) -> None:
        seen: dict[str, str] = {}
        for item in self.items:
            name, where = item.prompt.id, item.source.where
            if name in seen:
                raise InputError(
                    f"{where}: prompt id {name!r} occurs twice (first: {seen[name]}); ids key the "
                    "draws, so they must be unique over all classes."
                )
            seen[name] = where

    def __repr__(self) -> str:
        """Counts the prompts by class; no text, which a notebook would keep."""
        counts = Counter(item.prompt.label for item in self.items)
        said = ", ".join(f"{count} {label}" for label, count in counts.items())
        return f"<Workload of {len(self.items)} prompts: {said}>"

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts alone."""
        return [item.prompt for item in self.items]

    @property
    def sources(self) -> dict[str, PromptSource]:
        """Sources by prompt id."""
        return {item.prompt.id: item.source for item in self.items}

    def select(self, classes: Collection[str], cap: Mapping[str, int]) -> Workload:
        """Keeps the named classes, all if none is named, up to the cap of each."""
        check_names((*classes, *cap), {item.prompt.label for item in self.items})
        taken: Counter[str] = Counter()
        kept = []
        for item in self.items:
            label = item.prompt.label
            if classes and label not in classes:
                continue
            taken[label] += 1
            if taken[label] <= cap.get(label, taken[label]):
                kept.append(item)
        return Workload(tuple(kept))


def check_names(names: Iterable[str], known: Collection[str]) -> None:
    """Raises for a class that the workload does not have."""
    for name in names:
        if name not in known:
            raise InputError(
                f"the workload has no class {name!r}{nearest(name, known)} "
                f"It has: {', '.join(sorted(known))}."
            )


def in_turn(classes: Iterable[Sequence[Sourced]]) -> Workload:
    """Takes one prompt of each class after the other, so that the first n are a fair sample."""
    rounds = chain.from_iterable(zip_longest(*classes))
    return Workload(tuple(item for item in rounds if item is not None))


BATCH, BUCKET_WIDTH = 8, 32
"""The paper's micro-batches, and the width in tokens of its buckets of prompts."""


def batch_leaders(prompts: Iterable[TokenizedPrompt]) -> dict[str, str]:
    """Returns the first prompt of each prompt's micro-batch, by id.

    Within a class, prompts are put into buckets by length, sorted by length and id, and cut into
    batches of eight: the paper's rule, for trajectories of equal number.
    """
    ordered = sorted(prompts, key=lambda one: (one.prompt.label, len(one.tokens), one.prompt.id))
    buckets: dict[tuple[str, int], list[str]] = {}
    for one in ordered:
        bucket = (one.prompt.label, len(one.tokens) // BUCKET_WIDTH)
        buckets.setdefault(bucket, []).append(one.prompt.id)
    return {
        name: names[place // BATCH * BATCH]
        for names in buckets.values()
        for place, name in enumerate(names)
    }


# The paper's classes of ordinary text; their references are answers, not protected works.
ORDINARY_CLASSES = ("neutral", "factual", "creative")


def protected_prompts(prompts: Iterable[TokenizedPrompt]) -> list[TokenizedPrompt]:
    """Returns the prompts whose reference is protected text: not those of ordinary classes."""
    return [
        item
        for item in prompts
        if item.prompt.reference.strip() and item.prompt.label not in ORDINARY_CLASSES
    ]
