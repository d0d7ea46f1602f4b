"""The lab's workload as prompts, normalised as the paper normalises its files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from nafaudit.lab.workload import workload
from nafaudit.workload import Prompt, Sourced, Workload, paper_workload
from nafaudit.workload.paper import CAPS, FILES
from nafaudit.workload.prompts import Record, in_turn


def prompts(seed: int = 0) -> list[Prompt]:
    """Returns the capped classes in turn, so that the first n prompts are a fair sample."""
    return lab_workload(seed).prompts


def records(seed: int = 0) -> dict[str, list[Record]]:
    """The lab's records by class, as if they had been read from its files."""
    return {
        label: [Record(f"{FILES[label]}:{i + 1}", i, row) for i, row in enumerate(rows)]
        for label, rows in workload(seed).items()
    }


def lab_workload(seed: int = 0) -> Workload:
    """The sound protocol's workload: each class's first records in the order of its file."""
    firsts = {label: rows[: CAPS[label]] for label, rows in records(seed).items()}
    items = {item.source.where: item for item in paper_workload(firsts).items}
    ordered = [[_named(items[record.where]) for record in firsts[label]] for label in CAPS]
    return in_turn(ordered)


def paper_lab_workload(
    classes: Collection[str] = (), cap: Mapping[str, int] | None = None, variant: str = "code"
) -> Workload:
    """The paper's protocol on the lab: its sampling order, caps and ids."""
    return paper_workload(records(), classes, cap, variant)


def _named(item: Sourced) -> Sourced:
    """Questions of fact are known by their person, whose place in the file says nothing."""
    if item.prompt.label != "factual":
        return item
    return replace(item, prompt=replace(item.prompt, id=f"fact_{item.source.novel_source}"))
