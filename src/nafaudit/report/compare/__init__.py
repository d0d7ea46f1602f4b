"""What moved between two runs, two decoders or two versions, and how sure that is."""

from nafaudit.report.compare.comparison import Comparison, compare

__all__ = ["Comparison", "compare"]
