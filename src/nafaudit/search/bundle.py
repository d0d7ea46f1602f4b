"""Counterexamples: a violating prompt as a small run of its own, for anybody to replay."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from nafaudit.core.design import Design, Extent, Identity
from nafaudit.core.draws import row_stream
from nafaudit.core.trajectory import Trajectory
from nafaudit.mechanisms.cards import verified_with
from nafaudit.search.book import Measured
from nafaudit.search.candidate import Candidate
from nafaudit.store.files import make_directory, whole_directory, write_whole
from nafaudit.store.run import Run, open_for_writing
from nafaudit.workload import workload_hash

MOST = 8
"""Bundles of a search; the other violating prompts are in its records and are counted."""


@dataclass(frozen=True)
class Violation:
    """A prompt whose worst trajectory exceeds its budget.

    Attributes:
        run: Where it is recorded.
        identity: Of that run.
        worst: The trajectory with the largest excess.
        count: How many of its trajectories exceed it.
    """

    run: Path
    identity: Identity
    worst: Measured
    count: int


def violations_of(run: Path, identity: Identity, rows: Sequence[Measured]) -> list[Violation]:
    """One per violating prompt, the largest excess first."""
    by_prompt: dict[str, list[Measured]] = {}
    for row in rows:
        if row.violated:
            by_prompt.setdefault(row.key.prompt, []).append(row)
    found = [
        Violation(run, identity, max(bad, key=lambda row: (row.excess, row.key)), len(bad))
        for bad in by_prompt.values()
    ]
    return sorted(found, key=lambda one: (-one.worst.excess, one.worst.key))


def write_bundles(
    run: Path, violations: Sequence[Violation], catalogue: Mapping[str, Candidate]
) -> tuple[Path, ...]:
    """Writes RUN/counterexamples: one per prompt, of the run in which it exceeds its budget most.

    Args:
        run: Directory of the search.
        violations: Found in any of its runs.
        catalogue: How prompts were made, by id.
    """
    worst: dict[str, Violation] = {}
    for one in sorted(violations, key=lambda one: (-one.worst.excess, one.worst.key)):
        worst.setdefault(one.worst.key.prompt, one)
    return tuple(
        write_bundle(run / "counterexamples", one, catalogue.get(name))
        for name, one in list(worst.items())[:MOST]
    )


def write_bundle(into: Path, violation: Violation, candidate: Candidate | None) -> Path:
    """Writes a run directory of this prompt alone, up to its worst trajectory.

    Args:
        into: Directory that holds bundles.
        violation: Which prompt.
        candidate: How it was made, if that is known.
    """
    source, key = Run(violation.run), violation.worst.key
    digest = hashlib.blake2b(key.prompt.encode("utf-8", "surrogatepass"), digest_size=4)
    place = into / f"{violation.identity.purpose}-{digest.hexdigest()}"
    items = [item for item in source.prompts() if item.prompt.id == key.prompt]
    rows = [t for t in source.trajectories() if _belongs(t, violation)]
    identity = replace(violation.identity, workload=workload_hash(items))
    numbers = tuple(t.key.trajectory for t in rows)
    design = Design(identity, Extent((key.k,), len(rows), (key.prompt,), numbers))
    vocabulary = json.loads((source.path / "vocabulary.json").read_text())
    make_directory(into)
    with whole_directory(place, replace=True) as made:
        with open_for_writing(made, design, items, vocabulary) as writer:
            writer.note_session(source.sessions[-1])
            writer.append(sorted(rows, key=lambda t: t.key))
        about = json.dumps(_about(place, violation, candidate), indent=2)
        write_whole(made / "counterexample.json", about.encode() + b"\n")
    return place


def _belongs(trajectory: Trajectory, violation: Violation) -> bool:
    key, worst = trajectory.key, violation.worst.key
    return key[:3] == worst[:3] and key.trajectory <= worst.trajectory


def _about(place: Path, violation: Violation, candidate: Candidate | None) -> dict[str, object]:
    """What a reader wants to know first; the records are the proof."""
    worst, identity = violation.worst, violation.identity
    stream = row_stream(
        identity.protocol, identity.seed, identity.purpose, worst.key.prompt, worst.key.trajectory
    )
    return {
        "prompt": worst.key.prompt,
        "candidate": None if candidate is None else asdict(candidate),
        "mechanism": worst.key.mechanism,
        "k": worst.key.k,
        "trajectory": worst.key.trajectory,
        "step": worst.step,
        "excess": worst.excess,
        "violations": violation.count,
        "draws": {
            "seed": identity.seed,
            "purpose": identity.purpose,
            "stream": f"{stream.key:032x}",
        },
        "command": f"nafaudit verify {shlex.quote(str(place))}{_plugin(identity.mechanism)}",
    }


def _plugin(recorded: str) -> str:
    """What a recorded mechanism needs to be verified; only a plug-in's name has a source."""
    spec, source, _ = recorded.partition("@")
    return verified_with(spec) if source else ""
