"""Prompts in named classes, from one file, from several, or from objects."""

from nafaudit.workload.corpus import read_corpus
from nafaudit.workload.prompts import (
    Prompt,
    PromptSource,
    Sourced,
    TokenizedPrompt,
    Workload,
    protected_prompts,
    workload_hash,
)
from nafaudit.workload.sources import read_prompts

__all__ = [
    "Prompt",
    "PromptSource",
    "Sourced",
    "TokenizedPrompt",
    "Workload",
    "protected_prompts",
    "read_corpus",
    "read_prompts",
    "workload_hash",
]
