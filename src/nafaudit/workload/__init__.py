"""Prompts in named classes, from one file or from several."""

from nafaudit.workload.corpus import read_corpus, read_workload
from nafaudit.workload.prompts import (
    Prompt,
    PromptSource,
    Sourced,
    TokenizedPrompt,
    Workload,
    protected_prompts,
    workload_hash,
)

__all__ = [
    "Prompt",
    "PromptSource",
    "Sourced",
    "TokenizedPrompt",
    "Workload",
    "protected_prompts",
    "read_corpus",
    "read_workload",
    "workload_hash",
]
