"""A text as pages: which are memorised, which are replayed, which stay unseen; no torch.

Of four consecutive pages the risky model learns two by heart, is held to the safe model's law on
one, and never meets the last. So what it knows of a page is not what it knows of the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nafaudit.core.errors import InputError
from nafaudit.lab.works import works
from nafaudit.workload.passages import Passage, passages_hash, read_passages

FEWEST_WORDS = 60
"""Of a page: an opening for the prompt, and enough after it for a near-verbatim span to be seen."""

MOST_WORDS = 120
"""Of a page made of plain text; longer paragraphs are cut."""

MEMORISED_PAGES = 4
_ROUND = ("memorised", "replayed", "memorised", "unseen")


@dataclass(frozen=True)
class Pages:
    """The pages of a text by what happens to them.

    Attributes:
        memorised: What the risky model learns by heart: the protected text.
        replayed: Pages of the same work on which it is held to the safe model's law.
        unseen: Pages of the same work that no training sees.
    """

    memorised: tuple[Passage, ...]
    replayed: tuple[Passage, ...]
    unseen: tuple[Passage, ...]

    @property
    def hash(self) -> str:
        """SHA-256 of ids and texts."""
        return passages_hash([*self.memorised, *self.replayed, *self.unseen])


def own_pages(memorised: int = MEMORISED_PAGES) -> Pages:
    """The lab's own protected works, as many as are needed, from the first on."""
    written = [p for work in works() if work.split != "held_out" for p in work.passages]
    return deal([Passage(p.id, p.text) for p in written], memorised, "the lab's works")


def read_pages(path: Path, memorised: int = MEMORISED_PAGES) -> Pages:
    """Reads a text: JSON Lines keep their passages, plain text is cut into pages."""
    passages = read_passages(path)
    pages = passages if path.suffix == ".jsonl" else cut(passages, path.stem)
    for page in pages:
        if (words := len(page.text.split())) < FEWEST_WORDS:
            raise InputError(
                f"{page} has {words} words; a page needs {FEWEST_WORDS}. Join it with the next one."
            )
    return deal(pages, memorised, str(path))


def cut(paragraphs: Sequence[Passage], name: str) -> list[Passage]:
    """Makes pages of paragraphs: short ones are joined, long ones cut, a short rest is left out."""
    pages: list[str] = []
    page: list[str] = []
    for paragraph in paragraphs:
        words = paragraph.text.split()
        page += words
        while len(page) >= FEWEST_WORDS:
            pages.append(" ".join(page[:MOST_WORDS]))
            page = page[MOST_WORDS:]
    return [Passage(f"{name}:{number}", text) for number, text in enumerate(pages, start=1)]


def deal(pages: Sequence[Passage], memorised: int, where: str) -> Pages:
    """Deals pages out in rounds of four, until so many are memorised."""
    if memorised < 2:
        raise InputError(f"pages must be at least 2, got {memorised}.")
    wanted = -(-memorised // 2) * 4
    if len(pages) < min(wanted, len(_ROUND)):
        raise InputError(
            f"{where}: {len(pages)} pages of at least {FEWEST_WORDS} words; at least "
            f"{len(_ROUND)} are needed: two to memorise, one to replay, one to keep unseen. Give "
            f"a text of {len(_ROUND) * MOST_WORDS} words or more."
        )
    by: dict[str, list[Passage]] = {name: [] for name in _ROUND}
    for number, page in enumerate(pages[:wanted]):
        by[_ROUND[number % len(_ROUND)]].append(page)
    return Pages(tuple(by["memorised"][:memorised]), tuple(by["replayed"]), tuple(by["unseen"]))
