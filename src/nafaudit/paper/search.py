"""The paper's search on a pair: pools, loop, and the fresh draws that the paper defers.

The search itself draws by the paper's seeds. The paper adds offsets to seed *values*, so that two
of its requests may name one seed. A seed is recorded once, under its trajectory number; a request
that names it twice gets it twice.

Flagged and chosen prompts are drawn again in RUN/confirm, with draws by which nothing was chosen: a
flagged prompt at its budget and at a second one, with N = 20 and no rule that stops early; a final
prompt beside both models alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from nafaudit.core.design import Extent
from nafaudit.core.draws import trajectory_seeds
from nafaudit.core.finding import Finding
from nafaudit.core.progress import OnProgress, Progress
from nafaudit.paper.defects import Flag, Flagged, findings_of, flagged_of
from nafaudit.paper.embedding import TFIDF, Embedder, load_sentences
from nafaudit.paper.loop import STRIDE, PaperLoop, Trail, local_caller
from nafaudit.paper.proxy import (
    Gap,
    PaperRequest,
    PromptSpends,
    ProxyRow,
    generalisation_gap,
)
from nafaudit.paper.settings import PaperPools, PaperSettings, check_lengths, paper_pools
from nafaudit.paper.surrogate import Guesser
from nafaudit.paper.workload import PAPER
from nafaudit.runner.execute import Prompts
from nafaudit.runner.pairs import AuditProtocol
from nafaudit.runner.workbench import mechanism_of
from nafaudit.search.archive import Tfidf, sklearn
from nafaudit.search.candidate import Measured, Measurements, Parent, references_of, utilisations_of
from nafaudit.search.confirm import (
    Finalist,
    SearchResult,
    confirmed,
    held_out,
    name_above,
    outcome_of,
)
from nafaudit.search.explore import SEARCH, Generation, SearchTrace
from nafaudit.search.filters import Pools
from nafaudit.search.llm_chat import Chat
from nafaudit.search.llm_proposer import Proposers, chat_of
from nafaudit.search.recorder import (
    Recorder,
    SearchBench,
    open_recorder,
    read_pair,
    violations_of,
    write_bundles,
)
from nafaudit.search.settings import check_directory, directory_of, reserve_directory
from nafaudit.stats import Bonferroni
from nafaudit.workload import TokenizedPrompt


def number_of(prompt: str, seed: int) -> int:
    """Returns the number of a prompt's trajectory with this seed.

    Seed number i lies i + (i mod 3) above the first, which meets every whole number but 1 once.

    Raises:
        ValueError: No trajectory has it.
    """
    above = seed - trajectory_seeds(prompt, 1)[0]
    number = above - (0, 2, 1)[above % 3]
    if number < 0:
        raise ValueError(f"no trajectory of {prompt!r} has the seed {seed}.")
    return number


class PaperDraws:
    """Answers requests of the allocation paths; an instance is a `proxy.Draw`.

    Args:
        recorder: Records and decodes trajectories.
        prompts: Returns every prompt so far, by id.
        budget: The budget that is searched.
        on_progress: Called as trajectories end.
        seed: Search seed; its draws are those of the paper's base seeds plus 3000 for each.
    """

    def __init__(
        self,
        recorder: Recorder,
        prompts: Callable[[], Prompts],
        budget: float,
        on_progress: OnProgress,
        seed: int = 0,
    ) -> None:
        self._recorder = recorder
        self._prompts = prompts
        self._budget = budget
        self._on_progress = on_progress
        self.stage, self.search = "first pool", ""
        self._shift = STRIDE * seed
        self.asked: dict[str, set[int]] = {}

    def __call__(self, requests: Sequence[PaperRequest]) -> list[PromptSpends]:
        """Returns one answer per request, in order."""
        groups: dict[tuple[tuple[int, ...], int], list[str]] = {}
        for request in requests:
            numbers = tuple(number_of(request.id, seed) for seed in self._seeds(request))
            so_far = self.asked.setdefault(request.id, set())
            so_far |= set(numbers)
            groups.setdefault((numbers, len(so_far)), []).append(request.id)
        extents = [
            Extent((self._budget,), count, tuple(ids), numbers)
            for (numbers, count), ids in groups.items()
        ]
        stage = self.search + self.stage
        self._recorder.fill(extents, self._prompts(), stage, self._on_progress)
        found, book = [], self._recorder.book
        for one in requests:
            seeds = self._seeds(one)
            rows = [book.get(one.id, self._budget, number_of(one.id, s)) for s in seeds]
            spends, granted = tuple(row.spend for row in rows), tuple(row.granted for row in rows)
            found.append(PromptSpends(one.id, spends, granted, seeds))
        return found

    def _seeds(self, request: PaperRequest) -> tuple[int, ...]:
        return tuple(seed + self._shift for seed in request.seeds)

    def rows(self, prompt: str) -> list[Measured]:
        """Returns every requested trajectory of a prompt, each once."""
        book = self._recorder.book
        return [book.get(prompt, self._budget, n) for n in sorted(self.asked.get(prompt, ()))]

    def debt(self, prompt: str) -> float:
        """Returns the prefix debt of a prompt, which all of its trajectories share."""
        return self.rows(prompt)[0].debt

    @property
    def count(self) -> int:
        """Number of different trajectories so far."""
        return sum(map(len, self.asked.values()))


@dataclass(frozen=True)
class Recheck:
    """A flagged prompt on fresh draws, without a rule that stops early.

    Attributes:
        flag: Its flag.
        same: Its row at the searched budget.
        other: Its row at the second budget.
    """

    flag: Flag
    same: ProxyRow
    other: ProxyRow


@dataclass(frozen=True)
class PaperSearchResult:
    """A finished search of the paper's.

    Attributes:
        found: The parts that every search has.
        trail: Course of the search with seed 0, which all tables are of.
        others: Courses of the searches with other seeds.
        findings: Its defects, by name.
        flagged: Prompts that its proxy flags.
        rechecks: Rechecks of the first of these.
        gap: Ratio of the final pool minus that of the held-out pool, both ways.
        debts: Prefix debt of every prompt.
        embedding: Name of the embedding.
        high: R of the proxy.
        started: Time at which the run began.
        short: What the paper's pool sizes lack here, in words; empty if nothing.
        origins: Domain and split of every prompt of the workload, by its family.
    """

    found: SearchResult
    trail: Trail
    others: tuple[Trail, ...]
    findings: tuple[Finding, ...]
    flagged: Flagged
    rechecks: tuple[Recheck, ...]
    gap: Gap
    debts: Mapping[str, float]
    embedding: str
    high: float
    started: str
    short: str = ""
    origins: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def settings(self) -> PaperSettings:
        """Settings of the search."""
        settings = self.found.settings
        assert isinstance(settings, PaperSettings)
        return settings


def gap_of(trail: Trail) -> Gap:
    """Computes the generalisation gap of a search."""
    return generalisation_gap(
        [row.rho for row in trail.validation.last.final if row.certified],
        [item.row.rho for item in trail.heldout],
    )


ABOVE = 0.5
"""A final prompt is named if its mean utilisation is shown to be above this."""


def run_paper_search(
    settings: PaperSettings, on_progress: OnProgress, protocol: AuditProtocol = PAPER
) -> PaperSearchResult:
    """Runs, or resumes, the paper's search at one budget; checks the input before a pair loads.

    Args:
        settings: What was asked for.
        on_progress: Called as trajectories are recorded.
        protocol: What reads the prompts, where they were given as objects.
    """
    mechanism_of(settings)
    check_directory(settings)
    sklearn("feature_extraction.text")
    pools = paper_pools(settings, protocol)
    embedder: Embedder = Tfidf.of([one.text for one in pools.init])
    if settings.embedding != TFIDF:
        embedder = load_sentences(
            settings.embedding, settings.device, pickle=settings.allow_pickle_weights
        )
    pair, needed = read_pair(settings, protocol)
    check_lengths(pools, pair.tokenizer.count, settings.longest)
    chat = chat_of(settings)
    bench = SearchBench.load(pair, needed, pools.prompts)
    return _PaperSearch(settings, bench, pools, embedder, chat, on_progress).run()


class _PaperSearch:
    """State that the stages share."""

    def __init__(
        self,
        settings: PaperSettings,
        bench: SearchBench,
        pools: PaperPools,
        embedder: Embedder,
        chat: Chat | None,
        on_progress: OnProgress,
    ) -> None:
        self.settings, self.bench, self.pools = settings, bench, pools
        self.on_progress = on_progress
        self.catalogue = {one.id: one for one in (*pools.init, *pools.heldout)}
        self._by_text = {p.text: p.reference for p in pools.prompts if p.reference}
        size = len(bench.executor.pair.vocabulary)
        wide = settings.max_new_tokens * math.log(size)
        self.rule = settings.rule(wide if settings.variant == "text" else settings.total)
        epochs, total = settings.sizes.surrogate_epochs, settings.total
        self.guesses = [
            Guesser(bench.tokenizer, embedder, size, total, epochs, seed)
            for seed in settings.search_seeds
        ]
        self.path = directory_of(settings, bench.identity().hash)
        self._chat = chat

    def run(self) -> PaperSearchResult:
        budget = self.settings.budget
        names = tuple(one.id for one in self.pools.init)
        first = Extent(self.settings.k, self.settings.sizes.init_traj, names)
        with ExitStack() as open_runs:
            recorder = open_runs.enter_context(
                open_recorder(self.bench, self.path, "search", first, self._prompts())
            )
            reserve_directory(self.path, self.settings)

            def on_call(call: int, attempt: int, attempts: int) -> None:
                stage = f"asking {self.settings.proposer}, call {call + 1} of its generation"
                self.on_progress(
                    Progress(stage, attempt, attempts, 0, 0.0, -math.inf, unit="calls")
                )

            proposers = Proposers(self.settings, self._chat, self.path, on_call)
            draws, trails = [], []
            for seed, guess in zip(self.settings.search_seeds, self.guesses, strict=True):
                draws.append(PaperDraws(recorder, self._prompts, budget, self.on_progress, seed))
                local = local_caller(self.settings.operators)
                loop = PaperLoop(
                    self.settings,
                    self.rule,
                    self.pools,
                    draws[-1],
                    guess,
                    # Templates replace missing answers of either.
                    local if self._chat is None else proposers.of_call,
                    self.bench.tokenizer.count,
                    self.catalogue,
                    seed,
                )
                trails.append(loop.run())
            flagged = flagged_of(trails[0])
            flags = flagged.flags[: self.settings.sizes.recheck_keep]
            # Fresh draws of final and flagged prompts, if there are any.
            final = dict.fromkeys(row.id for one in trails for row in one.validation.last.final)
            wanted = (
                ((0.0, budget, math.inf), list(final)),
                ((budget, self.settings.second), [one.item.candidate.id for one in flags]),
            )
            n, fresh = self.settings.sizes.recheck_traj, None
            extents = [Extent(budgets, n, tuple(ids)) for budgets, ids in wanted if ids]
            if extents:
                place, prompts = self.path / "confirm", self._prompts()
                fresh = open_runs.enter_context(
                    open_recorder(self.bench, place, "confirm", extents[0], prompts, "sound")
                )
                fresh.fill(extents, prompts, "fresh draws", self.on_progress)
            proposer = proposers.to_json()
            return self._judge(trails, flagged, flags, draws, recorder, fresh, proposer)

    def _prompts(self) -> dict[str, TokenizedPrompt]:
        """Returns every candidate so far as a prompt of a run."""
        references = references_of(self.catalogue, self._by_text)
        return self.bench.prompts(self.catalogue.values(), references)

    def _judge(
        self,
        trails: Sequence[Trail],
        flagged: Flagged,
        flags: Sequence[Flag],
        draws: Sequence[PaperDraws],
        recorder: Recorder,
        fresh: Recorder | None,
        proposer: Mapping[str, Any],
    ) -> PaperSearchResult:
        """Judges finalists and rechecks, from the records of both runs."""
        settings, k = self.settings, self.settings.budget
        book = fresh.book if fresh else Measurements()
        trail, draw = trails[0], draws[0]
        looked = {name for one in draws for name in one.asked}
        finalists = tuple(
            finalist
            for one, of in zip(trails, draws, strict=True)
            for finalist in self._finalists(one, of, book, len(looked))
        )
        rechecks, n = [], settings.sizes.recheck_traj
        for flag in flags:
            name, both = flag.item.candidate.id, []
            for budget in (k, settings.second):
                rows = book.rows(name, budget, n)
                spends = tuple(row.spend for row in rows), tuple(row.granted for row in rows)
                text = settings.variant == "text"
                high = self.rule.high if text else budget * settings.max_new_tokens
                both.append(ProxyRow(PromptSpends(name, *spends), high, self.rule.delta))
            rechecks.append(Recheck(flag, *both))
        explored = recorder.book.all(k)
        later = [*book.all(k), *book.all(settings.second)]
        bad = violations_of(recorder.path, recorder.identity, explored)
        if fresh:
            bad += violations_of(fresh.path, fresh.identity, later)
        groups = [draw.rows(item.candidate.id) for item in trail.heldout]
        return PaperSearchResult(
            found=SearchResult(
                path=self.path,
                settings=settings,
                pools=Pools(self.pools.init, self.pools.heldout, 0),
                explored=tuple(_explored(*both) for both in zip(trails, draws, strict=True)),
                finalists=finalists,
                controls=(),
                comparisons=(),
                heldout=held_out(groups, finalists, settings.delta),
                others=(),
                named=name_above(finalists, ABOVE, settings.delta, len(looked)),
                overlaps=None,
                embedding=self.guesses[0].name,
                looked=len(looked),
                trajectories=len(explored) + len(later),
                violating=len({one.worst.key.prompt for one in bad}),
                outcome=outcome_of(explored, later, min((f.fresh for f in finalists), default=0)),
                counterexamples=write_bundles(self.path, bad, self.catalogue),
                batch_free=self.bench.executor.probe.batch_free,
                remark=recorder.remark,
                proposer=proposer,
            ),
            trail=trail,
            others=tuple(trails[1:]),
            findings=tuple(findings_of(trail, self.guesses[0].labels, self.rule, settings.sizes)),
            flagged=flagged,
            rechecks=tuple(rechecks),
            gap=gap_of(trail),
            debts={name: one.debt(name) for one in draws for name in one.asked},
            embedding=self.guesses[0].name,
            high=self.rule.high,
            started=recorder.started,
            short=self.pools.short,
            origins={
                one.lineage: (item.source.domain or one.label, item.source.split or one.label)
                for one, item in zip(
                    (*self.pools.init, *self.pools.heldout), self.pools.items, strict=True
                )
            },
        )

    def _finalists(
        self, trail: Trail, draw: PaperDraws, book: Measurements, looked: int
    ) -> list[Finalist]:
        """Judges the final pool by fresh draws, best ratio first."""
        settings, n = self.settings, self.settings.sizes.recheck_traj
        level = Bonferroni(settings.delta, looked)
        found = []
        for rank, item in enumerate(trail.items(trail.validation.last.final), start=1):
            name = item.candidate.id
            chosen = draw.rows(name)
            uses = utilisations_of(chosen)
            found.append(
                confirmed(
                    (SEARCH, trail.seed, rank),
                    item.candidate,
                    (math.fsum(uses) / len(uses) if uses else math.nan, len(chosen)),
                    book.rows(name, settings.budget, n),
                    book.rows(name, math.inf, n),
                    level,
                    ABOVE,
                )
            )
        return found


def _explored(trail: Trail, draw: PaperDraws) -> SearchTrace:
    """Counts every generation; `best` is the archive's largest ratio, not a utilisation."""
    init = trail.init
    certified = [item.row.rho for item in init if item.row.certified]
    n = len(init)
    rows = [
        Generation(
            0, n, n, n, n, 0, len(certified), 0, max(certified, default=math.nan),
            trail.init_trajectories,
        )
    ]  # fmt: skip
    for one in trail.generations:
        ratios = [item.row.rho for item in one.archive]
        rows.append(
            Generation(
                one.generation,
                raw=one.admission.raw,
                dedup=one.admission.after_dedup,
                length_ok=one.admission.after_length,
                screened=len(one.screened.kept),
                medium=len(one.medium),
                survivors=one.survivors,
                topped_up=len(one.promoted),
                best=max(ratios, default=math.nan),
                trajectories=one.trajectories,
            )
        )
    ranking = tuple(Parent(item.candidate, item.row.rho) for item in trail.left)
    draws = {name: len(numbers) for name, numbers in draw.asked.items()}
    steered = tuple(one.steered for one in trail.generations)
    return SearchTrace(SEARCH, trail.seed, tuple(rows), ranking, draws, steered)
