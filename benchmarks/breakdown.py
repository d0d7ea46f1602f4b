"""Where the time of decoding goes, per row, step and token id.

The engine's own functions are wrapped from outside, while one case is decoded once. A name that
is gone, or is never called, is an error: then the engine works another way, and `PROBES` has to
say so.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

FORWARDS, PROMPTS, REST = "forwards of the steps", "reading the prompts", "everything else"
# What is called inside another of these counts as the other.
PROBES: dict[str, tuple[str, ...]] = {
    FORWARDS: ("nafaudit.engine.rows:RowModel.step",),
    PROMPTS: ("nafaudit.engine.prompts:PromptReader.read",),
    "two laws": ("nafaudit.engine.write:log_law",),
    "theta, served law, charge": ("nafaudit.mechanisms.anchored:Anchored.serve",),
    "random words": ("nafaudit.engine.write:noise_bounds",),
    "picking the token": ("nafaudit.engine.write:pick_token",),
}


@contextmanager
def probed(probes: Mapping[str, Sequence[str]] = PROBES) -> Iterator[dict[str, float]]:
    """Collects the processor seconds of every part, by name, while it is open.

    Raises:
        LookupError: A function is gone, or was never called.
    """
    spent, called = dict.fromkeys(probes, 0.0), set()
    inside = False

    def timed(part: str, path: str, work: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(work)
        def wrapper(*given: Any, **named: Any) -> Any:
            nonlocal inside
            called.add(path)
            if inside:
                return work(*given, **named)
            inside, start = True, time.process_time()
            try:
                return work(*given, **named)
            finally:
                spent[part] += time.process_time() - start
                inside = False

        return wrapper

    with ExitStack() as stack:
        for part, paths in probes.items():
            for path in paths:
                owner, name = _found(path)
                wrapper = timed(part, path, getattr(owner, name))
                stack.enter_context(patch.object(owner, name, wrapper))
        yield spent
    idle = {path for paths in probes.values() for path in paths} - called
    if idle:
        raise LookupError(f"never called: {', '.join(sorted(idle))}; benchmarks/breakdown.py")


def _found(path: str) -> tuple[Any, str]:
    module, names = path.split(":")
    *owners, name = names.split(".")
    try:
        owner = importlib.import_module(module)
        for each in owners:
            owner = getattr(owner, each)
        getattr(owner, name)
    except (ImportError, AttributeError) as error:
        raise LookupError(f"{path} is gone; say in benchmarks/breakdown.py what is") from error
    return owner, name


Spent = dict[str, dict[str, dict[str, float]]]


def table(cases: Spent) -> list[list[str]]:
    """Nanoseconds by part as cells: a line for every case, ours and the limit."""
    parts = [*PROBES, REST]
    lines = [["", *parts, "all"]]
    for case, sides in cases.items():
        for side, spent in sides.items():
            cells = (f"{spent[part]:.1f}" if part in spent else "" for part in parts)
            lines.append([f"{case}: {side}", *cells, f"{sum(spent.values()):.1f}"])
    return lines


def text(cases: Spent) -> str:
    """The table for a terminal; nothing if nothing was profiled."""
    if not cases:
        return ""
    head, *lines = table(cases)
    numbers = [f"  {number} {part}" for number, part in enumerate(head[1:], 1)]
    short = ["", *map(str, range(1, len(head)))]
    shown = [f"{cells[0]:34}" + "".join(f"{cell:>7}" for cell in cells[1:]) for cells in lines]
    title = "Nanoseconds per row, step and token id, by part"
    heads = f"{short[0]:34}" + "".join(f"{cell:>7}" for cell in short[1:])
    return "\n".join([title, *numbers, heads, *shown]) + "\n"
