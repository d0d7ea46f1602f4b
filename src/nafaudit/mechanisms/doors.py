"""Former import path of the black-box part of `nafaudit.protocols`.

Recorded decoders import from here: their source is hashed into records, so it cannot be edited.
"""

from nafaudit.protocols import STEP_CLAIMS, BlackBox, Law, Output, Request, World, debt_of

__all__ = ["STEP_CLAIMS", "BlackBox", "Law", "Output", "Request", "World", "debt_of"]
