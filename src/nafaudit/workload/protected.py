"""Which references of a workload are protected text, so that a budget's worth is asked of those."""

from __future__ import annotations

from collections.abc import Iterable

from nafaudit.workload.prompts import TokenizedPrompt

# The paper's classes of ordinary text; their references are answers, not protected works.
ORDINARY_CLASSES = ("neutral", "factual", "creative")


def protected_prompts(prompts: Iterable[TokenizedPrompt]) -> list[TokenizedPrompt]:
    """The prompts whose reference is protected text: all with one but in the ordinary classes."""
    return [
        item
        for item in prompts
        if item.prompt.reference.strip() and item.prompt.label not in ORDINARY_CLASSES
    ]
