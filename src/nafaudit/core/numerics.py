"""Asks for matrix products that give a row the same bits whatever rows stand beside it.

Imported with the package, before torch computes anything: the linear-algebra library reads the
variable once, at its first product or exponential. Whether it came in time, and whether it is
enough on this machine, is found out by `nafaudit.engine.proof`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from nafaudit.core.errors import InputError

VARIABLE = "MKL_CBWR"
# Strict conditional numerical reproducibility of the kernels that the processor would use anyway.
WANTED = "AUTO,STRICT"


def ask() -> None:
    """Asks for reproducible products, unless the user has set the variable."""
    os.environ.setdefault(VARIABLE, WANTED)


def check_threads(threads: int, instead: str = "") -> None:
    """Raises for a number of torch threads that no process may have.

    Args:
        threads: What was asked for.
        instead: What to do for more speed, if there is anything.
    """
    if threads < 1:
        raise InputError(f"threads must be 1 or 2, got {threads}.")
    if threads > 2:
        raise InputError(
            f"threads must be 1 or 2, got {threads}: more cut rows at any place, and last bits "
            f"would depend on it.{instead}"
        )


@dataclass(frozen=True)
class ConstantRows:
    """The number of rows of every product, where a row's bits depend on that number.

    Idle rows fill up what is missing. Both numbers are divisible by 32: some libraries treat rows
    past the last four in another way, and vector code the numbers past the last 32.

    Attributes:
        steps: Rows of a decoding step.
        prompts: Positions of one prompt that are read at once.
    """

    steps: int = 32
    prompts: int = 64
