"""What the paper's room adds to a report: its checklist, and figures of held-out prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nafaudit.report.checklist.of_run import of_run
from nafaudit.report.checklist.show import item_rows
from nafaudit.views.page import Extra

if TYPE_CHECKING:
    from nafaudit.views.figures import RunFigure


def _figures() -> Sequence[RunFigure]:
    # Imported late: loading the drawing library takes a second.
    from nafaudit.report.figures.heldout import HELDOUT_FIGURES

    return HELDOUT_FIGURES


PAPER_EXTRA = Extra(lambda report: item_rows(of_run(report)), _figures)
