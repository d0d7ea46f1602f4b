"""Held-out prompts of other kinds than the workload's: questions, facts, conversations.

Questions and conversations are written, about the memorised works. Facts are openings of articles
about people of whom the workload asks nothing.
"""

from __future__ import annotations

import tomllib
from importlib import resources

from nafaudit.lab.encyclopaedia import entries
from nafaudit.workload import Prompt
from nafaudit.workload.prompts import CAPS

OPENING = 12
"""Words of an article that a prompt about a fact gives away."""


def other_prompts() -> list[Prompt]:
    """Returns them kind by kind."""
    file = resources.files("nafaudit.lab") / "text" / "other_pools.toml"
    written = tomllib.loads(file.read_text(encoding="utf-8"))
    # The workload asks about the first entries, as many as its class may have.
    facts = [" ".join(one.article.split()[:OPENING]) for one in entries()[CAPS["factual"] :]]
    kinds = {"qa": written["qa"], "factual": facts, "multi-turn": written["multi-turn"]}
    return [
        Prompt(f"{kind}_{place}", text, kind)
        for kind, texts in kinds.items()
        for place, text in enumerate(texts)
    ]
