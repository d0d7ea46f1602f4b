"""A passage in token ids: what stands before it, what is given away, what is asked about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nafaudit.core.errors import InputError
from nafaudit.workload.passages import Passage


@dataclass(frozen=True)
class GivenText:
    """One passage, divided.

    Attributes:
        passage: Which.
        before: The opening and the tokens that are given.
        tokens: The rest.
    """

    passage: Passage
    before: tuple[int, ...]
    tokens: tuple[int, ...]

    @property
    def id(self) -> str:
        """The passage's id."""
        return self.passage.id


def opening_of(tokenizer: Any) -> tuple[tuple[int, ...], str]:
    """What stands before a passage, in ids and in words: what the tokenizer itself puts there."""
    if own := tuple(tokenizer("")["input_ids"]):
        return own, f"the tokenizer's own opening {tokenizer.convert_ids_to_tokens(list(own))}"
    for kind in ("bos", "eos"):
        if (index := getattr(tokenizer, f"{kind}_token_id")) is not None:
            return (int(index),), f"the tokenizer's {kind} token"
    return (), "nothing: the first token is not scored"


def given_text(tokenizer: Any, passage: Passage, opening: tuple[int, ...], given: int) -> GivenText:
    """Divides a passage after its first `given` tokens."""
    ids = tuple(tokenizer(passage.text, add_special_tokens=False)["input_ids"])
    # Somebody has to stand before the first scored token.
    given = max(given, 0 if opening else 1)
    if len(ids) <= given:
        raise InputError(
            f"{passage} has {len(ids)} tokens, of which {given} are given; nothing "
            "is left to ask about. Lower --given or leave the passage out."
        )
    return GivenText(passage, (*opening, *ids[:given]), ids[given:])


def check_lengths(texts: Sequence[GivenText], context: int, whose: str) -> None:
    """Raises if a passage does not fit the models' positions."""
    longest = max(texts, key=lambda text: len(text.before) + len(text.tokens))
    if (needed := len(longest.before) + len(longest.tokens)) > context:
        raise InputError(
            f"{longest.passage} needs {needed} positions; {whose} has {context}. "
            "Split the passage: a blank line in a text file starts a new one."
        )
