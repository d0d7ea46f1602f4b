"""The paper's six files in small, as tests need them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nafaudit.workload.prompts import FILES

Rows = dict[str, list[dict[str, Any]]]


def small(n: int = 3) -> Rows:
    """n records of each class, with the fields of the paper's own files."""
    excerpts = {
        label: [
            {
                "prompt_id": f"{label}.{i:02d}",
                "source_novel": f"novel {i % 2}",
                "source_excerpt_id": f"x{i}",
                "split": label,
                "raw_text": f"The baker of {label} said {i}",
                "reference_text": "" if label == "neutral" else "that the bread was ready " * 6,
            }
            for i in range(n)
        ]
        for label in ("attack_train", "test", "val", "neutral")
    }
    creative = [
        {
            "metadata": {"title": f"A clock that ran {i}", "submission_id": f"s{i}", "score": 12},
            "reference": "Once there was a clock that ran only on Sundays.",
        }
        for i in range(n)
    ]
    factual = [
        {
            "entity": f"Person {i}",
            "one_fact_prompt": "one fact",
            "factscore_prompt": f" Tell me a bio of Person {i}. ",
            "wikipedia_text": f"Person {i} was a baker.",
        }
        for i in range(n)
    ]
    return {**excerpts, "creative": creative, "factual": factual}


def write(directory: Path, rows: Rows) -> Path:
    """Writes the six files; returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for label, records in rows.items():
        lines(directory / FILES[label], records)
    return directory


def lines(path: Path, records: Iterable[Any]) -> Path:
    """Writes JSON Lines with a blank line between two records."""
    path.write_text("\n\n".join(json.dumps(record) for record in records), encoding="utf-8")
    return path
