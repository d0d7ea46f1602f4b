"""What an attacker asks, in which order, and what he keeps of the answers.

Everything here is a function of the answers that are recorded: where one is missing, the queries
end, and asking again with more records goes the same way, and further.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nafaudit.core.ledger import budget_word
from nafaudit.core.text import detokenize
from nafaudit.overlap import MIN_SPAN, Reference, measure, prepare
from nafaudit.workload import Prompt, TokenizedPrompt
from nafaudit.worth.texts import GivenText


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
