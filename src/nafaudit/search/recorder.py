"""Decodes and records the trajectories that a search needs, and bundles its counterexamples.

The runs of a search grow: its later prompts depend on the records of earlier ones.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from nafaudit.core.design import Design, Extent, Identity, ProtocolName
from nafaudit.core.draws import row_stream
from nafaudit.core.errors import InputError
from nafaudit.core.progress import OnProgress, Progress
from nafaudit.core.trajectory import Trajectory
from nafaudit.measures.context import RunContext
from nafaudit.measures.measure import measure
from nafaudit.mechanisms.cards import verify_options
from nafaudit.models.pair import PromptTokenizer
from nafaudit.runner.execute import OpenRun, Prompts, run_for_writing
from nafaudit.runner.executors import EngineExecutor, identity_of
from nafaudit.runner.pairs import SOUND, AuditProtocol, named_pair
from nafaudit.runner.workbench import UnloadedPair, Workbench
from nafaudit.search.candidate import Candidate, Measured, Measurements
from nafaudit.search.settings import SearchBasics, SearchSettings
from nafaudit.store.files import make_directory, whole_directory, write_whole
from nafaudit.store.run import Run, open_for_writing
from nafaudit.workload import Prompt, TokenizedPrompt, read_prompts, workload_hash
from nafaudit.workload.passages import Passage, read_passages


def seeds_of(settings: SearchBasics, protocol: AuditProtocol = SOUND) -> list[Prompt]:
    """Returns the prompts that a search starts from; loads no model."""
    named = settings.corpus or settings.prompts or settings.data or settings.safe
    if not settings.classes and not named:
        settings = replace(settings, classes=named_pair(settings.pair).start)
    prompts = protocol.workload(settings).prompts
    return prompts[: settings.limit] if settings.limit else prompts


def others_of(settings: SearchSettings, count: Callable[[str], int]) -> list[Prompt]:
    """Returns held-out prompts of other kinds than the workload's; loads no model."""
    if settings.others is not None:
        found = read_prompts(settings.others).prompts
    else:
        found = [] if settings.safe is not None else named_pair(settings.pair).others()
    for prompt in found:
        if not 1 <= count(prompt.text) <= settings.longest:
            raise InputError(
                f"held-out prompt {prompt.id!r} has {count(prompt.text)} tokens, allowed are "
                f"1 to {settings.longest}; leave it out, or raise --longest."
            )
    return found


def passages_of(settings: SearchSettings) -> list[Passage]:
    """Returns protected text that outputs are compared with; none for a pair without any."""
    if settings.passages is not None:
        return read_passages(Path(settings.passages))
    return [] if settings.safe is not None else named_pair(settings.pair).passages()


def read_pair(settings: SearchBasics, protocol: AuditProtocol = SOUND) -> tuple[UnloadedPair, int]:
    """Reads the pair's tokenizer; returns the pair with the largest number of positions of a row.

    Raises:
        InputError: Prompts of the longest allowed length do not fit.
    """
    pair = UnloadedPair.read(settings, protocol)
    needed = settings.longest + settings.max_new_tokens
    if needed > pair.context:
        raise InputError(
            f"prompts of {settings.longest} tokens and {settings.max_new_tokens} new ones do "
            f"not fit the pair's context of {pair.context}; lower --longest or --max-new-tokens."
        )
    return pair, needed


@dataclass(frozen=True)
class SearchBench:
    """Models and settings that a search decodes with, loaded once.

    Attributes:
        settings: Settings of the search.
        executor: Models and engine.
        tokenizer: Splits prompts.
        workload: Hash of the prompts that the search starts from.
    """

    settings: SearchBasics
    executor: EngineExecutor
    tokenizer: PromptTokenizer
    workload: str

    @classmethod
    def load(cls, pair: UnloadedPair, needed: int, prompts: Sequence[Prompt]) -> SearchBench:
        """Loads the models; the settings were checked before."""
        settings = pair.settings
        assert isinstance(settings, SearchBasics)
        tokenized = pair.tokenized(prompts)
        spec = pair.spec(needed, tokenized)
        executor = EngineExecutor(Workbench.load(spec, pair.bound(spec.passages)))
        return cls(settings, executor, pair.tokenizer, workload_hash(tokenized))

    def at(self, settings: SearchBasics) -> SearchBench:
        """Returns a bench for other settings of equal decoding, without loading again."""
        workbench = self.executor.workbench
        spec = replace(workbench.spec, settings=settings)
        executor = EngineExecutor(replace(workbench, spec=spec))
        return replace(self, settings=settings, executor=executor)

    def identity(self, purpose: str = "search") -> Identity:
        """Returns what decides the records of a run of this search."""
        return identity_of(self.executor, self.workload, purpose)

    def prompts(
        self, candidates: Iterable[Candidate], references: Mapping[str, str]
    ) -> dict[str, TokenizedPrompt]:
        """Returns candidates as the prompts of a run, by id.

        Args:
            candidates: Candidates of a search.
            references: Text that outputs are compared with, by candidate id.
        """
        return {
            one.id: TokenizedPrompt(
                Prompt(one.id, one.text, one.label, references.get(one.id, "")),
                self.tokenizer.ids(one.text),
            )
            for one in candidates
        }


class Recorder:
    """One run directory of a search; decodes and records what it lacks."""

    def __init__(self, bench: SearchBench, opened: OpenRun) -> None:
        self._bench = bench
        self._opened = opened
        ledger = bench.executor.mechanism.ledger
        self._context = RunContext(ledger, max_new_tokens=bench.settings.max_new_tokens)
        self.identity = opened.identity
        self.book = Measurements()
        self.worst = float("-inf")
        self.tokens = 0
        self._start = time.monotonic()
        for trajectory in opened.run.trajectories():
            self._measure(trajectory)

    @property
    def path(self) -> Path:
        """The run directory."""
        return self._opened.run.path

    @property
    def started(self) -> str:
        """Time at which the run began."""
        return str(self._opened.run.sessions[0]["started"])

    @property
    def remark(self) -> str:
        """Notes on this machine and on those of earlier sessions."""
        numerics = self._bench.executor.workbench.settled.numerics
        return " ".join(filter(None, (self._opened.run.mixed, numerics.remark)))

    def fill(
        self, extents: Sequence[Extent], prompts: Prompts, stage: str, on_progress: OnProgress
    ) -> None:
        """Decodes and records the missing part of some extents; then all of it is on disk.

        Args:
            extents: Trajectories that are needed.
            prompts: Their prompts, by id.
            stage: Name in the progress line.
            on_progress: Called as trajectories end.
        """
        total = sum(len(one.rows) for one in self._opened.requests_left(extents, prompts))
        done = 0

        def on_trajectory(trajectory: Trajectory) -> None:
            nonlocal done
            self._measure(trajectory)
            done += 1
            self.tokens += len(trajectory)
            seconds = time.monotonic() - self._start
            on_progress(Progress(stage, done, total, self.tokens, seconds, self.worst))

        self._opened.fill(extents, prompts, on_trajectory)

    def at_budget(self, k: float) -> Iterator[Trajectory]:
        """Returns the trajectories recorded under a budget."""
        return (one for one in self._opened.run.trajectories() if one.key.k == k)

    def _measure(self, trajectory: Trajectory) -> None:
        row = Measured.of(measure(trajectory, self._context))
        self.book.add(row)
        if trajectory.key.k == self._bench.settings.budget and row.utilisation > self.worst:
            self.worst = row.utilisation


@contextmanager
def open_recorder(
    bench: SearchBench,
    path: Path,
    purpose: str,
    first: Extent,
    prompts: Prompts,
    protocol: ProtocolName | None = None,
) -> Iterator[Recorder]:
    """Creates or resumes a run directory of a search.

    Args:
        bench: Models and settings.
        path: The directory.
        purpose: Purpose of its draws.
        first: First extent.
        prompts: Its prompts, by id.
        protocol: Protocol of its draws; that of the settings if None.
    """
    identity = bench.identity(purpose)
    design = Design(replace(identity, protocol=protocol or identity.protocol), first)
    items = [prompts[name] for name in first.prompts]
    with run_for_writing(bench.executor, path, design, items) as opened:
        yield Recorder(bench, opened)


MOST = 8
"""Largest number of bundles; the other violating prompts are in the records and are counted."""


@dataclass(frozen=True)
class Violation:
    """A prompt whose worst trajectory exceeds its budget.

    Attributes:
        run: Directory of its records.
        identity: Identity of that run.
        worst: The trajectory with the largest excess.
        count: Number of its trajectories above the budget.
    """

    run: Path
    identity: Identity
    worst: Measured
    count: int


def violations_of(run: Path, identity: Identity, rows: Sequence[Measured]) -> list[Violation]:
    """Returns one violation per prompt, the largest excess first."""
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
        catalogue: Candidates by id.
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
        violation: The prompt and its worst trajectory.
        candidate: The prompt as a candidate, if it is known.
    """
    source, worst, identity = Run(violation.run), violation.worst, violation.identity
    key = worst.key
    digest = hashlib.blake2b(key.prompt.encode("utf-8", "surrogatepass"), digest_size=4)
    place = into / f"{identity.purpose}-{digest.hexdigest()}"
    items = [item for item in source.prompts() if item.prompt.id == key.prompt]
    rows = [
        one
        for one in source.trajectories()
        if one.key[:3] == key[:3] and one.key.trajectory <= key.trajectory
    ]
    numbers = tuple(one.key.trajectory for one in rows)
    extent = Extent((key.k,), len(rows), (key.prompt,), numbers)
    design = Design(replace(identity, workload=workload_hash(items)), extent)
    vocabulary = json.loads((source.path / "vocabulary.json").read_text())
    draws = (identity.protocol, identity.seed, identity.purpose, key.prompt, key.trajectory)
    spec, plugin, _ = identity.mechanism.partition("@")  # only a plug-in's name has a source
    # What a reader wants to know first; the records are the proof.
    about = {
        "prompt": key.prompt,
        "candidate": None if candidate is None else asdict(candidate),
        "mechanism": key.mechanism,
        "k": key.k,
        "trajectory": key.trajectory,
        "step": worst.step,
        "excess": worst.excess,
        "violations": violation.count,
        "draws": {
            "seed": identity.seed,
            "purpose": identity.purpose,
            "stream": f"{row_stream(*draws).key:032x}",
        },
        "command": f"nafaudit verify {shlex.quote(str(place))}"
        f"{verify_options(spec) if plugin else ''}",
    }
    make_directory(into)
    with whole_directory(place, replace=True) as made:
        with open_for_writing(made, design, items, vocabulary) as writer:
            writer.note_session(source.sessions[-1])
            writer.append(sorted(rows, key=lambda t: t.key))
        text = json.dumps(about, indent=2)
        write_whole(made / "counterexample.json", text.encode() + b"\n")
    return place
