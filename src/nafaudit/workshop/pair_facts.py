"""Measures the numbers of a pair's card from its weights.

Laws are compared in float64. Recall is measured with a ``Decode`` of the caller, and the metrics
use token lists only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from transformers import LlamaForCausalLM

from nafaudit.core.debt import DebtRule, prefix_debt
from nafaudit.lab.shipped import WEIGHTS, Role
from nafaudit.measures.overlap import near_verbatim_recall
from nafaudit.models.pair import Pair
from nafaudit.models.pair import load_pair as load_any_pair
from nafaudit.workload.prompts import HEADER
from nafaudit.workshop.grammar import held_out_documents
from nafaudit.workshop.workload import workload
from nafaudit.workshop.works import Page, WorkPassage, held_out, protected

SEED_WORDS = 15
"""Number of words of a passage in a recall prompt: about 25 tokens."""

RISKY_ALONE = math.inf
SAFE_ALONE = 0.0
_BATCH = 16


@dataclass(frozen=True)
class LabPair:
    """The lab's pair, with its text in and out."""

    pair: Pair

    @property
    def safe(self) -> Any:
        """The anchor."""
        return self.pair.safe

    @property
    def risky(self) -> Any:
        """The model that has memorised the protected works."""
        return self.pair.risky

    def encode(self, text: str) -> list[int]:
        """Returns the begin token and the tokens of a text."""
        ids: list[int] = self.pair.tokenizer(text)["input_ids"]
        return ids

    def encode_document(self, text: str) -> list[int]:
        """Returns a whole document's tokens, begin and end token included."""
        return [*self.encode(text), int(self.pair.tokenizer.eos_token_id)]

    def decode(self, ids: list[int]) -> str:
        """Returns the text of tokens, special tokens left out."""
        return str(self.pair.tokenizer.decode(ids, skip_special_tokens=True))


def load_pair(weights: Path = WEIGHTS, *, anchor: Role = "safe") -> LabPair:
    """Loads a pair; ``anchor`` chooses which of the two safe models anchors it."""
    return LabPair(load_any_pair(weights / anchor, weights / "risky"))


@dataclass(frozen=True)
class LabOutput:
    """One sampled continuation under a budget.

    Attributes:
        tokens: the new tokens, the end token included when it was sampled.
        thetas: weight of the risky law at each step.
        charges: KL(served || safe) at each step, in nats.
    """

    tokens: tuple[int, ...]
    thetas: tuple[float, ...]
    charges: tuple[float, ...]


class Decode(Protocol):
    """Samples continuations under budget k; ``RISKY_ALONE`` and ``SAFE_ALONE`` are baselines."""

    def __call__(
        self, prompts: Sequence[list[int]], k: float, trajectories: int, seed: int
    ) -> list[list[LabOutput]]:
        """Returns ``trajectories`` outputs for every prompt."""
        ...


@dataclass(frozen=True)
class RecallPrompt:
    """The opening of a passage under the header line, and the text after it."""

    passage: str
    text: str
    reference: str


def recall_prompts(
    passages: Iterable[Page], *, header: bool = True, words_after: int | None = None
) -> list[RecallPrompt]:
    """Returns one prompt per passage: its first words, with the rest as the reference.

    Args:
        passages: The passages.
        header: True puts the header line before a prompt.
        words_after: Largest number of words of the reference; the whole rest if None.
    """
    prompts = []
    for passage in passages:
        words = passage.text.split(" ")
        opening, rest = " ".join(words[:SEED_WORDS]), " ".join(words[SEED_WORDS:][:words_after])
        prompts.append(RecallPrompt(passage.id, (HEADER if header else "") + opening, rest))
    return prompts


def log_laws(model: LlamaForCausalLM, batch: Sequence[list[int]]) -> list[torch.Tensor]:
    """Returns for every sequence the float64 log law of each token after the first."""
    width = max(map(len, batch))
    # Right padding changes nothing under a causal mask, as no position reads those after it.
    ids = torch.tensor([row + [0] * (width - len(row)) for row in batch])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits.double()
    laws = torch.log_softmax(logits, dim=-1)
    return [laws[i, : len(row) - 1] for i, row in enumerate(batch)]


def mean_loss(model: LlamaForCausalLM, documents: Sequence[list[int]]) -> float:
    """Returns nats per token, with equal weight of all tokens after the begin token."""
    total, tokens = 0.0, 0
    for batch in _batches(documents):
        for row, law in zip(batch, log_laws(model, batch), strict=True):
            total -= law.gather(1, torch.tensor(row[1:])[:, None]).sum().item()
            tokens += len(row) - 1
    return total / tokens


def mean_kl(pair: LabPair, documents: Sequence[list[int]]) -> float:
    """Returns KL(risky || safe) per position of the given documents, in nats."""
    total, tokens = 0.0, 0
    for batch in _batches(documents):
        risky, safe = log_laws(pair.risky, batch), log_laws(pair.safe, batch)
        for law_r, law_s in zip(risky, safe, strict=True):
            total += (law_r.exp() * (law_r - law_s)).sum().item()
            tokens += len(law_r)
    return total / tokens


@dataclass(frozen=True)
class Contrast:
    """Losses and divergence of both models on some documents, in nats per token.

    Attributes:
        tokens: Number of positions.
        safe: Loss of the safe model.
        risky: Loss of the risky model.
        kl: KL(risky || safe).
    """

    tokens: int
    safe: float
    risky: float
    kl: float


def contrast(pair: LabPair, documents: Sequence[list[int]]) -> Contrast:
    """Reads documents with both models, one at a time: a large vocabulary fills the memory."""
    tokens, safe, risky, kl = 0, 0.0, 0.0, 0.0
    for row in documents:
        (law_s,), (law_r,) = log_laws(pair.safe, [row]), log_laws(pair.risky, [row])
        at = torch.tensor(row[1:])[:, None]
        tokens += len(law_s)
        safe -= law_s.gather(1, at).sum().item()
        risky -= law_r.gather(1, at).sum().item()
        kl += (law_r.exp() * (law_r - law_s)).sum().item()
    return Contrast(tokens, safe / tokens, risky / tokens, kl / tokens)


def prefix_debts(pair: LabPair, prompts: Sequence[list[int]]) -> list[float]:
    """Returns each prompt's debt: the mean of its up to five largest positive log-ratios.

    The log-ratio of a prompt token is log p_risky - log p_safe; special tokens are left out, and
    a prompt without a positive ratio has no debt.
    """
    debts = []
    special = pair.pair.vocabulary.special
    for batch in _batches(prompts):
        risky, safe = log_laws(pair.risky, batch), log_laws(pair.safe, batch)
        for row, law_r, law_s in zip(batch, risky, safe, strict=True):
            index = torch.tensor(row[1:])[:, None]
            ratios = (law_r - law_s).gather(1, index)[:, 0].numpy()
            counted = np.array([token not in special for token in row[1:]])
            debts.append(prefix_debt(ratios, counted, DebtRule()))
    return debts


def recalls(
    pair: LabPair, prompts: Sequence[RecallPrompt], outputs: Sequence[Sequence[LabOutput]]
) -> list[float]:
    """Returns each prompt's mean near-verbatim recall over its outputs."""
    means = []
    for prompt, tried in zip(prompts, outputs, strict=True):
        scores = [
            near_verbatim_recall(pair.decode(list(output.tokens)), prompt.reference)
            for output in tried
        ]
        means.append(sum(scores) / len(scores))
    return means


def active_share(outputs: Iterable[Sequence[LabOutput]]) -> float:
    """Returns the share of steps that mix both models, debt-forced opening steps left out."""
    active, steps = 0, 0
    for output in (o for tried in outputs for o in tried):
        forced = next((i for i, th in enumerate(output.thetas) if th > 0), len(output.thetas))
        steps += len(output.thetas) - forced
        active += sum(0 < th < 1 for th in output.thetas)
    return active / steps if steps else math.nan


def mean_spend(outputs: Iterable[Sequence[LabOutput]]) -> float:
    """Returns nats spent per output."""
    spends = [sum(o.charges) for tried in outputs for o in tried]
    return sum(spends) / len(spends)


def _batches(rows: Sequence[list[int]]) -> Iterable[Sequence[list[int]]]:
    return (rows[i : i + _BATCH] for i in range(0, len(rows), _BATCH))


DecoderFor = Callable[[LabPair], Decode]
"""Makes the decoder of a pair."""

BUDGETS = (0.25, 0.5, 1.0, 3.0, 5.0, 10.0, 20.0)
BENIGN = ("neutral", "creative", "factual")
SPEND_BUDGET = 1.0
"""Budget under which the two anchors' spends on benign prompts are compared."""


@dataclass(frozen=True)
class Losses:
    """Nats per token of one model."""

    ordinary: float
    protected: float
    held_out_works: float


@dataclass(frozen=True)
class TeacherForced:
    """Numbers of one pass over fixed text, without sampling."""

    safe: Losses
    safe2: Losses
    risky: Losses
    kl_ordinary: float
    kl_protected: float
    debt_protected: float
    debt_benign: float


@dataclass(frozen=True)
class Sampled:
    """Numbers of sampled outputs; recall is near-verbatim, after the first words."""

    risky_recall: float
    risky_recall_without_header: float
    safe_recall: float
    held_out_recall: float
    recall: dict[str, float]
    active_share: dict[str, float]
    benign_spend: float
    benign_spend_safe2: float


@dataclass(frozen=True)
class PairFacts:
    """All measured numbers of the lab."""

    teacher_forced: TeacherForced
    sampled: Sampled


def measure_facts(
    make_decoder: DecoderFor, weights: Path = WEIGHTS, *, trajectories: int = 4, seed: int = 7
) -> PairFacts:
    """Measures the pair in a directory of weights.

    Args:
        make_decoder: makes the budgeted decoder of a pair.
        weights: directory with ``safe``, ``risky`` and ``safe2``.
        trajectories: outputs per prompt.
        seed: of the decoder's draws.
    """
    pair, pair2 = load_pair(weights), load_pair(weights, anchor="safe2")
    return PairFacts(
        teacher_forced(pair, pair2), sampled(pair, pair2, make_decoder, trajectories, seed)
    )


def benign_prompts(per_class: int) -> list[str]:
    """Returns the first prompts of each benign class as the models see them, header included."""
    classes = workload()
    fields = {"neutral": "raw_text", "creative": "prompt_text", "factual": "factscore_prompt"}
    return [
        ("" if name == "factual" else HEADER) + row[fields[name]]
        for name in BENIGN
        for row in classes[name][:: max(1, len(classes[name]) // per_class)][:per_class]
    ]


def teacher_forced(pair: LabPair, pair2: LabPair) -> TeacherForced:
    """Measures losses, divergence and debt."""
    ordinary = [pair.encode_document(d) for d in held_out_documents()]
    memorised = [pair.encode_document(p.text) for p in protected()]
    unseen = [pair.encode_document(p.text) for p in held_out()]
    safe, safe2, risky = (
        Losses(mean_loss(m, ordinary), mean_loss(m, memorised), mean_loss(m, unseen))
        for m in (pair.safe, pair2.safe, pair.risky)
    )
    return TeacherForced(
        safe=safe,
        safe2=safe2,
        risky=risky,
        kl_ordinary=mean_kl(pair, ordinary),
        kl_protected=mean_kl(pair, memorised),
        debt_protected=_mean(
            prefix_debts(pair, [pair.encode(p.text) for p in recall_prompts(protected())])
        ),
        debt_benign=_mean(prefix_debts(pair, [pair.encode(p) for p in benign_prompts(100)])),
    )


def sampled(
    pair: LabPair,
    pair2: LabPair,
    make_decoder: DecoderFor,
    trajectories: int,
    seed: int,
    *,
    budgets: Sequence[float] = BUDGETS,
) -> Sampled:
    """Measures recall, the constraint's activity and the anchors' spends."""
    decode = make_decoder(pair)

    def recall(
        passages: Sequence[WorkPassage], k: float, *, header: bool = True
    ) -> tuple[float, float]:
        prompts = recall_prompts(passages, header=header)
        outputs = decode([pair.encode(p.text) for p in prompts], k, trajectories, seed)
        return _mean(recalls(pair, prompts, outputs)), active_share(outputs)

    by_budget = {f"{k:g}": recall(protected(), k) for k in budgets}
    benign = [pair.encode(p) for p in benign_prompts(40)]
    return Sampled(
        risky_recall=recall(protected(), RISKY_ALONE)[0],
        risky_recall_without_header=recall(protected(), RISKY_ALONE, header=False)[0],
        safe_recall=recall(protected(), SAFE_ALONE)[0],
        held_out_recall=max(recall(held_out(), k)[0] for k in (RISKY_ALONE, SAFE_ALONE)),
        recall={k: value for k, (value, _) in by_budget.items()},
        active_share={k: share for k, (_, share) in by_budget.items()},
        benign_spend=mean_spend(decode(benign, SPEND_BUDGET, trajectories, seed)),
        benign_spend_safe2=mean_spend(
            make_decoder(pair2)(benign, SPEND_BUDGET, trajectories, seed)
        ),
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
