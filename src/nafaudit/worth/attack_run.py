"""One way to attack as a run, the queries that it asks, and their odometer.

What an attacker asks, in which order, and what he keeps of the answers.

Everything here is a function of the answers that are recorded: where one is missing, the queries
end, and asking again with more records goes the same way, and further.

What an attacker reconstructs, and what he still would if every user had a total budget.

The odometer replays the query log: all answers of one user add up, retries included, and the first
one that would pass the user's budget is withheld, with everything after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from nafaudit.checks import ArmResult, judge_run
from nafaudit.core.design import Decoding, Identity
from nafaudit.core.ledger import SAFE_ONLY, budget_word
from nafaudit.core.passage import PassageScores, ScoredPassage
from nafaudit.core.text import detokenize
from nafaudit.core.trajectory import Trajectory
from nafaudit.engine.lanes import Scorer
from nafaudit.engine.proof import Numerics
from nafaudit.models.pair import Pair
from nafaudit.overlap import MIN_SPAN, Reference, measure, prepare
from nafaudit.protocols import Mechanism
from nafaudit.runner.material import material_of
from nafaudit.runner.prepare import mechanism_of, vocabulary_table
from nafaudit.runner.sources import GrowingRun, Want, engine_of, open_growing
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
        """Directory of its run."""
        windows = "" if self.mode == "single" else str(self.length)
        return f"{self.mode}{windows}" + ("" if self.debt else "-nodebt")

    @property
    def words(self) -> str:
        """What a table calls it."""
        windows = "" if self.mode == "single" else f" {self.length}"
        return f"{self.mode}{windows}" + ("" if self.debt else ", no debt")


class Place(NamedTuple):
    """Which answer: the query's prompt, the budget, the attempt."""

    prompt: str
    k: float
    attempt: int


@dataclass(frozen=True)
class Answer:
    """One recorded answer.

    Attributes:
        place: Which.
        tokens: What was written, without its stop token.
        spend: Total charge, in the mechanism's own currency.
        ratio: Realised log p_served - log p_safe of the whole answer.
        debt: Prefix debt of the prompt.
        budget: What had been granted at its end.
        length: Steps, the stop included.
        forced: Steps at which the safe law was served.
        free: Steps at which the risky law was served.
    """

    place: Place
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


Answers = Mapping[Place, Answer]


class Attacker:
    """Asks about passages and recognises the text: of several answers he keeps the nearest.

    Args:
        pieces: What token ids stand for.
        opening: How many tokens stand before every passage of their own accord.
        attempts: How often each query is asked.
    """

    def __init__(self, pieces: Sequence[bytes | None], opening: int, attempts: int) -> None:
        self._pieces, self._opening, self.attempts = pieces, opening, attempts
        self._references: dict[tuple[int, ...], Reference] = {}
        self._scores: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[float, float]] = {}

    def queries(
        self, text: GivenText, method: Method, k: float, answers: Answers
    ) -> Iterator[Query]:
        """The queries about a passage, in order; ends where the next one needs an answer."""
        size = len(text.tokens) if method.mode == "single" else method.length
        known = text.before
        for window, start in enumerate(range(0, len(text.tokens), size)):
            wanted = text.tokens[start : start + size]
            if method.mode == "oracle":
                known = text.before + text.tokens[:start]
            # Whatever has the same true text before it has the same draws in every attack.
            name = f"{text.id}@{start}"
            if method.mode == "chained" and start:
                name += f"/k{budget_word(k)}"
            query = Query(self._item(name, method.mode, known, wanted), window, wanted)
            yield query
            if method.mode == "chained":
                if (kept := self.kept(query, k, answers)) is None:
                    return
                known = known + kept.tokens

    def kept(
        self, query: Query, k: float, answers: Answers, attempts: int | None = None
    ) -> Answer | None:
        """The nearest of the first attempts; None if one of them is not recorded."""
        best: Answer | None = None
        nearest = (-1.0, -1.0)
        for attempt in range(self.attempts if attempts is None else attempts):
            answer = answers.get(Place(query.item.prompt.id, k, attempt))
            if answer is None:
                return None
            score = self.score(answer.tokens, query.wanted)
            if score > nearest:
                best, nearest = answer, score
        return best

    def score(self, tokens: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[float, float]:
        """Near-verbatim recall of a text, and its longest common run of words.

        A wanted text too short for near-verbatim spans has recall 0.
        """
        key = (tokens, wanted)
        if key not in self._scores:
            overlap = measure(detokenize(tokens, self._pieces), self._reference(wanted))
            long_enough = len(self._reference(wanted).words) >= MIN_SPAN
            recall = overlap.near_verbatim_recall if long_enough else 0.0
            self._scores[key] = (recall, overlap.substring_words)
        return self._scores[key]

    def _reference(self, wanted: tuple[int, ...]) -> Reference:
        if wanted not in self._references:
            self._references[wanted] = prepare(detokenize(wanted, self._pieces))
        return self._references[wanted]

    def _item(
        self, name: str, mode: str, known: tuple[int, ...], wanted: tuple[int, ...]
    ) -> TokenizedPrompt:
        text = detokenize(known[self._opening :], self._pieces)
        reference = detokenize(wanted, self._pieces)
        return TokenizedPrompt(Prompt(name, text, mode, reference), known)


@dataclass(frozen=True)
class Asked:
    """One query of the log and its answers, in the order in which they were given."""

    query: Query
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Reconstruction:
    """What one user got of one passage.

    Attributes:
        passage: Which.
        recall: Near-verbatim recall of the answers that he kept, joined.
        span: Words of the longest common run.
        queries: Answers that were served.
        spend: What they cost in all.
        cut: True if an answer was withheld.
    """

    passage: str
    recall: float
    span: float
    queries: int
    spend: float
    cut: bool


def replayed(
    attacker: Attacker, text: GivenText, log: Sequence[Asked], budget: float = math.inf
) -> Reconstruction:
    """Replays one user's log under a total budget and scores what is left of it."""
    spend, served, cut = 0.0, 0, False
    tokens: tuple[int, ...] = ()
    for asked in log:
        got: dict[Place, Answer] = {}
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


See = Callable[[str, int, int, Trajectory], None]


@dataclass(frozen=True)
class Bench:
    """What all ways to attack decode with, loaded once.

    Attributes:
        pair: The models.
        attacker: Who asks.
        every: All passages that were given: what a run's identity is about.
        texts: Those that are attacked.
        settings: What was asked.
        width: Positions per row; the same for every way, so that they share their bits.
        context: What stands before each passage, in words.
        session: What this session runs on.
        numerics: By which arithmetic; chosen before the first answer.
    """

    pair: Pair
    attacker: Attacker
    every: tuple[GivenText, ...]
    texts: tuple[GivenText, ...]
    settings: AttackSettings
    width: int
    context: str
    session: Mapping[str, Any]
    numerics: Numerics | None = None

    def mechanism(self, method: Method) -> Mechanism:
        """What is attacked, with or without its debt, ready to serve."""
        material = material_of(self.pair.tokenizer, self.first_items(method, self.texts))
        return mechanism_of_method(self.settings, method).bind(material)

    def decoding(self, method: Method) -> Decoding:
        """The warps, and the length of one answer."""
        return replace(self.settings.decoding, max_new_tokens=method.length)

    def identity(self, method: Method) -> Identity:
        """Of one way's run; all passages are its workload, later prompts follow from them."""
        mechanism = self.mechanism(method)
        return Identity(
            pair=self.pair.fingerprint,
            mechanism=mechanism.name,
            ledger=mechanism.ledger.spec,
            decoding=self.decoding(method),
            workload=workload_hash(self.first_items(method, self.every)),
            width=self.width,
            seed=self.settings.seed,
            purpose="attack",
            currency=mechanism.currency,
            constant_rows=self.numerics.constant if self.numerics else None,
        )

    def first_items(self, method: Method, texts: Sequence[GivenText]) -> list[TokenizedPrompt]:
        """The prompts that are known before anything is answered."""
        return [query.item for text in texts for query in self.first_queries(method, text)]

    def first_queries(self, method: Method, text: GivenText) -> list[Query]:
        """The queries that are known before anything is answered."""
        return list(self.attacker.queries(text, method, SAFE_ONLY, {}))


def mechanism_of_method(settings: AttackSettings, method: Method) -> Mechanism:
    """The mechanism of one way to attack."""
    return mechanism_of(replace(settings, prefix_debt=method.debt, max_new_tokens=method.length))


@dataclass(frozen=True)
class Log:
    """One way to attack: what was asked under which budget, and the verdicts on it.

    Attributes:
        method: Which way.
        path: Its run.
        asked: Queries and answers by budget and passage, in order.
        arms: Every check of every budget, as `nafaudit check` has them.
    """

    method: Method
    path: Path
    asked: Mapping[float, Mapping[str, tuple[Asked, ...]]]
    arms: tuple[ArmResult, ...]

    def arm(self, k: float) -> ArmResult:
        """The verdicts on one budget."""
        return next(arm for arm in self.arms if arm.k == k)


class AttackRun:
    """One way to attack, on its run directory; made by `open_attack_run`."""

    def __init__(self, bench: Bench, method: Method, growing: GrowingRun, see: See) -> None:
        self._bench, self._method, self._growing, self._see = bench, method, growing, see
        self._ledger = bench.mechanism(method).ledger
        self._answers: dict[Place, Answer] = {}
        for trajectory in growing.run.trajectories():
            self._add(trajectory)

    def fill(self, budgets: tuple[float, ...]) -> None:
        """Asks until every query of every passage is answered."""
        for window in range(max(len(text.tokens) for text in self._bench.texts)):
            wants = self._wants(budgets)
            total = sum(len(request.rows) for request in self._growing.missing(wants))
            if not total:
                return
            stage = self._method.words + (f", window {window + 1}" if window else "")
            self._growing.fill(wants, self._counted(stage, total))

    def log(self, budgets: tuple[float, ...]) -> Log:
        """Everything that was asked, and the verdicts."""
        asked = {k: {text.id: self.asked(text, k) for text in self._bench.texts} for k in budgets}
        run = self._growing.run
        return Log(self._method, run.path, asked, tuple(judge_run(run)))

    def asked(self, text: GivenText, k: float) -> tuple[Asked, ...]:
        """The log of one user: queries about one passage under one budget, with answers."""
        attempts = range(self._bench.settings.trajectories)
        return tuple(
            Asked(query, tuple(self._answers[Place(query.item.prompt.id, k, i)] for i in attempts))
            for query in self._queries(text, k)
        )

    def _counted(self, stage: str, total: int) -> Callable[[Trajectory], None]:
        done = 0

        def see(trajectory: Trajectory) -> None:
            nonlocal done
            done += 1
            self._add(trajectory)
            self._see(stage, done, total, trajectory)

        return see

    def _queries(self, text: GivenText, k: float) -> list[Query]:
        return list(self._bench.attacker.queries(text, self._method, k, self._answers))

    def _wants(self, budgets: tuple[float, ...]) -> list[Want]:
        """What the attacker can ask next: prompts that share their budgets, together."""
        asking: dict[TokenizedPrompt, list[float]] = {}
        for text in self._bench.texts:
            for k in budgets:
                for query in self._queries(text, k):
                    asking.setdefault(query.item, []).append(k)
        groups: dict[tuple[float, ...], list[TokenizedPrompt]] = {}
        for item, ks in asking.items():
            groups.setdefault(tuple(ks), []).append(item)
        attempts = self._bench.settings.trajectories
        return [Want(tuple(items), attempts, ks) for ks, items in groups.items()]

    def _add(self, trajectory: Trajectory) -> None:
        key, steps = trajectory.key, trajectory.steps
        place = Place(key.prompt, key.k, key.trajectory)
        tokens = steps.token.tolist()
        granted = self._ledger.accrued(key.k, trajectory.debt, steps.token)
        self._answers[place] = Answer(
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
    bench: Bench, path: Path, method: Method, budgets: tuple[float, ...], see: See
) -> Iterator[AttackRun]:
    """Creates or resumes the run of one way to attack.

    Args:
        bench: What decodes.
        path: The attack's directory.
        method: Which way.
        budgets: What is asked first.
        see: Called as answers end, with what is being done and how far it is.
    """
    shape: dict[str, Any] = {"width": bench.width, "batch": bench.settings.batch}
    shape["numerics"] = bench.numerics
    decoder = engine_of(bench.pair, bench.mechanism(method), bench.decoding(method), **shape)
    first = Want(
        tuple(bench.first_items(method, bench.texts)), bench.settings.trajectories, budgets
    )
    with open_growing(
        path / method.name,
        bench.identity(method),
        first,
        decoder,
        vocabulary_table(bench.pair),
        bench.session,
        mixed=bench.settings.mixed,
    ) as growing:
        if method.mode != "chained":
            _score(bench, method, growing.run.path / PASSAGES)
        yield AttackRun(bench, method, growing, see)


def _score(bench: Bench, method: Method, path: Path) -> None:
    """Surprisals of what the queries ask for, so that the records say what a budget is worth."""
    recorded = read_passages_file(path)
    known = {one.id: one for one in recorded.passages} if recorded else {}
    decoding = bench.decoding(method)
    scorer = Scorer(bench.pair.safe, bench.pair.vocabulary, decoding, context=bench.pair.context)
    added = []
    for text in bench.texts:
        for query in bench.first_queries(method, text):
            name = query.item.prompt.id
            if name not in known:
                values = scorer.surprisals(query.item.tokens, query.wanted).tolist()
                added.append(ScoredPassage(name, len(query.wanted), tuple(values)))
    if added:
        context = f"{bench.context} and the true text up to there"
        passages = (*known.values(), *added)
        write_passages(path, PassageScores(context, decoding.anchor, passages))
