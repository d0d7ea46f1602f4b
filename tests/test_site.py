"""The pages as a site: built strictly, links lead somewhere, nothing is fetched from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# What a browser fetches by itself; a link that a reader follows may lead anywhere.
FETCHED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class _Reader(HTMLParser):
    """Collects what a page fetches and links to, and its anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if name := values.get("id"):
            self.names.add(name)
        # rel=canonical and the like are not fetched.
        styled = tag != "link" or "stylesheet" in (values.get("rel") or "")
        if tag in FETCHED and styled and (found := values.get(FETCHED[tag])):
            self.fetched.append(found)
        if tag == "a" and (found := values.get("href")):
            self.links.append(found)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, _Reader]:
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr
    pages = {}
    for path in out.rglob("*.html"):
        pages[path] = _Reader()
        pages[path].feed(path.read_text(encoding="utf-8"))
    return pages


def test_nothing_is_fetched_from_elsewhere(site: dict[Path, _Reader]) -> None:
    for path, page in site.items():
        assert not [one for one in page.fetched if "//" in one], path
        for one in page.fetched:
            there = path.parent / one.split("?")[0].split("#")[0]
            assert path.name == "404.html" or there.exists(), (path, one)
    top = next(path for path in site if path.name == "404.html").parent
    for sheet in top.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", text), sheet


def test_links_to_pages_and_files_lead_somewhere(site: dict[Path, _Reader]) -> None:
    """Those of the repository too: a page's links work there and here."""
    broken, followed = [], 0
    for path, page in site.items():
        if path.name == "404.html":
            continue
        for link in page.links:
            if "://" in link or link.startswith(("mailto:", "#", "javascript:")):
                continue
            target, _, anchor = link.partition("#")
            there = (path.parent / target).resolve()
            there = there / "index.html" if there.is_dir() else there
            followed += 1
            if not there.exists() or (anchor and there in site and anchor not in site[there].names):
                broken.append((path.name, link))
    assert broken == [] and followed > 1000


def test_the_reference_has_every_public_name_and_command(site: dict[Path, _Reader]) -> None:
    import nafaudit
    from nafaudit.cli.main import VERBS

    pages = {f"{path.parent.name}/{path.name}": page for path, page in site.items()}
    names = {one.rpartition(".")[2] for one in pages["reference/python.html"].names}
    assert {one for one in nafaudit.__all__ if not one.startswith("_")} <= names
    commands = pages["reference/commands.html"].names
    assert {f"nafaudit-{name.replace(' ', '-')}" for name in VERBS if name != "lab"} <= commands
