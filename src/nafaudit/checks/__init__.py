"""Records in, findings out; no torch."""

from nafaudit.checks.check import Check, Facts, RunCheck
from nafaudit.checks.classes import ClassRow, ClassTable
from nafaudit.checks.verdict import ArmResult, class_table, classes_of, judge, judge_run

__all__ = [
    "ArmResult",
    "Check",
    "ClassRow",
    "ClassTable",
    "Facts",
    "RunCheck",
    "class_table",
    "classes_of",
    "judge",
    "judge_run",
]
