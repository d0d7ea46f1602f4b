"""Runs every script of this directory in the decoder's environment and keeps what they print.

python docs/audits/anchoreddecode/all.py official/bin/python
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = sorted(p.stem for p in HERE.glob("*.py") if p.stem not in ("all", "common"))


def measure(python: str, script: str) -> str:
    """What one script prints: a line of JSON."""
    command = [python, str(HERE / f"{script}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{script}: {done.stderr.strip()[-2000:]}")
    return done.stdout.strip().splitlines()[-1]


if __name__ == "__main__":
    lines = [measure(sys.argv[1], script) for script in SCRIPTS]
    (HERE / "measured.jsonl").write_text("".join(f"{line}\n" for line in lines))
