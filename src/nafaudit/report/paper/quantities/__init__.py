"""Everything the paper's running text quotes, as functions of its printed numbers, by name.

A line of `data/quotes.csv` names the quantity that it quotes; one quantity may be quoted often.
"""

from nafaudit.report.paper.quantities import (
    debts,
    diagnostics,
    flagged_rows,
    heldout,
    pools,
    protocol,
    search,
    stage1,
    terms,
)
from nafaudit.report.paper.quantities.registry import QUANTITIES, Quantity

# Importing a module registers its quantities.
__all__ = [
    "QUANTITIES",
    "Quantity",
    "debts",
    "diagnostics",
    "flagged_rows",
    "heldout",
    "pools",
    "protocol",
    "search",
    "stage1",
    "terms",
]
