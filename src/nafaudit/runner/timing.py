"""How fast this machine decodes this pair, from a few seconds of the run's own first rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from nafaudit.core.draws import sound_stream
from nafaudit.core.settings import Settings
from nafaudit.engine.decode import Decoder
from nafaudit.engine.probe import settle
from nafaudit.engine.prompts import PromptRequest, RowRequest
from nafaudit.mechanisms.registry import SequenceMechanism
from nafaudit.runner.prepare import Asked, load, read
from nafaudit.workload import TokenizedPrompt

_PROMPTS = 3


@dataclass(frozen=True)
class Timing:
    """What was measured.

    Attributes:
        loading: Seconds to read prompts and models.
        seconds_per_prompt: To read a prompt with both models.
        tokens_per_second: Written, over all rows of a batch.
        tokens: How many that rests on.
        seconds: How long they took.
        price: How many times longer a full batch takes for its constant number of rows; 1 where
            rows are free.
        why: Why rows are constant; empty where they are free.
    """

    loading: float
    seconds_per_prompt: float
    tokens_per_second: float
    tokens: int
    seconds: float
    price: float = 1.0
    why: str = ""


class _Enough(Exception):  # noqa: N818 - no error: the way out of the decoder's loop
    """Ends the timing in the middle of a row."""


class _Watch:
    """Counts tokens from the second step on, until time is up."""

    def __init__(self, seconds: float) -> None:
        self._limit = seconds
        self._start: float | None = None
        self.tokens = 0
        self.seconds = 0.0

    def step(self, rows: int) -> None:
        now = time.monotonic()
        if self._start is None:
            # The first step allocates caches, and the prompts were read before it.
            self._start = now
            return
        self.tokens += rows
        self.seconds = now - self._start
        if self.seconds > self._limit:
            raise _Enough


def time_decoding(settings: Settings, seconds: float) -> Timing | None:
    """Loads the pair and decodes the run's first rows for some seconds; records nothing.

    None for a mechanism that draws whole outputs: a step of one row says nothing about it.
    """
    start = time.monotonic()
    asked = read(settings)
    pair = load(asked.order)
    loading = time.monotonic() - start
    if isinstance(asked.mechanism, SequenceMechanism):
        return None
    shape: dict[str, Any] = {"width": asked.width, "batch": settings.batch}
    how = settle(pair, asked.mechanism, settings.decoding, **shape).numerics
    decoder = Decoder(pair, asked.mechanism, settings.decoding, **shape, numerics=how)
    per_prompt = _reading(decoder, asked.chosen)
    watch = _watched(decoder, asked, settings, seconds)
    rate = watch.tokens / max(watch.seconds, 1e-6)
    timing = Timing(loading, per_prompt, rate, watch.tokens, watch.seconds)
    if how.constant is None:
        return timing
    free = Decoder(
        pair, asked.mechanism, settings.decoding, **shape, numerics=replace(how, constant=None)
    )
    seen = _watched(free, asked, settings, seconds)
    price = (seen.tokens / max(seen.seconds, 1e-6)) / max(rate, 1e-6)
    return replace(timing, price=price, why=how.why)


def _watched(decoder: Decoder, asked: Asked, settings: Settings, seconds: float) -> _Watch:
    """Decodes the run's first rows for some seconds."""
    watch = _Watch(seconds)
    decoder.watch = watch.step
    start = time.monotonic()
    try:
        for _ in decoder.decode(_requests(asked, settings)):
            pass
    except _Enough:
        pass
    if not watch.tokens:  # every row ended at its first token
        watch.tokens, watch.seconds = len(asked.chosen), time.monotonic() - start
    return watch


def _reading(decoder: Decoder, prompts: Sequence[TokenizedPrompt]) -> float:
    """Seconds to read a prompt: of the median one, after one that warms up."""
    by_length = sorted(prompts, key=lambda item: len(item.tokens))
    middle = by_length[len(by_length) // 2].tokens
    decoder.debt(middle)
    start = time.monotonic()
    for _ in range(_PROMPTS):
        decoder.debt(middle)
    return (time.monotonic() - start) / _PROMPTS


def _requests(asked: Asked, settings: Settings) -> list[PromptRequest]:
    """As many of the run's first prompts as fill a batch, with draws of their own."""
    rows = len(settings.budgets) * settings.trajectories
    return [
        PromptRequest(
            item.prompt.id,
            item.tokens,
            tuple(
                RowRequest(k, j, sound_stream(settings.seed, "timing", item.prompt.id, j))
                for j in range(settings.trajectories)
                for k in settings.budgets
            ),
        )
        for item in asked.chosen[: -(-settings.batch // rows)]
    ]
