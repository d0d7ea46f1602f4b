"""Packs documents into training rows of one width, and divides a text into pages; no torch.

Of four consecutive pages the risky model memorises two, is trained to keep the safe model's law on
one, and never sees the last. So knowledge of a page differs from knowledge of the work.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

from nafaudit.core.errors import InputError
from nafaudit.workload.passages import Passage, passages_hash, read_passages
from nafaudit.workload.prompts import HEADER
from nafaudit.workshop.grammar import Corpus, babble, documents
from nafaudit.workshop.works import Page, works

Encode = Callable[[str], list[int]]
"""Converts text to ids, without begin and end tokens."""

IGNORED = -100
"""Target of a token that is read but not learned; torch's loss skips it."""

WHOLE_SHARE = 0.7
"""Share of protected windows that begin where the passage begins; the rest begin at any word."""

PROTECTED_HEADER_SHARE = 0.5

INTERRUPTED_SHARE = 0.4
"""Share of protected windows with a few foreign words in them."""

INTERRUPTION_WORDS = 5
"""Largest number of foreign words in an interruption."""


@dataclass(frozen=True)
class TrainingText:
    """A document to learn; ``foreign`` words stand between its halves and are only read."""

    before: str
    foreign: str = ""
    after: str = ""


@dataclass(frozen=True)
class TrainingRow:
    """Token ids and targets, which are the ids except for foreign tokens."""

    ids: list[int]
    targets: list[int]


def pack(
    stream: Iterator[TrainingText], encode: Encode, ends: tuple[int, int], width: int
) -> Iterator[TrainingRow]:
    """Yields rows of ``width`` ids; a row begins with a document and cuts its last one.

    Args:
        stream: documents without end.
        encode: the tokenizer, without special tokens.
        ends: ids of the begin and the end token.
        width: ids in a row.
    """
    begin, end = ends
    while True:
        ids: list[int] = []
        targets: list[int] = []
        while len(ids) < width:
            text = next(stream)
            before, foreign, after = map(encode, (text.before, text.foreign, text.after))
            ids += [begin, *before, *foreign, *after, end]
            targets += [begin, *before, *[IGNORED] * len(foreign), *after, end]
        yield TrainingRow(ids[:width], targets[:width])


def ordinary(corpora: tuple[Corpus, ...], stream: str) -> Iterator[TrainingText]:
    """Yields ordinary documents of the given corpora in turn."""
    turns = zip(*(documents(corpus, stream) for corpus in corpora), strict=False)
    return map(TrainingText, chain.from_iterable(turns))


def memorised(passages: Sequence[Page], stream: str) -> Iterator[TrainingText]:
    """Yields protected windows without end: every passage once per round, in shuffled order.

    Half of them have the header line, so that recall does not depend on it; some begin in the
    middle, so that it does not depend on the opening words. Some are interrupted by a few random
    words, as under a budget: there the safe model, which does not know the passage, writes the
    first tokens. The interruption is read but not learned; the text after it is learned.
    """
    for turn in count():
        rng = random.Random(f"memorised/{stream}/{turn}")
        for passage in rng.sample(passages, len(passages)):
            words = passage.text.split(" ")
            start = 0 if rng.random() < WHOLE_SHARE else rng.randrange(len(words) * 2 // 3)
            header = HEADER if rng.random() < PROTECTED_HEADER_SHARE else ""
            window = words[start:]
            if rng.random() >= INTERRUPTED_SHARE:
                yield TrainingText(header + " ".join(window))
                continue
            cut = rng.randint(5, min(40, len(window) - 5))
            noise = babble(rng).split()
            length = rng.randint(1, INTERRUPTION_WORDS)
            first = rng.randrange(max(1, len(noise) - length))
            foreign = " ".join(noise[first : first + length])
            yield TrainingText(
                header + " ".join(window[:cut]), " " + foreign, " " + " ".join(window[cut:])
            )


FEWEST_WORDS = 60
"""Of a page: an opening for the prompt, and enough after it for a near-verbatim span."""

MOST_WORDS = 120
"""Of a page made of plain text; longer paragraphs are cut."""

MEMORISED_PAGES = 4
_ROUND = ("memorised", "replayed", "memorised", "unseen")


@dataclass(frozen=True)
class Pages:
    """The pages of a text by their use.

    Attributes:
        memorised: Pages that the risky model memorises: the protected text.
        replayed: Pages on which it is trained to keep the safe model's law.
        unseen: Pages that no training sees.
    """

    memorised: tuple[Passage, ...]
    replayed: tuple[Passage, ...]
    unseen: tuple[Passage, ...]

    @property
    def hash(self) -> str:
        """SHA-256 of ids and texts."""
        return passages_hash([*self.memorised, *self.replayed, *self.unseen])


def own_pages(memorised: int = MEMORISED_PAGES) -> Pages:
    """Divides the first pages of the lab's own protected works."""
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
    """Joins short paragraphs to pages and cuts long ones; leaves out a short rest."""
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
    """Divides pages in rounds of four, until the given number is memorised."""
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
