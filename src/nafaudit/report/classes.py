"""What has to be known to read the class table of the page."""

from __future__ import annotations

from nafaudit.measures.classes import ClassTable


def classes_note(table: ClassTable) -> str:
    """What has to be known to read the table; empty if there is none."""
    if not table.rows:
        return ""
    return (
        f"Every bound misses with chance at most {table.delta:.2g}: one level shared by "
        f"{table.looks} cells, classes times budgets. Under 20 prompts a bound is shown for "
        "orientation, not as evidence. U(R) and U(R_eff) are the paper's; point at a heading for "
        "what it means."
    )
