"""Measures price, fidelity and leakage of mechanisms and budgets in one pass over written text.

Fidelity is what ordinary text gains: G = D(risky || safe) - D(risky || served), at most D(risky ||
safe). Leakage is what protected text gains: log p_served of its own tokens, whose exponential is
the chance of reproduction. Mechanisms are compared where they buy the same fidelity.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nafaudit.auditor.follow import Followed, TextEnds, follow_texts
from nafaudit.auditor.teacher_forcing import ForcedText, Reader
from nafaudit.core.progress import OnProgress, Progress
from nafaudit.engine.proof import numerics_of
from nafaudit.mechanisms.laws import kl
from nafaudit.models.checkpoints import check_device, check_dtype, context_of, load_tokenizer
from nafaudit.runner.workbench import load_models, resources_of
from nafaudit.workload.passages import Passage, passages_hash
from nafaudit.worth.certify import GivenText, check_lengths, given_text, opening_of, spread
from nafaudit.worth.settings import FrontierSettings

Array = NDArray[np.float64]


@dataclass(frozen=True)
class FollowedTexts:
    """One kind of text, followed: every array is [texts] or [mechanisms, budgets, texts].

    Attributes:
        ids: Ids of the texts.
        ends: The two models on each.
        paths: By mechanism, budget and text.
    """

    ids: tuple[str, ...]
    ends: tuple[TextEnds, ...]
    paths: tuple[tuple[tuple[Followed, ...], ...], ...]

    def end(self, name: str) -> Array:
        """Returns a number of each text."""
        return np.array([getattr(one, name) for one in self.ends], float)

    def values(self, name: str) -> Array:
        """Returns a sum of each text under every mechanism and budget."""
        rows = [[[getattr(p, name) for p in ks] for ks in one] for one in self.paths]
        return np.array(rows, float)


@dataclass(frozen=True)
class Frontier:
    """Both kinds of text, followed, and what decides the numbers."""

    identity: dict[str, Any]
    settings: FrontierSettings
    ordinary: FollowedTexts
    protected: FollowedTexts

    @property
    def hash(self) -> str:
        """Returns the SHA-256 of what decides the numbers."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()


def frontier(
    checkpoints: tuple[str, str],
    protected: Sequence[Passage],
    ordinary: Sequence[Passage],
    settings: FrontierSettings,
    on_progress: OnProgress = lambda progress: None,
) -> Frontier:
    """Follows both kinds of text once.

    Args:
        checkpoints: Safe and risky model: directories or hub ids.
        protected: Text that the risky model may have memorised.
        ordinary: Text on which fidelity is measured.
        settings: Checked before the models load.
        on_progress: Called as texts are followed.
    """
    check_dtype(settings.dtype)
    check_device(settings.device)
    tokenizer = load_tokenizer(checkpoints[0], settings.trust)
    opening, context = opening_of(tokenizer)
    kinds = [
        [
            given_text(tokenizer, one, opening, settings.given)
            for one in spread(texts, settings.limit)
        ]
        for texts in (ordinary, protected)
    ]
    most = settings.decoding.max_new_tokens
    every = [replace(text, tokens=text.tokens[:most]) for texts in kinds for text in texts]
    check_lengths(every, context_of(*checkpoints, trust=settings.trust), "the pair")
    pair = load_models(settings, checkpoints)
    numerics_of((pair.safe, pair.risky))  # as many threads as change no bit
    passages = tuple(dict.fromkeys(one.passage.text for one in kinds[1]))
    resources = resources_of(tokenizer, passages)
    mechanisms = [one.bind(resources) for one in settings.built]
    reader = Reader(pair, settings.decoding)
    found: dict[int, tuple[TextEnds, list[Followed]]] = {}
    texts = [ForcedText(one.before, one.tokens) for one in every]
    start = time.monotonic()
    for number, ends, paths in follow_texts(reader, mechanisms, settings.k, texts, kl):
        found[number] = (ends, paths)
        seconds = time.monotonic() - start
        on_progress(Progress("", len(found), len(texts), seconds=seconds, unit="texts"))
    split = len(kinds[0])
    return Frontier(
        {
            **pair.fingerprint,
            "protected": passages_hash(protected),
            "ordinary": passages_hash(ordinary),
            "context": context,
            "anchor": settings.decoding.anchor,
            "mechanisms": [one.name for one in mechanisms],
            "k": list(settings.k),
            "given": settings.given,
            "limit": settings.limit,
            "tokens": settings.decoding.max_new_tokens,
        },
        settings,
        _side(every[:split], [found[i] for i in range(split)], settings),
        _side(every[split:], [found[i] for i in range(split, len(every))], settings),
    )


def _side(
    texts: Sequence[GivenText],
    found: Sequence[tuple[TextEnds, list[Followed]]],
    settings: FrontierSettings,
) -> FollowedTexts:
    """Returns one kind of text, rows by mechanism, budget and text."""
    n = len(settings.k)
    paths = tuple(
        tuple(tuple(rows[m * n + j] for _, rows in found) for j in range(n))
        for m in range(len(settings.mechanisms))
    )
    return FollowedTexts(tuple(one.id for one in texts), tuple(ends for ends, _ in found), paths)
