"""A language model as a proposer: calls, retries, what came of them, and what had to be filled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nafaudit.core.errors import InputError
from nafaudit.search.candidate import Candidate, Parent, candidate_id, lineage_of
from nafaudit.search.filters import LengthWindow, canonical
from nafaudit.search.instruct.answers import Answers, digest_of
from nafaudit.search.instruct.chat import Chat
from nafaudit.search.instruct.reading import OUTCOMES, Row, read
from nafaudit.search.instruct.requests import Call, calls_of, request_of
from nafaudit.search.propose import LocalProposer

# What an entry of an answer needs beside its prompt.
_ENTRY_TOKENS, _ANSWER_TOKENS = 40, 64


@dataclass
class Counted:
    """What one generation of one search cost, and what came of it.

    Attributes:
        asked: Prompts that were wanted.
        calls: Questions.
        attempts: Answers, and failures in the place of one.
        outcomes: Attempts by what became of them.
        unfit: Entries of answers that could not be used.
        by_model: Prompts that the model wrote.
        filled: Prompts that the local operators made in the place of missing ones.
    """

    asked: int = 0
    calls: int = 0
    attempts: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    unfit: int = 0
    by_model: int = 0
    filled: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain data; every outcome is named, also those that did not occur."""
        numbers = {name: value for name, value in vars(self).items() if name != "outcomes"}
        return numbers | {"outcomes": {name: self.outcomes[name] for name in OUTCOMES}}


@dataclass(frozen=True)
class Manner:
    """How a model is asked.

    Attributes:
        window: Allowed lengths of a prompt.
        operators: Local operators that fill what is missing.
        attempts: At most so many for a call, failures included.
        tokens: Longest answer; room for the longest prompts if 0.
        only: `MUTATE` or `CROSS`: each ask is one call of this kind, which shows all parents, and
            nothing is filled, as the paper's protocol wants it. Empty shares an ask out over calls.
    """

    window: LengthWindow
    operators: tuple[str, ...]
    attempts: int = 4
    tokens: int = 0
    only: str = ""

    def longest(self, count: int) -> int:
        """Tokens that an answer of so many prompts may have."""
        return self.tokens or _ANSWER_TOKENS + count * (self.window.most + _ENTRY_TOKENS)


Tell = Callable[[int, int], None]
"""Told before a call is made: its number in the generation, and how many there are."""


class InstructProposer:
    """Asks a model, once per question over all sessions of a search.

    Args:
        chat: Who answers.
        answers: What was said before; everything new goes there before it is used.
        seed: Search seed.
        manner: How it is asked.
        tell: Hears of calls that are made.
    """

    def __init__(
        self, chat: Chat, answers: Answers, seed: int, manner: Manner, tell: Tell | None = None
    ) -> None:
        self._chat, self._answers, self._seed, self._manner = chat, answers, seed, manner
        self._tell = tell
        self.counted: dict[int, Counted] = {}

    @property
    def name(self) -> str:
        """How reports call it."""
        return self._chat.name

    def ask(self, parents: Sequence[Parent], generation: int, count: int) -> list[Candidate]:
        """Prompts by the model, then what the local operators fill; a function of the journal."""
        if not parents:
            raise InputError("a proposer needs parents, got none; start it from seeds.")
        counted = self.counted[generation] = Counted(asked=count)
        only = self._manner.only
        calls = (
            [Call(0, only, tuple(parents), count)]
            if only
            else calls_of(parents, count, self._seed, generation)
        )
        made: list[Candidate] = []
        for call in calls:
            for row in self._rows(call, generation, len(calls), counted):
                made.append(self._candidate(call, generation, len(made), row))
        counted.by_model = len(made)
        if not only:
            fill = LocalProposer(self._seed, self._manner.operators)
            made += fill.ask(parents, generation, count)[: count - len(made)]
        counted.filled = len(made) - counted.by_model
        return made

    def _rows(self, call: Call, generation: int, calls: int, counted: Counted) -> list[Row]:
        """Attempts until a call has all its prompts, or may not try again."""
        counted.calls += 1
        rows: list[Row] = []
        first = request_of(call, call.count, self._manner.window, 0, 0)
        key = digest_of([self.name, self._seed, generation, call.index, first.messages])
        known = self._answers.of(key)
        for attempt in range(self._manner.attempts):
            missing = call.count - len(rows)
            if not missing:
                break
            if attempt == len(known):
                if self._tell:
                    self._tell(call.index + 1, calls)
                limit = self._manner.longest(missing)
                seed = int(digest_of([key, attempt])[:8], 16)
                request = request_of(call, missing, self._manner.window, limit, seed)
                known.append(self._chat.say(request))
                self._answers.add(key, known[-1])
            found = read(known[attempt], missing, {canonical(row.text) for row in rows})
            counted.attempts += 1
            counted.outcomes[found.outcome] += 1
            counted.unfit += found.unfit
            rows += found.rows
        return rows

    def _candidate(self, call: Call, generation: int, index: int, row: Row) -> Candidate:
        """A prompt with the parents that the model names; all that were shown if it names none."""
        named = [n - 1 for n in dict.fromkeys(row.parents) if 1 <= n <= len(call.family)]
        family = [call.family[n].candidate for n in named or range(len(call.family))]
        return Candidate(
            id=candidate_id(self._seed, generation, call.operator, index, row.text),
            text=row.text,
            label=family[0].label,
            generation=generation,
            operator=call.operator,
            parents=tuple(parent.id for parent in family),
            lineage=lineage_of(family),
        )
