"""One row of numbers per trajectory, and every question that is asked of those rows; no torch."""

from nafaudit.measures.classes import ClassRow, ClassTable, class_table
from nafaudit.measures.context import RunContext
from nafaudit.measures.measure import Measure, measure
from nafaudit.measures.table import Measures
from nafaudit.measures.verdicts import ArmVerdict, judge

__all__ = [
    "ArmVerdict",
    "ClassRow",
    "ClassTable",
    "Measure",
    "Measures",
    "RunContext",
    "class_table",
    "judge",
    "measure",
]
