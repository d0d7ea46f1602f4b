"""What an attacker reconstructs, and what he still would if every user had a total budget.

The odometer replays the query log: all answers of one user add up, retries included, and the first
one that would pass the user's budget is withheld, with everything after it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nafaudit.worth.queries import Answer, Attacker, Place, Query
from nafaudit.worth.texts import GivenText


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
