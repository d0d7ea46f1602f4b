"""Draws docs/first-run.svg: what `make audit` prints, as a picture.

python docs/picture.py RUN
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from rich.console import Console

from nafaudit.checks import judge_run
from nafaudit.cli.show import print_result
from nafaudit.store.run import Run


def main() -> None:
    """Renders a run's table at 80 columns."""
    run = Run(Path(sys.argv[1]))
    console = Console(width=80, record=True, highlight=False, file=io.StringIO())
    print_result(console, run, judge_run(run), str(run.path))
    console.save_svg(str(Path(__file__).with_name("first-run.svg")), title="nafaudit run")


if __name__ == "__main__":
    main()
