"""Readers of other people's logs; nothing is changed without a note."""

from nafaudit.store.importers.entry import ImportOptions, describe
from nafaudit.store.importers.importer import SCHEMAS, import_logs

__all__ = ["SCHEMAS", "ImportOptions", "describe", "import_logs"]
