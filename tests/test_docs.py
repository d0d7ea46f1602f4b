"""Files and names that the documentation cites are there."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from nafaudit.cli.main import VERBS
from nafaudit.core.finding import Outcome
from nafaudit.paper.checklist import ItemAnswer
from nafaudit.selftest.conform import Conformance, ConformanceItem, Conforms
from nafaudit.views.about import GLOSSARY, VERDICTS
from nafaudit.views.selftest import conform_document
from nafaudit.views.terminal import terminal
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
    others = verdicts.split("## Words of single commands and pages")[1]
    answers = [one.upper() for one in ItemAnswer if one is not ItemAnswer.DEPENDS]
    for word in (*Outcome, *answers, "DEPENDS", "AS LOGGED", "REPLAYED"):
        assert f"`{word}`" in others, word
    for word in ("odometer", "fidelity", "leak", "burst", "opening"):
        assert f"\n| {word} | " in others
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


COMMAND = re.compile(r" *(?:nafaudit|make|pip|python3?|export|ray|duckdb|official/\S+|#|\$) ?")
# Pages with drawings, formulas or files instead of what a command prints; paper.md is generated.
# The output in certify.md is compared to the digit by its own test.
NOT_PRINTED = {"architecture.md", "paper.md", "scaling.md", "certify.md"}
# What is printed by programs without a snapshot: of a real pair, and of the benchmark.
PRINTED_BY = {
    "near-verbatim recall when sampled": PACKAGE,
    "first finalist": ROOT / "benchmarks",
}


def _outputs(page: Path) -> list[list[str]]:
    """Blocks of a page that show what a command prints, without the command."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```text\n(.*?)^```$", text, re.M | re.S)
    plain = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    for block in re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", plain, re.M):
        lines = [line[4:] for line in block.splitlines() if line.strip()]
        # A command may go on in a line that is indented further.
        shown = [x for x in lines if not COMMAND.match(x) and not re.match(r" +(--|\[)", x)]
        blocks += ["\n".join(shown)] if shown and "nafaudit" in text else []
    return [[line for line in block.splitlines() if line.strip(" .")] for block in blocks]


def _shape(line: str) -> str:
    """A line without numbers and with one space for many; one attack, one verdict for others."""
    line = re.sub("^(WITHIN|INCONCLUSIVE): ", "VERDICT: ", line.replace("oracle", "chained"))
    line = re.sub(r"10\^-?[\d.]+|[+-]?\d[\d.,]*(?:e[+-]\d+)?%?", "#", line)
    line = re.sub(r"# time\b", "# times", line)
    line = re.sub(r"k = #(?:, (?:k = )?#)+", "k = #", re.sub(r"\s+", " ", line))
    return re.sub(r"(?:k=# )+", "k=# ", line.replace(" (# a second)", "")).strip()


def test_what_pages_show_is_what_commands_print() -> None:
    """Words, columns and their order, as the snapshots have them, whatever the numbers are."""
    items = [ConformanceItem("terminates", Conforms.YES, "")] * 11
    likeness = "conforms to anchored: YES, no difference was found in 24 answers per budget"
    items.append(ConformanceItem("conforms", Conforms.YES, likeness))
    promise = "banked; anchored, ledger banking, prefix debt positives (n = 5), k = 0.25, 1"
    conformed = conform_document(Conformance(promise, "my_package.my_module:MyDecoder", items))
    printed = [path.read_text() for path in (ROOT / "tests" / "snapshots").glob("*.txt")]
    lines = {_shape(line) for text in (*printed, terminal(conformed)) for line in text.splitlines()}
    heads = {line for line in lines if "#" not in line}
    wrong, seen = [], 0
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for block in _outputs(page) if page.name not in NOT_PRINTED else ():
            seen += len(block)
            words = "".join(
                path.read_text(encoding="utf-8")
                for head, place in PRINTED_BY.items()
                if any(line.startswith(head) for line in block)
                for path in place.rglob("*.py")
            )
            columns, before = 0, ""
            for line in block:
                if words and set(re.findall(r"[a-z]{4,}", line)) <= set(re.findall(r"\w+", words)):
                    continue
                cells, shape = len(re.split(r"\s{2,}", line.strip())), _shape(line)
                # A long line goes on in the next one.
                whole, before = _shape(f"{before} {line}"), line
                if shape in heads or (" k=# " in shape and shape in lines):
                    columns = cells
                elif not (columns > 2 and 2 < cells <= columns) and not any(
                    known.startswith(shape) or known == whole for known in lines
                ):
                    wrong.append(f"{page.name}: {line}")
    assert seen > 100
    assert wrong == [], "\n".join(wrong)


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
