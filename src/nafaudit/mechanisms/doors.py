"""The old place of the black-box part of `nafaudit.protocols`, kept for recorded decoders."""

from nafaudit.protocols import STEP_CLAIMS, BlackBox, Law, Output, Request, World, debt_of

__all__ = ["STEP_CLAIMS", "BlackBox", "Law", "Output", "Request", "World", "debt_of"]
