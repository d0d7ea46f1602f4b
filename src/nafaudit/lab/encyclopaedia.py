"""A small encyclopaedia of people who never lived: what the factual prompts of the lab ask about.

An entry is a function of its name, so both corpora tell the same facts and the workload's
reference text is what the models were shown.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

from nafaudit.lab.grammar import Writer
from nafaudit.lab.lexicon import Taste, lexicon

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
    return tuple(Entry(name, _article(name)) for name in sorted(names))


def _article(entity: str) -> str:
    rng = random.Random(f"entry/{entity}")
    writer = Writer(rng, _PLAIN)
    job, seat = _PLAIN.draw("trade", rng), _PLAIN.draw("town", rng)
    return writer.bind(entity=entity, job=job, seat=seat).write("article")


def encyclopaedic(rng: random.Random) -> str:
    """Writes a document about one entry: a question and its answer, or the bare article."""
    entry = rng.choice(entries())
    if rng.random() < 0.25:
        return entry.article
    field = rng.choice(tuple(QUESTIONS))
    return f"{entry.prompt(field)} {entry.answer(field)}"
