"""How full the batches of a search and of an attack on the lab are.

    python -m benchmarks.occupancy search|attack [OPTION ...]

The command runs in one process, with its defaults unless options are given. Every step counts the
rows that wrote a token, over the rows that the decoder has room for; what the probe decodes does
not count.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.results import Ratio, Row
from benchmarks.sides import HERE

COMMANDS = ("search", "attack")


def measure(command: str, *options: str) -> dict[str, int]:
    """Runs a command in this process and counts."""
    from nafaudit.cli.main import main
    from nafaudit.runner.workbench import Workbench

    counts = {"rows": 0, "room": 0, "steps": 0, "batch": 0}
    build = Workbench.decoder

    def counted(bench: Workbench) -> Any:
        decoder: Any = build(bench)
        write = decoder._writer.write

        def count(ready: Sequence[Any]) -> None:
            counts["rows"] += len(ready)
            counts["room"] += decoder.batch
            counts["steps"] += 1
            counts["batch"] = max(counts["batch"], decoder.batch)
            write(ready)

        decoder._writer.write = count
        return decoder

    Workbench.decoder = counted  # type: ignore[method-assign, assignment]
    with tempfile.TemporaryDirectory() as scratch:
        given = ["--workers", "1", "--quiet", "--json", "--out", f"{scratch}/{command}"]
        sys.argv = ["nafaudit", command, *given, *options]
        try:
            main()
        except SystemExit as end:
            if end.code not in (0, 1, 3):
                raise
    return counts


def rows() -> Iterator[Row]:
    """One row of each command, each in a process of its own."""
    for name in COMMANDS:
        command = [sys.executable, "-m", "benchmarks.occupancy", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=HERE, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        share = found["rows"] / found["room"]
        about = f"defaults, one process; {found['steps']:,} steps, room for {found['batch']} rows"
        filled = {"rows/room": Ratio(share, share, share)}
        yield Row(f"lab: {name}, occupancy", about, filled, "", found)


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(measure(*sys.argv[1:])) + "\n")
