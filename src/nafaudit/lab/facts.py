"""Gathers in one pass everything that the lab's pair must show, for its card and its tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nafaudit.lab.corpus import held_out_documents
from nafaudit.lab.measure import (
    RISKY_ALONE,
    SAFE_ALONE,
    Decode,
    LabPair,
    active_share,
    load_pair,
    mean_kl,
    mean_loss,
    mean_spend,
    prefix_debts,
    recall_prompts,
    recalls,
)
from nafaudit.lab.pair import WEIGHTS
from nafaudit.lab.workload import workload
from nafaudit.lab.works import Passage, held_out, protected
from nafaudit.workload.prompts import HEADER

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
    """What one pass over fixed text shows; nothing is sampled."""

    safe: Losses
    safe2: Losses
    risky: Losses
    kl_ordinary: float
    kl_protected: float
    debt_protected: float
    debt_benign: float


@dataclass(frozen=True)
class Sampled:
    """What sampled outputs show; recall is near-verbatim, of the first words' continuation."""

    risky_recall: float
    risky_recall_without_header: float
    safe_recall: float
    held_out_recall: float
    recall: dict[str, float]
    active_share: dict[str, float]
    benign_spend: float
    benign_spend_safe2: float


@dataclass(frozen=True)
class Facts:
    """All measured numbers of the lab."""

    teacher_forced: TeacherForced
    sampled: Sampled


def measure_facts(
    make_decoder: DecoderFor, weights: Path = WEIGHTS, *, trajectories: int = 4, seed: int = 7
) -> Facts:
    """Measures the pair in a directory of weights.

    Args:
        make_decoder: makes the budgeted decoder of a pair.
        weights: directory with ``safe``, ``risky`` and ``safe2``.
        trajectories: outputs per prompt.
        seed: of the decoder's draws.
    """
    pair, pair2 = load_pair(weights), load_pair(weights, anchor="safe2")
    return Facts(
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
        passages: Sequence[Passage], k: float, *, header: bool = True
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
