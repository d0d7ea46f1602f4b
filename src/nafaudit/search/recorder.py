"""Decodes what a search lacks, and bundles its counterexamples.

It adds nothing to the engine of stage 1 but prompts that nobody knew when the run began.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from nafaudit.checks.check import Facts
from nafaudit.core.design import AuditProtocol, Design, Extent, Identity, row_width
from nafaudit.core.draws import row_stream
from nafaudit.core.errors import InputError
from nafaudit.core.trajectory import Trajectory
from nafaudit.engine.decode import Decoder
from nafaudit.engine.probe import settle
from nafaudit.engine.world import SequenceDecoder
from nafaudit.mechanisms.cards import verified_with
from nafaudit.models.checkpoints import context_of
from nafaudit.models.pair import Pair, load_pair
from nafaudit.protocols import Mechanism
from nafaudit.runner.material import material_of
from nafaudit.runner.pairs import checkpoints_of, named_pair, workload_of
from nafaudit.runner.prepare import mechanism_of, stop_ids_of, vocabulary_table, wording_of
from nafaudit.runner.recording import session_facts
from nafaudit.runner.sources import GrowingRun, Seen, Want, engine_of, open_growing, seen_of
from nafaudit.search.candidate import Book, Candidate, Measured, measure
from nafaudit.search.settings import SearchBasics, SearchSettings
from nafaudit.store.files import make_directory, whole_directory, write_whole
from nafaudit.store.run import Run, open_for_writing
from nafaudit.workload import Prompt, TokenizedPrompt, read_workload, workload_hash
from nafaudit.workload.passages import Passage, read_passages


@dataclass(frozen=True)
class Ask:
    """Trajectories that are wanted of each candidate, under each budget.

    Attributes:
        candidates: Of whom.
        trajectories: How many, those of earlier asks included.
        budgets: Under which budgets.
        numbers: Which ones; the first so many if empty.
    """

    candidates: tuple[Candidate, ...]
    trajectories: int
    budgets: tuple[float, ...]
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Told:
    """Where a search is.

    Attributes:
        stage: What it is doing, in words.
        done: Trajectories of this stage that are recorded.
        total: All of this stage.
        tokens: Written in this session.
        seconds: Since this session began to decode.
        worst: Largest utilisation so far; -inf before the first.
        unit: What `done` and `total` count, if no trajectories.
    """

    stage: str
    done: int
    total: int
    tokens: int
    seconds: float
    worst: float
    unit: str = "trajectories"


class Words:
    """The pair's tokenizer, read before any model: lengths and token ids of any text."""

    def __init__(self, settings: SearchBasics) -> None:
        self.checkpoints = checkpoints_of(settings)
        self._wording = wording_of(settings, *self.checkpoints)
        self.chat = self._wording.chat
        self._known: dict[str, tuple[int, ...]] = {}
        context = context_of(*self.checkpoints, trust=settings.trust)
        needed = settings.longest + settings.max_new_tokens
        if needed > context:
            raise InputError(
                f"prompts of {settings.longest} tokens and {settings.max_new_tokens} new ones do "
                f"not fit the pair's context of {context}; lower --longest or --max-new-tokens."
            )
        self.width = row_width(needed, context)
        self.stops = stop_ids_of(settings, self._wording.tokenizer)

    def ids(self, text: str) -> tuple[int, ...]:
        """Token ids of a text."""
        if text not in self._known:
            self._known[text] = self._wording.ids(text)
        return self._known[text]

    def count(self, text: str) -> int:
        """How many they are."""
        return len(self.ids(text))


@dataclass(frozen=True)
class Bench:
    """What a search decodes with, loaded once.

    Attributes:
        settings: What was asked for.
        words: Tokenizer.
        pair: The models.
        mechanism: What is searched.
        decoder: The engine.
        identity: Of the run that a search records; another purpose gives fresh draws.
        seen: What the machine was seen to do, and by which arithmetic it computes.
        remark: What the user should know of that; empty if there is nothing.
    """

    settings: SearchBasics
    words: Words
    pair: Pair
    mechanism: Mechanism
    decoder: Decoder | SequenceDecoder
    identity: Identity
    seen: Seen
    remark: str = ""

    @property
    def batch_free(self) -> bool:
        """True if records do not depend on their batch."""
        return self.seen.batch_free

    @property
    def facts(self) -> Facts:
        """What a verdict on a trajectory needs."""
        return Facts(self.mechanism.ledger, max_new_tokens=self.settings.max_new_tokens)

    def want(self, ask: Ask, references: Mapping[str, str]) -> Want:
        """An ask with its candidates as the prompts of a run."""
        items = tuple(
            TokenizedPrompt(
                Prompt(one.id, one.text, one.label, references.get(one.id, "")),
                self.words.ids(one.text),
            )
            for one in ask.candidates
        )
        return Want(items, ask.trajectories, ask.budgets, ask.numbers)


def seeds_of(settings: SearchBasics) -> list[Prompt]:
    """The workload that a search starts from; reads no model."""
    prompts = workload_of(replace(settings, classes=_start(settings))).prompts
    return prompts[: settings.limit] if settings.limit else prompts


def _start(settings: SearchBasics) -> tuple[str, ...]:
    """Classes that a search starts from: those asked for, or those of the pair's own workload."""
    own = not settings.corpus and not (settings.prompts or settings.data or settings.safe)
    if settings.classes or not own:
        return settings.classes
    return named_pair(settings.pair).start


def others_of(settings: SearchSettings, words: Words) -> list[Prompt]:
    """Held-out prompts of other kinds than the workload's; reads no model."""
    if settings.others is not None:
        found = read_workload(Path(settings.others)).prompts
    else:
        found = [] if settings.safe is not None else named_pair(settings.pair).others()
    for prompt in found:
        if not 1 <= words.count(prompt.text) <= settings.longest:
            raise InputError(
                f"held-out prompt {prompt.id!r} has {words.count(prompt.text)} tokens, allowed are "
                f"1 to {settings.longest}; leave it out, or raise --longest."
            )
    return found


def passages_of(settings: SearchSettings) -> list[Passage]:
    """Protected text that outputs are compared with; none for a pair that names none."""
    if settings.passages is not None:
        return read_passages(Path(settings.passages))
    return [] if settings.safe is not None else named_pair(settings.pair).passages()


def load_bench(settings: SearchBasics, words: Words, prompts: Sequence[Prompt]) -> Bench:
    """Loads the models; everything that can be wrong with the settings was said before."""
    mechanism = mechanism_of(settings)
    torch.set_num_threads(settings.threads)
    pair = load_pair(
        *words.checkpoints,
        dtype=settings.dtype,
        device=settings.device,
        stop_ids=words.stops,
        trust=settings.trust,
    )
    tokenized = [TokenizedPrompt(p, words.ids(p.text)) for p in prompts]
    own = settings.pair if settings.safe is None else None
    mechanism = mechanism.bind(material_of(pair.tokenizer, tokenized, own))
    shape: dict[str, Any] = {"width": words.width, "batch": settings.batch}
    settled = settle(pair, mechanism, settings.decoding, **shape)
    how = settled.numerics
    decoder = engine_of(pair, mechanism, settings.decoding, **shape, numerics=how)
    identity = Identity(
        pair=pair.fingerprint,
        mechanism=mechanism.name,
        ledger=mechanism.ledger.spec,
        decoding=settings.decoding,
        workload=workload_hash(tokenized),
        width=words.width,
        seed=settings.seed,
        purpose="search",
        protocol="paper" if settings.protocol == "paper" else "sound",
        currency=mechanism.currency,
        chat=words.chat,
        constant_rows=how.constant,
    )
    seen = seen_of(settled)
    return Bench(settings, words, pair, mechanism, decoder, identity, seen, how.remark)


class Recorder:
    """One run directory of a search: what is missing of an ask is decoded and recorded."""

    def __init__(self, bench: Bench, growing: GrowingRun) -> None:
        self._bench = bench
        self._growing = growing
        self._facts = bench.facts
        self.identity = growing.identity
        self.book = Book()
        self.worst = float("-inf")
        self.tokens = 0
        self._start = time.monotonic()
        for trajectory in growing.run.trajectories():
            self._see(trajectory)

    @property
    def path(self) -> Path:
        """The run directory."""
        return self._growing.run.path

    @property
    def started(self) -> str:
        """When the run was begun."""
        return str(self._growing.run.sessions[0]["started"])

    @property
    def remark(self) -> str:
        """What the user should know of the machine, and of those of earlier sessions."""
        return " ".join(filter(None, (self._growing.run.mixed, self._bench.remark)))

    def fill(
        self,
        asks: Sequence[Ask],
        references: Mapping[str, str],
        stage: str,
        tell: Callable[[Told], None],
    ) -> None:
        """Records what is asked for and not yet there; when it returns, all is on disk.

        Args:
            asks: What is wanted.
            references: Text that outputs are compared with, by candidate id.
            stage: For the progress line.
            tell: Called as trajectories end.
        """
        wants = [self._bench.want(ask, references) for ask in asks]
        total, done = sum(len(one.rows) for one in self._growing.missing(wants)), 0

        def see(trajectory: Trajectory) -> None:
            nonlocal done
            self._see(trajectory)
            done += 1
            self.tokens += len(trajectory)
            seconds = time.monotonic() - self._start
            tell(Told(stage, done, total, self.tokens, seconds, self.worst))

        self._growing.fill(wants, see)

    def at_budget(self, k: float) -> Iterator[Trajectory]:
        """What is recorded under a budget."""
        return (one for one in self._growing.run.trajectories() if one.key.k == k)

    def _see(self, trajectory: Trajectory) -> None:
        row = measure(trajectory, self._facts.of_budget(trajectory.key.k))
        self.book.add(row)
        if trajectory.key.k == self._bench.settings.budget and row.utilisation > self.worst:
            self.worst = row.utilisation


@contextmanager
def open_recorder(
    bench: Bench,
    path: Path,
    purpose: str,
    first: Ask,
    references: Mapping[str, str],
    protocol: AuditProtocol | None = None,
) -> Iterator[Recorder]:
    """Creates or resumes a run directory of a search.

    Args:
        bench: Models and settings.
        path: The directory.
        purpose: What its draws are for.
        first: What is asked for first.
        references: Text that outputs are compared with, by candidate id.
        protocol: Whose draws they are; the settings' own if None.
    """
    draws = protocol or bench.identity.protocol
    facts = session_facts(bench.settings, bench.words.checkpoints) | bench.seen.facts
    with open_growing(
        path,
        replace(bench.identity, purpose=purpose, protocol=draws),
        bench.want(first, references),
        bench.decoder,
        vocabulary_table(bench.pair),
        facts,
        mixed=bench.settings.mixed,
    ) as growing:
        yield Recorder(bench, growing)


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
