"""Decoders that misbehave, each in one way.

None of them needs a law, so this file imports no torch: whoever runs them starts at once.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from nafaudit.protocols import Output, Request, World


class Constant:
    """Writes token 5 until the limit, and behaves."""

    def __init__(self, world: World) -> None:
        self.world = world

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        """Writes."""
        sys.stdout.write("a decoder may print\n")
        return [self.write(request) for request in requests]

    def write(self, request: Request) -> Output:
        """One output; what the subclasses change."""
        return Output([5] * request.max_new_tokens)


class Fickle(Constant):
    """Fails on some prompts only, by their last token."""

    def write(self, request: Request) -> Output:
        """One output."""
        tokens = [5] * request.max_new_tokens
        match request.prompt[-1] % 5:
            case 0:
                raise ValueError("an unlucky prompt")
            case 1:
                return Output([*tokens, 5])
            case 2:
                return Output([self.world.size, *tokens[1:]])
        return Output(tokens)


class Sleeper(Constant):
    """Never answers."""

    def write(self, request: Request) -> Output:
        """Waits."""
        time.sleep(600)
        return super().write(request)


class Mortal(Constant):
    """Dies of every third request."""

    def write(self, request: Request) -> Output:
        """Dies, or not."""
        if request.seed % 3 == 0:
            os._exit(9)
        return super().write(request)


class Unbuildable(Constant):
    """Cannot be made."""

    def __init__(self, world: World) -> None:
        raise RuntimeError("no licence")


class NoDecode:
    """Has nothing to call."""

    def __init__(self, world: World) -> None:
        pass
