"""Imports logs of other tools as a run, and finds out which schema a log has.

The logs are read twice. The first pass checks every record and finds out what a run must know
before its first part is written (prompts, budgets, length limit); the second writes. What is
written goes to a directory beside the target, which gets its name only when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nafaudit.core.design import Design, Extent, Identity, ImportedDecoding
from nafaudit.core.errors import InputError, StoreError, nearest
from nafaudit.core.passage import PassageScores
from nafaudit.core.promise import check_ledger
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.store.artifacts import (
    IMPORTED,
    OWN_FILES,
    PASSAGES,
    TEXTS,
    logged_line,
    read_passages_file,
    write_passages,
)
from nafaudit.store.files import cannot_write, sync_directory, write_whole
from nafaudit.store.importers import history, totals, trajectory_log
from nafaudit.store.importers.entry import (
    UNKNOWN_LEDGER,
    Context,
    ImportNotes,
    ImportOptions,
    LogEntry,
)
from nafaudit.store.importers.source import LogFile, LogRecord, file_hash, open_source
from nafaudit.store.run import Run, open_for_writing
from nafaudit.workload import Prompt, TokenizedPrompt
from nafaudit.workload.prompts import workload_hash


@dataclass(frozen=True)
class Schema:
    """A schema of logs that other tools write.

    Attributes:
        name: As `--schema` takes it.
        summary: What it looks like.
        matches: True for one of its records.
        read: Records in, entries out.
    """

    name: str
    summary: str
    matches: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Iterator[LogRecord], Context], Iterator[LogEntry]]


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
        Schema("heldout", "candidate_id, spends[]", totals.is_heldout, totals.read_heldout),
        Schema("queries", "prompt_id, Z, B, mode, window", totals.is_queries, totals.read_queries),
        Schema(
            "items", "final_cum_kl_spent_per_seq, input, output", totals.is_items, totals.read_items
        ),
        Schema("table", "named columns, one of them a spend", totals.is_table, totals.read_table),
    )
}


def schema_of(source: LogFile, forced: str | None, columns: Mapping[str, str]) -> Schema:
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


# A part holds about this many steps, so that writing never needs much memory.
_STEPS_PER_PART = 200_000
_ROWS_PER_PART = 5_000


@dataclass(frozen=True)
class _Log:
    source: LogFile
    schema: Schema
    sha256: str


def import_logs(paths: Sequence[Path], out: Path, options: ImportOptions | None = None) -> Run:
    """Reads logs of any known schemas into one run directory.

    Raises:
        InputError: A log is malformed or of no known schema, with file and line; `out` exists.
        StoreError: The run cannot be written, or a log changed while it was read.
    """
    options = options or ImportOptions()
    logs_given = [path for path in paths if path.name != PASSAGES]
    if not logs_given:
        raise InputError("no log was given; name at least one file.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} exists; an import needs a directory of its own, so name another.")
    passages = _passages(paths, logs_given)
    logs = []
    for path in logs_given:
        source = open_source(path)
        schema = schema_of(source, options.schema, options.columns)
        logs.append(_Log(source, schema, file_hash(path)))
    survey = _Survey(options)
    for entry, key in _keyed(logs, options, survey.notes):
        survey.add(entry, key)
    design = survey.design(logs)
    beside = out.absolute().with_name(f".{out.absolute().name}.{os.getpid()}.importing")
    try:
        _write(beside, logs, options, survey, design, passages)
        if out.is_dir():
            out.rmdir()
        beside.rename(out)
    except OSError as error:
        raise cannot_write(out, error) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return Run(out)


def _passages(paths: Sequence[Path], logs: Sequence[Path]) -> PassageScores | None:
    """Returns scored passages: of the file that was named, else of the export that the logs are.

    `nafaudit certify` writes such a file for any text.
    """
    named = [path for path in paths if path.name == PASSAGES]
    if len(named) > 1:
        raise InputError(f"{len(named)} files {PASSAGES} were given; a run has one.")
    if named and not named[0].is_file():
        raise InputError(f"{named[0]} does not exist; leave it out, or name one that does.")
    places = {path.parent for path in logs}
    beside = [place / OWN_FILES / PASSAGES for place in places] if len(places) == 1 else []
    chosen = named or beside
    return read_passages_file(chosen[0]) if chosen else None


def _keyed(
    logs: Sequence[_Log], options: ImportOptions, notes: ImportNotes
) -> Iterator[tuple[LogEntry, Key]]:
    """Yields every entry of every log with its key, equal in both passes."""
    # Numbers that were given out, and the next free one.
    used: set[Key] = set()
    free: dict[tuple[str, str, float], int] = {}
    for log in logs:
        if log.source.has_mark:
            notes.add("byte-order-mark", f"{log.source.path}:1")
        context = Context(log.source.path, options, notes)
        records = _counted(log.source, notes)
        for entry in log.schema.read(records, context):
            cell = (entry.prompt, entry.mechanism, entry.k)
            number = free.get(cell, 0) if entry.number is None else entry.number
            if Key(*cell, number) in used:
                if entry.number is not None:
                    notes.add("repeated", entry.where)
                number = free[cell]
            key = Key(*cell, number)
            if number > 2**31 - 1:
                raise InputError(f"{entry.where}: a trajectory number beyond {2**31 - 1}.")
            used.add(key)
            free[cell] = max(free.get(cell, 0), number + 1)
            yield entry, key


def _counted(source: LogFile, notes: ImportNotes) -> Iterator[Any]:
    for record in source.records():
        notes.add("non-strict", record.where, count=record.constants)
        yield record


@dataclass
class _Survey:
    """The findings of the first pass."""

    options: ImportOptions
    notes: ImportNotes = field(default_factory=ImportNotes)
    entries: int = 0
    steps: int = 0
    prompts: dict[str, TokenizedPrompt] = field(default_factory=dict)
    cells: dict[tuple[str, str, float], int] = field(default_factory=dict)
    limits: set[int] = field(default_factory=set)
    ledgers: set[str] = field(default_factory=set)
    mechanisms: set[str] = field(default_factory=set)
    stops: set[int] = field(default_factory=set)
    _marks: set[bytes] = field(default_factory=set)

    def add(self, entry: LogEntry, key: Key) -> None:
        """Takes in one entry, and notes what is odd about it."""
        self.entries += 1
        self.steps += len(entry.steps)
        self.cells[key[:3]] = self.cells.get(key[:3], 0) + 1
        if self.limits and entry.max_new_tokens not in self.limits:
            self.notes.add("length-limits", entry.where)
        self.limits.add(entry.max_new_tokens)
        self.ledgers.add(entry.ledger)
        self.mechanisms.add(entry.mechanism)
        self.stops |= entry.stops
        size, token = self.options.vocabulary_size, entry.steps.token
        if size and token.size and token.max() >= size:
            raise InputError(
                f"{entry.where}: token {token.max()} is not in a vocabulary of {size}; give the "
                "size of the decoder's own vocabulary with --vocabulary-size, or leave it out."
            )
        prompt = Prompt(entry.prompt, entry.prompt_text, entry.label, entry.reference)
        known = self.prompts.setdefault(entry.prompt, TokenizedPrompt(prompt, entry.prompt_tokens))
        if known.prompt != prompt:
            self.notes.add("prompt-differs", entry.where)
        spend = entry.logged.spend if entry.logged is not None else float(entry.steps.charge.sum())
        # Rows that the safe model wrote alone all spend nothing; that is no coincidence.
        self._once("duplicate-spend", spend if spend > 1e-5 else None, entry, key)
        self._once("duplicate-seed", entry.seed, entry, key)
        self._once("duplicate-text", entry.output or None, entry, key)

    def _once(self, kind: str, value: object, entry: LogEntry, key: Key) -> None:
        if value is None:
            return
        said = repr((kind, key[:3], value)).encode("utf-8", "surrogatepass")
        mark = hashlib.blake2b(said, digest_size=12).digest()
        if mark in self._marks:
            self.notes.add(kind, entry.where)
        self._marks.add(mark)

    @property
    def ledger(self) -> str:
        """The rule behind every budget; unknown as soon as one log has another."""
        if self.options.ledger is not None:
            return self.options.ledger
        return "banking" if self.ledgers == {"banking"} else UNKNOWN_LEDGER

    def design(self, logs: Sequence[_Log]) -> Design:
        """Returns the design of the run."""
        if not self.entries:
            names = ", ".join(str(log.source.path) for log in logs)
            raise InputError(f"{names}: no trajectory in it.")
        check_ledger(self.options.promise, self.ledger)
        limit = max(self.limits) if len(self.limits) == 1 else 0
        sources = [{"sha256": log.sha256, "schema": log.schema.name} for log in logs]
        identity = Identity(
            pair={"sources": sources, "columns": dict(self.options.columns)},
            mechanism=" ".join(sorted(self.mechanisms)),
            ledger=self.ledger,
            decoding=ImportedDecoding(limit),
            workload=workload_hash(self.prompts.values()),
            width=0,
            seed=0,
            protocol="imported",
            held_to=self.options.promise or "",
        )
        budgets = tuple(sorted({k for _, _, k in self.cells}))
        extent = Extent(budgets, max(self.cells.values()), tuple(self.prompts))
        return Design(identity, extent)

    def report(self, logs: Sequence[_Log]) -> dict[str, Any]:
        """Returns the report that the run keeps."""
        return {
            "sources": [
                {"file": str(log.source.path), "sha256": log.sha256, "schema": log.schema.name}
                for log in logs
            ],
            "trajectories": self.entries,
            "steps": self.steps,
            "prompts": len(self.prompts),
            "ledger": self.ledger,
            **self.notes.to_json(),
        }


def _write(
    path: Path,
    logs: Sequence[_Log],
    options: ImportOptions,
    survey: _Survey,
    design: Design,
    passages: PassageScores | None,
) -> None:
    shutil.rmtree(path, ignore_errors=True)
    size = options.vocabulary_size
    vocabulary = {"pieces": [], "special": [], "stops": sorted(survey.stops), "size": size}
    with open_for_writing(path, design, list(survey.prompts.values()), vocabulary) as writer:
        batch: list[Trajectory] = []
        steps = 0
        written = 0
        digest = hashlib.sha256()
        with (path / TEXTS).open("xb") as texts:
            for entry, key in _keyed(logs, options, ImportNotes()):
                line = logged_line(key, entry.output, entry.claims)
                texts.write(line)
                digest.update(line)
                batch.append(Trajectory(key, entry.debt, entry.stopped, entry.steps, entry.logged))
                steps += len(entry.steps)
                if steps >= _STEPS_PER_PART or len(batch) >= _ROWS_PER_PART:
                    writer.append(batch)
                    written += len(batch)
                    batch, steps = [], 0
        writer.append(batch)
        written += len(batch)
        for log in logs:
            if file_hash(log.source.path) != log.sha256 or written != survey.entries:
                raise StoreError(f"{log.source.path} changed while it was read; import it again.")
        report = survey.report(logs)
        if (path / TEXTS).stat().st_size:
            sync_directory(path / TEXTS)
            report["texts"] = {"sha256": digest.hexdigest()}
        else:
            (path / TEXTS).unlink()
        if passages is not None:
            write_passages(path / PASSAGES, passages)
            report["passages"] = len(passages)
        write_whole(path / IMPORTED, json.dumps(report, indent=2).encode() + b"\n")
