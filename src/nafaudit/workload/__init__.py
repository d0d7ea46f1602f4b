"""Prompts in named classes, from one file, from the paper's six, or from anybody's."""

from nafaudit.workload.corpus import read_corpus, read_prompts, read_workload
from nafaudit.workload.paper import paper_workload, read_paper
from nafaudit.workload.prompts import (
    Prompt,
    Source,
    Sourced,
    TokenizedPrompt,
    Workload,
    protected_prompts,
    workload_hash,
)

__all__ = [
    "Prompt",
    "Source",
    "Sourced",
    "TokenizedPrompt",
    "Workload",
    "paper_workload",
    "protected_prompts",
    "read_corpus",
    "read_paper",
    "read_prompts",
    "read_workload",
    "workload_hash",
]
