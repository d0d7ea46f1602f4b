"""Everything the paper's running text quotes, as functions of its printed numbers, by name.

A line of `data/quotes.csv` names the quantity that it quotes; one quantity may be quoted often.
"""

from nafaudit.report.paper.quantities import pools, protocol, search, stage1
from nafaudit.report.paper.quantities.registry import QUANTITIES, Quantity

__all__ = ["QUANTITIES", "Quantity", "pools", "protocol", "search", "stage1"]
