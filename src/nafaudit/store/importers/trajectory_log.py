"""The paper's trajectory log: one object per trajectory, with every step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.errors import InputError
from nafaudit.core.ledger import ledger_of
from nafaudit.core.trajectory import Key, Logged, Steps, Trajectory
from nafaudit.store.importers import fields
from nafaudit.store.importers.entry import (
    SCORES,
    UNKNOWN_LEDGER,
    Context,
    LogEntry,
    claimed,
    claims_of,
    compare_utilisation,
    credited,
    ended_early,
    judged_by,
    k_word,
    no_steps,
    same_claims,
    written_text,
)
from nafaudit.store.importers.fields import (
    identifier,
    integer,
    mapping,
    number,
    numbers,
    sequence,
    single,
    text,
    tokens,
    weights,
    wrong,
)
from nafaudit.store.importers.source import LogRecord

# Beyond the paper's fields, our export adds what a probability cannot carry exactly.
LOG_PROBABILITIES = {
    "served": ("log_p_star", "p_star_prob"),
    "safe": ("log_p_s", "p_s_prob"),
    "risky": ("log_p_risky", "p_risky_prob"),
}
_PARTS = frozenset(
    ("metadata", "prefix_analysis", "per_step_log", "aggregate", "source_record", "nafaudit")
)
_METADATA = frozenset(
    [
        "prompt_id",
        "split",
        "k",
        "K",
        "T_max",
        "seed",
        "trajectory_id",
        "level",
        "constraint",
        "initial_bank",
    ]
)
_AGGREGATE = frozenset(
    [
        "total_spend",
        "final_budget",
        "generation_length_tokens",
        "budget_utilization",
        "generation",
        *SCORES,
    ]
)
_PREFIX = frozenset(
    [
        "delta_init",
        "true_prefix_debt",
        "prefix_debt",
        "init_budget_tensor",
        "prefix_text",
        "prefix_token_ids",
    ]
)
_STEP = frozenset(
    [
        "t",
        "k_t",
        "a_t",
        "a_t_recomputed",
        "bd",
        "bc",
        "budget_so_far",
        "cum_kl_spent",
        "sampled_token_id",
    ]
) | {name for names in LOG_PROBABILITIES.values() for name in names}

REFERENCES = ("reference", "reference_text", "expected_answer", "wikipedia_text")
"""Fields of a record of the paper's that may hold its reference."""


def matches(data: Mapping[str, Any]) -> bool:
    """Returns True for a record of this schema."""
    return "per_step_log" in data or ("metadata" in data and "aggregate" in data)


def read(records: Iterator[LogRecord], context: Context) -> Iterator[LogEntry]:
    """Yields one entry per record."""
    for record in records:
        yield _entry(record, context)


def _entry(record: LogRecord, context: Context) -> LogEntry:
    data, where, notes = record.data, record.where, context.notes
    meta = mapping(data.get("metadata"), "metadata", where)
    prefix = mapping(data.get("prefix_analysis"), "prefix_analysis", where)
    total = mapping(data.get("aggregate"), "aggregate", where)
    ours = mapping(data.get("nafaudit"), "nafaudit", where)
    source = data.get("source_record")
    source = source if isinstance(source, dict) else {}
    prompt = identifier(meta.get("prompt_id"), "metadata.prompt_id", where)
    if not prompt:
        raise InputError(f"{where}: no 'metadata.prompt_id'; whose trajectory is it?")
    limit = integer(meta.get("T_max"), "T_max", where) or context.options.max_new_tokens
    k, mechanism, is_bank = _arm(meta, ours, limit, where, context)
    debt = _debt(prefix, where, context)
    steps, granted, cumulative = _steps(data, where, context)
    own_stops = sequence(ours.get("stops"), "nafaudit.stops", where)
    stops = frozenset(context.options.stops).union(
        integer(one, "nafaudit.stops", where) or 0 for one in own_stops
    )
    end = _end(steps, granted, k, debt, stops, where, context) if "stopped" not in ours else None
    stopped = end is not None and end < len(steps)
    if end is not None:
        steps, granted, cumulative = fields.cut(steps, end), granted[:end], cumulative[:end]
    length = context.numeric(total, ("generation_length_tokens",), where)
    own_length = len(steps) or length
    stopped = stopped or ended_early(own_length, limit)
    if len(steps) and int(steps.token[-1]) in stops:
        stopped = True
    if "stopped" in ours:
        if not isinstance(ours["stopped"], bool):
            raise wrong(ours["stopped"], "nafaudit.stopped", "true or false", where)
        stopped = ours["stopped"]
    # The paper's text calls what is left the final budget; such a file of ours says so.
    budget = (
        number(ours["final_budget"], "nafaudit.final_budget", where)
        if "final_budget" in ours
        else context.numeric(total, ("final_budget",), where)
    )
    contested = number(ours.get("contested"), "nafaudit.contested", where)
    if context.options.ledger is not None and not math.isnan(contested):
        if context.options.ledger == "banking" and not len(steps):
            budget = min(budget, contested)
        contested = math.nan
    if len(steps) and is_bank and not ours:
        contested = credited(granted, k, debt, where, context)
    elif not (
        len(steps) or ours or meta.get("initial_bank") or meta.get("level", "token") != "token"
    ):
        # Nothing but totals, of a rule that grants k a token.
        budget, contested = judged_by(budget, k, limit, debt, where, context, bank=is_bank)
    logged = Logged(
        context.numeric(total, ("total_spend",), where),
        budget,
        length,
        granted,
        cumulative,
        contested,
    )
    output = written_text(total, "generation", where)
    text_before = text(prefix.get("prefix_text"), "prefix_text", where)
    _note(record, total, logged, steps, limit, k, debt, where, context)
    if _echoes(text_before, output or ""):
        notes.add("prompt-echo", where)
    found = (source.get(name) for name in REFERENCES)
    reference = next((value for value in found if isinstance(value, str) and value), "")
    entry = LogEntry(
        where=where,
        prompt=prompt,
        mechanism=mechanism,
        k=k,
        debt=debt,
        stopped=stopped,
        steps=steps,
        logged=logged,
        number=integer(meta.get("trajectory_id"), "trajectory_id", where),
        label=identifier(meta.get("split") or meta.get("domain") or "prompt", "split", where),
        prompt_text=text_before,
        prompt_tokens=tuple(
            integer(token, "prefix_token_ids", where) or 0
            for token in sequence(prefix.get("prefix_token_ids"), "prefix_token_ids", where)
        ),
        reference=text(reference, "reference", where),
        max_new_tokens=limit,
        ledger="banking" if is_bank else UNKNOWN_LEDGER,
        stops=stops,
        seed=integer(meta.get("seed"), "seed", where, largest=2**63 - 1),
        output=output,
        claims=claimed(total, SCORES, where),
    )
    return _without_own_claims(entry, ours, context)


def _arm(
    meta: Mapping[str, Any], ours: Mapping[str, Any], limit: int, where: str, context: Context
) -> tuple[float, str, bool]:
    """Returns budget, mechanism, and whether the budgets follow the paper's bank."""
    given = context.options.mechanism
    # `memfree` of `trajectories_kmemfree_test`.
    stem, start = context.stem, "trajectories_k"
    named = stem.removeprefix(start).split("_")[0] if stem.startswith(start) else None
    if word := k_word(meta.get("k")) or k_word(named):
        name = identifier(word, "k", where)
        context.notes.add("k-not-a-number", where, name)
        # The rate behind a total, where k is a word; no budget if there is none.
        total = number(meta.get("K"), "K", where)
        rate = total / limit if 0 < total < math.inf and limit else math.inf
        return rate, given or name, False
    k = context.budget_or_given(meta.get("k"), where)
    declared = [
        name
        for name, plain in (
            ("constraint", ("kl", "")),
            ("initial_bank", (0,)),
            ("level", ("token",)),
        )
        if (value := meta.get(name)) is not None
        and (value.lower() if isinstance(value, str) else value) not in plain
    ]
    spec = ours.get("ledger", "banking")
    if declared or not isinstance(spec, str) or ledger_of(spec) is None:
        context.notes.add("other-rule", where, declared[0] if declared else "ledger")
    rule = (
        ours.get("mechanism")
        or (meta["constraint"] if "constraint" in declared else None)
        or "anchored"
    )
    mechanism = given or identifier(rule, "mechanism", where)
    return k, mechanism, not declared and spec == "banking"


def _debt(prefix: Mapping[str, Any], where: str, context: Context) -> float:
    names = ("delta_init", "true_prefix_debt", "prefix_debt", "init_budget_tensor")
    found = [
        -number(prefix[name], name, where)
        if name == "init_budget_tensor"
        else number(prefix[name], name, where)
        for name in names
        if prefix.get(name) is not None
    ]
    if not found:
        context.notes.add("missing", where, "delta_init")
        return math.nan
    if any(abs(other - found[0]) > 1e-3 for other in found[1:]):
        context.notes.add("debt-differs", where)
    return found[0]


def _steps(
    data: Mapping[str, Any], where: str, context: Context
) -> tuple[Steps, NDArray[np.float64], NDArray[np.float64]]:
    """Returns the steps, with B_t and cumulative charge as logged."""
    rows = sequence(data.get("per_step_log"), "per_step_log", where)
    if not rows:
        context.notes.add("empty-steps", where)
        return no_steps(), np.empty(0), np.empty(0)
    steps = [mapping(row, "per_step_log[]", where) for row in rows]
    first = 1 if steps[0].get("t") == 1 else 0
    for position, step in enumerate(steps):
        if step.get("t") is not None and step["t"] != position + first:
            raise InputError(
                f"{where}: step {position} of per_step_log says t = {str(step['t'])[:20]}; steps "
                "are missing or out of order."
            )
    context.drop(steps[0], _STEP, "per_step_log.")

    def column(name: str, *, noted: bool = True) -> NDArray[np.float64]:
        found = numbers((step.get(name) for step in steps), name, where)
        if noted and any(step.get(name) is None for step in steps):
            context.notes.add("missing", where, name)
        return found

    token = tokens((step.get("sampled_token_id") for step in steps), "sampled_token_id", where)
    if (token < 0).any():
        context.notes.add("missing", where, "sampled_token_id")
    theta = column("bd", noted=False)
    if np.isnan(theta).all() and "bc" in steps[0]:
        theta = 1.0 - column("bc")
    elif any(step.get("bd") is None for step in steps):
        context.notes.add("missing", where, "bd")
    charge = column("a_t")
    again = column("a_t_recomputed", noted=False)
    with np.errstate(invalid="ignore"):
        if (abs(again - charge) > 1e-6).any():
            context.notes.add("recomputed-differs", where)
    columns = Steps(
        token=token,
        allowance=column("k_t"),
        charge=charge,
        theta=weights(theta),
        **{
            name: _log_law(steps, *names, where, context)
            for name, names in LOG_PROBABILITIES.items()
        },
    )
    # A foreign null says nothing; in an export of ours it is a NaN.
    unsaid = ... if "nafaudit" in data else None
    granted, cumulative = (
        column(name) if any(step.get(name, unsaid) is not unsaid for step in steps) else np.empty(0)
        for name in ("budget_so_far", "cum_kl_spent")
    )
    return columns, granted, cumulative


def _log_law(
    steps: list[Mapping[str, Any]], exact: str, probability: str, where: str, context: Context
) -> NDArray[np.float32]:
    """Returns log p of the drawn tokens, from our export's logs or the logged probability."""
    if exact in steps[0]:
        return single(numbers((step.get(exact) for step in steps), exact, where))
    found = numbers((step.get(probability) for step in steps), probability, where)
    if np.isnan(found).any():
        context.notes.add("missing", where, probability)
    if (found < 0).any():
        raise InputError(f"{where}: {probability!r} is below 0, which no probability is.")
    with np.errstate(divide="ignore"):
        return single(np.log(found))


def _end(
    steps: Steps,
    granted: NDArray[np.float64],
    k: float,
    debt: float,
    stops: frozenset[int],
    where: str,
    context: Context,
) -> int:
    """Counts the steps that are the row's own; what is cut is noted."""
    n = len(steps)
    if stops and (end := fields.end_after_stop(steps.token, stops)) < n:
        context.notes.add("after-stop", where, count=n - end)
        return end
    if not granted.size:
        granted = np.asarray(np.arange(1, n + 1) * k - debt, np.float64)
    if (end := fields.end_by_account(steps, granted)) < n:
        context.notes.add("pad-tail", where, count=n - end)
        return end
    if (end := fields.end_by_look(steps)) < n:
        context.notes.add("pad-tail-likely", where, count=n - end)
    return end


def _note(
    record: LogRecord,
    total: Mapping[str, Any],
    logged: Logged,
    steps: Steps,
    limit: int,
    k: float,
    debt: float,
    where: str,
    context: Context,
) -> None:
    meta = record.data.get("metadata") or {}
    prefix = record.data.get("prefix_analysis") or {}
    for part, kept, name in (
        (record.data, _PARTS, ""),
        (meta, _METADATA, "metadata."),
        (prefix, _PREFIX, "prefix_analysis."),
        (total, _AGGREGATE, "aggregate."),
    ):
        context.drop(part, kept, name)
    if limit and max(len(steps), logged.length if logged.length > 0 else 0) > limit:
        context.notes.add("too-long", where)
    use = number(total.get("budget_utilization"), "budget_utilization", where)
    compare_utilisation(use, logged.spend, logged.budget, where, context.notes)
    own = len(steps) * k - debt
    if len(steps) and math.isfinite(own) and logged.budget > own + 1e-3 * (1 + abs(own)):
        context.notes.add("batch-budget", where)


def _echoes(before: str, output: str, least: int = 20) -> bool:
    """Returns True if an output starts with at least `least` characters that end its prompt."""
    head = output[:least]
    if len(head) < least:
        return False
    at = before.find(head)
    while at >= 0:
        if output.startswith(before[at:]):
            return True
        at = before.find(head, at + 1)
    return False


def _without_own_claims(entry: LogEntry, ours: Mapping[str, Any], context: Context) -> LogEntry:
    """Drops totals that our own export derived, if they still follow from the steps."""
    if ours.get("logged") is not False or entry.logged is None:
        return entry
    key = Key(entry.prompt, entry.mechanism, entry.k, 0)
    bare = Trajectory(key, entry.debt, entry.stopped, entry.steps)
    ledger = ledger_of(str(ours.get("ledger")))
    if same_claims(entry.logged, claims_of(bare, ledger)):
        return replace(entry, logged=None)
    context.notes.add("claims-differ", entry.where)
    return entry
