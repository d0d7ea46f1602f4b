"""A finished search of the paper's: what its tables, files and JSON are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nafaudit.core.finding import Finding
from nafaudit.search.found import Found
from nafaudit.search.measured import Gap, Row
from nafaudit.search.paper_findings import Flag, Flagged
from nafaudit.search.paper_loop import Trail
from nafaudit.search.paper_settings import PaperSettings


@dataclass(frozen=True)
class Recheck:
    """A flagged prompt on fresh draws, without a rule that stops early.

    Attributes:
        flag: What flagged it.
        same: Its row at the same budget.
        other: Its row at the second budget.
    """

    flag: Flag
    same: Row
    other: Row


@dataclass(frozen=True)
class PaperFound:
    """A finished search of the paper's.

    Attributes:
        found: What every search has.
        trail: What happened.
        findings: Its defects, by name.
        flagged: What its proxy flags.
        rechecks: Of the first of these.
        gap: Ratio of the final pool minus that of the held-out pool, both ways.
        debts: Prefix debt of every prompt.
        embedding: What stands for the paper's Sentence-T5.
        high: R of the proxy.
        started: When the run was begun.
    """

    found: Found
    trail: Trail
    findings: tuple[Finding, ...]
    flagged: Flagged
    rechecks: tuple[Recheck, ...]
    gap: Gap
    debts: Mapping[str, float]
    embedding: str
    high: float
    started: str

    @property
    def settings(self) -> PaperSettings:
        """What was asked for."""
        settings = self.found.settings
        assert isinstance(settings, PaperSettings)
        return settings
