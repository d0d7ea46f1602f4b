"""Records in, findings out; no torch."""

from nafaudit.checks.check import Check, Facts, RunCheck
from nafaudit.checks.verdict import ArmResult, judge, judge_run

__all__ = ["ArmResult", "Check", "Facts", "RunCheck", "judge", "judge_run"]
