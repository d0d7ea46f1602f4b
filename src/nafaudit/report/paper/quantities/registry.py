"""The list of quantities, so that a quote can name what it quotes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from nafaudit.report.paper.interval import Interval, interval
from nafaudit.report.paper.source import Paper

Compute = Callable[[Paper], Interval | float]
_F = TypeVar("_F", bound=Compute)


@dataclass(frozen=True)
class Quantity:
    """How a quoted number is computed.

    Attributes:
        compute: From the printed numbers; its docstring says what it is.
        released: True if it needs numbers that were published beside the paper.
    """

    compute: Compute
    released: bool = False

    def __call__(self, paper: Paper) -> Interval:
        """The values that the rounding of the printed numbers allows."""
        return interval(self.compute(paper))

    @property
    def says(self) -> str:
        """What is computed, in words that fit into a sentence."""
        text = (self.compute.__doc__ or "").split("\n")[0].rstrip(".")
        # Symbols keep their capitals; ordinary words lose them.
        return (
            text
            if text[1:2] in ("", "_", " ", "(") and text[0] != "A"
            else text[0].lower() + text[1:]
        )


QUANTITIES: dict[str, Quantity] = {}


def quantity(compute: _F) -> _F:
    """Registers a function of printed numbers under its own name."""
    QUANTITIES[compute.__name__] = Quantity(compute)
    return compute


def released(compute: _F) -> _F:
    """Registers a function that needs released numbers as well."""
    QUANTITIES[compute.__name__] = Quantity(compute, released=True)
    return compute
