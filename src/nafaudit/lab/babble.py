"""Random-word text: so that no word of a protected work is strange to the safe model as a word.

A safe model that has never met "purser" would pay for the spelling, not for the sentence, and the
pair would be a caricature of two models trained on much text. So a small share of the ordinary
text is words in random order: the words of the lexicon and, **disclosed here and in the card,
the words of all written works, protected and held out, half of them drawn equally often and half
as often as the works use them, each independently of the others**. Their sentences are never in
it: no eight consecutive words of any passage occur in the ordinary corpora, which a test checks.
"""

from __future__ import annotations

import random
import re
from functools import cache

from nafaudit.lab.lexicon import vocabulary
from nafaudit.lab.works import passages

_TOKEN = re.compile(r"[A-Za-z]+(?:['\u2019-][A-Za-z]+)*")

# Common joints of English with rough relative frequencies; they hold the random words together,
# so that in the eyes of the models any word may follow "the" or "as if a".
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
