"""What every reader of a foreign schema is given, and what it gives back."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nafaudit.core.errors import InputError
from nafaudit.core.ledger import as_budget
from nafaudit.core.trajectory import STEP_TYPES, Logged, Steps
from nafaudit.store.foreign.fields import identifier, number
from nafaudit.store.foreign.hygiene import Hygiene

UNKNOWN_LEDGER = "unknown"
# A report names fields that were not kept, up to so many.
_MOST_NAMES = 200
_K_IN_NAME = re.compile(r"(?:^|[_-])k(-?\d+(?:\.\d+)?|inf)(?=[_.-]|$)")
_NUMBER_IN_NAME = re.compile(r"_(-?\d+(?:\.\d+)?)(?=_|$)")


@dataclass(frozen=True)
class ImportOptions:
    """What a user may say about a log that the log does not say itself.

    Attributes:
        schema: Which schema; found from the content if None.
        mechanism: Name of what was decoded with.
        k: Budget of records that have none.
        max_new_tokens: T of records that have none; 0 if not known.
        stops: Token ids that end a row.
        columns: Our name of a number to its column in a table.
        ledger: Name of the budget rule; by default as the schema implies.
        vocabulary_size: How many tokens there are; 0 if not known.
    """

    schema: str | None = None
    mechanism: str | None = None
    k: float | None = None
    max_new_tokens: int = 0
    stops: frozenset[int] = frozenset()
    columns: Mapping[str, str] = field(default_factory=dict)
    ledger: str | None = None
    vocabulary_size: int = 0


@dataclass(frozen=True)
class Context:
    """What a reader knows besides the record in hand."""

    path: Path
    options: ImportOptions
    hygiene: Hygiene

    @property
    def stem(self) -> str:
        """The file's name without its endings."""
        name = self.path.name
        for ending in (".gz", ".jsonl", ".json", ".csv", ".tsv", ".txt"):
            name = name.removesuffix(ending)
        return identifier(name or "log", "file name", str(self.path))

    def numeric(self, data: Mapping[str, Any], names: tuple[str, ...], where: str) -> float:
        """The first of some fields that says something; NaN, and noted, if none does."""
        for name in names:
            found = number(data.get(name), name, where)
            if not (math.isnan(found) and data.get(name) in (None, "")):
                return found
        self.hygiene.add("missing", where, names[0])
        return math.nan

    def budget(self, value: object, where: str) -> float | None:
        """The budget as recorded, none (inf) for a word; None if the log does not say."""
        if word := k_word(value):
            self.hygiene.add("k-not-a-number", where, identifier(word, "k", where))
            return math.inf
        found = number(value, "k", where)
        if value is None or value == "" or math.isnan(found):
            return None
        if found == -1:
            self.hygiene.add("k-minus-one", where)
        try:
            return as_budget(found)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None

    def budget_or_given(self, value: object, where: str, inferred: float | None = None) -> float:
        """The budget of the record, else as inferred, as given, or read off the file's name.

        Raises:
            InputError: Nobody says which budget it was.
        """
        found = self.budget(value, where)
        if found is not None:
            return found
        if self.options.k is not None:
            self.hygiene.add("k-given", where)
            return as_budget(self.options.k)
        if inferred is not None:
            self.hygiene.add("k-inferred", where)
            return self.budget(inferred, where) or 0.0
        named = k_in_name(self.stem)
        if named is None:
            raise InputError(
                f"{where}: no k, and none in the file's name (such as {self.stem[:40]}_k3); say "
                "it with --k, or name its column with --column k=NAME."
            )
        self.hygiene.add("k-from-file-name", where)
        return self.budget(named, where) or 0.0

    def drop(self, data: Mapping[str, Any], kept: frozenset[str], prefix: str = "") -> None:
        """Notes which fields a record has that are not kept."""
        for name, value in data.items():
            is_said = value is not None and value != ""
            if is_said and name not in kept and len(self.hygiene.not_kept) < _MOST_NAMES:
                self.hygiene.not_kept[prefix + name[:60]] += 1


@dataclass(frozen=True)
class Entry:
    """One execution as a log tells it, before it has a key.

    Attributes:
        where: `file:line`.
        prompt: Id of its prompt.
        mechanism: What it was decoded with.
        k: Budget in nats per token.
        debt: Prefix debt; NaN if unknown.
        stopped: True if a stop token ended it, as far as known.
        steps: Per-step record, pad tail cut.
        logged: What the log claims.
        number: Trajectory number, if the log gives one.
        label: Class of the prompt.
        prompt_text: Text of the prompt.
        prompt_tokens: Its token ids.
        reference: Text that outputs are compared with.
        max_new_tokens: T; 0 if not known.
        ledger: Whose rule grants the budgets.
        stops: Stop ids that the record names.
        seed: For duplicates.
        output: Generated text, for duplicates; not kept.
    """

    where: str
    prompt: str
    mechanism: str
    k: float
    debt: float
    stopped: bool
    steps: Steps
    logged: Logged | None
    number: int | None = None
    label: str = "prompt"
    prompt_text: str = ""
    prompt_tokens: tuple[int, ...] = ()
    reference: str = ""
    max_new_tokens: int = 0
    ledger: str = "banking"
    stops: frozenset[int] = frozenset()
    seed: int | None = None
    output: str = ""


def no_steps() -> Steps:
    """The steps of a log that keeps only totals."""
    return Steps(**{name: np.empty(0, dtype) for name, dtype in STEP_TYPES.items()})


def k_word(value: object) -> str | None:
    """`memfree` and the like, which stand where others have a budget; None for a number."""
    if not isinstance(value, str) or not value.strip():
        return None
    try:
        float(value)
    except ValueError:
        return value.strip()
    return None


def k_in_name(stem: str) -> float | None:
    """The budget that a file's name tells: `..._k3_...`, or `anchored_0.1_...`."""
    found = _K_IN_NAME.search(stem) or _NUMBER_IN_NAME.search(stem)
    if found:
        return float(found[1])
    return {"risky": math.inf, "safe": 0.0}.get(re.split("[_.-]", stem)[0])


def rule_in_name(stem: str) -> str:
    """What stands before the budget in a file's name; all of it if there is none."""
    found = _K_IN_NAME.search(stem) or _NUMBER_IN_NAME.search(stem)
    return stem[: found.start()] or stem if found else stem


def ended_early(length: float, limit: int) -> bool:
    """True if a row must have met a stop token, because it is shorter than it might be."""
    return 0 <= length < limit
