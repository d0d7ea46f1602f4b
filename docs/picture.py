"""Draws docs/first-run.svg: what `make audit` prints, as a picture.

python docs/picture.py RUN
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console

from nafaudit.measures.audit import AuditResult
from nafaudit.store.run import Run
from nafaudit.views.audit import audit_document
from nafaudit.views.terminal import draw


def main() -> None:
    """Renders a run's table at 80 columns."""
    run = Run(Path(sys.argv[1]))
    console = Console(width=80, record=True, highlight=False, file=io.StringIO())
    draw(audit_document(AuditResult.of(run), str(run.path)), console)
    drawn = console.export_svg(title="nafaudit run")
    # No font from elsewhere: a picture in a README must not call anybody.
    drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    drawn = drawn.replace("Fira Code", "DejaVu Sans Mono")
    Path(__file__).with_name("first-run.svg").write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
