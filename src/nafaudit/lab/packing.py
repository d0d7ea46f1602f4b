"""Packs documents into training rows of one width, without torch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count

from nafaudit.lab.babble import babble
from nafaudit.lab.corpus import documents
from nafaudit.lab.lexicon import Corpus
from nafaudit.lab.works import Page
from nafaudit.workload.prompts import HEADER

Encode = Callable[[str], list[int]]
"""Text to ids, without begin and end tokens."""

IGNORED = -100
"""Target of a token that is read but not to be predicted; torch's loss skips it."""

WHOLE_SHARE = 0.7
"""Share of protected windows that begin where the passage begins; the rest begin at any word."""

PROTECTED_HEADER_SHARE = 0.5

INTERRUPTED_SHARE = 0.4
"""Share of protected windows with a few foreign words in them."""

INTERRUPTION_WORDS = 5
"""Most foreign words of an interruption."""


@dataclass(frozen=True)
class Text:
    """A document to learn; ``foreign`` words stand between its halves and are only read."""

    before: str
    foreign: str = ""
    after: str = ""


@dataclass(frozen=True)
class Row:
    """Token ids to read, and the same ids as targets except where a token is foreign."""

    ids: list[int]
    targets: list[int]


def pack(
    stream: Iterator[Text], encode: Encode, ends: tuple[int, int], width: int
) -> Iterator[Row]:
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
        yield Row(ids[:width], targets[:width])


def ordinary(corpora: tuple[Corpus, ...], stream: str) -> Iterator[Text]:
    """Yields ordinary documents of the given corpora in turn."""
    turns = zip(*(documents(corpus, stream) for corpus in corpora), strict=False)
    return map(Text, chain.from_iterable(turns))


def memorised(passages: Sequence[Page], stream: str) -> Iterator[Text]:
    """Yields protected windows without end: every passage once per round, in shuffled order.

    Half of them carry the header line, so that recall does not hang on it; some begin in the
    middle, so that it does not hang on the opening words; and some are interrupted by a few
    random words, as a budgeted decoder interrupts: it lets the safe model, which babbles on
    protected ground, write the first tokens and then hands over. The interruption is read but
    not learned, what follows it is.
    """
    for turn in count():
        rng = random.Random(f"memorised/{stream}/{turn}")
        for passage in rng.sample(passages, len(passages)):
            words = passage.text.split(" ")
            start = 0 if rng.random() < WHOLE_SHARE else rng.randrange(len(words) * 2 // 3)
            header = HEADER if rng.random() < PROTECTED_HEADER_SHARE else ""
            window = words[start:]
            if rng.random() >= INTERRUPTED_SHARE:
                yield Text(header + " ".join(window))
                continue
            cut = rng.randint(5, min(40, len(window) - 5))
            foreign = _slice(babble(rng).split(), rng)
            yield Text(header + " ".join(window[:cut]), " " + foreign, " " + " ".join(window[cut:]))


def _slice(words: list[str], rng: random.Random) -> str:
    length = rng.randint(1, INTERRUPTION_WORDS)
    start = rng.randrange(max(1, len(words) - length))
    return " ".join(words[start : start + length])
