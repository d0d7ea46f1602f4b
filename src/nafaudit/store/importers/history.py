"""The published decoder's `kl_stats_history`: a list of steps, each field a list over the batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.errors import InputError
from nafaudit.core.trajectory import Logged, Steps
from nafaudit.store.importers import fields
from nafaudit.store.importers.entry import (
    UNKNOWN_LEDGER,
    Context,
    LogEntry,
    compare_utilisation,
    credited,
    ended_early,
)
from nafaudit.store.importers.fields import (
    identifier,
    mapping,
    number,
    sequence,
    single,
    text,
    tokens,
    weights,
)
from nafaudit.store.importers.source import LogRecord

_PROBABILITIES = {"served": "p_star_prob", "safe": "p_s_prob", "risky": "p_risky_prob"}
_STEP = frozenset(
    [
        "step",
        "kl_to_safe",
        "bd",
        "bc",
        "k_t",
        "cum_kl_spent",
        "budget_so_far",
        "sampled_token_id",
        "prefix_debt",
        "init_budget_tensor",
    ]
) | set(_PROBABILITIES.values())
_KEPT = frozenset(
    [
        "kl_stats_history",
        "summary",
        "kl_stats_summary",
        "ids",
        "prompts",
        "k",
    ]
)


def matches(data: Mapping[str, Any]) -> bool:
    """Returns True for a whole history, or for one of its steps."""
    return "kl_stats_history" in data or is_step(data)


def is_step(data: Mapping[str, Any]) -> bool:
    """Returns True for one step of a history."""
    return "kl_to_safe" in data and ("k_t" in data or "bd" in data)


def read(records: Iterator[LogRecord], context: Context) -> Iterator[LogEntry]:
    """Yields one entry per row of each batch.

    A file is one array of steps, or holds objects with a `kl_stats_history` and, if there is one,
    its `summary`. Steps come row by row within a step, so a batch is held whole.
    """
    steps: list[Mapping[str, Any]] = []
    first = ""
    batch = 0
    for record in records:
        if is_step(record.data):
            first = first or record.where
            steps.append(record.data)
            continue
        where = record.where
        history = sequence(record.data.get("kl_stats_history"), "kl_stats_history", where)
        if not history:
            raise InputError(f"{where}: no 'kl_stats_history', or an empty one.")
        context.drop(record.data, _KEPT)
        rows = [mapping(step, "kl_stats_history[]", where) for step in history]
        yield from _entries(rows, record.data, batch, where, context)
        batch += 1
    if steps:
        yield from _entries(steps, {}, batch, first, context)


def _entries(
    steps: Sequence[Mapping[str, Any]],
    whole: Mapping[str, Any],
    batch: int,
    where: str,
    context: Context,
) -> Iterator[LogEntry]:
    sizes = set()
    for position, step in enumerate(steps):
        if not is_step(step):
            raise InputError(f"{where}: step {position} has no 'kl_to_safe' with 'k_t' or 'bd'.")
        sizes |= {len(v) for name, v in step.items() if name in _STEP and isinstance(v, list)}
    if len(sizes) > 1 or 0 in sizes:
        raise InputError(
            f"{where}: fields of the history have {sorted(sizes)} entries; each needs one per row "
            "of the batch."
        )
    size = max(sizes, default=1)
    context.drop(steps[0], _STEP, "kl_stats_history.")
    summary = mapping(whole.get("summary") or whole.get("kl_stats_summary"), "summary", where)
    ids = sequence(whole.get("ids"), "ids", where) or [
        f"{context.stem}:{batch}:{row}" for row in range(size)
    ]
    prompts = sequence(whole.get("prompts"), "prompts", where) or [""] * size
    if len(ids) != size or len(prompts) != size:
        raise InputError(f"{where}: 'ids' and 'prompts' must have one entry per row ({size}).")
    if "ids" not in whole:
        context.notes.add("no-id", where, count=size)
    for row in range(size):
        yield _entry(steps, summary, row, where, context, whole.get("k"), ids[row], prompts[row])


def _entry(
    steps: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any],
    row: int,
    where: str,
    context: Context,
    k_given: object,
    name: object,
    prompt: object,
) -> LogEntry:
    def column(field: str, *, noted: bool = True) -> NDArray[np.float64]:
        values = [_of_row(step.get(field), row) for step in steps]
        if noted and any(value is None for value in values):
            context.notes.add("missing", where, field)
        return np.array([number(value, field, where) for value in values], np.float64)

    granted = column("budget_so_far")
    k = context.budget_or_given(k_given, where, _slope(granted))
    debt, is_stated = _debt(column, granted, k)
    theta = column("bd", noted=False)
    if np.isnan(theta).all():
        theta = 1.0 - column("bc")
    ids = (_of_row(step.get("sampled_token_id"), row) for step in steps)
    token = tokens(ids, "sampled_token_id", where)
    if (token < 0).any():
        context.notes.add("missing", where, "sampled_token_id")
    with np.errstate(divide="ignore", invalid="ignore"):
        laws = {name: single(np.log(column(field))) for name, field in _PROBABILITIES.items()}
    whole = Steps(
        token=token,
        allowance=column("k_t"),
        charge=column("kl_to_safe"),
        theta=weights(theta),
        **laws,
    )
    end = len(whole)
    if context.options.stops:
        end = fields.end_after_stop(whole.token, frozenset(context.options.stops))
        context.notes.add("after-stop", where, count=len(whole) - end)
    if end == len(whole):
        end = fields.end_by_account(whole, granted)
        context.notes.add("pad-tail", where, count=len(whole) - end)
    spend = _total(summary, "final_cum_kl_spent", row, where)
    budget = _total(summary, "final_budget", row, where)
    use = _total(summary, "budget_utilization", row, where)
    compare_utilisation(use, spend, budget, where, context.notes)
    cumulative = column("cum_kl_spent")
    limit = context.options.max_new_tokens
    rule = context.options.mechanism or "anchored"
    is_byte = "kl_pd_pc" in steps[0]
    if is_byte:
        context.notes.add("other-rule", where, "kl_pd_pc")
    # A debt that was read off the grants does not explain them.
    explained = is_stated and not is_byte
    contested = credited(granted[:end], k, debt, where, context) if explained else math.nan
    return LogEntry(
        where=where,
        prompt=identifier(name, "ids", where),
        mechanism=rule,
        k=k,
        debt=debt,
        stopped=end < len(whole) or ended_early(end, limit),
        steps=fields.cut(whole, end),
        logged=Logged(spend, budget, math.nan, granted[:end], cumulative[:end], contested),
        prompt_text=text(prompt, "prompts", where),
        max_new_tokens=limit,
        ledger=UNKNOWN_LEDGER if is_byte else "banking",
    )


def _of_row(value: object, row: int) -> object:
    return value[row] if isinstance(value, list) else value


def _total(summary: Mapping[str, Any], name: str, row: int, where: str) -> float:
    value = summary.get(f"{name}_per_seq", summary.get(name))
    if isinstance(value, list):
        if row >= len(value):
            raise InputError(f"{where}: {name!r} of the summary has too few entries.")
        value = value[row]
    return number(value, name, where)


def _slope(granted: NDArray[np.float64]) -> float | None:
    """Returns k as the growth of budget_so_far, to the six digits that float32 keeps."""
    if granted.size < 2 or not np.isfinite(granted).all():
        return math.inf if granted.size and np.isposinf(granted).all() else None
    return float(f"{(granted[-1] - granted[0]) / (granted.size - 1):.6g}")


def _debt(column: Any, granted: NDArray[np.float64], k: float) -> tuple[float, bool]:
    """Returns the debt and whether the log states it; else it is read off the first grant."""
    for name, sign in (("prefix_debt", 1.0), ("init_budget_tensor", -1.0)):
        stated = column(name, noted=False)
        if not np.isnan(stated).all():
            return sign * float(stated[0]), True
    known = math.isfinite(k) and np.isfinite(granted[0])
    return (float(k - granted[0]) if known else math.nan), False
