"""Price, fidelity and leakage of every mechanism and budget, from one pass over written text.

Fidelity is what ordinary text gains: G = D(risky || safe) - D(risky || served), at most D(risky ||
safe). Leakage is what protected text gains: log p_served of its own tokens, whose exponential is
the chance of reproduction. Mechanisms are compared where they buy the same fidelity.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nafaudit.core import trust as trusts
from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.core.errors import InputError
from nafaudit.core.ledger import as_budget, is_baseline
from nafaudit.core.numerics import check_threads
from nafaudit.core.trust import Trust
from nafaudit.engine.laws import Reader, Text
from nafaudit.engine.proof import numerics_of
from nafaudit.mechanisms.registry import SequenceMechanism, mechanism
from nafaudit.models.checkpoints import check_device, check_dtype, context_of, load_tokenizer
from nafaudit.models.pair import load_pair
from nafaudit.protocols import Mechanism
from nafaudit.runner.material import material_of
from nafaudit.workload import Prompt, TokenizedPrompt
from nafaudit.workload.passages import Passage, passages_hash
from nafaudit.worth.along import Ends, Path, follow
from nafaudit.worth.certify import GivenText, check_lengths, given_text, opening_of

Array = NDArray[np.float64]


@dataclass(frozen=True)
class FrontierSettings:
    """What a frontier is asked for.

    Attributes:
        mechanisms: Step-level ones; the first is what the others are compared with.
        k: Budgets in nats per token.
        decoding: Warps, and how many tokens of a text are followed at most.
        debt: How a prompt's debt is reckoned.
        given: Tokens of each text that count as its prompt.
        window: Tokens over which leakage is stated.
        limit: At most so many texts of either kind; 0 for all.
        device: Torch device.
        dtype: Precision of the forward passes.
        threads: Torch threads, 1 or 2; two only where they change no bit.
        trust: What the checkpoints are permitted.
    """

    mechanisms: tuple[str, ...] = ("anchored", "renyi:2", "renyi:4", "pathwise")
    k: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0, 3.0, 10.0)
    decoding: Decoding = field(default_factory=Decoding)
    debt: DebtRule = field(default_factory=DebtRule)
    given: int = 25
    window: int = 50
    limit: int = 16
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    trust: Trust = trusts.NONE

    def __post_init__(self) -> None:
        check_threads(self.threads)
        for name, least in (("given", 1), ("window", 1), ("limit", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, got {getattr(self, name)}.")
        budgets = tuple(sorted({as_budget(k) for k in self.k}))
        if not budgets or any(is_baseline(k) for k in budgets):
            raise InputError(
                f"k must be above 0 and finite, got {', '.join(f'{k:g}' for k in self.k)}; the "
                "two models alone are always there."
            )
        object.__setattr__(self, "k", budgets)
        _ = self.built

    @property
    def built(self) -> list[Mechanism]:
        """The mechanisms; a wrong name is said here."""
        found = [mechanism(spec, self.debt) for spec in self.mechanisms]
        if len({one.name for one in found}) < len(found) or not found:
            raise InputError(f"name each mechanism once, got {', '.join(self.mechanisms)}.")
        for spec, one in zip(self.mechanisms, found, strict=True):
            if isinstance(one, SequenceMechanism):
                raise InputError(
                    f"{spec} chooses whole outputs and has no law of a step to follow a text "
                    "with; leave it out, and attack it instead: nafaudit attack --mechanism "
                    f"{spec}."
                )
        return found


@dataclass(frozen=True)
class Side:
    """One kind of text, followed: every array is [texts] or [mechanisms, budgets, texts].

    Attributes:
        ids: Of the texts.
        ends: The two models on each.
        paths: By mechanism, budget and text.
    """

    ids: tuple[str, ...]
    ends: tuple[Ends, ...]
    paths: tuple[tuple[tuple[Path, ...], ...], ...]

    def end(self, name: str) -> Array:
        """A number of each text."""
        return np.array([getattr(one, name) for one in self.ends], float)

    def values(self, name: str) -> Array:
        """A sum of each text under every mechanism and budget."""
        rows = [[[getattr(p, name) for p in ks] for ks in one] for one in self.paths]
        return np.array(rows, float)


@dataclass(frozen=True)
class Frontier:
    """What was found on both kinds of text."""

    identity: dict[str, Any]
    settings: FrontierSettings
    ordinary: Side
    protected: Side

    @property
    def hash(self) -> str:
        """SHA-256 of what decides the numbers."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()


def frontier(
    checkpoints: tuple[str, str],
    protected: Sequence[Passage],
    ordinary: Sequence[Passage],
    settings: FrontierSettings,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Frontier:
    """Follows both kinds of text once.

    Args:
        checkpoints: Safe and risky model: directories or hub ids.
        protected: Text that the risky model may have memorised.
        ordinary: Text on which fidelity is measured.
        settings: Checked before the models load.
        report: Called with how many texts are followed, and how many there are.
    """
    check_dtype(settings.dtype)
    check_device(settings.device)
    tokenizer = load_tokenizer(checkpoints[0], settings.trust)
    opening, context = opening_of(tokenizer)
    kinds = [
        [_text(tokenizer, one, opening, settings) for one in _spread(texts, settings.limit)]
        for texts in (ordinary, protected)
    ]
    every = [text for texts in kinds for text in texts]
    check_lengths(every, context_of(*checkpoints, trust=settings.trust), "the pair")
    torch.set_num_threads(settings.threads)
    pair = load_pair(
        *checkpoints, dtype=settings.dtype, device=settings.device, trust=settings.trust
    )
    numerics_of((pair.safe, pair.risky))  # as many threads as change no bit
    listed = [
        TokenizedPrompt(Prompt(one.id, one.passage.text, "protected", one.passage.text), one.before)
        for one in kinds[1]
    ]
    material = material_of(tokenizer, listed)
    mechanisms = [one.bind(material) for one in settings.built]
    reader = Reader(pair, settings.decoding)
    found: dict[int, tuple[Ends, list[Path]]] = {}
    texts = [Text(one.before, one.tokens) for one in every]
    for number, ends, paths in follow(reader, mechanisms, settings.k, texts):
        found[number] = (ends, paths)
        report(len(found), len(texts))
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


def _text(
    tokenizer: Any, passage: Passage, opening: tuple[int, ...], settings: FrontierSettings
) -> GivenText:
    text = given_text(tokenizer, passage, opening, settings.given)
    return replace(text, tokens=text.tokens[: settings.decoding.max_new_tokens])


def _spread(texts: Sequence[Passage], most: int) -> list[Passage]:
    n = len(texts)
    return list(texts) if not most or most >= n else [texts[i * n // most] for i in range(most)]


def _side(
    texts: Sequence[GivenText],
    found: Sequence[tuple[Ends, list[Path]]],
    settings: FrontierSettings,
) -> Side:
    n = len(settings.k)
    paths = tuple(
        tuple(tuple(rows[m * n + j] for _, rows in found) for j in range(n))
        for m in range(len(settings.mechanisms))
    )
    return Side(tuple(one.id for one in texts), tuple(ends for ends, _ in found), paths)
