"""What moved between two runs, two decoders or two versions, and how sure that is."""

from nafaudit.report.compare.comparison import Comparison, compare
from nafaudit.report.compare.show import as_json, as_markdown, as_text

__all__ = ["Comparison", "as_json", "as_markdown", "as_text", "compare"]
