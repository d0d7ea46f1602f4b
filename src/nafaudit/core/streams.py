"""Which stream a row draws from: the one place that knows it for decoding and for replay."""

from __future__ import annotations

from nafaudit.core.draws import Stream, paper_stream, sound_stream
from nafaudit.core.errors import InputError
from nafaudit.core.seeds import trajectory_seeds


def row_stream(protocol: str, seed: int, purpose: str, prompt: str, trajectory: int) -> Stream:
    """The draws of a trajectory; budgets share them in both protocols.

    Args:
        protocol: As a design's identity has it.
        seed: Run seed; the paper's protocol has none.
        purpose: What the draws are for; the paper's protocol knows no purpose.
        prompt: Id of the prompt.
        trajectory: Number of the trajectory.

    Raises:
        InputError: The draws of such a run are not known here.
    """
    if protocol == "sound":
        return sound_stream(seed, purpose, prompt, trajectory)
    if protocol == "paper":
        return paper_stream(trajectory_seeds(prompt, trajectory + 1)[-1])
    raise InputError(f"nobody knows the draws of a run whose protocol is {protocol!r}.")
