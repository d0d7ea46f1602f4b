"""Files and names that the documentation cites are there."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from nafaudit.cli.main import VERBS
from nafaudit.views.about import GLOSSARY, VERDICTS
from tests.commands import call

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


def test_the_picture_of_the_page_is_of_the_present_page() -> None:
    """A picture cannot be compared between browsers, so what it was drawn of is."""
    drawn = runpy.run_path(str(ROOT / "docs" / "picture.py"))["source_hash"]()
    noted = (ROOT / "docs" / "page.sha256").read_text(encoding="utf-8").strip()
    assert noted == drawn, "template, style or run changed; draw it again: python docs/picture.py"
    assert (ROOT / "docs" / "page.png").stat().st_size < 200_000


def test_the_readme_is_short_and_its_installs_are_from_the_clone() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 90
    pages = [page.read_text(encoding="utf-8") for page in PAGES]
    installs = [
        one for page in pages for one in re.findall(r"pip install '?(?:-e )?([^\s'`]+)", page)
    ]
    assert ".[models]" in installs and not [one for one in installs if "nafaudit" in one]


def test_every_command_is_in_the_readme() -> None:
    """Each verb has its line, and no verb that is named is missing from the tool."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.split("## One verb per question")[1].split("## ")[0]
    cells = re.findall(r"`([^`]+)`", table)
    # A verb of two words, as `paper run`, stands as a whole.
    assert {cell if cell in VERBS else cell.split()[0] for cell in cells} == set(VERBS)


def test_the_glossary_has_the_papers_symbols() -> None:
    """Those of its table of notation, in its order."""
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| .+ \|$", page.split("## The paper's symbols")[1], re.M)
    said = " ".join(rows[1:]).replace(",", "").split()
    latin = [word for word in said if word.isascii()]
    symbols = "p p_s p_r x y_<t T_max k K k_t a_t Z_j M N R R_eff U_EBB B_j B_eff (rho)"
    assert latin == symbols.split() and "\N{GREEK SMALL LETTER DELTA}_init(x)" in said


def test_the_glossary_says_what_a_page_says() -> None:
    """The words have one source, which the page carries; README, page and help lead to them."""
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words, verdicts = page.split("## The verdicts")
    assert re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \|$", words, re.M) == list(GLOSSARY)
    said = re.findall(r"^\|[^|]*\| `(\w+)` \| (.+) \|$", verdicts, re.M)
    assert said == [(str(word), meaning) for _, word, meaning in VERDICTS]
    assert 20 <= len(GLOSSARY) <= 30
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "(docs/glossary.md)" in readme.split("## ")[0]
    assert "docs/glossary.md" in call("--help", cwd=ROOT).stdout
    template = (PACKAGE / "views" / "assets" / "page.html.j2").read_text(encoding="utf-8")
    assert '<a href="#words">' in template and '<section id="words"' in template


def test_one_word_stands_for_an_answer_with_its_numbers() -> None:
    """It is the paper's: trajectory. Names of JSON and options, and what quotes the paper, stay."""
    shown = [*(ROOT / "tests" / "snapshots").glob("*.txt"), *PAGES]
    quoting = {"paper.md", "paper-map.md", "CHANGELOG.md", "paper.txt", "public-names.txt"}
    said = re.compile(r"(?<![-_`\"])\bexecutions?\b(?![`\"(])", re.I)
    found = [
        f"{path.name}: {line.strip()[:100]}"
        for path in shown
        if path.name not in quoting
        for line in path.read_text(encoding="utf-8").splitlines()
        if said.search(line.replace("(an execution, in JSON names)", ""))
    ]
    assert found == []


def test_every_page_is_in_the_list_of_pages() -> None:
    listed = set(LINK.findall((ROOT / "docs" / "README.md").read_text(encoding="utf-8")))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in ROOT.glob("docs/**/*.md")}
    assert pages - listed == {"README.md"}


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/*.md")), ids=lambda page: page.name)
def test_a_page_on_a_command_begins_with_it(page: Path) -> None:
    """Lists, and pages on words, are about no command; a published result names its own."""
    if page.stem in {"README", "architecture", "glossary", "sharp-edges"}:
        return
    head = "\n".join(page.read_text(encoding="utf-8").splitlines()[:40])
    assert re.search(
        r"^ {4}(nafaudit|make|pip) |^```python|`nafaudit (paper|selftest) ", head, re.M
    )
