"""The paper's tables and equations, cell by cell, each beside what its inputs give."""

from collections.abc import Callable

from nafaudit.report.paper.claim import Claim
from nafaudit.report.paper.source import Paper
from nafaudit.report.paper.tables import overlap, proxy, search, stage1, stage2

# In the order of the paper.
TABLES: tuple[Callable[[Paper], list[Claim]], ...] = (
    stage1.claims,
    stage2.claims,
    overlap.claims,
    search.claims,
    proxy.claims,
)
