"""The paper's tables, equations and figures, recomputed from the numbers it prints."""

from nafaudit.report.paper.claim import Claim, Unchecked, Verdict
from nafaudit.report.paper.recompute import Recomputation, recompute
from nafaudit.report.paper.source import Paper, load

__all__ = ["Claim", "Paper", "Recomputation", "Unchecked", "Verdict", "load", "recompute"]
