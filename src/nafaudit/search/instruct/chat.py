"""What is asked of a model and what comes back: one shape for a server and for Transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

ANSWERED = "answered"
FAILURES = ("busy", "fault", "timeout", "broken")
"""No answer came: too many requests (429), the server's own fault (5xx), too slow, cut off."""


@dataclass(frozen=True)
class Request:
    """One question.

    Attributes:
        system: What the model is told to be.
        user: What it is asked.
        tokens: Longest answer.
        seed: For whoever draws with a seed of its own.
        temperature: As the paper's.
        top_p: As the paper's.
    """

    system: str
    user: str
    tokens: int
    seed: int = 0
    temperature: float = 1.0
    top_p: float = 0.98

    @property
    def messages(self) -> list[dict[str, str]]:
        """In the form that chat templates and servers take."""
        return [
            {"role": "system", "content": self.system},
            {"role": "user", "content": self.user},
        ]


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        status: `ANSWERED`, or one of `FAILURES`.
        text: What the model wrote.
        finish: Why it stopped, in the words of chat completions; empty if nobody said.
        refusal: What it said instead, where a server has a field for that.
    """

    status: str
    text: str = ""
    finish: str = ""
    refusal: str = ""


class Chat(Protocol):
    """Whoever answers."""

    @property
    def name(self) -> str:
        """How reports call it; part of what an answer is kept under."""
        ...

    def check(self) -> None:
        """Finds what is wrong as far as it can be told without asking a question.

        Raises:
            InputError: It cannot answer; the message says what to do.
        """
        ...

    def say(self, request: Request) -> Answer:
        """Asks once. A failure that may pass is an answer too; one that will not is raised."""
        ...
