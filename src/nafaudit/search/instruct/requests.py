"""What a model is asked: some parents in, so many new prompts out, as JSON.

As in the paper's system there are two kinds of calls: most show four to six parents and ask for
eight new prompts, some show three parents and ask for four that combine them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from nafaudit.search.candidate import Parent
from nafaudit.search.filters import LengthWindow
from nafaudit.search.instruct.chat import Request
from nafaudit.search.instruct.schema import ANSWER
from nafaudit.search.propose import chance_of

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


def request_of(call: Call, count: int, window: LengthWindow, tokens: int, seed: int) -> Request:
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
    return Request(SYSTEM, user, tokens, seed)


_WISH = {
    MUTATE: "Write {count} new prompts that should make the generator spend more than these did. "
    "Vary what spent most: its subject, its style, where it breaks off.",
    CROSS: "Write {count} new prompts that combine all of these: what made the one that spent most "
    "spend so much, in the style of the one that spent least.",
}
