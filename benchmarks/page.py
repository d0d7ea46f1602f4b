"""The JSON of a benchmark as tables in Markdown, alone or put into a page.

    python -m benchmarks.page bench.json [docs/benchmarks.md]

In a page they replace what stands between the two marks. A row stands on one line with every ratio
that has an aim; growth is one line of exponents, the solver alone one line of ranges. What has no
aim is in the JSON and not here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.__main__ import closing
from benchmarks.breakdown import table
from benchmarks.results import Ratio

START, END = "<!-- from bench.json -->", "<!-- up to here -->"


def page(facts: dict[str, Any]) -> str:
    """The ratios that have an aim with their verdicts, then where the time goes."""
    lines = [["row", "case", "measured", "aim", ""]]
    grown, solved = [], dict[str, list[dict[str, Any]]]()
    for row in facts["rows"]:
        told = [row["name"], row["about"]]
        aimed = {name: found for name, found in row["ratios"].items() if found["aim"]}
        if row["invalid"]:
            lines.append([*told, row["invalid"], "", "**invalid**"])
        elif "exponent" in row["facts"]:
            grown.append(f"{row['name'].removeprefix('growth: ')} {row['facts']['exponent']:.2f}")
        elif not row["ratios"]:
            lines.append([*told, "passed", "", ""])
        elif aimed and ": solver" in row["name"]:
            solved.setdefault(row["name"].rpartition(", ")[2], []).extend(aimed.values())
        elif aimed:
            values = [Ratio(*(found[f] for f in Ratio._fields)) for found in aimed.values()]
            cells = (
                [f"{name} {value}" for name, value in zip(aimed, values, strict=True)],
                [found["aim"] for found in aimed.values()],
                [found["verdict"].replace("missed", "**missed**") for found in aimed.values()],
            )
            lines.append([*told, *map("; ".join, cells)])
    if solved:
        lines.append(["solver", "the step between the forwards, alone", *_ranges(solved)])
    if grown:
        lines.append(["growth", "exponent between the last two sizes", ", ".join(grown), "", ""])
    spent = {
        row["name"]: row["facts"]["ns"]
        for row in facts["rows"]
        if "ns" in row["facts"] and any(found["aim"] for found in row["ratios"].values())
    }
    parts = [f"`{facts['command']}`: {closing(facts).replace(chr(10), '; ').strip('; ')}."]
    parts.append(_markdown(lines))
    if spent:
        parts += ["Nanoseconds per row, step and token id:", _markdown(table(spent))]
    return "\n\n".join(parts) + "\n"


def _ranges(solved: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Least and most of the solver's ratios by kind, their aims, how many met them."""
    cells = []
    for kind, found in solved.items():
        middles = [one["middle"] for one in found]
        met = sum(one["verdict"] == "met" for one in found)
        said = f"peer/ours, {kind}: {min(middles):.2f} to {max(middles):.2f}"
        cells.append((said, found[0]["aim"], f"{met} of {len(found)} met"))
    return ["; ".join(each) for each in zip(*cells, strict=True)]


def _markdown(lines: list[list[str]]) -> str:
    head, *rest = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([head, "|" + "---|" * len(lines[0]), *rest])


def put(text: str, into: str) -> str:
    """Replaces what stands between the marks of a page.

    Raises:
        ValueError: The page has no such marks.
    """
    before, start, rest = into.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"the page has no {START} with {END} after it")
    return f"{before}{START}\n\n{text}\n{END}{after}"


def main() -> None:
    """Prints the tables, or puts them into the page that is named second."""
    if len(sys.argv) not in (2, 3):
        raise SystemExit((__doc__ or "").strip())
    text = page(json.loads(Path(sys.argv[1]).read_text()))
    if len(sys.argv) == 2:
        sys.stdout.write(text)
    else:
        target = Path(sys.argv[2])
        target.write_text(put(text, target.read_text()))


if __name__ == "__main__":
    main()
