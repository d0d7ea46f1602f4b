"""Which references of a workload are protected text, so that a budget's worth is asked of those."""

from __future__ import annotations

from collections.abc import Sequence

from nafaudit.workload.prompts import TokenizedPrompt

# The classes that the paper draws from copyrighted books; its others have references too.
PROTECTED_CLASSES = ("attack_train", "val", "test")


def protected_prompts(
    chosen: Sequence[TokenizedPrompt], workload: Sequence[TokenizedPrompt]
) -> list[TokenizedPrompt]:
    """The chosen prompts whose reference is protected text.

    Those of the paper's three copyright classes, if the workload has any of these; else every
    prompt with a reference.

    Args:
        chosen: Prompts of a run.
        workload: All prompts that the run could have; decides which of the two rules holds.
    """
    named = any(item.prompt.label in PROTECTED_CLASSES for item in workload)
    return [
        item
        for item in chosen
        if item.prompt.reference.strip() and (not named or item.prompt.label in PROTECTED_CLASSES)
    ]
