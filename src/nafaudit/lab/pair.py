"""Finds and loads the lab's models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from nafaudit.models.pair import Pair
from nafaudit.models.pair import load_pair as load_any_pair

Role = Literal["safe", "risky", "safe2"]
ROLES: tuple[Role, ...] = get_args(Role)

WEIGHTS = Path(__file__).parent / "weights"
"""Directory of the shipped models, one subdirectory per role."""


@dataclass(frozen=True)
class LabPair:
    """The lab's pair, with its text in and out."""

    pair: Pair

    @property
    def safe(self) -> Any:
        """The anchor."""
        return self.pair.safe

    @property
    def risky(self) -> Any:
        """The model that has memorised the protected works."""
        return self.pair.risky

    def encode(self, text: str) -> list[int]:
        """Returns the begin token and the tokens of a text."""
        ids: list[int] = self.pair.tokenizer(text)["input_ids"]
        return ids

    def encode_document(self, text: str) -> list[int]:
        """Returns a whole document's tokens, begin and end token included."""
        return [*self.encode(text), int(self.pair.tokenizer.eos_token_id)]

    def decode(self, ids: list[int]) -> str:
        """Returns the text of tokens, special tokens left out."""
        return str(self.pair.tokenizer.decode(ids, skip_special_tokens=True))


def load_pair(weights: Path = WEIGHTS, *, anchor: Role = "safe") -> LabPair:
    """Loads a pair; ``anchor`` chooses which of the two safe models anchors it."""
    return LabPair(load_any_pair(weights / anchor, weights / "risky"))
