"""A search in the report: its tables, what was switched off and why, and its progress.

Everything here reads RUN/search.json, in which parts may be missing (another version, another
protocol) and others unknown: what is missing is left out, what is unknown is shown as it is. Its
prompts are a model's or a stranger's text.
"""

from nafaudit.report.searched.parts import search_json
from nafaudit.report.searched.progress import Series, measure_of, progress_of
from nafaudit.report.searched.tables import Table
from nafaudit.report.searched.view import SearchView, search_view

__all__ = [
    "SearchView",
    "Series",
    "Table",
    "measure_of",
    "progress_of",
    "search_json",
    "search_view",
]
