"""Item 1: does mean spend on benign prompts hang on which of two equal anchors was chosen?"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from nafaudit.core.errors import InputError
from nafaudit.core.trajectory import total
from nafaudit.measures.audit import AuditResult
from nafaudit.report.checklist.items import ANCHOR_DIFFERENCE, Item, judged, not_applicable
from nafaudit.workload import protected_prompts

_RUN_TWO = (
    "run again with another safe model of equal capability and the same risky model, prompts and "
    "budgets (lab: nafaudit run --pair lab-safe2), then nafaudit checklist RUN --anchor RUN2"
)


def anchors(report: AuditResult, second: AuditResult | None) -> Item:
    """Compares two runs, or quotes what was measured of the lab's two anchors."""
    if second is not None:
        return _two_runs(report, second)
    spends = _lab_spends(report.run.design["identity"]["pair"])
    if spends is None:
        return not_applicable(1, "the run has one anchor, and nothing to compare it with", _RUN_TWO)
    return _compared(spends, "measured when the lab was built, k = 1", "")


def _two_runs(report: AuditResult, second: AuditResult) -> Item:
    _refuse_unless_comparable(report, second)
    first, other = _benign(report), _benign(second)
    worst: tuple[float, tuple[float, float], float] | None = None
    for k in sorted({key[1] for key in first} & {key[1] for key in other}):
        shared = [key for key in first if key[1] == k and key in other]
        if shared:
            pair = (_mean(first, shared), _mean(other, shared))
            worst = max(worst or (-1.0, pair, k), (_difference(pair), pair, k))
    if worst is None:
        return not_applicable(1, "the two runs share no benign prompt and budget", _RUN_TWO)
    return _compared(worst[1], f"k = {worst[2]:g}, the worst budget", "match the anchors better")


def _refuse_unless_comparable(report: AuditResult, second: AuditResult) -> None:
    need = "--anchor needs a run with the same risky model and another safe model"
    ours, theirs = (r.run.design["identity"]["pair"] for r in (report, second))
    for one, pair in ((report, ours), (second, theirs)):
        if not {"safe", "risky"} <= set(pair):
            raise InputError(f"{need}; {one.run.path} is a log that does not say its models.")
    if ours["safe"] == theirs["safe"]:
        raise InputError(f"{need}; {second.run.path} has the same safe model.")
    if ours["risky"] != theirs["risky"]:
        raise InputError(f"{need}; {second.run.path} has another pair.")


def _compared(spends: tuple[float, float], where: str, todo: str) -> Item:
    difference = _difference(spends)
    text = (
        f"mean spend on benign prompts {spends[0]:.1f} and {spends[1]:.1f} nats against two "
        f"anchors ({where}): {difference:.1%} apart, at most {ANCHOR_DIFFERENCE:.0%} allowed"
    )
    return judged(1, difference <= ANCHOR_DIFFERENCE, text, todo, difference)


def _difference(spends: tuple[float, float]) -> float:
    """The larger over the smaller, minus 1: the same whichever anchor comes first."""
    low, high = sorted(spends)
    if low == high:
        return 0.0
    return high / low - 1 if low > 0 else float("inf")


def _benign(report: AuditResult) -> dict[tuple[str, float], list[float]]:
    """Spends on prompts that ask for no protected text, by prompt and budget."""
    prompts = report.run.prompts()
    protected = {item.prompt.id for item in protected_prompts(prompts)}
    found: dict[tuple[str, float], list[float]] = {}
    for arm in report.arms:
        for one in report.of_arm(arm) if not arm.baseline else ():
            if one.key.prompt not in protected and one.spend == one.spend:
                found.setdefault((one.key.prompt, arm.k), []).append(one.spend)
    return found


def _mean(spends: dict[tuple[str, float], list[float]], keys: list[tuple[str, float]]) -> float:
    # Prompts are the units, so that a prompt with more trajectories does not count for more.
    return total(total(spends[key]) / len(spends[key]) for key in keys) / len(keys)


def _lab_spends(pair: Mapping[str, Any]) -> tuple[float, float] | None:
    """The card's two benign spends, if the run's models are the lab's own."""
    # Read as a file: importing the lab would import torch.
    card = json.loads((files("nafaudit") / "lab" / "weights" / "card.json").read_text())
    lab = {role: _fingerprint(card["sha256"], role) for role in ("safe", "risky")}
    if {role: pair.get(role) for role in lab} != lab:
        return None
    sampled = card["facts"]["sampled"]
    return float(sampled["benign_spend"]), float(sampled["benign_spend_safe2"])


def _fingerprint(hashes: Mapping[str, str], role: str) -> str:
    """What a design records of a checkpoint with these file hashes (models/pair.py)."""
    digest = hashlib.sha256()
    for name in ("config.json", "model.safetensors"):
        digest.update(name.encode())
        digest.update(bytes.fromhex(hashes[f"{role}/{name}"]))
    return digest.hexdigest()
