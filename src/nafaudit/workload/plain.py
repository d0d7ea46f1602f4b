"""The simplest workload: one JSON Lines file with ids, texts, classes and references."""

from __future__ import annotations

from pathlib import Path

from nafaudit.core.errors import InputError
from nafaudit.workload.prompts import Prompt
from nafaudit.workload.records import Record, read_records, whole_text
from nafaudit.workload.sources import Source, Sourced, Workload


def read_workload(path: Path) -> Workload:
    """Reads one JSON object per line: `id` and `text`, optionally `class` and `reference`.

    Blank lines are skipped; a missing id becomes `<file name>:<line>`.
    """
    workload = Workload(tuple(_item(record, path.stem) for record in read_records(path)))
    if not workload.items:
        raise InputError(f"{path}: no prompts; one JSON object with 'id' and 'text' per line.")
    return workload


def read_prompts(path: Path) -> list[Prompt]:
    """Reads the prompts of a file alone, see `read_workload`."""
    return read_workload(path).prompts


def _item(record: Record, stem: str) -> Sourced:
    where, row = record.where, record.data
    if "text" not in row:
        raise InputError(f"{where}: no 'text'; keys are 'id', 'text', 'class', 'reference'.")
    fields = {"id": f"{stem}:{record.place + 1}", "class": "prompt", "reference": ""} | row
    for name in ("id", "text", "class", "reference"):
        if not isinstance(fields[name], str):
            raise InputError(f"{where}: {name!r} must be a string, got {fields[name]!r}.")
        whole_text(fields[name], where, name)
    if not fields["text"].strip():
        raise InputError(f"{where}: 'text' is empty; give the prompt's text.")
    prompt = Prompt(fields["id"], fields["text"], fields["class"], fields["reference"])
    return Sourced(prompt, Source(where, row, split=prompt.label))
