"""Records in, findings out; no torch."""

from nafaudit.checks.check import Facts
from nafaudit.checks.verdict import ArmResult, judge, judge_run

__all__ = ["ArmResult", "Facts", "judge", "judge_run"]
