"""Which schema a log has, found from its first record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nafaudit.core.errors import InputError, nearest
from nafaudit.store.foreign import heldout_log, history, items, query_log, table, trajectory_log
from nafaudit.store.foreign.entry import Context, Entry
from nafaudit.store.foreign.source import Record, Source


@dataclass(frozen=True)
class Schema:
    """A foreign schema.

    Attributes:
        name: As `--schema` takes it.
        summary: What it looks like.
        matches: True for one of its records.
        read: Records in, entries out.
    """

    name: str
    summary: str
    matches: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Iterator[Record], Context], Iterator[Entry]]


# In the order in which they are tried; a table is whatever has a spend and no nesting.
SCHEMAS = {
    schema.name: schema
    for schema in (
        Schema(
            "trajectories",
            "metadata, prefix_analysis, per_step_log, aggregate",
            trajectory_log.matches,
            trajectory_log.read,
        ),
        Schema(
            "history",
            "kl_stats_history: steps with kl_to_safe, k_t, bd as lists over the batch",
            history.matches,
            history.read,
        ),
        Schema("heldout", "candidate_id, spends[]", heldout_log.matches, heldout_log.read),
        Schema("queries", "prompt_id, Z, B, mode, window", query_log.matches, query_log.read),
        Schema("items", "final_cum_kl_spent_per_seq, input, output", items.matches, items.read),
        Schema("table", "named columns, one of them a spend", table.matches, table.read),
    )
}


def schema_of(source: Source, forced: str | None, columns: Mapping[str, str]) -> Schema:
    """Returns the schema of a log; raises with what was seen and what is known."""
    if forced is not None:
        if forced not in SCHEMAS:
            raise InputError(
                f"schema must be one of {', '.join(SCHEMAS)}, got {forced!r}"
                f"{nearest(forced, SCHEMAS)}"
            )
        return SCHEMAS[forced]
    first = next(source.records(), None)
    if first is None:
        raise InputError(f"{source.path}: no record in it.")
    for schema in SCHEMAS.values():
        if schema.matches(first.data):
            return schema
    if "spend" in columns and columns["spend"] in first.data:
        return SCHEMAS["table"]
    known = "".join(f"\n  {schema.name}: {schema.summary}" for schema in SCHEMAS.values())
    seen = ", ".join(name[:40] for name in list(first.data)[:20]) or "an empty object"
    raise InputError(
        f"{first.where}: no known log. Seen: {seen}. Known:{known}\n"
        "Name a table's columns with --column spend=NAME, or force one with --schema."
    )
