"""Tables as plain text: in what a stranger's log calls a mechanism, nothing is markup."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console


def drawn(draw: Callable[[Console], None]) -> str:
    """What is drawn on a console, as text: as wide as the terminal, 80 columns elsewhere.

    It is captured because rich answers a closed pipe with exit status 1, which means violated.
    """
    width = None if Console().is_terminal else 80
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        draw(console)
    return captured.get().rstrip()
