"""Records a run: its trajectories in parts as they end, progress, sessions, scored references."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from nafaudit import __version__
from nafaudit.core.design import Decoding
from nafaudit.core.errors import StoreError
from nafaudit.core.passage import PassageScores, ScoredPassage
from nafaudit.core.progress import OnProgress, Progress
from nafaudit.core.settings import RunSettings
from nafaudit.core.trajectory import Trajectory
from nafaudit.engine.lanes import Scorer
from nafaudit.measures.context import RunContext
from nafaudit.measures.measure import measure
from nafaudit.models.pair import Pair
from nafaudit.store.artifacts import PASSAGES, read_passages_file, write_passages
from nafaudit.store.files import interrupts_deferred
from nafaudit.store.run import RunWriter
from nafaudit.workload import TokenizedPrompt

# A part is closed after this many trajectories, or at this age in seconds: a kill costs no more.
# Young runs close parts often; long ones make fewer, larger files.
_PART_ROWS = 256
_PART_SECONDS = (2.0, 30.0)
_PART_SHARE = 0.05


class Reporter:
    """Counts what a run has written, and reports it as `Progress`."""

    def __init__(
        self,
        on_progress: OnProgress,
        context: RunContext,
        resumed: int,
        total: int,
        longest: int,
    ) -> None:
        self._on_progress = on_progress
        self._longest = longest
        self._resumed = resumed
        self._total = total
        self._done = resumed
        self._stepped = 0
        self._finished = 0
        self._context, self._worst = context, -math.inf
        self._start = time.monotonic()
        self._report()

    def on_step(self, rows: int) -> None:
        """Counts a token of every active row."""
        self._stepped += rows
        self._report()

    def on_trajectory(self, trajectory: Trajectory) -> None:
        """Counts a trajectory that has ended."""
        self._done += 1
        self._finished += len(trajectory)
        use = measure(trajectory, self._context).utilisation
        self._worst = use if use > self._worst else self._worst
        self._report()

    def _report(self) -> None:
        self._on_progress(
            Progress(
                "",
                self._done,
                self._total,
                max(self._stepped, self._finished),
                time.monotonic() - self._start,
                self._worst,
                resumed=self._resumed,
                # A black box does not report its steps.
                under_way=max(0, self._stepped - self._finished) / self._longest,
            )
        )


def record_parts(
    trajectories: Iterator[Trajectory],
    writer: RunWriter,
    on_trajectory: Callable[[Trajectory], None],
) -> None:
    """Writes parts as trajectories end; after an error, what has ended is recorded too."""
    buffer: list[Trajectory] = []
    start = since = time.monotonic()

    def is_old() -> bool:
        now = time.monotonic()
        least, most = _PART_SECONDS
        return now - since > min(most, max(least, _PART_SHARE * (now - start)))

    def close_part() -> None:
        nonlocal since
        with interrupts_deferred():
            writer.append(buffer)
            buffer.clear()
        since = time.monotonic()

    try:
        for trajectory in trajectories:
            buffer.append(trajectory)
            on_trajectory(trajectory)
            if len(buffer) >= _PART_ROWS or is_old():
                close_part()
    except StoreError:
        raise
    except BaseException:
        close_part()
        raise
    close_part()


def session_facts(
    settings: RunSettings, checkpoints: tuple[str, str], batch: int
) -> dict[str, Any]:
    """Returns what a session ran on, and with which settings."""
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **machine_facts(),
        "device": settings.device,
        "safe_device": settings.safe_device or settings.device,
        "together": settings.together,
        "speculate": settings.speculate,
        "threads": settings.threads,
        "batch": batch,
        "pair": settings.pair if settings.safe is None else None,
        "safe": settings.safe,
        "risky": settings.risky,
        "prefix_n": settings.debt_rule.n,
        "variant": settings.variant,
        "delta": settings.delta,
        # Where `nafaudit verify` looks first; what it finds there must have the design's hashes.
        "checkpoints": [
            str(Path(path).resolve()) if Path(path).is_dir() else path for path in checkpoints
        ],
    }


def machine_facts() -> dict[str, Any]:
    """Returns what this process runs on."""
    # The CPU's own name: bit-identity is promised for one kind of CPU.
    names: list[str] = []
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "nafaudit": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": platform.machine(),
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
    }


CONTEXT = "the prompt as the run gives it; a space if neither it nor the reference has one there"


def record_passages(
    path: Path,
    score: Callable[[Sequence[TokenizedPrompt]], list[ScoredPassage]],
    decoding: Decoding,
    prompts: Sequence[TokenizedPrompt],
) -> None:
    """Writes the surprisals of the prompts' references, as far as an output can reach.

    What is recorded already stays; the file is written only if something is new.

    Args:
        path: Run directory.
        score: Returns surprisals under the safe model.
        decoding: Warps of the law that charges are against.
        prompts: Those with a protected reference.
    """
    recorded = read_passages_file(path / PASSAGES)
    known = {p.id: p for p in recorded.passages} if recorded else {}
    if added := score([item for item in prompts if item.prompt.id not in known]):
        passages = (*known.values(), *added)
        write_passages(path / PASSAGES, PassageScores(CONTEXT, decoding.anchor, passages))


def score_passages(
    pair: Pair, decoding: Decoding, prompts: Sequence[TokenizedPrompt]
) -> list[ScoredPassage]:
    """Returns surprisals of references; a reference without tokens has none.

    Args:
        pair: Whose safe model is asked.
        decoding: Warps of the law that charges are against, and the length limit T.
        prompts: Those with a protected reference.
    """
    scorer = Scorer(pair.safe, pair.vocabulary, decoding, context=pair.context)
    scored = []
    for item in prompts:
        if tokens := reference_tokens(pair.tokenizer, item, pair.vocabulary.special):
            values = scorer.surprisals(item.tokens, tokens[: decoding.max_new_tokens])
            scored.append(ScoredPassage(item.prompt.id, len(tokens), tuple(values.tolist())))
    return scored


def reference_tokens(
    tokenizer: Any, item: TokenizedPrompt, special: frozenset[int]
) -> tuple[int, ...]:
    """Returns the ids that follow the prompt's own if its reference is written after it."""
    prompt, reference = item.prompt.text, item.prompt.reference
    gap = "" if prompt[-1:].isspace() or reference[:1].isspace() else " "
    joined = list(tokenizer(prompt + gap + reference)["input_ids"])
    while joined and joined[-1] in special:
        joined.pop()
    size = len(item.tokens)
    if tuple(joined[:size]) == item.tokens:
        return tuple(joined[size:])
    # The prompt's last token would merge with the reference; the decoder cannot take it back.
    return tuple(tokenizer(gap + reference, add_special_tokens=False)["input_ids"])
