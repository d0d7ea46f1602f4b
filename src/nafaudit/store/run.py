"""The run directory: what was designed, what was recorded, and nothing that can be derived.

    design.json       identity (hashed) and every extent that was asked for
    prompts.jsonl     the workload, with token ids
    sources.jsonl     the record that each prompt was made of, with file and line
    vocabulary.json   what each token id stands for, stop ids: text without Transformers
    passages.jsonl    protected references and their surprisals under the safe model, if there are
    sessions.jsonl    versions, machine and probe of every session that wrote
    journal.jsonl     one line per part: name, trajectories, SHA-256; what is not here is not read
    faults.jsonl      what a black-box decoder did wrong; only if it did
    shown.jsonl       what it shows of the laws that it served, with laws/ (`nafaudit.store.shown`)
    import.json       what an import noticed; texts.jsonl: outputs and scores of the imported log
    parts/            one row per token, as Parquet (docs/format.md); every file here counts

A part is written and synced as NAME.pending in the run directory, then its journal line is
appended, then it is moved into parts/. The move decides: a part that is journalled and not yet
moved is not there, for readers of the journal and of parts/*.parquet alike, until the next writer
moves it. So both see the same trajectories, at whatever moment a writer was killed. A file in
parts/ that no line names, as earlier versions could leave, is moved to unjournalled/ by the next
writer. A journal whose last line is torn is cut back to its last whole line before the next
append. A new run's design.json is written last, so that a directory without one can be begun again.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from nafaudit.core.design import RECORD_VERSION, Design, Extent, Numbers, differences, identity_hash
from nafaudit.core.errors import InputError, StoreError
from nafaudit.core.finding import Fault
from nafaudit.core.settings import DELTA
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.store import parts
from nafaudit.store.declared import (
    DesignFile,
    FaultLine,
    JournalLine,
    PromptLine,
    SessionLine,
    SourceLine,
    VocabularyFile,
    strict_json,
    validated,
)
from nafaudit.store.files import (
    append_line,
    cut_torn_tail,
    exclusive,
    make_directory,
    move,
    whole_lines,
    write_pending,
    write_whole,
)
from nafaudit.store.shown import SHOWN, write_shown
from nafaudit.workload import PromptSource, TokenizedPrompt, workload_hash

ORPHANS = "unjournalled"
_PART = re.compile(r"([0-9]{6,})\.parquet", re.ASCII)


class RecordPlace(NamedTuple):
    """The place of a record: the part that holds it, and which of its trajectories, from 0.

    A part has a row per token, so that `row` is no row of the file.
    """

    part: str
    row: int


class Run:
    """A run directory, open for reading."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / "design.json").is_file():
            why = "is not a run directory (no design.json)" if path.exists() else "does not exist"
            log = "a log file, or " if path.suffix and not path.exists() else ""
            made = "a run that `nafaudit run` or `import` wrote"
            inside = sorted(one.parent for one in path.glob("*/design.json"))
            if inside:
                # As of `nafaudit paper run`, of an attack, or of a search at several budgets.
                more = f", or one of {len(inside) - 3} more" if len(inside) > 3 else ""
                made = f"one of the runs in it: {', '.join(map(str, inside[:3]))}{more}"
            raise InputError(f"{path} {why}; name {log}{made}.")

    @property
    def design(self) -> dict[str, Any]:
        """The design as recorded: hash, identity, anchor, extents."""
        path = self.path / "design.json"
        with _as_written(path):
            data: dict[str, Any] = strict_json(path.read_bytes())
            version = data["identity"]["layout"]["record"]
            if version != RECORD_VERSION:
                raise StoreError(
                    f"{path}: its records have layout {version!r}, and this nafaudit reads layout "
                    f"{RECORD_VERSION}; use the version that wrote it, which sessions.jsonl names."
                )
            validated(DesignFile, data)
            if identity_hash(data["identity"]) != data["hash"]:
                raise ValueError("the hash in it is of another identity")
        return data

    @property
    def stops(self) -> frozenset[int]:
        """Token ids that end a row."""
        designed = self.design["identity"]["pair"].get("stop_ids")
        with _as_written(self.path / "vocabulary.json"):
            found = frozenset(map(int, self._vocabulary["stops"]))
            if designed is not None and found != frozenset(designed):
                raise ValueError("its stop ids are not those of design.json")
        return found

    @property
    def pieces(self) -> list[bytes | None]:
        """What each token id stands for, to show text without a tokenizer."""
        with _as_written(self.path / "vocabulary.json"):
            pieces = self._vocabulary.get("pieces", [])
            return [None if piece is None else piece.encode("latin-1") for piece in pieces]

    @property
    def vocabulary_size(self) -> int:
        """How many tokens there are; 0 if a log's reader did not know."""
        with _as_written(self.path / "vocabulary.json"):
            return int(self._vocabulary.get("size", 0)) or len(self._vocabulary.get("pieces", []))

    @cached_property
    def _vocabulary(self) -> dict[str, Any]:
        with _as_written(self.path / "vocabulary.json"):
            data: dict[str, Any] = strict_json((self.path / "vocabulary.json").read_bytes())
            validated(VocabularyFile, data)
        return data

    @property
    def asked(self) -> int:
        """How many trajectories the run was asked for, over all its sessions."""
        if self.design["identity"]["protocol"] == "imported":
            # No number was asked for: a log is as long as it is.
            return sum(entry["rows"] for entry in self.journal())
        wanted: dict[tuple[str, Any], Numbers] = {}
        for extent in self.design["extents"]:
            numbers = Numbers.of(extent)
            for cell in itertools.product(extent["prompts"], extent["budgets"]):
                wanted[cell] = wanted.get(cell, Numbers()) | numbers
        return sum(numbers.size for numbers in wanted.values())

    def trajectories(self) -> Iterator[Trajectory]:
        """Streams every journalled trajectory, one part in memory at a time."""
        return (trajectory for _, trajectory in self.located())

    def located(
        self, wanted: Collection[str] | None = None
    ) -> Iterator[tuple[RecordPlace, Trajectory]]:
        """Streams trajectories with their places.

        Args:
            wanted: Names of the parts to read; all of them if None.
        """
        for part, batch in self.batches(wanted):
            for row, trajectory in enumerate(batch):
                yield RecordPlace(part, row), trajectory

    def batches(self, wanted: Collection[str] | None = None) -> Iterator[tuple[str, parts.Batch]]:
        """Streams trajectories part by part, with the name of each part.

        Args:
            wanted: Names of the parts to read; all of them if None.
        """
        for entry in self.journal():
            if wanted is None or entry["part"] in wanted:
                yield str(entry["part"]), parts.decode_batch(self.content(entry))

    def table(self) -> pa.Table:
        """Returns all parts as one table, one row per token, sorted by key and step.

        Columns as in docs/format.md, whatever the format of the parts. It is in memory: about 90
        bytes a token.
        """
        claims = self.is_foreign or None
        return parts.join(
            [parts.read_table(self.content(entry), claims=claims) for entry in self.journal()]
        )

    def places(self) -> Iterator[tuple[RecordPlace, Key]]:
        """Streams where each trajectory is, without reading its steps."""
        for entry in self.journal():
            for row, key in enumerate(parts.decode_keys(self.content(entry))):
                yield RecordPlace(entry["part"], row), key

    def keys(self) -> set[Key]:
        """Returns which trajectories are recorded."""
        return {key for _, key in self.places()}

    def faults(self) -> list[Fault]:
        """Returns what a black-box decoder did wrong, in the order in which it was seen."""
        found = []
        path = self.path / "faults.jsonl"
        with _as_written(path):
            for line in whole_lines(path):
                data: dict[str, Any] = {**validated(FaultLine, strict_json(line))}
                key = data.pop("key")
                if key is not None:
                    prompt, mechanism, k, number = key
                    key = Key(prompt, mechanism, float(k), int(number))
                found.append(Fault(**data, key=key))
        return found

    def prompts(self) -> list[TokenizedPrompt]:
        """Returns the workload."""
        path = self.path / "prompts.jsonl"
        with _as_written(path):
            rows = [
                validated(PromptLine, strict_json(line))
                for line in path.read_bytes().split(b"\n")
                if line
            ]
            return [TokenizedPrompt(row["prompt"], tuple(row["tokens"])) for row in rows]

    def sources(self) -> dict[str, PromptSource]:
        """Returns what each prompt was made of, by its id; empty if the run does not say."""
        path = self.path / "sources.jsonl"
        if not path.is_file():
            return {}
        with _as_written(path):
            # A record may hold what strict JSON has not: it is as it was read.
            rows = [
                validated(SourceLine, json.loads(line))
                for line in path.read_bytes().split(b"\n")
                if line
            ]
            return {row["id"]: row["source"] for row in rows}

    @property
    def sessions(self) -> list[dict[str, Any]]:
        """What every session that wrote ran on, the first one first."""
        path = self.path / "sessions.jsonl"
        with _as_written(path):
            found = [strict_json(line) for line in whole_lines(path)]
            validated(list[SessionLine], found)
            return found

    @property
    def mixed(self) -> str:
        """A warning if records were computed by different arithmetics; empty if not."""
        with _as_written(self.path / "sessions.jsonl"):
            return mixed_sessions(self.sessions)

    @property
    def delta(self) -> float:
        """Level of all mean bounds together, as the last session asked for."""
        with _as_written(self.path / "sessions.jsonl"):
            return float((self.sessions or [{}])[-1].get("delta", DELTA))

    @property
    def decoder_dtype(self) -> str:
        """Type in which a black box says that it computes, if every session says the same."""
        with _as_written(self.path / "sessions.jsonl"):
            found = {str(facts.get("decoder_dtype", "")) for facts in self.sessions}
            return found.pop() if len(found) == 1 else ""

    def journal(self) -> list[dict[str, Any]]:
        """Returns one entry per part that is there: name, trajectories (`rows`), SHA-256."""
        entries = read_journal(self.path / "journal.jsonl")
        return entries[:-1] if entries and _is_pending(self.path, entries[-1]) else entries

    @property
    def journal_hash(self) -> str:
        """SHA-256 of the journal's lines on the parts that are there."""
        path = self.path / "journal.jsonl"
        content = path.read_bytes() if path.exists() else b""
        *_, last = b"", *whole_lines(path)
        try:
            pending = _is_pending(self.path, json.loads(last))
        except (ValueError, KeyError, TypeError):
            pending = False  # damaged, which those say who read the records
        return hashlib.sha256(content.removesuffix(last + b"\n" if pending else b"")).hexdigest()

    @property
    def is_foreign(self) -> bool:
        """True if records may hold claims of a log, or of a decoder that is not ours."""
        identity = self.design["identity"]
        return identity["protocol"] == "imported" or "promise" in identity

    def strays(self) -> list[str]:
        """Returns names in parts/ of what is no part, such as copies; not hidden files."""
        journalled = {str(entry["part"]) for entry in read_journal(self.path / "journal.jsonl")}
        names = _names(self.path / "parts")
        return sorted(n for n in names if n not in journalled and not n.startswith("."))

    def content(self, entry: Mapping[str, Any]) -> bytes:
        """Returns the bytes of a part.

        Raises:
            StoreError: They are not those that were journalled.
        """
        path = self.path / "parts" / str(entry["part"])
        try:
            content: bytes = path.read_bytes()
        except OSError as error:
            raise StoreError(
                f"{path} is in the journal but cannot be read: {error.strerror}. Restore it, or "
                "start a new run with another --out."
            ) from error
        if hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise StoreError(
                f"{path} is not what was journalled (its SHA-256 differs): it was damaged or "
                "edited. Restore it, or start a new run with another --out."
            )
        return content


class RunWriter:
    """Appends trajectories to a run; made by `open_for_writing`, which holds the lock."""

    def __init__(self, run: Run) -> None:
        self.run = run
        for name in ("journal.jsonl", "sessions.jsonl", "faults.jsonl", SHOWN):
            cut_torn_tail(run.path / name)
        self._claims = run.is_foreign
        entries = read_journal(run.path / "journal.jsonl")
        journalled = [str(entry["part"]) for entry in entries]
        self._pending = journalled[-1:] if entries and _is_pending(run.path, entries[-1]) else []
        self._move_pending()
        here, aside = _names(run.path / "parts"), _names(run.path / ORPHANS)
        numbers = [
            int(found[1])
            for name in (*here, *aside, *journalled)
            if (found := _PART.fullmatch(name))
        ]
        self._next = max([0, *numbers]) + 1
        for name in sorted({*here}.difference(journalled)):
            if _PART.fullmatch(name) and (run.path / "parts" / name).is_file():
                make_directory(run.path / ORPHANS)
                other = name if name not in aside else f"{name}.{self._next}"
                move(run.path / "parts" / name, run.path / ORPHANS / other)

    def append(self, trajectories: Sequence[Trajectory]) -> None:
        """Records some trajectories; when this returns they are on disk."""
        if not trajectories:
            return
        trajectories = [self.keep_shown(one) for one in trajectories]
        self._move_pending()
        content = parts.encode(trajectories, claims=self._claims or None)
        name = f"{self._next:06d}.parquet"
        self._next += 1
        write_pending(_pending(self.run.path, name), content)
        entry = {
            "part": name,
            "rows": len(trajectories),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        append_line(self.run.path / "journal.jsonl", json.dumps(entry))
        self._pending = [name]
        self._move_pending()

    def keep_shown(self, trajectory: Trajectory) -> Trajectory:
        """Writes what a trajectory shows to its own files, and returns it without that.

        Called before it is recorded, as soon as it is there: shown laws are large.
        """
        if trajectory.shown is None:
            return trajectory
        write_shown(self.run.path, trajectory)
        return replace(trajectory, shown=None)

    def _move_pending(self) -> None:
        """Moves a part that is journalled to its place; one that was not moved before, too."""
        for name in self._pending:
            move(_pending(self.run.path, name), self.run.path / "parts" / name)
        self._pending = []

    def widen(self, extent: Extent, prompts: Sequence[TokenizedPrompt]) -> None:
        """Adds prompts that were not known at the start, and what is asked of them.

        Raises:
            StoreError: A prompt of this id is there, and is another one.
        """
        known = {item.prompt.id: item for item in self.run.prompts()}
        for item in prompts:
            if known.get(item.prompt.id, item) != item:
                raise StoreError(
                    f"{self.run.path} already has another prompt {item.prompt.id!r}; its records "
                    "cannot be told apart. Start a new run with another --out."
                )
        new = {item.prompt.id: item for item in prompts if item.prompt.id not in known}
        if new:
            path = self.run.path / "prompts.jsonl"
            write_whole(path, path.read_bytes() + _prompt_lines(list(new.values())).encode())
        # The identity does not cover later prompts; each extent covers its own.
        data, added = self.run.design, _extent_json(extent) | {"workload": workload_hash(prompts)}
        if added not in data["extents"]:
            data["extents"].append(added)
            _write_design(self.run.path, data)

    def note_fault(self, fault: Fault) -> None:
        """Records what a black-box decoder did wrong."""
        # As text, because JSON has no infinite budget.
        key = None if fault.key is None else [str(part) for part in fault.key]
        data = {**vars(fault), "key": key}
        append_line(self.run.path / "faults.jsonl", json.dumps(data, sort_keys=True))

    def note_session(self, facts: Mapping[str, Any]) -> None:
        """Records what this session ran on."""
        append_line(self.run.path / "sessions.jsonl", json.dumps(facts, sort_keys=True))


@dataclass(frozen=True)
class Made:
    """The arithmetic of a session.

    Attributes:
        digest: Digest of its probe: equal for sessions that compute the same bits.
        mixed: True if earlier sessions may have computed others.
    """

    digest: str
    mixed: bool = False


def mixed_sessions(sessions: Sequence[Mapping[str, Any]]) -> str:
    """Says that sessions of a run computed different bits; empty if they did not, or do not say."""
    kinds: dict[str, str] = {}
    for facts in sessions:
        for one in (facts, *facts.get("workers", ())):
            if digest := one.get("probe", {}).get("digest"):
                where = (one.get("processor", ""), f"torch {one.get('torch', '?')}")
                kinds.setdefault(digest, ", ".join(filter(None, where)))
    if len(kinds) < 2:
        return ""
    made = "; ".join(f"{where}: arithmetic {digest}" for digest, where in kinds.items())
    return (
        f"records of this run were computed by {len(kinds)} different arithmetics ({made}): last "
        "bits, and with them rare tokens, depend on the machine that computed a record."
    )


def _check_made(path: Path, run: Run, made: Made) -> None:
    """Raises if an earlier session computed other bits, unless that is permitted."""
    for facts in run.sessions:
        earlier = facts.get("probe", {}).get("digest", made.digest)
        if earlier != made.digest and not made.mixed:
            where = ", ".join(
                str(facts[name]) for name in ("processor", "torch", "device") if name in facts
            )
            raise InputError(
                f"{path} was begun with another arithmetic ({earlier} on {where}; here it is "
                f"{made.digest}): its records and those of this session would differ in last bits. "
                "Resume it on a machine of that kind, start a new run with another --out, or add "
                "--mixed, which the report will name."
            )


@contextmanager
def open_for_writing(
    path: Path,
    design: Design,
    prompts: Sequence[TokenizedPrompt],
    vocabulary: Mapping[str, Any],
    sources: Mapping[str, PromptSource] | None = None,
    made: Made | None = None,
) -> Iterator[RunWriter]:
    """Creates a run, or resumes it if the identity is the same.

    Args:
        path: The run directory.
        design: What is to be recorded.
        prompts: The whole workload.
        vocabulary: What token ids stand for, and which of them stop a row.
        sources: What each prompt was made of, by its id.
        made: How this session computes; None if nothing is computed.

    Raises:
        InputError: The directory holds a run of another identity (the keys are named), or of
            another arithmetic.
        StoreError: It cannot be written, or another process is writing it.
    """
    make_directory(path / "parts")
    with exclusive(path / "lock"):
        identity = design.identity.to_json()
        extents = [_extent_json(design.extent)]
        if (path / "design.json").exists():
            recorded = Run(path).design
            if found := differences(identity, recorded["identity"]):
                again = "repeat the run's own options to resume."
                if any(line.startswith("layout.") for line in found):
                    again = "resume it with the version of nafaudit that began it (layout)."
                raise InputError(
                    f"{path} holds another run; it differs in\n  "
                    + "\n  ".join(found)
                    + f"\nGive this run its own --out, or {again}"
                )
            if made is not None:
                _check_made(path, Run(path), made)
            names = [item.prompt.id for item in Run(path).prompts()]
            others = [item.prompt.id for item in prompts]
            asked = extents[0]["prompts"]
            if asked != names[: len(asked)] and names != others and set(names) == set(others):
                # The file has another order now: its first prompts are not the run's first.
                extents[0]["reordered"] = True
            extents = recorded["extents"] + [e for e in extents if e not in recorded["extents"]]
        else:
            write_whole(path / "prompts.jsonl", _prompt_lines(prompts).encode())
            if sources:
                rows = [{"id": name, "source": vars(one)} for name, one in sources.items()]
                # Escaped, because a record may hold what no encoder can write.
                lines = "".join(json.dumps(row) + "\n" for row in rows)
                write_whole(path / "sources.jsonl", lines.encode())
            write_whole(path / "vocabulary.json", json.dumps(vocabulary).encode())
        data = {
            "hash": design.identity.hash,
            "anchor": design.identity.decoding.anchor,
            "identity": identity,
            "extents": extents,
        }
        _write_design(path, data)
        yield RunWriter(Run(path))


@contextmanager
def _as_written(path: Path) -> Iterator[None]:
    """Turns whatever a damaged file raises into an error that names it: no fault of ours."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(
            f"{path} is not what was written ({type(error).__name__}: {error}): it was damaged or "
            "edited. Restore it, or start a new run with another --out."
        ) from error


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Returns the entries of a journal.

    A torn last line is left out. A broken line before the last is damage, and an error.
    """
    entries = []
    for number, line in enumerate(whole_lines(path), start=1):
        try:
            entry: dict[str, Any] = {**validated(JournalLine, strict_json(line))}
        except (ValueError, RecursionError) as error:
            raise StoreError(
                f"{path}:{number} is not a journal entry; the file was damaged or edited. "
                "Restore it, or start a new run with another --out."
            ) from error
        entries.append(entry)
    return entries


def _pending(path: Path, part: str) -> Path:
    """Returns where a part is before it is moved into parts/."""
    return path / f"{part}.pending"


def _is_pending(path: Path, entry: Mapping[str, Any]) -> bool:
    """Returns True if a journalled part was not yet moved into parts/."""
    # In this order: a writer that moves it in between leaves a part that is found.
    pending = _pending(path, str(entry["part"])).is_file()
    return pending and not (path / "parts" / str(entry["part"])).is_file()


def _names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()] if directory.is_dir() else []


def _prompt_lines(prompts: Sequence[TokenizedPrompt]) -> str:
    rows = [{"prompt": vars(p.prompt), "tokens": list(p.tokens)} for p in prompts]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _write_design(path: Path, data: Mapping[str, Any]) -> None:
    write_whole(path / "design.json", json.dumps(data, indent=2).encode() + b"\n")


def _extent_json(extent: Extent) -> dict[str, Any]:
    data: dict[str, Any] = {
        "budgets": [str(k) if k == float("inf") else k for k in extent.budgets],
        "trajectories": extent.trajectories,
        "prompts": list(extent.prompts),
    }
    return data | ({"numbers": list(extent.numbers)} if extent.numbers else {})
