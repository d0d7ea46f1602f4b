"""What somebody's decoder can do wrong before any number is looked at, each under its name.

Without it a plug-in's crash would be a traceback in ours, and a hang would be ours too.
"""

from __future__ import annotations

from dataclasses import dataclass

from nafaudit.core.trajectory import Key

# Adding one is adding a line; `lost` are those after which there is nothing to record.
FAULTS = {
    "raised": "its decode raised an exception",
    "died": "its process ended while it was asked for outputs",
    "hang": "it gave no answer within the time limit",
    "garbled": "its answer could not be read",
    "count": "it did not return one output per request",
    "shape": "a part of its output has the wrong type or length",
    "empty": "it wrote no token",
    "token": "it wrote a token id that does not exist",
    "length": "it wrote more tokens than it was asked for",
    "after-stop": "it wrote on after a stop token",
    "short": "it ended early, without a stop token",
    "nan": "a number that it claims is not one",
    "law": "a law that it shows is not one",
    "exit": "its process did not end cleanly",
}


@dataclass(frozen=True)
class Fault:
    """One thing that went wrong in a decoder that is not ours.

    Attributes:
        name: One of `FAULTS`.
        text: What was seen, in a sentence without its full stop.
        key: The output that was asked for; None if no single one is to blame.
        step: Where in it.
        lost: True if the output could not be recorded.
    """

    name: str
    text: str
    key: Key | None = None
    step: int = 0
    lost: bool = False

    def __post_init__(self) -> None:
        if self.name not in FAULTS:
            raise ValueError(f"unknown fault {self.name!r}; known: {', '.join(FAULTS)}.")
