"""From settings to whoever suggests prompts; what is wrong is found before a model loads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nafaudit.search.basics import SearchBasics
from nafaudit.search.candidate import Proposer
from nafaudit.search.instruct.answers import FILE, Answers
from nafaudit.search.instruct.chat import Answer, Chat, Request
from nafaudit.search.instruct.endpoint import Endpoint, key_of
from nafaudit.search.instruct.proposer import Counted, InstructProposer, Manner
from nafaudit.search.instruct.requests import CROSS, MUTATE
from nafaudit.search.instruct.spec import LOCAL, OPENAI
from nafaudit.search.propose import LocalProposer

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

    def say(self, request: Request) -> Answer:
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
        from nafaudit.search.instruct.local import Instruct

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
