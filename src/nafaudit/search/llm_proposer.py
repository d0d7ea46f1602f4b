"""A language model as a proposer: what is asked, retried and filled.

What a model is asked: some parents in, so many new prompts out, as JSON.

As in the paper's system there are two kinds of calls: most show four to six parents and ask for
eight new prompts, some show three parents and ask for four that combine them.
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
from nafaudit.search.candidate import Candidate, Parent, Proposer, candidate_id, lineage_of
from nafaudit.search.filters import LengthWindow, canonical
from nafaudit.search.llm_answers import FILE, OUTCOMES, Answers, Suggestion, digest_of, read
from nafaudit.search.llm_chat import ANSWER, Chat, ChatAnswer, ChatRequest, Endpoint, key_of
from nafaudit.search.propose import LocalProposer, chance_of
from nafaudit.search.settings import LOCAL, OPENAI, SearchBasics

MUTATE, CROSS = "model", "model-cross"
"""Operators in the record: made of what was shown, and made to combine three parents."""
PER_CALL, PER_CROSS, CROSS_PARENTS = 8, 4, 3
_CROSS_SHARE = 12 / 76
_SHOWN = {MUTATE: 500, CROSS: 600}
# Tokens of a word, roughly: what a window in tokens means to somebody who counts words.
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
        index: Its number in the generation.
        operator: `MUTATE` or `CROSS`.
        family: The parents that it shows, in their order there.
        count: New prompts that it asks for.
    """

    index: int
    operator: str
    family: tuple[Parent, ...]
    count: int


def calls_of(parents: Sequence[Parent], count: int, seed: int, generation: int) -> list[Call]:
    """Shares a generation's prompts out over calls; 76 are 8 calls for 8 and 3 for 4.

    Args:
        parents: What to build upon.
        count: New prompts in all.
        seed: Search seed.
        generation: From 1 on.
    """
    crossed = round(count * _CROSS_SHARE) if len(parents) >= CROSS_PARENTS else 0
    sizes = [(MUTATE, n) for n in _portions(count - crossed, PER_CALL)]
    sizes += [(CROSS, n) for n in _portions(crossed, PER_CROSS)]
    made = []
    for index, (operator, size) in enumerate(sizes):
        chance = chance_of(seed, generation, "call", index)
        shown = CROSS_PARENTS if operator == CROSS else 4 + index % 3
        made.append(
            Call(index, operator, tuple(chance.sample(parents, min(shown, len(parents)))), size)
        )
    return made


def _portions(total: int, most: int) -> list[int]:
    return [min(most, total - start) for start in range(0, total, most)]


def request_of(call: Call, count: int, window: LengthWindow, tokens: int, seed: int) -> ChatRequest:
    """The words of a call.

    Args:
        call: What is asked.
        count: How many are still missing of it.
        window: Allowed lengths, in tokens of the pair.
        tokens: Longest answer.
        seed: For whoever draws with a seed of its own.
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

    def _rows(self, call: Call, generation: int, calls: int, counted: Counted) -> list[Suggestion]:
        """Attempts until a call has all its prompts, or may not try again."""
        counted.calls += 1
        rows: list[Suggestion] = []
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

    def _candidate(self, call: Call, generation: int, index: int, row: Suggestion) -> Candidate:
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
    """Whoever the settings name, checked as far as that is possible now; None for the operators.

    A search that has answers already may need no more of them, so its server need not be there.
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
    """The proposers of all search seeds of a run, and what they counted.

    Args:
        settings: What was asked for.
        chat: From `chat_of`.
        run: The run directory; whoever makes this holds its lock.
        tell: Hears of calls: search seed, number of the call, how many there are.
    """

    def __init__(
        self,
        settings: SearchBasics,
        chat: Chat | None,
        run: Path,
        tell: Callable[[int, int, int], None],
    ) -> None:
        self._settings, self._chat, self._tell = settings, chat, tell
        self._answers = Answers(run / FILE) if chat is not None else None
        self._made: dict[tuple[str, int], InstructProposer] = {}

    @property
    def by_model(self) -> bool:
        """False if the local operators propose."""
        return self._chat is not None

    def of(self, seed: int) -> Proposer:
        """Whoever suggests in the search of this seed."""
        if self._chat is None or self._answers is None:
            return LocalProposer(seed, self._settings.operators)
        return self._asked(seed, "")

    def of_call(self, call: int, cross: bool) -> Proposer:
        """The model as the paper's protocol asks it: one call, all parents shown, nothing filled.

        Args:
            call: Its number within a generation.
            cross: True if it is to combine its parents.
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
                lambda call, calls: self._tell(seed, call, calls),
            )
        return self._made[only, seed]

    def to_json(self) -> dict[str, Any]:
        """Who proposed, and for a model what became of its calls, in all and by generation."""
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
