"""Products as another vendor's library might make them, on whatever machine the tests run on.

Each kind sums some rows in another order, as libraries do, so that last bits follow the company:

* rows: from six rows on (an Intel library without its strict mode)
* slots: rows past the last four, where the number of rows is not divisible by four (the same
  library in its compatible mode)
* threads: the second half of the rows, where torch has more than one thread

`NAFAUDIT_TEST_ARITHMETIC=rows make test` runs every test so; processes that tests start follow,
by `sitecustomize.py` beside this file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

VARIABLE = "NAFAUDIT_TEST_ARITHMETIC"
KINDS = ("rows", "slots", "threads")


def other_from(kind: str, rows: int, threads: int) -> int:
    """The first of so many rows that are summed in another order; `rows` if none is."""
    if kind == "rows":
        return 0 if rows >= 6 else rows
    if kind == "slots":
        return rows // 4 * 4
    return rows // 2 if threads > 1 else rows


def install(kind: str, functional: Any, torch: Any) -> None:
    """Replaces the two functions that layers multiply by, once in a process."""
    if hasattr(functional.linear, "kind"):
        return
    if kind not in KINDS:
        raise ValueError(f"{VARIABLE} must be one of {', '.join(KINDS)}, got {kind!r}.")
    linear, addmm = functional.linear, torch.addmm

    def by_halves(x: Any, weight: Any, bias: Any) -> Any:
        half = weight.shape[1] // 2
        found = linear(x[:, half:], weight[:, half:]) + linear(x[:, :half], weight[:, :half])
        return found if bias is None else found + bias

    def other_linear(input: Any, weight: Any, bias: Any = None) -> Any:  # noqa: A002
        x = input.reshape(-1, input.shape[-1])
        first = other_from(kind, len(x), torch.get_num_threads())
        whole = linear(input, weight, bias)
        if first == len(x):
            return whole
        found = whole.reshape(len(x), -1).clone()
        found[first:] = by_halves(x, weight, bias)[first:]
        return found.reshape(whole.shape)

    def other_addmm(bias: Any, x: Any, weight: Any, **how: Any) -> Any:
        first = other_from(kind, len(x), torch.get_num_threads())
        if how or first == len(x):
            return addmm(bias, x, weight, **how)
        found = addmm(bias, x, weight).clone()
        found[first:] = by_halves(x, weight.T, bias)[first:]
        return found

    other_linear.kind = kind  # type: ignore[attr-defined]
    functional.linear, torch.addmm = other_linear, other_addmm


def _plain(linear: Any) -> Any:
    """A function that `install` will replace, whatever was replaced before."""
    return lambda *given: linear(*given)


@contextmanager
def pretending(kind: str) -> Iterator[None]:
    """The same for a while, in this process; what was proved before and within is forgotten."""
    import torch

    from nafaudit.engine import proof

    before = torch.nn.functional.linear, torch.addmm
    proof.forget()
    torch.nn.functional.linear = _plain(before[0])
    install(kind, torch.nn.functional, torch)
    try:
        yield
    finally:
        torch.nn.functional.linear, torch.addmm = before
        proof.forget()
