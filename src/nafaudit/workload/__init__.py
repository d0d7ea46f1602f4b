"""Prompts in named classes."""

from nafaudit.workload.prompts import Prompt, TokenizedPrompt, read_prompts, workload_hash

__all__ = ["Prompt", "TokenizedPrompt", "read_prompts", "workload_hash"]
