"""`--decoder anchoreddecode`: the published decoder of the mechanism's authors, as a black box.

It needs a Transformers of its own, so it runs in its own environment, through a program that
imports nothing of ours (`official_worker.py`).
"""

from __future__ import annotations

import shutil
from pathlib import Path

from nafaudit.core.errors import InputError

NAME = "anchoreddecode"
HOW_TO_BUILD = (
    "python3 -m venv official && official/bin/pip install "
    "'anchoreddecode==0.1.0' 'transformers==4.57.6' 'torch==2.13.0'"
)


def official_command(python: str | None) -> tuple[str, ...]:
    """The program that answers for the published decoder.

    Args:
        python: Interpreter of the environment that holds it.

    Raises:
        InputError: None was given, or there is none there; the message says how to build one.
    """
    if python is None or shutil.which(python) is None:
        what = "no --decoder-python was given" if python is None else f"there is no {python!r}"
        raise InputError(
            f"decoder {NAME} needs Transformers 4.57, so it runs in an environment of its own, "
            f"and {what}. Build one:\n  {HOW_TO_BUILD}\nand name its interpreter: "
            "--decoder-python official/bin/python"
        )
    # Isolated: neither our modules nor the user's directory may shadow what it imports.
    return (python, "-I", str(Path(__file__).with_name("official_worker.py")))
