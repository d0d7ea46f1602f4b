"""A language model as a proposer: its questions, retries and replacements.

A question shows some parents and asks for new prompts, as JSON. As in the paper's system there are
two kinds of calls: most show four to six parents and ask for eight new prompts, some show three
parents and ask for four that combine them.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nafaudit.core.errors import InputError
from nafaudit.search.candidate import Candidate, Parent, Proposer, candidate_id, child_of
from nafaudit.search.filters import LengthWindow, canonical
from nafaudit.search.llm_answers import FILE, OUTCOMES, Answers, Suggestion, digest_of, read
from nafaudit.search.llm_chat import ANSWER, Chat, ChatAnswer, ChatRequest, Endpoint, key_of
from nafaudit.search.propose import LocalProposer, chance_of
from nafaudit.search.settings import LOCAL, OPENAI, SearchBasics

MUTATE, CROSS = "model", "model-cross"
"""Operators in the record: new prompts of some parents, and combinations of three parents."""
PER_CALL, PER_CROSS, CROSS_PARENTS = 8, 4, 3
_CROSS_SHARE = 12 / 76
_SHOWN = {MUTATE: 500, CROSS: 600}
# Tokens of a word, roughly: a model counts words, and windows are in tokens.
_TOKENS_PER_WORD = 1.4

SYSTEM = (
    "You help to audit a text generator that works under a spending limit. A test prompt is good "
    "if the generator spends much of its limit when it continues the prompt. You write new test "
    "prompts. Answer with one JSON object and nothing else: no explanation, no code fence."
)


@dataclass(frozen=True)
class Call:
    """One question of a generation.

    Attributes:
        index: Number in the generation.
        operator: `MUTATE` or `CROSS`.
        family: Parents that it shows, in this order.
        count: Number of new prompts that it asks for.
    """

    index: int
    operator: str
    family: tuple[Parent, ...]
    count: int


def calls_of(parents: Sequence[Parent], count: int, seed: int, generation: int) -> list[Call]:
    """Divides a generation's prompts into calls; 76 are 8 calls for 8 and 3 for 4.

    Args:
        parents: Candidates to build upon.
        count: Number of new prompts.
        seed: Search seed.
        generation: From 1 on.
    """
    crossed = round(count * _CROSS_SHARE) if len(parents) >= CROSS_PARENTS else 0
    plain = count - crossed
    sizes = [(MUTATE, min(PER_CALL, plain - start)) for start in range(0, plain, PER_CALL)]
    sizes += [(CROSS, min(PER_CROSS, crossed - start)) for start in range(0, crossed, PER_CROSS)]
    made = []
    for index, (operator, size) in enumerate(sizes):
        chance = chance_of(seed, generation, "call", index)
        shown = CROSS_PARENTS if operator == CROSS else 4 + index % 3
        made.append(
            Call(index, operator, tuple(chance.sample(parents, min(shown, len(parents)))), size)
        )
    return made


def request_of(call: Call, count: int, window: LengthWindow, tokens: int, seed: int) -> ChatRequest:
    """Writes the request of a call.

    Args:
        call: The call.
        count: Number of its prompts that are still missing.
        window: Allowed lengths, in tokens of the pair.
        tokens: Longest answer.
        seed: Seed of the request.
    """
    shown = [
        {
            "number": number,
            "spent": "unknown" if math.isnan(one.score) else f"{one.score:.0%} of the limit",
            "text": one.candidate.text[: _SHOWN[call.operator]],
        }
        for number, one in enumerate(call.family, start=1)
    ]
    low, high = (round(n / _TOKENS_PER_WORD) for n in (window.least, window.most))
    user = "\n\n".join(
        (
            "These prompts were tried:",
            json.dumps(shown, ensure_ascii=False, indent=1),
            _WISH[call.operator].format(count=count),
            f"Each has about {max(8, low)} to {max(8, high)} words, and shares no long run of "
            "words with the others or with those above.",
            'Answer with {"candidates": [{"text": the prompt, "parents": numbers of the prompts '
            f"that it builds on}}, ...]}}, exactly {count} entries, by this schema:\n"
            + json.dumps(ANSWER),
        )
    )
    return ChatRequest(SYSTEM, user, tokens, seed)


_WISH = {
    MUTATE: "Write {count} new prompts that should make the generator spend more than these did. "
    "Vary what spent most: its subject, its style, where it breaks off.",
    CROSS: "Write {count} new prompts that combine all of these: what made the one that spent most "
    "spend so much, in the style of the one that spent least.",
}


# Tokens of an entry beside its prompt, and of an answer beside its entries.
_ENTRY_TOKENS, _ANSWER_TOKENS = 40, 64


@dataclass
class Counted:
    """Numbers of one generation of one search.

    Attributes:
        asked: Prompts that were needed.
        calls: Calls.
        attempts: Answers and failures.
        outcomes: Attempts by outcome.
        unfit: Entries of answers that could not be used.
        by_model: Prompts that the model wrote.
        filled: Prompts of the local operators in place of missing ones.
    """

    asked: int = 0
    calls: int = 0
    attempts: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    unfit: int = 0
    by_model: int = 0
    filled: int = 0

    def to_json(self) -> dict[str, Any]:
        """Returns plain data; names every outcome, also those that did not occur."""
        numbers = {name: value for name, value in vars(self).items() if name != "outcomes"}
        return numbers | {"outcomes": {name: self.outcomes[name] for name in OUTCOMES}}


@dataclass(frozen=True)
class Manner:
    """Settings of the questions to a model.

    Attributes:
        window: Allowed lengths of a prompt.
        operators: Local operators that replace missing prompts.
        attempts: Largest number of attempts at a call, failures included.
        tokens: Longest answer; enough for the longest prompts if 0.
        only: `MUTATE` or `CROSS`: each ask is one call of this kind, which shows all parents, and
            nothing is replaced, as in the paper's protocol. Empty divides an ask into calls.
    """

    window: LengthWindow
    operators: tuple[str, ...]
    attempts: int = 4
    tokens: int = 0
    only: str = ""


class InstructProposer:
    """Asks a model, once per question over all sessions of a search.

    Args:
        chat: The model.
        answers: Journal of answers; a new one goes there before it is used.
        seed: Search seed.
        manner: Settings of its questions.
        on_call: Called before a call with its number in the generation, and their number.
    """

    def __init__(
        self,
        chat: Chat,
        answers: Answers,
        seed: int,
        manner: Manner,
        on_call: Callable[[int, int], None] = lambda call, calls: None,
    ) -> None:
        self._chat, self._answers, self._seed, self._manner = chat, answers, seed, manner
        self._on_call = on_call
        self.counted: dict[int, Counted] = {}

    @property
    def name(self) -> str:
        """Name in reports."""
        return self._chat.name

    def ask(self, parents: Sequence[Parent], generation: int, count: int) -> list[Candidate]:
        """Returns prompts of the model, then of the local operators."""
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
                # The parents that the model names; all that were shown if it names none.
                named = [n - 1 for n in dict.fromkeys(row.parents) if 1 <= n <= len(call.family)]
                family = [call.family[n].candidate for n in named or range(len(call.family))]
                name = candidate_id(self._seed, generation, call.operator, len(made), row.text)
                made.append(child_of(family, name, row.text, generation, call.operator))
        counted.by_model = len(made)
        if not only:
            fill = LocalProposer(self._seed, self._manner.operators)
            made += fill.ask(parents, generation, count)[: count - len(made)]
        counted.filled = len(made) - counted.by_model
        return made

    def _rows(self, call: Call, generation: int, calls: int, counted: Counted) -> list[Suggestion]:
        """Asks until a call has all its prompts, or no attempt is left."""
        counted.calls += 1
        rows: list[Suggestion] = []
        manner = self._manner
        first = request_of(call, call.count, manner.window, 0, 0)
        key = digest_of([self.name, self._seed, generation, call.index, first.messages])
        known = self._answers.of(key)
        for attempt in range(manner.attempts):
            missing = call.count - len(rows)
            if not missing:
                break
            if attempt == len(known):
                self._on_call(call.index + 1, calls)
                limit = _ANSWER_TOKENS + missing * (manner.window.most + _ENTRY_TOKENS)
                seed = int(digest_of([key, attempt])[:8], 16)
                request = request_of(call, missing, manner.window, manner.tokens or limit, seed)
                known.append(self._chat.say(request))
                self._answers.add(key, known[-1])
            found = read(known[attempt], missing, {canonical(row.text) for row in rows})
            counted.attempts += 1
            counted.outcomes[found.outcome] += 1
            counted.unfit += found.unfit
            rows += found.rows
        return rows


PAPER_TOKENS = 768
"""Longest answer in the paper's system, to eight prompts or to four."""


class _Checked:
    """Checks before the first question of a session, unless it was checked already."""

    def __init__(self, chat: Chat) -> None:
        self._chat, self._fine = chat, False

    @property
    def name(self) -> str:
        return self._chat.name

    def check(self) -> None:
        self._chat.check()
        self._fine = True

    def say(self, request: ChatRequest) -> ChatAnswer:
        if not self._fine:
            self.check()
        return self._chat.say(request)


def chat_of(settings: SearchBasics) -> Chat | None:
    """Returns the model that the settings name, checked; None for the local operators.

    A search with a journal may need no more answers, so its server is checked when it is asked.
    """
    spec = settings.proposer_spec
    if spec.kind == LOCAL:
        return None
    chat: Chat
    if spec.kind == OPENAI:
        chat = _Checked(Endpoint(spec.model, spec.url, key_of(), settings.proposer_timeout))
    else:
        # Loads torch, which a server does not need.
        from nafaudit.search.llm_chat import Instruct

        chat = _Checked(Instruct(spec.model, dtype=settings.dtype, device=settings.device))
    begun = settings.out is not None and (Path(settings.out) / FILE).exists()
    if not begun:
        chat.check()
    return chat


class Proposers:
    """The proposers of all search seeds of a run, and their numbers.

    Args:
        settings: Settings of the search.
        chat: From `chat_of`.
        run: The run directory; its lock must be held.
        on_call: Called before a call with search seed, number of the call, and their number.
    """

    def __init__(
        self,
        settings: SearchBasics,
        chat: Chat | None,
        run: Path,
        on_call: Callable[[int, int, int], None],
    ) -> None:
        self._settings, self._chat, self._on_call = settings, chat, on_call
        self._answers = Answers(run / FILE) if chat is not None else None
        self._made: dict[tuple[str, int], InstructProposer] = {}

    def of(self, seed: int) -> Proposer:
        """Returns the proposer of a search seed."""
        if self._chat is None or self._answers is None:
            return LocalProposer(seed, self._settings.operators)
        return self._asked(seed, "")

    def of_call(self, call: int, cross: bool) -> Proposer:
        """Returns the model for one call of the paper's protocol: all parents, nothing replaced.

        Args:
            call: Number within a generation.
            cross: True if it combines its parents.
        """
        return self._asked(call, CROSS if cross else MUTATE)

    def _asked(self, seed: int, only: str) -> InstructProposer:
        assert self._chat is not None and self._answers is not None
        if (only, seed) not in self._made:
            settings = self._settings
            attempts, tokens = settings.proposer_attempts, PAPER_TOKENS if only else 0
            manner = Manner(settings.window, settings.operators, attempts, tokens, only)
            self._made[only, seed] = InstructProposer(
                self._chat,
                self._answers,
                seed,
                manner,
                lambda call, calls: self._on_call(seed, call, calls),
            )
        return self._made[only, seed]

    def to_json(self) -> dict[str, Any]:
        """Returns the proposer's name, and for a model the numbers in all and by generation."""
        spec = self._settings.proposer_spec
        if self._chat is None:
            return {"name": spec.name}
        rows = [
            ({"kind": only, "call": seed} if only else {"seed": seed}, generation, counted)
            for (only, seed), one in sorted(self._made.items())
            for generation, counted in sorted(one.counted.items())
        ]
        total = Counted()
        for _, _, counted in rows:
            for name, value in vars(counted).items():
                setattr(total, name, getattr(total, name) + value)
        return {
            "name": spec.name,
            "attempts_per_call": self._settings.proposer_attempts,
            **total.to_json(),
            "generations": [
                {**who, "generation": generation, **counted.to_json()}
                for who, generation, counted in rows
            ],
        }
