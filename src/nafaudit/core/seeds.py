"""The paper's seeds: without them its trajectories could be neither named nor repeated.

A seed follows from the prompt's id and the trajectory's number alone, so budgets share it. Ids
whose hashes agree modulo 100,000, or nearly so, share seeds too.

Reference: Fowler, Noll, Vo, the 32-bit FNV-1a hash.
"""

from __future__ import annotations

BASE_SEEDS = (42, 43, 44)

_OFFSET_BASIS = 2166136261
_PRIME = 16777619
_OFFSETS = 100_000


def fnv1a(text: str) -> int:
    """32-bit FNV-1a over the code points of a text (not over its bytes, as is usual)."""
    value = _OFFSET_BASIS
    for character in text:
        value = (value ^ ord(character)) * _PRIME & 0xFFFFFFFF
    return value


def trajectory_seeds(prompt: str, n: int) -> list[int]:
    """The seeds of a prompt's first n trajectories; no two of them are equal.

    Args:
        prompt: Id of the prompt.
        n: How many.
    """
    offset = fnv1a(prompt) % _OFFSETS
    return [BASE_SEEDS[i % len(BASE_SEEDS)] + offset + i for i in range(n)]
