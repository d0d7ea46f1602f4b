"""Makes the data files of the lab: prompts, passages and ordinary text.

The prompts are of the paper's six classes, in the paper's own files and fields. Copyright prompts
are seed windows of protected passages: the work's split decides the class, so a near-duplicate
never has its twin in another class. The header line is not part of a prompt's text; reading adds
it, as the paper does.

Prompts of other kinds are questions and conversations about the memorised works, which are written,
and openings of articles about people of whom the workload asks nothing.

After a change of the text, write the lab's files again and commit them:

    python -c "from nafaudit.workshop.workload import write_lab; write_lab()"
"""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import Iterator
from importlib import resources
from itertools import count
from pathlib import Path
from typing import Any

from nafaudit.lab.shipped import WEIGHTS
from nafaudit.workload import Prompt
from nafaudit.workload.prompts import CAPS, FILES
from nafaudit.workshop.grammar import QUESTIONS, Taste, Writer, entries, held_out_documents
from nafaudit.workshop.works import Split, WorkPassage, protected, works

OPENING = 12
"""Number of words of an article in a prompt about a fact."""


def other_prompts() -> list[Prompt]:
    """Returns prompts of other kinds than the workload's, kind by kind."""
    file = resources.files("nafaudit.workshop") / "text" / "other_pools.toml"
    written = tomllib.loads(file.read_text(encoding="utf-8"))
    # The workload asks about the first entries, as many as its class may have.
    facts = [" ".join(one.article.split()[:OPENING]) for one in entries()[CAPS["factual"] :]]
    kinds = {"qa": written["qa"], "factual": facts, "multi-turn": written["multi-turn"]}
    return [
        Prompt(f"{kind}_{place}", text, kind)
        for kind, texts in kinds.items()
        for place, text in enumerate(texts)
    ]


Row = dict[str, Any]

SEED_WORDS = (15, 24)
"""Fewest and most words of a seed window."""

REFERENCE_WORDS = 30
"""Fewest words that must follow a seed window, so that a near-verbatim span can be seen."""

ORDINARY_WORDS = 60
"""Shorter documents are left out of the lab's ordinary text."""

_SUMMARY_SHARE = 0.4
_PLAIN = Taste("plain")


def workload(seed: int = 0) -> dict[str, list[Row]]:
    """Builds the records of all six classes.

    Args:
        seed: of every choice; passages, and so texts of copyright classes, do not depend on it.

    Returns:
        Records by class, in the field names of the paper's files.
    """
    return {
        "attack_train": _copyright("attack_train", seed),
        "test": _copyright("test", seed),
        "val": _copyright("val", seed),
        "neutral": _neutral(seed),
        "creative": _creative(seed),
        "factual": _factual(seed),
    }


def write_workload(directory: Path, seed: int = 0) -> list[Path]:
    """Writes the six JSON-lines files and returns their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, records in workload(seed).items():
        path = directory / FILES[name]
        lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        path.write_text("".join(lines), encoding="utf-8")
        paths.append(path)
    return paths


def lab_data() -> dict[str, bytes]:
    """Returns the data files of the lab by name; `write_lab` writes them."""
    ordinary = [text for text in held_out_documents() if len(text.split()) >= ORDINARY_WORDS]
    rows: dict[str, list[Row]] = {
        "prompts.jsonl": [
            {"class": label} | row for label, records in workload().items() for row in records
        ],
        "others.jsonl": [
            {"id": one.id, "text": one.text, "class": one.label} for one in other_prompts()
        ],
        "passages.jsonl": [{"id": one.id, "text": one.text} for one in protected()],
        "ordinary.jsonl": [
            {"id": f"ordinary.{i:03d}", "text": text} for i, text in enumerate(ordinary)
        ],
    }
    return {
        name: "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found).encode()
        for name, found in rows.items()
    }


def write_lab(directory: Path = WEIGHTS.parent) -> None:
    """Writes the data files of the lab; equal text gives equal bytes."""
    for name, content in lab_data().items():
        (directory / name).write_bytes(content)


def _copyright(split: Split, seed: int) -> list[Row]:
    chosen = [
        (w, p, passage)
        for w, work in enumerate(works())
        if work.split == split
        for p, passage in enumerate(work.passages)
    ]
    # As few windows per passage as fill the class; the window leads the id, because the paper
    # takes the first ids and should meet every passage before it meets one twice.
    windows = -(-CAPS[split] // len(chosen))
    return [
        _seed_window(passage, f"lab.{window:02d}.{w:02d}.{p:02d}", window / windows, seed)
        for window in range(windows)
        for w, p, passage in chosen
    ]


def _seed_window(passage: WorkPassage, prompt_id: str, where: float, seed: int) -> Row:
    rng = random.Random(f"window/{seed}/{prompt_id}")
    words = passage.text.split(" ")
    length = rng.randint(*SEED_WORDS)
    room = len(words) - length - REFERENCE_WORDS
    if room < 0:
        raise ValueError(
            f"passage {passage.id} has {len(words)} words; a seed window and its reference need "
            f"{length + REFERENCE_WORDS}: lengthen the passage"
        )
    start = int(where * (room + 1))
    return {
        "prompt_id": prompt_id,
        "source_novel": passage.work,
        "source_excerpt_id": passage.id,
        "split": passage.split,
        "raw_text": " ".join(words[start : start + length]),
        "reference_text": " ".join(words[start + length :]),
    }


def _neutral(seed: int) -> list[Row]:
    summaries = int(_SUMMARY_SHARE * CAPS["neutral"])
    kinds = (
        ("qa", "question_prompt", CAPS["neutral"] - summaries),
        ("sum", "summary_prompt", summaries),
    )
    return [
        {
            "prompt_id": f"neutral_{kind}_{index:03d}",
            "source_novel": "",
            "source_excerpt_id": "",
            "split": "neutral",
            "raw_text": text,
            "reference_text": "",
        }
        for kind, rule, n in kinds
        for index, (text, _) in enumerate(_distinct(rule, f"{kind}/{seed}", n))
    ]


def _creative(seed: int) -> list[Row]:
    return [
        {
            "prompt_id": f"creative_{index:03d}",
            "prompt_text": text,
            "reference": writer.write("reply"),
            "score": 10 + random.Random(f"score/{seed}/{index}").randrange(90),
            "cleaning_passed": True,
        }
        for index, (text, writer) in enumerate(
            _distinct("request_prompt", f"creative/{seed}", CAPS["creative"])
        )
    ]


def _factual(seed: int) -> list[Row]:
    del seed  # the encyclopaedia is one
    return [
        {"entity": entry.entity}
        | {field: entry.prompt(field) for field in QUESTIONS}
        | {"wikipedia_text": entry.article}
        for entry in entries()
    ]


def _distinct(rule: str, stream: str, n: int) -> Iterator[tuple[str, Writer]]:
    seen: set[str] = set()
    for index in count():
        writer = Writer(random.Random(f"prompt/{stream}/{index}"), _PLAIN)
        text = writer.write(rule)
        if text not in seen:
            seen.add(text)
            yield text, writer
        if len(seen) == n:
            return
