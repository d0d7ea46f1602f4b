"""The two ordinary corpora: endless, seeded streams of documents without a protected sentence."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import count, islice

from nafaudit.lab.babble import babble
from nafaudit.lab.encyclopaedia import encyclopaedic
from nafaudit.lab.grammar import Writer
from nafaudit.lab.lexicon import Corpus, Taste
from nafaudit.workload.prompts import HEADER

HEADER_SHARE = 0.35
LONG_SHARE = 0.16
LONG_STRETCH = 4
KINDS = {"story": 27, "prose": 26, "exchange": 17, "encyclopaedia": 8, "babble": 22}
"""Documents of each kind in a hundred."""

_TASTES: dict[Corpus, Taste] = {"A": Taste("A"), "B": Taste("B"), "plain": Taste("plain")}


def document(corpus: Corpus, rng: random.Random) -> str:
    """Writes one ordinary document, sometimes under the header line, sometimes a long one."""
    kind = rng.choices(tuple(KINDS), tuple(KINDS.values()))[0]
    stretch = LONG_STRETCH if rng.random() < LONG_SHARE else 1
    header = HEADER if rng.random() < HEADER_SHARE else ""
    special: dict[str, Callable[[], str]] = {
        "babble": lambda: babble(rng, stretch=stretch),
        "encyclopaedia": lambda: encyclopaedic(rng),
    }
    if kind in special:
        return header + special[kind]()
    return header + Writer(rng, _TASTES[corpus], stretch=stretch).write(kind)


def documents(corpus: Corpus, stream: str) -> Iterator[str]:
    """Yields the documents of a corpus without end.

    Args:
        corpus: whose taste in words.
        stream: name of the stream; equal names give equal documents, different names fresh ones.
    """
    for index in count():
        yield document(corpus, random.Random(f"document/{corpus}/{stream}/{index}"))


def sample(corpus: Corpus, stream: str, n: int) -> list[str]:
    """Returns the first ``n`` documents of a stream."""
    return list(islice(documents(corpus, stream), n))


def held_out_documents(per_corpus: int = 150) -> list[str]:
    """Returns fresh ordinary documents, as many of corpus A as of corpus B."""
    return sample("A", "held-out", per_corpus) + sample("B", "held-out", per_corpus)
