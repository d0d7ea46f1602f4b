"""What a prompt is, and what identifies a set of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        id: Unique within a workload; part of the key of every draw.
        text: What the models are given.
        label: Its class.
        reference: Text that an output is compared with; empty if there is none.
    """

    id: str
    text: str
    label: str = "prompt"
    reference: str = ""


@dataclass(frozen=True)
class TokenizedPrompt:
    """A prompt with the token ids that the models are given."""

    prompt: Prompt
    tokens: tuple[int, ...]


def workload_hash(prompts: Iterable[TokenizedPrompt]) -> str:
    """SHA-256 of all prompts and their token ids, whatever their order."""
    rows = sorted(json.dumps(asdict(prompt), sort_keys=True) for prompt in prompts)
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()
