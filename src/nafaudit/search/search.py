"""Stage 2 from settings to result, for one budget or several.

Stage 2, in order: divide the workload, explore, name finalists, confirm them on fresh draws.

Every decision is a function of the records, so the same command resumes a search that was killed
and ends where an uninterrupted one ends.

What a search needs before its first draw: prompts, models, protected text.

Whatever is wrong with the settings is said here, before a model loads.

One search after the other over several budgets: where does searching beat the seed pool?

Each budget is a search directory of its own, `RUN/k-3` and so on, with the same prompts to start
from and the same draws, so that what differs is the budget. Delta is shared by the budgets.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nafaudit.core.design import Extent
from nafaudit.core.errors import InputError
from nafaudit.core.finding import Kept
from nafaudit.core.progress import OnProgress, Progress
from nafaudit.core.text import as_number
from nafaudit.runner.pairs import SOUND, AuditProtocol
from nafaudit.runner.workbench import mechanism_of
from nafaudit.search.archive import sklearn
from nafaudit.search.candidate import (
    Book,
    Candidate,
    UnrecordedError,
    references_of,
    utilisations_of,
)
from nafaudit.search.confirm import (
    Comparison,
    Copied,
    Finalist,
    HeldOut,
    Protected,
    compare,
    confirmed,
    held_out,
    name_above,
    outcome_of,
)
from nafaudit.search.explore import SEARCH, STRATEGIES, Explored, explore
from nafaudit.search.found import Found, Overlaps
from nafaudit.search.halving import halving_plan
from nafaudit.search.llm_chat import Chat
from nafaudit.search.llm_proposer import Proposers, chat_of
from nafaudit.search.pools import Pools, divide, start_of
from nafaudit.search.recorder import (
    Recorder,
    SearchBench,
    open_recorder,
    others_of,
    passages_of,
    read_pair,
    seeds_of,
    violations_of,
    write_bundles,
)
from nafaudit.search.settings import SearchSettings, check_claim, claim, directory_of
from nafaudit.stats import Bonferroni
from nafaudit.store.files import make_directory, write_whole
from nafaudit.views.search import search_json, write_result
from nafaudit.workload import TokenizedPrompt
from nafaudit.workload.passages import Passage


@dataclass(frozen=True)
class Prepared:
    """What every budget of a search shares.

    Attributes:
        settings: What was asked for.
        bench: Models and engine.
        pools: The workload, divided.
        references: What outputs are compared with, by the text of a prompt.
        passages: Protected text.
        chat: A model that proposes; None for the local operators.
    """

    settings: SearchSettings
    bench: SearchBench
    pools: Pools
    references: Mapping[str, str]
    passages: tuple[Passage, ...]
    chat: Chat | None

    def at(self, settings: SearchSettings) -> Prepared:
        """The same for other settings with the same decoding, such as another budget."""
        return replace(self, settings=settings, bench=self.bench.at(settings))

    @property
    def path(self) -> Path:
        """The run directory."""
        return directory_of(self.settings, self.bench.identity().hash)


def prepare(settings: SearchSettings, protocol: AuditProtocol = SOUND) -> Prepared:
    """Reads prompts and loads models; whatever is wrong is said before a model loads."""
    mechanism_of(settings)
    check_claim(settings)
    sklearn("feature_extraction.text")
    prompts, passages = seeds_of(settings, protocol), passages_of(settings)
    pair, needed = read_pair(settings)
    count = pair.tokenizer.count
    others = [Candidate(p.id, p.text, p.label) for p in others_of(settings, count)]
    seeds = [Candidate(p.id, p.text, p.label) for p in prompts]
    pools = divide(seeds, settings, count, others)
    if len(pools.usable) < 2 or not pools.heldout:
        raise InputError(
            f"a search needs at least 3 different prompts of {settings.shortest} to "
            f"{settings.longest} tokens, the workload has "
            f"{len(pools.usable) + len(pools.heldout)}; give more, or another --shortest."
        )
    chat = chat_of(settings)
    bench = SearchBench.load(pair, needed, prompts)
    references = {p.text: p.reference for p in prompts if p.reference}
    return Prepared(settings, bench, pools, references, tuple(passages), chat)


INF = float("inf")


def run_search(
    settings: SearchSettings, on_progress: OnProgress, protocol: AuditProtocol = SOUND
) -> Found:
    """Runs, or resumes, the search that the settings describe.

    Args:
        settings: What to search; checked before any model loads.
        on_progress: Called as trajectories end.
        protocol: What reads the workload.
    """
    return search_with(prepare(settings, protocol), on_progress)


def search_with(ready: Prepared, on_progress: OnProgress, *, baselines: bool = True) -> Found:
    """The same with models that are loaded already.

    Args:
        ready: Models and prompts.
        on_progress: Called as trajectories end.
        baselines: False leaves out what each model alone does with a finalist.
    """
    return _Search(ready, on_progress, baselines).run()


class _Search:
    """What the stages of a search share."""

    def __init__(self, ready: Prepared, on_progress: OnProgress, baselines: bool) -> None:
        self.bench, self.settings, self.pools = ready.bench, ready.settings, ready.pools
        self._by_text = ready.references
        self._passages = ready.passages
        self._on_progress = on_progress
        self._baselines = baselines
        self._chat = ready.chat
        self._began = time.monotonic()
        self.catalogue: dict[str, Candidate] = {one.id: one for one in self.pools.unseen}
        self.path = ready.path

    def run(self) -> Found:
        """Explores, confirms, and says what was found."""
        with open_recorder(
            self.bench, self.path, "search", self._first(), self._prompts()
        ) as recorder:
            claim(self.path, self.settings)
            self._proposers = Proposers(self.settings, self._chat, self.path, self._on_call)
            explored = self._explore(recorder)
            extents, chosen = self._finals(explored)
            place, prompts = self.path / "confirm", self._prompts()
            with open_recorder(self.bench, place, "confirm", extents[0], prompts) as fresh:
                fresh.fill(extents, prompts, "confirming", self._on_progress)
                return self._found(explored, chosen, recorder, fresh)

    def _first(self) -> Extent:
        """Returns what every search asks for at its start."""
        size = min(self.settings.pool, len(self.pools.usable))
        starts = [start_of(self.pools, seed, size)[0] for seed in self.settings.search_seeds]
        self.catalogue |= {one.id: one for start in starts for one in start}
        keep = min(self.settings.survivors, size)
        each = halving_plan(size, self.settings.draws, keep)[0].each
        names = tuple(one.id for start in starts for one in start)
        return Extent(self.settings.k, each, names)

    def _explore(self, recorder: Recorder) -> tuple[Explored, ...]:
        """Asks all searches in turn, records what they lack, until none lacks anything."""
        done: dict[tuple[int, str], Explored] = {}
        everyone = [(seed, who) for seed in self.settings.search_seeds for who in STRATEGIES]
        rounds = 0
        while len(done) < len(everyone):
            wanted: dict[str, int] = {}
            for seed, who in everyone:
                if (seed, who) in done:
                    continue
                try:
                    done[seed, who] = self._one(who, seed, recorder.book)
                except UnrecordedError as gap:
                    wanted |= gap.wanted
            rounds += 1
            if wanted:
                stage = f"exploring, round {rounds}"
                recorder.fill(self._extents(wanted), self._prompts(), stage, self._on_progress)
        return tuple(done[one] for one in everyone)

    def _one(self, who: str, seed: int, book: Book) -> Explored:
        return explore(
            who,
            seed,
            self.pools,
            self.settings,
            self.bench.tokenizer.count,
            book,
            self.catalogue,
            self._proposers.of(seed),
        )

    def _on_call(self, seed: int, call: int, calls: int) -> None:
        stage = f"asking {self.settings.proposer}, search seed {seed}"
        seconds = time.monotonic() - self._began
        self._on_progress(Progress(stage, call, calls, 0, seconds, -INF, unit="calls"))

    def _extents(self, wanted: Mapping[str, int]) -> list[Extent]:
        """Returns one extent for all prompts that need equally many trajectories."""
        counts = sorted(set(wanted.values()))
        return [
            Extent(self.settings.k, count, tuple(one for one, n in wanted.items() if n == count))
            for count in counts
        ]

    def _prompts(self) -> dict[str, TokenizedPrompt]:
        """Returns every candidate so far as a prompt of a run."""
        references = references_of(self.catalogue, self._by_text)
        return self.bench.prompts(self.catalogue.values(), references)

    def _finals(self, explored: Sequence[Explored]) -> tuple[list[Extent], list[_Chosen]]:
        """Who is confirmed, chosen before a fresh draw: what to run, and what was promised."""
        chosen = [
            _Chosen(one, rank, parent.candidate, parent.score)
            for one in explored
            for rank, parent in enumerate(one.ranking[: self._places(one.strategy)], start=1)
        ]
        mine = _unique(one.candidate for one in chosen if one.explored.strategy == SEARCH)
        others = _unique(one.candidate for one in chosen if one.explored.strategy != SEARCH)
        others = tuple(one for one in others if one not in mine)
        k, fresh = self.settings.budget, self.settings.fresh
        budgets = (0.0, k, INF) if self._baselines else (k,)
        extents = [Extent(budgets, fresh, _ids(mine))]
        if others:
            extents.append(Extent((k,), fresh, _ids(others)))
        extents.append(Extent((k,), self.settings.heldout_draws, _ids(self.pools.unseen)))
        return extents, chosen

    def _places(self, strategy: str) -> int:
        return self.settings.finalists if strategy == SEARCH else 1

    def _found(
        self,
        explored: tuple[Explored, ...],
        chosen: Sequence[_Chosen],
        recorder: Recorder,
        fresh: Recorder,
    ) -> Found:
        settings, k = self.settings, self.settings.budget
        looked = {name for one in explored for name in one.draws}
        looked |= {one.id for one in self.pools.unseen}
        level = Bonferroni(settings.delta, len(looked))
        judged = [one.judged(fresh.book, settings, level) for one in chosen]
        finalists = tuple(one for one in judged if one.strategy == SEARCH)
        controls = tuple(one for one in judged if one.strategy != SEARCH)
        heldout = self._unseen(finalists, fresh.book)
        rows = recorder.book.all(k), fresh.book.all(k)
        bad = [
            violation
            for one, found in zip((recorder, fresh), rows, strict=True)
            for violation in violations_of(one.path, one.identity, found)
        ]
        return Found(
            path=self.path,
            settings=settings,
            pools=self.pools,
            explored=explored,
            finalists=finalists,
            controls=controls,
            comparisons=tuple(self._compared(judged, fresh.book)),
            heldout=heldout[0],
            others=tuple(heldout[1:]),
            named=name_above(judged, settings.above, settings.delta, len(looked)),
            overlaps=self._overlaps(recorder, fresh),
            embedding="",
            looked=len(looked),
            trajectories=sum(map(len, rows)),
            violating=len({violation.worst.key.prompt for violation in bad}),
            outcome=outcome_of(*rows, min((one.fresh for one in finalists), default=0)),
            counterexamples=write_bundles(self.path, bad, self.catalogue),
            batch_free=self.bench.executor.probe.batch_free,
            remark=recorder.remark,
            proposer=self._proposers.to_json(),
        )

    def _unseen(self, finalists: Sequence[Finalist], book: Book) -> list[HeldOut]:
        """The pool of the workload, then the other kinds; all their limits share delta."""
        pools = {"workload": self.pools.heldout}
        for one in self.pools.others:
            pools[one.label] = (*pools.get(one.label, ()), one)
        draws, k = self.settings.heldout_draws, self.settings.budget
        return [
            held_out(
                [book.rows(one.id, k, draws) for one in pool],
                finalists,
                self.settings.delta / len(pools),
                kind,
            )
            for kind, pool in pools.items()
        ]

    def _overlaps(self, recorder: Recorder, fresh: Recorder) -> Overlaps | None:
        """What was repeated of protected text, from the records of both runs."""
        if not self._passages:
            return None
        protected = Protected(self._passages, self.bench.executor.pair.vocabulary.pieces)
        explored, later = (
            protected.most(one.at_budget(self.settings.budget)) for one in (recorder, fresh)
        )
        everything = sum((*explored.values(), *later.values()), start=Copied())
        return Overlaps(len(protected), everything, later)

    def _compared(self, judged: Sequence[Finalist], book: Book) -> list[Comparison]:
        """First finalists of every search seed, search against each control."""
        values: dict[str, list[float]] = {who: [] for who in STRATEGIES}
        for one in judged:
            if one.rank == 1:
                rows = book.rows(one.candidate.id, self.settings.budget, self.settings.fresh)
                values[one.strategy] += utilisations_of(rows)
        controls = {who: values[who] for who in STRATEGIES if who != SEARCH}
        return compare(controls, values[SEARCH], self.settings.delta)


@dataclass(frozen=True)
class _Chosen:
    """A finalist before it is confirmed."""

    explored: Explored
    rank: int
    candidate: Candidate
    promised: float

    def judged(self, book: Book, settings: SearchSettings, level: Bonferroni) -> Finalist:
        name = self.candidate.id
        return confirmed(
            (self.explored.strategy, self.explored.seed, self.rank),
            self.candidate,
            (self.promised, self.explored.draws[name]),
            book.rows(name, settings.budget, settings.fresh),
            book.rows(name, INF, settings.fresh),
            level,
            settings.above,
        )


def _unique(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    return tuple(dict.fromkeys(candidates))


def _ids(candidates: Iterable[Candidate]) -> tuple[str, ...]:
    return tuple(one.id for one in candidates)


@dataclass(frozen=True)
class Sweep:
    """Finished searches, one per budget."""

    path: Path
    delta: float
    found: tuple[Found, ...]

    @property
    def outcome(self) -> Kept:
        """The worst of all budgets: one violation is a violation."""
        said = {one.outcome for one in self.found}
        return next(one for one in (Kept.VIOLATED, Kept.INCONCLUSIVE, Kept.WITHIN) if one in said)


def run_sweep(
    settings: SearchSettings, on_progress: OnProgress, protocol: AuditProtocol = SOUND
) -> Sweep:
    """Runs, or resumes, a search under each budget of the settings.

    Args:
        settings: What to search; checked before any model loads.
        on_progress: Called as trajectories end.
        protocol: What reads the workload.
    """
    ready = prepare(settings, protocol)
    path, budgets = ready.path, settings.k
    make_directory(path)
    claim(path, settings)
    found = []
    for k in budgets:
        one = replace(
            settings, k=(k,), out=str(path / f"k-{k:.12g}"), delta=settings.delta / len(budgets)
        )
        done = search_with(ready.at(one), _naming(on_progress, f"k = {k:g}, "))
        write_result(done)
        found.append(done)
    return Sweep(path, settings.delta, tuple(found))


def _naming(on_progress: OnProgress, name: str) -> OnProgress:
    return lambda progress: on_progress(replace(progress, stage=name + progress.stage))


def sweep_json(sweep: Sweep) -> dict[str, Any]:
    """The table over budgets; every search in full is in its own directory."""
    rows = []
    for one in sweep.found:
        whole = search_json(one)
        names = ("k", "outcome", "run", "delta", "comparisons", "spread", "heldout", "others")
        row = {name: whole[name] for name in names}
        rows.append(row | {"best": {who: as_number(best_of(one, who)) for who in STRATEGIES}})
    return {
        "run": str(sweep.path),
        "outcome": str(sweep.outcome),
        "delta": sweep.delta,
        "budgets": rows,
    }


def best_of(found: Found, strategy: str) -> float:
    """Mean over search seeds of the first finalist's confirmed utilisation."""
    values = found.maxima(strategy)
    return sum(values) / len(values)


def write_sweep(sweep: Sweep) -> Path:
    """Writes RUN/sweep.json; the same records give the same bytes."""
    path = sweep.path / "sweep.json"
    write_whole(path, json.dumps(sweep_json(sweep), indent=2).encode() + b"\n")
    return path
