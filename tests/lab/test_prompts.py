"""The lab's data: what the workshop makes, and what the paper's reader makes of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from nafaudit.lab import prompts as lab
from nafaudit.lab.shipped import WEIGHTS
from nafaudit.paper.workload import paper_workload
from nafaudit.workload.prompts import CAPS
from nafaudit.workshop.workload import lab_data, write_lab


@pytest.mark.parametrize("name", list(lab_data()))
def test_the_shipped_file_is_what_the_workshop_makes(name: str) -> None:
    assert (WEIGHTS.parent / name).read_bytes() == lab_data()[name]


def test_writing_the_files_gives_the_same_bytes(tmp_path: Path) -> None:
    write_lab(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(lab_data())
    assert all((tmp_path / name).read_bytes() == text for name, text in lab_data().items())


def test_the_workload_is_the_one_that_recorded_runs_name() -> None:
    rows = [json.dumps(asdict(prompt), sort_keys=True) for prompt in lab.prompts()]
    assert hashlib.sha256("\n".join(rows).encode()).hexdigest() == (
        "b3c6a9b5dd42fe90b8095915927cd639677fa700a0efbffbb7aafed83388c6a3"
    )


def test_prompts_are_normalised_as_the_paper_normalises_its_files() -> None:
    firsts = {label: rows[: CAPS[label]] for label, rows in lab.records().items()}
    theirs = {item.source.where: item for item in paper_workload(firsts).items}
    ours = lab.lab_workload().items
    assert len(ours) == len(theirs) == sum(CAPS.values())
    for item in ours:
        other = theirs[item.source.where]
        assert item.source == other.source
        if item.prompt.label == "factual":
            assert item.prompt.id == f"fact_{item.source.novel_source}"
        else:
            assert item.prompt.id == other.prompt.id
        names = ("text", "label", "reference")
        assert all(getattr(item.prompt, n) == getattr(other.prompt, n) for n in names)
