"""What a mechanism may need of a run beyond two laws: the vocabulary and the protected passages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nafaudit.models.pair import read_vocabulary
from nafaudit.protocols import Resources
from nafaudit.runner.pairs import PAIRS
from nafaudit.workload import TokenizedPrompt, protected_prompts


def material_of(
    tokenizer: Any, prompts: Iterable[TokenizedPrompt], pair: str | None = None
) -> Resources:
    """The material of a run, the same from its workload as from its records; needs no model.

    Args:
        tokenizer: Of the pair.
        prompts: The whole workload; references of its protected classes are protected text.
        pair: Name of a registered pair, whose own passages are protected too.
    """
    own = PAIRS[pair].passages() if pair in PAIRS else []
    passages = [passage.text for passage in own]
    passages += [item.prompt.reference for item in protected_prompts(prompts)]
    return material(tokenizer, list(dict.fromkeys(passages)))


def material(tokenizer: Any, passages: Sequence[str]) -> Resources:
    """The material that a tokenizer and protected passages make."""

    def split(text: str) -> tuple[int, ...]:
        return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])

    return Resources(read_vocabulary(tokenizer, (), ()).pieces, split, passages)
