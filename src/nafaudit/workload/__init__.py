"""Prompts in named classes."""

from nafaudit.workload.prompts import Prompt, read_prompts, workload_hash

__all__ = ["Prompt", "read_prompts", "workload_hash"]
