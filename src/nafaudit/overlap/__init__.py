"""How much an output repeats of a reference; one definition each."""

from nafaudit.overlap.near_verbatim import near_verbatim_recall

__all__ = ["near_verbatim_recall"]
