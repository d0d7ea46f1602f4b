"""The paper's search on a pair, in order: pools, loop, and what it defers on fresh draws.

The search itself draws by the paper's seeds. The paper adds offsets to seed *values*, so that two
of its requests may name one seed. A seed is recorded once, under the trajectory number that has it;
a request that names it twice gets it twice.

What is flagged or chosen is looked at again in RUN/confirm, on draws that chose nothing: a flagged
prompt at the same budget and at a second one, with N = 20 and no rule that stops early; a final
prompt beside both models alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from nafaudit.core.design import Extent
from nafaudit.core.draws import trajectory_seeds
from nafaudit.core.finding import Finding
from nafaudit.core.progress import OnProgress, Progress
from nafaudit.paper.defects import Flag, Flagged, findings_of, flagged_of
from nafaudit.paper.loop import PaperLoop, Trail, local_caller
from nafaudit.paper.proxy import (
    Gap,
    PaperRequest,
    PromptSpends,
    ProxyItem,
    ProxyRow,
    generalisation_gap,
)
from nafaudit.paper.settings import PaperPools, PaperSettings, check_lengths, paper_pools
from nafaudit.paper.surrogate import Guesser
from nafaudit.paper.workload import PAPER
from nafaudit.runner.execute import Prompts
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
from nafaudit.search.search import INF
from nafaudit.search.settings import check_claim, claim, directory_of
from nafaudit.stats import Bonferroni
from nafaudit.workload import TokenizedPrompt


def number_of(prompt: str, seed: int) -> int:
    """The trajectory of a prompt that starts from this seed.

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
        recorder: Where trajectories are, and are decoded into.
        prompts: Returns every prompt that may be asked for, by id.
        budget: The budget that is searched.
        on_progress: Called as trajectories end.
    """

    def __init__(
        self,
        recorder: Recorder,
        prompts: Callable[[], Prompts],
        budget: float,
        on_progress: OnProgress,
    ) -> None:
        self._recorder = recorder
        self._prompts = prompts
        self._budget = budget
        self._on_progress = on_progress
        self.stage = "first pool"
        self.asked: dict[str, set[int]] = {}

    def __call__(self, requests: Sequence[PaperRequest]) -> list[PromptSpends]:
        """One answer per request, in order."""
        groups: dict[tuple[tuple[int, ...], int], list[str]] = {}
        for request in requests:
            numbers = tuple(number_of(request.id, seed) for seed in request.seeds)
            so_far = self.asked.setdefault(request.id, set())
            so_far |= set(numbers)
            groups.setdefault((numbers, len(so_far)), []).append(request.id)
        extents = [
            Extent((self._budget,), count, tuple(ids), numbers)
            for (numbers, count), ids in groups.items()
        ]
        self._recorder.fill(extents, self._prompts(), self.stage, self._on_progress)
        found, book = [], self._recorder.book
        for one in requests:
            rows = [book.get(one.id, self._budget, number_of(one.id, s)) for s in one.seeds]
            spends, granted = tuple(row.spend for row in rows), tuple(row.granted for row in rows)
            found.append(PromptSpends(one.id, spends, granted, one.seeds))
        return found

    def rows(self, prompt: str) -> list[Measured]:
        """Every trajectory that was asked of a prompt, each once."""
        book = self._recorder.book
        return [book.get(prompt, self._budget, n) for n in sorted(self.asked.get(prompt, ()))]

    def debt(self, prompt: str) -> float:
        """Its prefix debt, which all of its trajectories share."""
        return self.rows(prompt)[0].debt

    @property
    def count(self) -> int:
        """Different trajectories so far."""
        return sum(map(len, self.asked.values()))


@dataclass(frozen=True)
class Recheck:
    """A flagged prompt on fresh draws, without a rule that stops early.

    Attributes:
        flag: What flagged it.
        same: Its row at the same budget.
        other: Its row at the second budget.
    """

    flag: Flag
    same: ProxyRow
    other: ProxyRow


@dataclass(frozen=True)
class PaperSearchResult:
    """A finished search of the paper's.

    Attributes:
        found: What every search has.
        trail: What happened.
        findings: Its defects, by name.
        flagged: What its proxy flags.
        rechecks: Of the first of these.
        gap: Ratio of the final pool minus that of the held-out pool, both ways.
        debts: Prefix debt of every prompt.
        embedding: What stands for the paper's Sentence-T5.
        high: R of the proxy.
        started: When the run was begun.
    """

    found: SearchResult
    trail: Trail
    findings: tuple[Finding, ...]
    flagged: Flagged
    rechecks: tuple[Recheck, ...]
    gap: Gap
    debts: Mapping[str, float]
    embedding: str
    high: float
    started: str

    @property
    def settings(self) -> PaperSettings:
        """What was asked for."""
        settings = self.found.settings
        assert isinstance(settings, PaperSettings)
        return settings


ABOVE = 0.5
"""A final prompt is named if its mean utilisation is shown to be above this."""


def run_paper_search(settings: PaperSettings, on_progress: OnProgress) -> PaperSearchResult:
    """Runs, or resumes, the paper's search; what is wrong is said before a model loads."""
    mechanism_of(settings)
    check_claim(settings)
    sklearn("feature_extraction.text")
    pools = paper_pools(settings)
    pair, needed = read_pair(settings, PAPER)
    check_lengths(pools, pair.tokenizer.count, settings.longest)
    chat = chat_of(settings)
    bench = SearchBench.load(pair, needed, pools.prompts)
    return _PaperSearch(settings, bench, pools, chat, on_progress).run()


class _PaperSearch:
    """What the stages share."""

    def __init__(
        self,
        settings: PaperSettings,
        bench: SearchBench,
        pools: PaperPools,
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
        texts = [one.text for one in pools.init]
        self.guess = Guesser(
            bench.tokenizer, Tfidf.of(texts), size, settings.total, settings.sizes.surrogate_epochs
        )
        self.path = directory_of(settings, bench.identity().hash)
        self._chat = chat

    def run(self) -> PaperSearchResult:
        names = tuple(one.id for one in self.pools.init)
        first = Extent(self.settings.k, self.settings.sizes.init_traj, names)
        with ExitStack() as open_runs:
            recorder = open_runs.enter_context(
                open_recorder(self.bench, self.path, "search", first, self._prompts())
            )
            claim(self.path, self.settings)
            proposers = Proposers(self.settings, self._chat, self.path, self._asking)
            draw = PaperDraws(recorder, self._prompts, self.settings.budget, self.on_progress)
            trail = PaperLoop(
                self.settings,
                self.rule,
                self.pools,
                draw,
                self.guess,
                # What a call of either lacks, templates make up.
                local_caller(self.settings.operators) if self._chat is None else proposers.of_call,
                self.bench.tokenizer.count,
                self.catalogue,
            ).run()
            flagged = flagged_of(trail)
            finals = trail.items(trail.validation.last.final)
            flags = flagged.flags[: self.settings.sizes.recheck_keep]
            fresh = self._fresh(open_runs, finals, flags)
            found = self._found(trail, flagged, flags, draw, recorder, fresh)
            return replace(found, found=replace(found.found, proposer=proposers.to_json()))

    def _asking(self, call: int, attempt: int, attempts: int) -> None:
        stage = f"asking {self.settings.proposer}, call {call + 1} of its generation"
        self.on_progress(Progress(stage, attempt, attempts, 0, 0.0, -INF, unit="calls"))

    def _prompts(self) -> dict[str, TokenizedPrompt]:
        """Returns every candidate so far as a prompt of a run."""
        references = references_of(self.catalogue, self._by_text)
        return self.bench.prompts(self.catalogue.values(), references)

    def _fresh(
        self, open_runs: ExitStack, finals: Sequence[ProxyItem], flags: Sequence[Flag]
    ) -> Recorder | None:
        """Fresh draws of whoever was chosen or flagged; None if nobody was."""
        settings, n = self.settings, self.settings.sizes.recheck_traj
        wanted = (
            ((0.0, settings.budget, INF), tuple(item.candidate.id for item in finals)),
            ((settings.budget, settings.second), tuple(one.item.candidate.id for one in flags)),
        )
        extents = [Extent(budgets, n, names) for budgets, names in wanted if names]
        if not extents:
            return None
        place, prompts = self.path / "confirm", self._prompts()
        fresh = open_runs.enter_context(
            open_recorder(self.bench, place, "confirm", extents[0], prompts, "sound")
        )
        fresh.fill(extents, prompts, "fresh draws", self.on_progress)
        return fresh

    def _found(
        self,
        trail: Trail,
        flagged: Flagged,
        flags: Sequence[Flag],
        draw: PaperDraws,
        recorder: Recorder,
        fresh: Recorder | None,
    ) -> PaperSearchResult:
        settings, k = self.settings, self.settings.budget
        book = fresh.book if fresh else Measurements()
        finalists = tuple(self._finalists(trail, draw, book))
        last = trail.validation.last
        gap = generalisation_gap(
            [row.rho for row in last.final if row.certified],
            [item.row.rho for item in trail.heldout],
        )
        explored = recorder.book.all(k)
        later = [*book.all(k), *book.all(settings.second)]
        bad = violations_of(recorder.path, recorder.identity, explored)
        if fresh:
            bad += violations_of(fresh.path, fresh.identity, later)
        groups = [draw.rows(item.candidate.id) for item in trail.heldout]
        budgets = (k, settings.second)
        return PaperSearchResult(
            found=SearchResult(
                path=self.path,
                settings=settings,
                pools=Pools(self.pools.init, self.pools.heldout, 0),
                explored=(_explored(trail, draw),),
                finalists=finalists,
                controls=(),
                comparisons=(),
                heldout=held_out(groups, finalists, settings.delta),
                others=(),
                named=name_above(finalists, ABOVE, settings.delta, len(draw.asked)),
                overlaps=None,
                embedding=self.guess.name,
                looked=len(draw.asked),
                trajectories=len(explored) + len(later),
                violating=len({one.worst.key.prompt for one in bad}),
                outcome=outcome_of(explored, later, min((f.fresh for f in finalists), default=0)),
                counterexamples=write_bundles(self.path, bad, self.catalogue),
                batch_free=self.bench.executor.probe.batch_free,
                remark=recorder.remark,
                proposer={},
            ),
            trail=trail,
            findings=tuple(findings_of(trail, self.guess.labels, self.rule, settings.sizes)),
            flagged=flagged,
            rechecks=tuple(
                Recheck(flag, *(self._row(flag.item.candidate.id, book, b) for b in budgets))
                for flag in flags
            ),
            gap=gap,
            debts={name: draw.debt(name) for name in draw.asked},
            embedding=self.guess.name,
            high=self.rule.high,
            started=recorder.started,
        )

    def _finalists(self, trail: Trail, draw: PaperDraws, book: Measurements) -> list[Finalist]:
        """The final pool on fresh draws, best ratio first."""
        settings, n = self.settings, self.settings.sizes.recheck_traj
        level = Bonferroni(settings.delta, len(draw.asked))
        found = []
        for rank, item in enumerate(trail.items(trail.validation.last.final), start=1):
            name = item.candidate.id
            chosen = draw.rows(name)
            uses = utilisations_of(chosen)
            found.append(
                confirmed(
                    (SEARCH, settings.seed, rank),
                    item.candidate,
                    (math.fsum(uses) / len(uses) if uses else math.nan, len(chosen)),
                    book.rows(name, settings.budget, n),
                    book.rows(name, INF, n),
                    level,
                    ABOVE,
                )
            )
        return found

    def _row(self, name: str, book: Measurements, k: float) -> ProxyRow:
        settings = self.settings
        rows = book.rows(name, k, settings.sizes.recheck_traj)
        draws = PromptSpends(name, tuple(r.spend for r in rows), tuple(r.granted for r in rows))
        high = self.rule.high if settings.variant == "text" else k * settings.max_new_tokens
        return ProxyRow(draws, high, self.rule.delta)


def _explored(trail: Trail, draw: PaperDraws) -> SearchTrace:
    """The counts of every generation; `best` is the archive's largest ratio, not a utilisation."""
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
    return SearchTrace(SEARCH, 0, tuple(rows), ranking, draws, steered)
