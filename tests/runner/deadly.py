"""Rules that fail where a test wants them to: in the middle of a row, never in the probe.

Rows of the tests have a prompt of a few tokens and write 45; the probe's are shorter, or as wide
as the run allows. `MARK` names a file that says that it has happened.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from nafaudit.mechanisms.anchored import Anchored
from nafaudit.protocols import Served

LENGTH = 40


def _first() -> bool:
    try:
        Path(os.environ["MARK"]).open("x").close()
    except FileExistsError:
        return False
    return True


class _Anchored:
    def serve(
        self, prefixes: Sequence[Sequence[int]], safe: Tensor, risky: Tensor, allowance: Tensor
    ) -> Served:
        served = Anchored().serve(prefixes, safe, risky, allowance)
        if any(len(prefix) == LENGTH for prefix in prefixes):
            return self.fail(served)
        return served

    def fail(self, served: Served) -> Served:
        raise NotImplementedError


class KillsOnce(_Anchored):
    def fail(self, served: Served) -> Served:
        if _first():
            os.kill(os.getpid(), signal.SIGKILL)
        return served


class KillsAlways(_Anchored):
    def fail(self, served: Served) -> Served:
        os.kill(os.getpid(), signal.SIGKILL)
        return served


class ServesNoLaw(_Anchored):
    def fail(self, served: Served) -> Served:
        return Served(served.law + 1, served.charge, served.theta)


class OneMachineRoundsOtherwise:
    """The process that makes the mark is as one of another kind: its laws differ in a last bit."""

    def __init__(self) -> None:
        self.other = _first()

    def serve(
        self, prefixes: Sequence[Sequence[int]], safe: Tensor, risky: Tensor, allowance: Tensor
    ) -> Served:
        served = Anchored().serve(prefixes, safe, risky, allowance)
        law = served.law * (1 + 2**-52) if self.other else served.law
        return Served(law, served.charge, served.theta)


class Sleeps(_Anchored):
    def fail(self, served: Served) -> Served:
        if _first():
            time.sleep(3600)
        return served
