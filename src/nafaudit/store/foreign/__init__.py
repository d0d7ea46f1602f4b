"""Other people's logs: read as they are, nothing mended in silence."""

from nafaudit.store.foreign.entry import ImportOptions
from nafaudit.store.foreign.hygiene import describe
from nafaudit.store.foreign.importer import import_logs, import_report
from nafaudit.store.foreign.schemas import SCHEMAS

__all__ = ["SCHEMAS", "ImportOptions", "describe", "import_logs", "import_report"]
