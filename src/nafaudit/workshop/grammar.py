"""Writes the lab's ordinary text: two corpora of words, grammar, articles and noise.

**Words.** Two corpora are written with one grammar and one lexicon. They differ in taste: each has
its own order of preference over the words of every category, and draws the word of rank r out of n
with weight exp(-4 r / n). A pair trained on different tastes disagrees mildly about ordinary text,
as two language models from different sources do.

**Grammar.** A template is text with slots. ``{thing}`` expands a rule of the grammar or draws a
word of the lexicon; ``{hero=name}`` draws and binds, so that ``{hero}`` means the same name from
then on; ``{event:2-4}`` expands a rule two to four times, preferring options not used yet. ``a(n)``
becomes "a" or "an", and sentences begin with a capital.

**Articles.** An entry of the small encyclopaedia of people who never lived is a function of its
name, so both corpora give equal facts and the workload's reference text is what the models read.

**Noise.** A safe model that never read the word "purser" would pay for the spelling, not for the
sentence, and the pair would not be like two models trained on much text. So a small share of
the ordinary text is words in random order: the words of the lexicon and, **disclosed here and in
the card, the words of all written works, protected and held out, half of them drawn equally often
and half as often as the works use them, each independently of the others**. Their sentences are
never in it: no eight consecutive words of any passage occur in the ordinary corpora, which a test
checks.
"""

from __future__ import annotations

import math
import random
import re
import tomllib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from itertools import accumulate, count, islice
from typing import Any, Literal

from nafaudit.workload.prompts import HEADER
from nafaudit.workshop.works import passages

Corpus = Literal["A", "B", "plain"]
"""A and B have tastes of their own; "plain" draws every word equally often."""

STEEPNESS = 4.0
"""Decay of preference over ranks: the favourite is e^4 times likelier than the last word."""


@cache
def read_toml(name: str) -> Mapping[str, Any]:
    """Parses one data file of the lab's ``text`` directory."""
    source = resources.files("nafaudit.workshop") / "text" / name
    return tomllib.loads(source.read_text(encoding="utf-8"))


@cache
def lexicon() -> Mapping[str, tuple[str, ...]]:
    """Returns the phrases of every category, in the order of the data file."""
    table = read_toml("lexicon.toml")
    return {
        category: tuple(" ".join(phrase.split()) for phrase in text.split(","))
        for category, text in table.items()
    }


@cache
def vocabulary() -> tuple[str, ...]:
    """Returns the distinct single words of the lexicon and the grammars, sorted."""
    words: set[str] = set()
    for phrases in lexicon().values():
        for phrase in phrases:
            words.update(phrase.split())
    return tuple(sorted(words))


@dataclass(frozen=True)
class Taste:
    """One corpus's preferences over the words of every category.

    Weights are integers, so that the same seed draws the same words where the platform's ``exp``
    differs in the last bit.
    """

    corpus: Corpus
    _tables: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def draw(self, category: str, rng: random.Random) -> str:
        """Draws one phrase of the category."""
        if category not in self._tables:
            ranked = list(lexicon()[category])
            random.Random(f"taste/{self.corpus}/{category}").shuffle(ranked)
            steepness = 0.0 if self.corpus == "plain" else STEEPNESS
            weights = preference_weights(len(ranked), steepness)
            self._tables[category] = tuple(ranked), tuple(accumulate(weights))
        phrases, cumulative = self._tables[category]
        return phrases[bisect_right(cumulative, rng.randrange(cumulative[-1]))]


def preference_weights(n: int, steepness: float = STEEPNESS) -> Sequence[int]:
    """Returns integer weights proportional to exp(-steepness * rank / n), the first 10^6."""
    return [round(1e6 * math.exp(-steepness * rank / n)) for rank in range(n)]


_SLOT = re.compile(r"\{(?:(\w+)=)?(\w+)(?::(\d+)-(\d+))?\}")
_ARTICLE = re.compile(r"\b([Aa])\(n\) (\w{1,4})")
_VOWEL = re.compile(r"[aeiou]|hon|hour", re.IGNORECASE)
_CONSONANT = re.compile(r"use|uni|one", re.IGNORECASE)
# A quotation that ends in a full stop ends its sentence; one that ends in "?" goes on with "said".
_START = re.compile(r"(^|[.!?]\s+|\.\"\s+|\n)(\"?)([a-z])")
_SHE = {"they": "she", "them": "her", "their": "her"}
_HE = {"they": "he", "them": "him", "their": "his"}
_REDRAWS = 3  # enough to make repeated words rare; more would flatten the taste in long documents


@cache
def rules() -> Mapping[str, tuple[str, ...]]:
    """Returns the options of every rule of the three grammars."""
    merged: dict[str, tuple[str, ...]] = {}
    for name in ("stories.toml", "prose.toml", "exchanges.toml"):
        for rule, options in read_toml(name).items():
            if rule in merged or rule in lexicon():
                raise ValueError(f"rule {rule!r} of {name} is defined twice; rename one of them")
            merged[rule] = tuple(options)
    return merged


@cache
def read_women() -> frozenset[str]:
    """Returns the first names that take "she"."""
    return frozenset(name.strip() for name in read_toml("names.toml")["women"].split(","))


class Writer:
    """Writes one document, with one hero, and avoids words that it has used."""

    def __init__(self, rng: random.Random, taste: Taste, *, stretch: int = 1) -> None:
        """Starts an empty document.

        Args:
            rng: source of all choices.
            taste: the corpus's preferences over words.
            stretch: factor on every repeat count above one; a few documents run long with it.
        """
        self._rng = rng
        self._taste = taste
        self._stretch = stretch
        self._bound: dict[str, str] = {}
        self._used: set[str] = set()
        self._bags: dict[str, list[str]] = {}

    def bind(self, **names: str) -> Writer:
        """Fixes what the given slots expand to, and returns the writer."""
        self._bound.update(names)
        self._used.update(names.values())
        return self

    def write(self, rule: str) -> str:
        """Expands a rule into finished text."""
        return polish(self._expand(rule))

    def _expand(self, rule: str) -> str:
        bag = self._bags.get(rule)
        if not bag:
            bag = list(rules()[rule])
            self._rng.shuffle(bag)
            self._bags[rule] = bag
        return _SLOT.sub(self._fill, bag.pop())

    def _fill(self, slot: re.Match[str]) -> str:
        name, target, low, high = slot.groups()
        if name is not None:
            if name not in self._bound:
                self._bound[name] = self._word(target)
            return self._bound[name]
        if low is not None:
            count = self._rng.randint(int(low), int(high))
            if int(high) > 1:
                count *= self._stretch
            return " ".join(self._expand(target) for _ in range(count))
        if target in self._bound:
            return self._bound[target]
        if target in _SHE:
            pronouns = _SHE if self._bound.get("hero", "Ada") in read_women() else _HE
            return pronouns[target]
        if target in lexicon():
            return self._word(target)
        # A reply may name what its prompt left open: who, what and where are then drawn.
        openings = {"who": "animal", "what": "thing", "where": "place"}
        if target in openings:
            return self._bound.setdefault(target, self._word(openings[target]))
        return self._expand(target)

    def _word(self, category: str) -> str:
        for _ in range(_REDRAWS):
            word = self._taste.draw(category, self._rng)
            if word not in self._used:
                break
        self._used.add(word)
        return word


def polish(text: str) -> str:
    """Corrects articles, capitals and spaces of an expanded template."""

    def article(match: re.Match[str]) -> str:
        word = match[2]
        vowel = _VOWEL.match(word) and not _CONSONANT.match(word)
        return f"{match[1]}n {word}" if vowel else f"{match[1]} {word}"

    text = re.sub(r" +", " ", text).strip()
    text = re.sub(r" ?\n ?", "\n", text)
    text = _ARTICLE.sub(article, text)
    return _START.sub(lambda m: m[1] + m[2] + m[3].upper(), text)


ENTRIES = 160
_PLAIN = Taste("plain")

QUESTIONS = {
    "one_fact_prompt": "Question: Tell me one fact about {entity}.\nAnswer:",
    "factscore_prompt": "Question: Tell me a bio of {entity}.\nAnswer:",
    "hundredw_prompt": "Question: Who was {entity}? Answer in a hundred words.\nAnswer:",
    "around_100": "Write around 100 words about {entity}.\nAnswer:",
}
"""The prompt of each field of the paper's factual file."""


@dataclass(frozen=True)
class Entry:
    """One person of the encyclopaedia."""

    entity: str
    article: str

    def prompt(self, field: str) -> str:
        """Returns the question that a prompt field of the factual file asks."""
        return QUESTIONS[field].format(entity=self.entity)

    def answer(self, field: str) -> str:
        """Returns what a document answers: the first sentence to "one fact", else the article."""
        return self.article.split(". ")[0] + "." if field == "one_fact_prompt" else self.article


@cache
def entries() -> tuple[Entry, ...]:
    """Returns all entries, by name."""
    rng = random.Random("encyclopaedia")
    names: set[str] = set()
    while len(names) < ENTRIES:
        names.add(f"{rng.choice(lexicon()['name'])} {rng.choice(lexicon()['surname'])}")
    found = []
    for name in sorted(names):
        rng = random.Random(f"entry/{name}")
        writer = Writer(rng, _PLAIN)
        job, seat = _PLAIN.draw("trade", rng), _PLAIN.draw("town", rng)
        found.append(Entry(name, writer.bind(entity=name, job=job, seat=seat).write("article")))
    return tuple(found)


def encyclopaedic(rng: random.Random) -> str:
    """Writes a document about one entry: a question and its answer, or the bare article."""
    entry = rng.choice(entries())
    if rng.random() < 0.25:
        return entry.article
    field = rng.choice(tuple(QUESTIONS))
    return f"{entry.prompt(field)} {entry.answer(field)}"


_TOKEN = re.compile(r"[A-Za-z]+(?:['\u2019-][A-Za-z]+)*")

# Common words and pairs of English with rough relative frequencies, put between random words, so
# that the models learn that any word may follow "the" or "as if a".
_JOINTS = """
the 60, of 22, and 30, a 26, to 18, in 14, that 10, it 8, was 8, he 8, she 8, for 8, on 6, with
6, as 6, I 8, his 8, her 8, at 5, by 5, had 6, not 5, but 6, from 4, they 4, which 4, one 4, all
3, you 4, would 3, my 4, we 4, so 3, when 4, who 4, no 3, were 3, is 5, if 3, what 3, an 4, its
3, or 3, this 3, him 2, then 3, where 2, never 2, because 2, before 2, after 2, until 2, our 2,
than 2, only 2, like 2, over 2, into 2, out 2, up 2, down 2, has 2, of the 14, in the 12, and
the 9, to the 8, on the 8, it was 8, of a 7, in a 6, with a 6, at the 6, from the 5, by the 5,
for the 5, that the 4, with the 4, to be 4, he had 4, she had 4, there was 4, I have 4, did not
4, does not 3, it is 4, had been 3, and a 4, as if 3, as a 3, would have 2, could not 3, I had
3, was a 3, was the 3, into the 3, and I 3, and it 2, but the 3, out of 3, one of the 3, all the
3, he said 3, she said 3, for a 3, under the 2, over the 2, nobody had 2, they had 2, we had 2,
which is 2, who had 2, so that 2, what the 2, up the 2
"""


_JOINT_SHARE = 0.35


@cache
def _joints() -> tuple[tuple[str, ...], tuple[int, ...]]:
    pairs = [entry.rsplit(maxsplit=1) for entry in _JOINTS.split(",")]
    return tuple(" ".join(j.split()) for j, _ in pairs), tuple(int(weight) for _, weight in pairs)


@cache
def all_words() -> tuple[str, ...]:
    """Returns every word of the lexicon and of the written works once, sorted."""
    words = set(vocabulary())
    for passage in passages():
        words.update(_TOKEN.findall(passage.text))
    return tuple(sorted(words))


@cache
def _bag() -> tuple[str, ...]:
    return tuple(word for passage in passages() for word in _TOKEN.findall(passage.text))


def babble(rng: random.Random, *, stretch: int = 1) -> str:
    """Writes a few sentences of random words."""
    return " ".join(_sentence(rng) for _ in range(rng.randint(2, 6) * stretch))


def _sentence(rng: random.Random) -> str:
    words, (joints, weights) = all_words(), _joints()
    parts: list[str] = []
    for _ in range(rng.randint(4, 16)):
        if rng.random() < _JOINT_SHARE:
            parts.extend(rng.choices(joints, weights))
        else:
            source = words if rng.random() < 0.5 else _bag()
            parts.append(rng.choice(source) + ("," if rng.random() < 0.12 else ""))
    text = " ".join(parts).rstrip(",")
    mark = rng.choices(".?;", (9, 1, 1))[0]
    if rng.random() < 0.1:
        text = f'"{text}"'
    return text[:1].upper() + text[1:] + mark


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
