"""Prompts in named classes."""

from nafaudit.workload.prompts import Prompt, TokenizedPrompt, read_prompts, workload_hash
from nafaudit.workload.protected import protected_prompts

__all__ = ["Prompt", "TokenizedPrompt", "protected_prompts", "read_prompts", "workload_hash"]
