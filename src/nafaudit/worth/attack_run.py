"""One way to attack, as a run: its queries, the answers that are kept, and a user's total budget.

Everything here is a function of the recorded answers. Where one is missing, the queries end; with
more records the same queries come again, and more. The odometer (`replayed`) replays the query log
of one user under a total budget: all answers add up, retries included, and the first one that
would pass the budget is withheld, with everything after it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from nafaudit.core.design import Design, Extent, Identity
from nafaudit.core.ledger import SAFE_ONLY, budget_word
from nafaudit.core.passage import PassageScores, ScoredPassage
from nafaudit.core.text import detokenize
from nafaudit.core.trajectory import Trajectory
from nafaudit.engine.lanes import Scorer
from nafaudit.measures.audit import AuditResult
from nafaudit.measures.common_text import Reference, prepare
from nafaudit.measures.overlap import MIN_SPAN, overlap_of
from nafaudit.measures.verdicts import ArmVerdict
from nafaudit.protocols import Mechanism
from nafaudit.runner.execute import OpenRun, run_for_writing
from nafaudit.runner.executors import EngineExecutor, identity_of
from nafaudit.runner.workbench import Workbench, mechanism_of, protected_passages, resources_of
from nafaudit.store.artifacts import PASSAGES, read_passages_file, write_passages
from nafaudit.workload import Prompt, TokenizedPrompt, workload_hash
from nafaudit.worth.certify import GivenText
from nafaudit.worth.settings import AttackSettings


@dataclass(frozen=True)
class Method:
    """One way to attack.

    Attributes:
        mode: `single`: one answer. `oracle`: windows, each after the true text. `chained`: windows,
            each after what was answered so far.
        length: Tokens that one query asks for.
        debt: True if prompts owe a prefix debt.
    """

    mode: str
    length: int
    debt: bool = True

    @property
    def name(self) -> str:
        """Returns the name of its run's directory."""
        windows = "" if self.mode == "single" else str(self.length)
        return f"{self.mode}{windows}" + ("" if self.debt else "-nodebt")

    @property
    def words(self) -> str:
        """Returns its name in tables."""
        windows = "" if self.mode == "single" else f" {self.length}"
        return f"{self.mode}{windows}" + ("" if self.debt else ", no debt")


class AnswerPlace(NamedTuple):
    """Key of an answer: the query's prompt, the budget, the attempt."""

    prompt: str
    k: float
    attempt: int


@dataclass(frozen=True)
class QueryAnswer:
    """One recorded answer.

    Attributes:
        place: Its key.
        tokens: What was written, without its stop token.
        spend: Total charge, in the mechanism's own currency.
        ratio: Realised log p_served - log p_safe of the whole answer.
        debt: Prefix debt of the prompt.
        budget: Nats that had been granted at its end.
        length: Steps, the stop included.
        forced: Steps at which the safe law was served.
        free: Steps at which the risky law was served.
    """

    place: AnswerPlace
    tokens: tuple[int, ...]
    spend: float
    ratio: float
    debt: float
    budget: float
    length: int
    forced: int
    free: int


@dataclass(frozen=True)
class Query:
    """One query of an attack.

    Attributes:
        item: Its prompt.
        window: Its number, from 0.
        wanted: The true tokens that it asks for.
    """

    item: TokenizedPrompt
    window: int
    wanted: tuple[int, ...]


Answers = Mapping[AnswerPlace, QueryAnswer]


class Attacker:
    """Asks about passages and recognises the text: of several answers the nearest is kept.

    Args:
        pieces: What token ids stand for.
        opening: Number of tokens that the tokenizer puts before every passage.
        attempts: Number of times that each query is asked.
    """

    def __init__(self, pieces: Sequence[bytes | None], opening: int, attempts: int) -> None:
        self._pieces, self._opening, self.attempts = pieces, opening, attempts
        self._references: dict[tuple[int, ...], Reference] = {}
        self._scores: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[float, float]] = {}

    def queries(
        self, text: GivenText, method: Method, k: float, answers: Answers
    ) -> Iterator[Query]:
        """Yields the queries about a passage, up to the first that needs a missing answer."""
        size = len(text.tokens) if method.mode == "single" else method.length
        known = text.before
        for window, start in enumerate(range(0, len(text.tokens), size)):
            wanted = text.tokens[start : start + size]
            if method.mode == "oracle":
                known = text.before + text.tokens[:start]
            # Queries after the same true text have the same draws in every attack.
            name = f"{text.id}@{start}"
            if method.mode == "chained" and start:
                name += f"/k{budget_word(k)}"
            before = detokenize(known[self._opening :], self._pieces)
            reference = detokenize(wanted, self._pieces)
            prompt = Prompt(name, before, method.mode, reference)
            query = Query(TokenizedPrompt(prompt, known), window, wanted)
            yield query
            if method.mode == "chained":
                if (kept := self.kept(query, k, answers)) is None:
                    return
                known = known + kept.tokens

    def kept(
        self, query: Query, k: float, answers: Answers, attempts: int | None = None
    ) -> QueryAnswer | None:
        """Returns the nearest of the first attempts; None if one of them is not recorded."""
        best: QueryAnswer | None = None
        nearest = (-1.0, -1.0)
        for attempt in range(self.attempts if attempts is None else attempts):
            answer = answers.get(AnswerPlace(query.item.prompt.id, k, attempt))
            if answer is None:
                return None
            score = self.score(answer.tokens, query.wanted)
            if score > nearest:
                best, nearest = answer, score
        return best

    def score(self, tokens: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[float, float]:
        """Returns the near-verbatim recall of a text, and its longest common run of words.

        A wanted text too short for near-verbatim spans has recall 0.
        """
        key = (tokens, wanted)
        if key not in self._scores:
            if wanted not in self._references:
                self._references[wanted] = prepare(detokenize(wanted, self._pieces))
            reference = self._references[wanted]
            overlap = overlap_of(detokenize(tokens, self._pieces), reference)
            long_enough = len(reference.words) >= MIN_SPAN
            recall = overlap.near_verbatim_recall if long_enough else 0.0
            self._scores[key] = (recall, overlap.substring_words)
        return self._scores[key]

    def first_items(self, method: Method, texts: Sequence[GivenText]) -> list[TokenizedPrompt]:
        """Returns the prompts that are known before anything is answered."""
        return [q.item for text in texts for q in self.queries(text, method, SAFE_ONLY, {})]


@dataclass(frozen=True)
class AnsweredQuery:
    """One query of the log and its answers, in the order in which they were given."""

    query: Query
    answers: tuple[QueryAnswer, ...]


@dataclass(frozen=True)
class Reconstruction:
    """One passage as far as one user reconstructed it.

    Attributes:
        passage: Its id.
        recall: Near-verbatim recall of the kept answers, joined.
        span: Words of the longest common run.
        queries: Answers that were served.
        spend: Their cost in all.
        cut: True if an answer was withheld.
    """

    passage: str
    recall: float
    span: float
    queries: int
    spend: float
    cut: bool


def replayed(
    attacker: Attacker, text: GivenText, log: Sequence[AnsweredQuery], budget: float = math.inf
) -> Reconstruction:
    """Replays one user's log under a total budget and scores what is left of it."""
    spend, served, cut = 0.0, 0, False
    tokens: tuple[int, ...] = ()
    for asked in log:
        got: dict[AnswerPlace, QueryAnswer] = {}
        for answer in asked.answers:
            if spend + answer.spend > budget:
                cut = True
                break
            spend += answer.spend
            got[answer.place] = answer
        served += len(got)
        k = asked.answers[0].place.k
        kept = attacker.kept(asked.query, k, got, len(got))
        if kept is not None:
            tokens += kept.tokens
        if cut:
            break
    recall, span = attacker.score(tokens, text.tokens)
    return Reconstruction(text.id, recall, span, served, spend, cut)


OnAnswer = Callable[[str, int, int, Trajectory], None]


def mechanism_of_method(settings: AttackSettings, method: Method) -> Mechanism:
    """Returns the mechanism of one way to attack, not yet bound to resources."""
    return mechanism_of(replace(settings, prefix_debt=method.debt, max_new_tokens=method.length))


def bound_mechanism(
    settings: AttackSettings, method: Method, items: Sequence[TokenizedPrompt], tokenizer: Any
) -> Mechanism:
    """Returns the mechanism of one way to attack, ready to serve."""
    resources = resources_of(tokenizer, protected_passages(items))
    return mechanism_of_method(settings, method).bind(resources)


@dataclass(frozen=True)
class AttackBench:
    """Models and passages that all ways to attack share, loaded once.

    Attributes:
        workbench: Models and arithmetic; rows are equally wide in every way, so that all ways
            share their bits.
        attacker: Makes the queries.
        every: All passages that were given, which a run's identity names.
        texts: Those that are attacked.
        settings: What was asked.
        context: What stands before each passage, in words.
    """

    workbench: Workbench
    attacker: Attacker
    every: tuple[GivenText, ...]
    texts: tuple[GivenText, ...]
    settings: AttackSettings
    context: str

    def executor(self, method: Method) -> EngineExecutor:
        """Returns what decodes one way to attack: with or without debt, answers of its length."""
        items = self.attacker.first_items(method, self.texts)
        tokenizer = self.workbench.pair.tokenizer
        mechanism = bound_mechanism(self.settings, method, items, tokenizer)
        decoding = replace(self.settings.decoding, max_new_tokens=method.length)
        return EngineExecutor(replace(self.workbench, mechanism=mechanism, decoding=decoding))

    def identity(self, method: Method) -> Identity:
        """Returns the identity of one way's run; all passages are its workload."""
        workload = workload_hash(self.attacker.first_items(method, self.every))
        return identity_of(self.executor(method), workload, "attack")


@dataclass(frozen=True)
class QueryLog:
    """Query log of one way to attack: what was asked under which budget, and the verdicts.

    Attributes:
        method: Which way.
        path: Its run.
        asked: Queries and answers by budget and passage, in order.
        arms: Every check of every budget, as `nafaudit check` has them.
    """

    method: Method
    path: Path
    asked: Mapping[float, Mapping[str, tuple[AnsweredQuery, ...]]]
    arms: tuple[ArmVerdict, ...]

    def arm(self, k: float) -> ArmVerdict:
        """Returns the verdicts on one budget."""
        return next(arm for arm in self.arms if arm.k == k)


class AttackRun:
    """One way to attack, on its run directory; made by `open_attack_run`."""

    def __init__(
        self,
        bench: AttackBench,
        method: Method,
        executor: EngineExecutor,
        opened: OpenRun,
        on_answer: OnAnswer,
    ) -> None:
        self._bench, self._method, self._opened = bench, method, opened
        self._on_answer = on_answer
        self._ledger = executor.mechanism.ledger
        self._answers: dict[AnswerPlace, QueryAnswer] = {}
        for trajectory in opened.run.trajectories():
            self._add(trajectory)

    def fill(self, budgets: tuple[float, ...]) -> None:
        """Asks until every query of every passage is answered."""
        for window in range(max(len(text.tokens) for text in self._bench.texts)):
            extents, prompts = self._wanted(budgets)
            total = sum(len(one.rows) for one in self._opened.requests_left(extents, prompts))
            if not total:
                return
            stage = self._method.words + (f", window {window + 1}" if window else "")
            self._opened.fill(extents, prompts, self._counting(stage, total))

    def log(self, budgets: tuple[float, ...]) -> QueryLog:
        """Returns everything that was asked, and the verdicts."""
        asked = {k: {text.id: self.asked(text, k) for text in self._bench.texts} for k in budgets}
        run = self._opened.run
        return QueryLog(self._method, run.path, asked, tuple(AuditResult.of(run).arms))

    def asked(self, text: GivenText, k: float) -> tuple[AnsweredQuery, ...]:
        """Returns the log of one user: queries about one passage under one budget, with answers."""
        attempts = range(self._bench.settings.trajectories)
        return tuple(
            AnsweredQuery(
                query,
                tuple(self._answers[AnswerPlace(query.item.prompt.id, k, i)] for i in attempts),
            )
            for query in self._queries(text, k)
        )

    def _counting(self, stage: str, total: int) -> Callable[[Trajectory], None]:
        """Returns a function that keeps an answer and reports how many there are by now."""
        done = itertools.count(1)

        def answered(trajectory: Trajectory) -> None:
            self._add(trajectory)
            self._on_answer(stage, next(done), total, trajectory)

        return answered

    def _queries(self, text: GivenText, k: float) -> list[Query]:
        return list(self._bench.attacker.queries(text, self._method, k, self._answers))

    def _wanted(
        self, budgets: tuple[float, ...]
    ) -> tuple[list[Extent], dict[str, TokenizedPrompt]]:
        """Returns what the attacker can ask next, prompts that share their budgets together."""
        asking: dict[TokenizedPrompt, list[float]] = {}
        for text in self._bench.texts:
            for k in budgets:
                for query in self._queries(text, k):
                    asking.setdefault(query.item, []).append(k)
        groups: dict[tuple[float, ...], list[str]] = {}
        for item, ks in asking.items():
            groups.setdefault(tuple(ks), []).append(item.prompt.id)
        attempts = self._bench.settings.trajectories
        extents = [Extent(ks, attempts, tuple(ids)) for ks, ids in groups.items()]
        return extents, {item.prompt.id: item for item in asking}

    def _add(self, trajectory: Trajectory) -> None:
        key, steps = trajectory.key, trajectory.steps
        place = AnswerPlace(key.prompt, key.k, key.trajectory)
        tokens = steps.token.tolist()
        granted = self._ledger.accrued(key.k, trajectory.debt, steps.token)
        self._answers[place] = QueryAnswer(
            place,
            tuple(tokens[:-1] if trajectory.stopped else tokens),
            trajectory.spend,
            math.fsum((steps.served.astype(float) - steps.safe.astype(float)).tolist()),
            trajectory.debt,
            max(0.0, float(granted[-1])),
            len(trajectory),
            int((steps.theta == 0).sum()),
            int((steps.theta == 1).sum()),
        )


@contextmanager
def open_attack_run(
    bench: AttackBench, path: Path, method: Method, budgets: tuple[float, ...], on_answer: OnAnswer
) -> Iterator[AttackRun]:
    """Creates or resumes the run of one way to attack.

    Args:
        bench: What decodes.
        path: The attack's directory.
        method: Which way.
        budgets: Budgets that are asked first.
        on_answer: Called as answers end, with the stage, answers so far, and their total.
    """
    executor, items = bench.executor(method), bench.attacker.first_items(method, bench.texts)
    names = tuple(item.prompt.id for item in items)
    extent = Extent(budgets, bench.settings.trajectories, names)
    design = Design(bench.identity(method), extent)
    with run_for_writing(executor, path / method.name, design, items) as opened:
        if method.mode != "chained":
            _score(bench, method, executor, opened.run.path / PASSAGES)
        yield AttackRun(bench, method, executor, opened, on_answer)


def _score(bench: AttackBench, method: Method, executor: EngineExecutor, path: Path) -> None:
    """Scores what the queries ask for, so that the records say what a budget is worth."""
    recorded = read_passages_file(path)
    known = {one.id: one for one in recorded.passages} if recorded else {}
    pair, decoding = executor.pair, executor.decoding
    scorer = Scorer(pair.safe, pair.vocabulary, decoding, context=pair.context)
    added = []
    for text in bench.texts:
        for query in bench.attacker.queries(text, method, SAFE_ONLY, {}):
            name = query.item.prompt.id
            if name not in known:
                values = scorer.surprisals(query.item.tokens, query.wanted).tolist()
                added.append(ScoredPassage(name, len(query.wanted), tuple(values)))
    if added:
        context = f"{bench.context} and the true text up to there"
        passages = (*known.values(), *added)
        write_passages(path, PassageScores(context, decoding.anchor, passages))
