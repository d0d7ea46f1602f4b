"""The lab's prompts, protected passages and ordinary text, as data that the workshop wrote.

`prompts.jsonl` has the records of the paper's six classes in the field names of the paper's files,
`others.jsonl` prompts of other kinds, `passages.jsonl` what the risky model has memorised,
`ordinary.jsonl` text that neither model saw. `nafaudit.workshop.workload` makes the same bytes.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from nafaudit.workload import Prompt, PromptSource, Sourced, Workload
from nafaudit.workload.passages import Passage
from nafaudit.workload.prompts import CAPS, FILES, HEADER, Record, in_turn


class _LabClass(NamedTuple):
    """The field names of a class of the lab."""

    domain: str
    text: str
    source: str
    reference: str


_EXCERPT = _LabClass("copyright", "raw_text", "source_novel", "reference_text")
_FORMS = {
    "creative": _LabClass("creative", "prompt_text", "", "reference"),
    "factual": _LabClass("factual", "factscore_prompt", "entity", "wikipedia_text"),
}


@cache
def _rows(name: str) -> list[dict[str, Any]]:
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


def records() -> dict[str, list[Record]]:
    """Reads the lab's records by class, in the form of the paper's files."""
    found: dict[str, list[Record]] = {label: [] for label in FILES}
    for row in _rows("prompts.jsonl"):
        rows = found[row["class"]]
        data = {name: value for name, value in row.items() if name != "class"}
        rows.append(Record(f"{FILES[row['class']]}:{len(rows) + 1}", len(rows), data))
    return found


def lab_workload() -> Workload:
    """Returns the sound protocol's workload: each class's first records in file order."""
    found = records()
    classes: list[list[Sourced]] = []
    for label, cap in CAPS.items():
        form = _FORMS.get(label, _EXCERPT)
        classes.append([])
        for where, _, data in found[label][:cap]:
            source = data.get(form.source) or None
            # Questions of fact are named by their person: their place in the file means nothing.
            name, text = (
                (f"fact_{source}", data[form.text])
                if label == "factual"
                else (data["prompt_id"], HEADER + data[form.text])
            )
            prompt = Prompt(name, text, label, data[form.reference])
            origin = PromptSource(where, data, form.domain, label, source)
            classes[-1].append(Sourced(prompt, origin))
    return in_turn(classes)


@cache
def texts() -> frozenset[str]:
    """Returns the text of every prompt, with and without the prefix line."""
    found = (
        data[_FORMS.get(label, _EXCERPT).text]
        for label, rows in records().items()
        for _, _, data in rows
    )
    return frozenset(text for one in found for text in (one, HEADER + one))


def prompts() -> list[Prompt]:
    """Returns the capped classes in turn, so that the first n prompts are a fair sample."""
    return lab_workload().prompts


def others() -> list[Prompt]:
    """Returns prompts of other kinds than the workload's: questions, facts, conversations."""
    return [Prompt(row["id"], row["text"], row["class"]) for row in _rows("others.jsonl")]


def passages() -> list[Passage]:
    """Returns the passages that the risky model has memorised."""
    return [Passage(row["id"], row["text"]) for row in _rows("passages.jsonl")]


def ordinary() -> list[Passage]:
    """Returns text of the kind that both models were made for, and that neither saw."""
    return [Passage(row["id"], row["text"]) for row in _rows("ordinary.jsonl")]
