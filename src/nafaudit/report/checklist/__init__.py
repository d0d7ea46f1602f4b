"""The paper's seven practitioner items: pass, fail or not applicable, and what to run to pass.

`of_run` answers for a run from its records alone; `of_paper` for the paper itself, beside what the
paper claims. Both return the same rows, for the terminal and for the report's page.
"""

from nafaudit.report.checklist.items import Answer, Item
from nafaudit.report.checklist.of_paper import of_paper
from nafaudit.report.checklist.of_run import of_run
from nafaudit.report.checklist.show import as_json, as_text, item_rows

__all__ = ["Answer", "Item", "as_json", "as_text", "item_rows", "of_paper", "of_run"]
