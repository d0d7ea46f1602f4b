"""The lab's workload as prompts, normalised as the paper normalises its files."""

from __future__ import annotations

from itertools import chain, zip_longest

from nafaudit.lab.corpus import HEADER
from nafaudit.lab.workload import CAPS, Row, workload
from nafaudit.workload import Prompt


def prompts(seed: int = 0) -> list[Prompt]:
    """Returns the capped classes in turn, so that the first n prompts are a fair sample."""
    rows = workload(seed)
    classes = [[_prompt(name, row) for row in rows[name][: CAPS[name]]] for name in CAPS]
    return [prompt for prompt in chain.from_iterable(zip_longest(*classes)) if prompt is not None]


def _prompt(label: str, row: Row) -> Prompt:
    """One record's id, text under the header line (none for questions of fact), and reference."""
    if label == "factual":
        return Prompt(
            f"fact_{row['entity']}", row["factscore_prompt"].strip(), label, row["wikipedia_text"]
        )
    if label == "creative":
        return Prompt(row["prompt_id"], HEADER + row["prompt_text"], label, row["reference"])
    return Prompt(row["prompt_id"], HEADER + row["raw_text"], label, row["reference_text"])
