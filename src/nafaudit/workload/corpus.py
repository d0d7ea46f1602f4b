r"""Workloads from the classes of a design file.

[classes.news]
file = "news.jsonl"              # JSON Lines, as seen from the design file
prompt = ["lead", "meta.title"]  # a field, or the first of several that is not empty
reference = "body"               # optional: what outputs are compared with
id = "slug"                      # optional: else NAME:LINE
cap = 100                        # optional: keep the first 100
header = "Continue:\n"           # optional: put before every prompt
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nafaudit.core.errors import InputError, reject_unknown
from nafaudit.workload.prompts import (
    Prompt,
    PromptSource,
    Record,
    Sourced,
    Workload,
    check_names,
    first_id,
    first_text,
    in_turn,
    read_records,
)

_KEYS = ("file", "prompt", "reference", "id", "cap", "header")


@dataclass(frozen=True)
class CorpusClass:
    """One class of a design file."""

    name: str
    file: Path
    prompt: tuple[str, ...]
    reference: tuple[str, ...] = ()
    id: tuple[str, ...] = ()
    cap: int | None = None
    header: str = ""


def read_corpus(
    tables: Mapping[str, Mapping[str, Any]],
    classes: Collection[str] = (),
    cap: Mapping[str, int] | None = None,
) -> Workload:
    """Reads the classes of a design file.

    Args:
        tables: The `[classes.NAME]` tables.
        classes: Only these; all if empty.
        cap: Most prompts by class; wins over the table's own.
    """
    cap = cap or {}
    parsed = [_table(name, table) for name, table in tables.items()]
    check_names((*classes, *cap), list(tables))
    chosen = []
    for table in parsed:
        if classes and table.name not in classes:
            continue
        # Every line is checked and a repeated id is found, also behind the cap.
        items = Workload(tuple(_item(record, table) for record in read_records(table.file))).items
        if not items:
            raise InputError(f"{table.file}: no prompt in it; one JSON object per line.")
        chosen.append(items[: cap.get(table.name, table.cap)])
    return in_turn(chosen)


def _table(name: str, table: Mapping[str, Any]) -> CorpusClass:
    where = f"[classes.{name}]"
    reject_unknown(table, _KEYS, where)
    if not name.strip():
        raise InputError(f"{where}: a class needs a name.")
    for key in ("file", "prompt"):
        if key not in table:
            raise InputError(f"{where}: no {key!r}; give file and prompt (the field's name).")
    for key in ("file", "header"):
        if not isinstance(table.get(key, ""), str):
            raise InputError(f"{where}: {key} must be a string, got {table[key]!r}.")
    most = table.get("cap")
    if most is not None and (type(most) is not int or most < 1):
        raise InputError(f"{where}: cap must be a whole number of at least 1, got {most!r}.")
    fields = {}
    for key in ("prompt", "reference", "id"):
        value = table.get(key, [])
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not all(isinstance(n, str) and n for n in names):
            raise InputError(
                f"{where}: {key} must be a field's name or a list of them, got {value!r}."
            )
        fields[key] = tuple(names)
    if not fields["prompt"]:
        raise InputError(f"{where}: prompt names no field; give at least one.")
    header = table.get("header", "")
    return CorpusClass(name, Path(table["file"]), cap=most, header=header, **fields)


def _item(record: Record, table: CorpusClass) -> Sourced:
    text = first_text(record, table.prompt, "prompt")
    if not text.strip():
        raise InputError(
            f"{record.where}: no prompt: {' and '.join(map(repr, table.prompt))} missing or empty; "
            f"mend the line, or name another field in [classes.{table.name}]."
        )
    name = first_id(record, table.id)
    if table.id and not name:
        raise InputError(
            f"{record.where}: no id: {' and '.join(map(repr, table.id))} missing or empty; mend "
            f"the line, or leave id out of [classes.{table.name}] to number the lines."
        )
    prompt = Prompt(
        name or f"{table.name}:{record.place + 1}",
        table.header + text,
        table.name,
        first_text(record, table.reference, "reference"),
    )
    return Sourced(prompt, PromptSource(record.where, record.data, split=table.name))
