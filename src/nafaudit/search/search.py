"""Searches for prompts that use much of a budget, for one budget or several.

A search divides the workload, explores, chooses finalists and confirms them on fresh draws. Every
decision is a function of the records, so a search that was killed is resumed by its own command and
ends as an uninterrupted one does.

Several budgets are searched one after the other, each in a directory of its own (`RUN/k-3` and so
on), with equal first prompts and equal draws, so that only the budget differs. The budgets share
delta.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from nafaudit.core.design import Extent
from nafaudit.core.errors import InputError
from nafaudit.core.finding import Kept, Overall
from nafaudit.core.progress import OnProgress, Progress
from nafaudit.core.text import as_number
from nafaudit.runner.pairs import SOUND, AuditProtocol
from nafaudit.runner.workbench import mechanism_of
from nafaudit.search.archive import sklearn
from nafaudit.search.candidate import (
    Candidate,
    NeedsTrajectories,
    Parent,
    references_of,
    utilisations_of,
)
from nafaudit.search.confirm import (
    Copied,
    Overlaps,
    Protected,
    SearchResult,
    compare,
    confirmed,
    held_out,
    name_above,
    outcome_of,
)
from nafaudit.search.explore import SEARCH, STRATEGIES, SearchTrace, explore
from nafaudit.search.filters import Pools, divide, start_of
from nafaudit.search.halving import halving_plan
from nafaudit.search.llm_chat import Chat
from nafaudit.search.llm_proposer import Proposers, chat_of
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
from nafaudit.search.settings import (
    SearchSettings,
    check_directory,
    directory_of,
    reserve_directory,
)
from nafaudit.stats import Bonferroni
from nafaudit.store.files import make_directory, write_whole
from nafaudit.views.search import search_json, write_result
from nafaudit.workload import TokenizedPrompt
from nafaudit.workload.passages import Passage


@dataclass(frozen=True)
class Search:
    """A search with its models loaded.

    Attributes:
        settings: Settings of the search.
        bench: Models and engine.
        pools: The workload, divided.
        references: Text that outputs are compared with, by the text of a prompt.
        passages: Protected text.
        chat: A model that proposes; None for the local operators.
    """

    settings: SearchSettings
    bench: SearchBench
    pools: Pools
    references: Mapping[str, str]
    passages: tuple[Passage, ...]
    chat: Chat | None

    @classmethod
    def load(cls, settings: SearchSettings, protocol: AuditProtocol = SOUND) -> Search:
        """Reads prompts and loads models.

        Raises:
            InputError: Something is wrong with prompts or settings; no model was loaded.
        """
        # Both raise on a wrong mechanism or directory, before a model loads.
        mechanism_of(settings)
        check_directory(settings)
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
        return cls(settings, bench, pools, references, tuple(passages), chat)

    def with_settings(self, settings: SearchSettings) -> Search:
        """Returns a search with other settings of equal decoding, such as another budget."""
        return replace(self, settings=settings, bench=self.bench.at(settings))

    @cached_property
    def path(self) -> Path:
        """The run directory."""
        return directory_of(self.settings, self.bench.identity().hash)

    def run(self, on_progress: OnProgress, *, baselines: bool = True) -> SearchResult:
        """Explores and confirms; resumes from the records.

        Args:
            on_progress: Called as trajectories end.
            baselines: False leaves out the trajectories of each model alone.
        """
        settings, pools, began = self.settings, self.pools, time.monotonic()
        size = min(settings.pool, len(pools.usable))
        starts = [c for seed in settings.search_seeds for c in start_of(pools, seed, size)[0]]
        each = halving_plan(size, settings.draws, min(settings.survivors, size))[0].each
        # Every candidate so far, by id; `explore` adds those that it tries.
        catalogue = {candidate.id: candidate for candidate in (*pools.unseen, *starts)}

        def prompts() -> dict[str, TokenizedPrompt]:
            """Returns every candidate so far as a prompt of a run."""
            references = references_of(catalogue, self.references)
            return self.bench.prompts(catalogue.values(), references)

        def on_call(seed: int, call: int, calls: int) -> None:
            stage = f"asking {settings.proposer}, search seed {seed}"
            seconds = time.monotonic() - began
            on_progress(Progress(stage, call, calls, seconds=seconds, unit="calls"))

        first = Extent(settings.k, each, _ids(starts))
        with open_recorder(self.bench, self.path, "search", first, prompts()) as recorder:
            reserve_directory(self.path, settings)
            proposers = Proposers(settings, self.chat, self.path, on_call)
            # Each search is run as far as the records reach, then all they need is recorded.
            done: dict[tuple[int, str], SearchTrace] = {}
            searches = [
                (seed, strategy) for seed in settings.search_seeds for strategy in STRATEGIES
            ]
            for number in itertools.count(1):
                wanted: dict[str, int] = {}
                for seed, strategy in searches:
                    if (seed, strategy) in done:
                        continue
                    try:
                        done[seed, strategy] = explore(
                            strategy,
                            seed,
                            pools,
                            settings,
                            self.bench.tokenizer.count,
                            recorder.book,
                            catalogue,
                            proposers.of(seed),
                        )
                    except NeedsTrajectories as needed:
                        wanted |= needed.wanted
                if len(done) == len(searches):
                    break
                extents = [
                    Extent(settings.k, count, tuple(id_ for id_, n in wanted.items() if n == count))
                    for count in sorted(set(wanted.values()))
                ]
                recorder.fill(extents, prompts(), f"exploring, round {number}", on_progress)
            explored = tuple(done[seed, strategy] for seed, strategy in searches)
            # Finalists are chosen before a fresh draw.
            chosen = [
                (trace, rank, parent)
                for trace in explored
                for rank, parent in enumerate(
                    trace.ranking[: settings.finalists if trace.strategy == SEARCH else 1], start=1
                )
            ]
            search_candidates = dict.fromkeys(
                parent.candidate for trace, _, parent in chosen if trace.strategy == SEARCH
            )
            control_candidates = dict.fromkeys(
                parent.candidate
                for _, _, parent in chosen
                if parent.candidate not in search_candidates
            )
            k, draws = settings.budget, settings.fresh
            budgets = (0.0, k, math.inf) if baselines else (k,)
            extents = [Extent(budgets, draws, _ids(search_candidates))]
            if control_candidates:
                extents.append(Extent((k,), draws, _ids(control_candidates)))
            extents.append(Extent((k,), settings.heldout_draws, _ids(pools.unseen)))
            confirm_path, finals = self.path / "confirm", prompts()
            with open_recorder(
                self.bench, confirm_path, "confirm", extents[0], finals
            ) as confirming:
                confirming.fill(extents, finals, "confirming", on_progress)
                return self._judge(
                    explored, chosen, recorder, confirming, catalogue, proposers.to_json()
                )

    def _judge(
        self,
        explored: tuple[SearchTrace, ...],
        chosen: Sequence[tuple[SearchTrace, int, Parent]],
        recorder: Recorder,
        confirming: Recorder,
        catalogue: Mapping[str, Candidate],
        proposer: Mapping[str, Any],
    ) -> SearchResult:
        """Judges the finalists and everything beside them, from the records of both runs.

        Args:
            explored: Course of each search.
            chosen: Finalists, each with its search and its rank.
            recorder: The exploration.
            confirming: The fresh draws.
            catalogue: Candidates by id.
            proposer: Name of the proposer and numbers of its answers; plain data.
        """
        settings, k, book = self.settings, self.settings.budget, confirming.book
        tried_ids = {id_ for trace in explored for id_ in trace.draws}
        tried_ids |= {candidate.id for candidate in self.pools.unseen}
        level = Bonferroni(settings.delta, len(tried_ids))
        judged = [
            confirmed(
                (trace.strategy, trace.seed, rank),
                parent.candidate,
                (parent.score, trace.draws[parent.candidate.id]),
                book.rows(parent.candidate.id, k, settings.fresh),
                book.rows(parent.candidate.id, math.inf, settings.fresh),
                level,
                settings.above,
            )
            for trace, rank, parent in chosen
        ]
        finalists = tuple(finalist for finalist in judged if finalist.strategy == SEARCH)
        # First finalists of every search seed, the search against each control.
        firsts: dict[str, list[float]] = {strategy: [] for strategy in STRATEGIES}
        for finalist in judged:
            if finalist.rank == 1:
                rows = book.rows(finalist.candidate.id, k, settings.fresh)
                firsts[finalist.strategy] += utilisations_of(rows)
        controls = {strategy: firsts[strategy] for strategy in STRATEGIES if strategy != SEARCH}
        # The pool of the workload, then the other kinds; all their limits share delta.
        kinds = {"workload": self.pools.heldout}
        for candidate in self.pools.others:
            kinds[candidate.label] = (*kinds.get(candidate.label, ()), candidate)
        unseen = [
            held_out(
                [book.rows(candidate.id, k, settings.heldout_draws) for candidate in pool],
                finalists,
                settings.delta / len(kinds),
                kind,
            )
            for kind, pool in kinds.items()
        ]
        overlaps = None
        if self.passages:
            protected = Protected(self.passages, self.bench.executor.pair.vocabulary.pieces)
            before, later = (protected.most(run.at_budget(k)) for run in (recorder, confirming))
            everything = sum((*before.values(), *later.values()), start=Copied())
            overlaps = Overlaps(len(protected), everything, later)
        both = recorder.book.all(k), book.all(k)
        violations = [
            violation
            for run, measured in zip((recorder, confirming), both, strict=True)
            for violation in violations_of(run.path, run.identity, measured)
        ]
        return SearchResult(
            path=self.path,
            settings=settings,
            pools=self.pools,
            explored=explored,
            finalists=finalists,
            controls=tuple(finalist for finalist in judged if finalist.strategy != SEARCH),
            comparisons=tuple(compare(controls, firsts[SEARCH], settings.delta)),
            heldout=unseen[0],
            others=tuple(unseen[1:]),
            named=name_above(judged, settings.above, settings.delta, len(tried_ids)),
            overlaps=overlaps,
            embedding="",
            looked=len(tried_ids),
            trajectories=sum(map(len, both)),
            violating=len({violation.worst.key.prompt for violation in violations}),
            outcome=outcome_of(*both, min((finalist.fresh for finalist in finalists), default=0)),
            counterexamples=write_bundles(self.path, violations, catalogue),
            batch_free=self.bench.executor.probe.batch_free,
            remark=recorder.remark,
            proposer=proposer,
        )


def _ids(candidates: Iterable[Candidate]) -> tuple[str, ...]:
    return tuple(candidate.id for candidate in candidates)


def run_search(
    settings: SearchSettings, on_progress: OnProgress, protocol: AuditProtocol = SOUND
) -> SearchResult:
    """Runs, or resumes, the search that the settings describe.

    Args:
        settings: Checked before any model loads.
        on_progress: Called as trajectories end.
        protocol: Reads the workload.
    """
    return Search.load(settings, protocol).run(on_progress)


@dataclass(frozen=True)
class Sweep:
    """Finished searches, one per budget."""

    path: Path
    delta: float
    found: tuple[SearchResult, ...]

    @property
    def outcome(self) -> Kept:
        """The worst of all budgets: one violation is a violation."""
        outcomes = {result.outcome for result in self.found}
        return next(
            word for word in (Kept.VIOLATED, Kept.INCONCLUSIVE, Kept.WITHIN) if word in outcomes
        )

    @property
    def overall(self) -> Overall:
        """The answer: the worst outcome, and the budgets that have it."""
        word = self.outcome
        at = ", ".join(
            f"k = {result.settings.budget:g}" for result in self.found if result.outcome == word
        )
        why = {
            Kept.VIOLATED: f"the search found trajectories above their budget at {at}",
            Kept.INCONCLUSIVE: f"the search drew too few fresh trajectories to decide at {at}",
        }.get(word, f"the search found no trajectory above its budget at {at}")
        return Overall(word, why, word.exit_status)


def run_sweep(
    settings: SearchSettings, on_progress: OnProgress, protocol: AuditProtocol = SOUND
) -> Sweep:
    """Runs, or resumes, a search under each budget of the settings.

    Args:
        settings: Checked before any model loads.
        on_progress: Called as trajectories end.
        protocol: Reads the workload.
    """
    search = Search.load(settings, protocol)
    path, budgets = search.path, settings.k
    make_directory(path)
    reserve_directory(path, settings)
    found = []
    for k in budgets:
        settings_at_k = replace(
            settings, k=(k,), out=str(path / f"k-{k:.12g}"), delta=settings.delta / len(budgets)
        )

        def on_stage(progress: Progress, k: float = k) -> None:
            on_progress(replace(progress, stage=f"k = {k:g}, {progress.stage}"))

        done = search.with_settings(settings_at_k).run(on_stage)
        write_result(done)
        found.append(done)
    return Sweep(path, settings.delta, tuple(found))


def sweep_json(sweep: Sweep) -> dict[str, Any]:
    """Returns the table over budgets; every search in full is in its own directory."""
    rows = []
    for result in sweep.found:
        whole = search_json(result)
        names = ("k", "outcome", "run", "delta", "comparisons", "spread", "heldout", "others")
        row = {name: whole[name] for name in names}
        # Mean over search seeds of the first finalist's confirmed utilisation.
        best = {
            strategy: as_number(sum(means) / len(means))
            for strategy, means in result.spread.items()
        }
        rows.append(row | {"best": best})
    return {
        "run": str(sweep.path),
        "outcome": str(sweep.outcome),
        "delta": sweep.delta,
        "budgets": rows,
    }


def write_sweep(sweep: Sweep) -> Path:
    """Writes RUN/sweep.json; equal records give equal bytes."""
    path = sweep.path / "sweep.json"
    write_whole(path, json.dumps(sweep_json(sweep), indent=2).encode() + b"\n")
    return path
