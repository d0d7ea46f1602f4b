"""Files and names that the documentation cites are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "nafaudit"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
# A path of ours begins with a room or with a directory of the repository.
ROOMS = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
BESIDE = {"benchmarks", "docs", "src", "tests"}
CITED = re.compile(r"`([\w-]+(?:/[\w-]+)*(?:/|\.(?:py|csv|toml|jsonl)))(?:: ?([\w.]+))?`")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_cites_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = [link for link in LINK.findall(text) if not _is_there(link, page)]
    for cited, name in CITED.findall(text):
        first = cited.split("/")[0]
        if "/" not in cited or first not in ROOMS | BESIDE:
            continue
        path = (PACKAGE if first in ROOMS else ROOT) / cited
        if not path.exists():
            missing.append(cited)
        elif name and name.split(".")[-1] not in path.read_text(encoding="utf-8"):
            missing.append(f"{cited}: {name}")
    assert missing == []


def _is_there(link: str, page: Path) -> bool:
    return "://" in link or link.startswith("mailto:") or (page.parent / link).exists()
