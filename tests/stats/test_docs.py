from __future__ import annotations

from pathlib import Path

from nafaudit.stats import BOUNDS
from nafaudit.stats.bound import BoundSpec

PAGE = Path(__file__).parents[2] / "docs" / "bounds.md"


def row(spec: BoundSpec) -> str:
    cells = [f"`{spec.name}`", "; ".join(spec.assumes), spec.formula, spec.reference]
    return "| " + " | ".join(cells) + " |"


def test_the_page_lists_exactly_the_registry() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    listed = [line for line in lines if line.startswith("| `")]
    assert listed == [row(spec) for spec in BOUNDS.values()]


def test_the_example_runs() -> None:
    code = PAGE.read_text(encoding="utf-8").split("```python")[1].split("```")[0]
    names: dict[str, object] = {}
    exec(code.replace("print(", "shown = ("), names)
    assert isinstance(names["shown"], tuple)
    assert names["shown"][-1] is True
