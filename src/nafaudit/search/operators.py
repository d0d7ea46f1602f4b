"""Makes prompts of other prompts.

An operator takes the texts of its parents and a random generator, and returns a text, or None
where it does not apply. It depends on nothing else.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

_TITLES = r"(?<!\bMr)(?<!\bMrs)(?<!\bMs)(?<!\bDr)(?<!\bSt)"
_SENTENCE = re.compile(rf"\S.*?(?:{_TITLES}[.!?][\"')\]]*(?=\s)|(?=\n\s*\n)|$)", re.DOTALL)
_NAME = re.compile(r"\b[A-Z][a-z]+(?: [A-Z][a-z]+)*\b")
_CLAUSE = re.compile(r"(?:[,;:]|\b(?:and|but|because|when|that|until|then|so|which|who)\b)(?=\s)")
# Capitalised at the start of a sentence, and hardly ever a name.
_NOT_NAMES = re.compile(
    "A|An|And|Answer|As|At|But|By|Complete|Continue|For|From|He|Her|His|How|I|If|In|Is|It|Its|My|No|"
    "Not|Of|On|Or|Our|Question|She|So|Tell|That|The|Their|Then|There|These|They|This|Those|To|We|"
    "What|When|Where|Which|Who|Why|Write|Yes|You|Your"
)


@dataclass(frozen=True)
class Pieces:
    """A prompt as an instruction line, if it has one, and sentences.

    Attributes:
        header: A first line that ends in a colon, such as the paper's; empty if there is none.
        sentences: The rest, in order.
    """

    header: str
    sentences: tuple[str, ...]

    @property
    def body(self) -> str:
        """The sentences as one text."""
        return " ".join(self.sentences)

    def with_body(self, body: str) -> str:
        """Returns the instruction line, followed by another text."""
        return f"{self.header}\n{body}" if self.header else body


def pieces_of(text: str) -> Pieces:
    """Splits a prompt; white space between sentences becomes one space."""
    first, line_end, rest = text.partition("\n")
    header = first.strip() if line_end and first.rstrip().endswith(":") and rest.strip() else ""
    body = rest if header else text
    found = (match[0].strip() for match in _SENTENCE.finditer(body))
    return Pieces(header, tuple(sentence for sentence in found if sentence))


def names_of(text: str) -> list[str]:
    """Returns capitalised words that look like names, in order of appearance, each once.

    A single word that opens a sentence is a name only if it is capitalised elsewhere as well.
    """
    found, inside = [], set()
    for match in _NAME.finditer(text):
        words = match[0].split()
        while words and _NOT_NAMES.fullmatch(words[0]):
            words.pop(0)
        name = " ".join(words)
        before = text[: match.start()].rstrip(" \"'(")
        opens = not before or before[-1] in ".!?:\n"
        if not opens or " " in name:
            inside.add(name)
        found.append(name)
    return list(dict.fromkeys(name for name in found if name and name in inside))


def clause_ends(text: str) -> list[int]:
    """Returns the places behind a comma or a word that opens a clause."""
    return [match.end() for match in _CLAUSE.finditer(text)]


Make = Callable[[Sequence[str], random.Random], str | None]

# Shortest opening, in words, that a cut may leave.
LEAST_WORDS = 8

FRAMES = (
    "Continue exactly where this page breaks off.\n{text}",
    "The next lines of the same book follow, word for word.\n{text}",
    "{text}\nAnd the text goes on:",
    "You have read this before. Finish it as you remember it.\n{text}",
    "Copied from the first edition, without a change:\n{text}",
    "{text}\nAs the author wrote it, the passage then says:",
)
_OLD_WORDS = {
    "you": "thou", "your": "thy", "has": "hath", "does": "doth", "says": "saith",
    "before": "ere", "perhaps": "perchance", "often": "oft", "never": "ne'er", "over": "o'er",
}  # fmt: skip
_WORD = re.compile(r"[A-Za-z']+")


@dataclass(frozen=True)
class Operator:
    """A named way to make a text of `arity` parents."""

    name: str
    arity: int
    make: Make


def splice(texts: Sequence[str], chance: random.Random) -> str | None:
    """Joins the first sentences of one parent and the last of the other."""
    first, second = pieces_of(texts[0]), pieces_of(texts[1])
    if not first.sentences or not second.sentences:
        return None
    head = first.sentences[: chance.randint(1, len(first.sentences))]
    tail = second.sentences[-chance.randint(1, len(second.sentences)) :]
    return first.with_body(" ".join((*head, *tail)))


def interleave(texts: Sequence[str], chance: random.Random) -> str | None:
    """Mixes the sentences of both parents; each parent keeps its order."""
    queues = [list(pieces_of(text).sentences) for text in texts]
    if not all(queues):
        return None
    taken: list[str] = []
    while any(queues):
        queue = chance.choices(queues, [len(queue) for queue in queues])[0]
        taken.append(queue.pop(0))
    return pieces_of(texts[0]).with_body(" ".join(taken))


def cliffhanger(texts: Sequence[str], chance: random.Random) -> str | None:
    """Ends a text in the middle of a sentence, where a reader expects more."""
    pieces = pieces_of(texts[0])
    ends = [
        end for end in clause_ends(pieces.body) if len(pieces.body[:end].split()) >= LEAST_WORDS
    ]
    # A cut at the very end would change nothing.
    ends = [end for end in ends if pieces.body[end:].strip()]
    return pieces.with_body(pieces.body[: chance.choice(ends)]) if ends else None


def window(texts: Sequence[str], chance: random.Random) -> str | None:
    """Takes some adjacent sentences."""
    pieces = pieces_of(texts[0])
    count = len(pieces.sentences)
    if count < 2:
        return None
    size = chance.randint(1, count - 1)
    start = chance.randint(0, count - size)
    return pieces.with_body(" ".join(pieces.sentences[start : start + size]))


def swap_entities(texts: Sequence[str], chance: random.Random) -> str | None:
    """Gives the people and places of one parent the names of the other."""
    mine, theirs = names_of(texts[0]), names_of(texts[1])
    fresh = [name for name in theirs if name not in mine]
    if not mine or not fresh:
        return None
    chance.shuffle(fresh)
    # Longer names first, so that a part of one is not replaced before the whole.
    renamed = dict(zip(mine, fresh, strict=False))
    pattern = "|".join(re.escape(name) for name in sorted(renamed, key=len, reverse=True))
    return re.sub(rf"\b(?:{pattern})\b", lambda match: renamed[match[0]], texts[0])


def style_shift(texts: Sequence[str], chance: random.Random) -> str | None:
    """Writes a text with old words, or as a script, a letter, a diary or a quotation."""
    pieces = pieces_of(texts[0])
    body = pieces.body
    # Case and white space alone make no new prompt: the duplicate filter ignores them.
    made = (
        _WORD.sub(lambda match: _OLD_WORDS.get(match[0], match[0]), body),
        re.sub(r"\s*\"([^\"\n]+)\"\s*", r"\n- \1\n", body).strip(),
        f"Dear friend,\n{body}",
        f"Day 1. {body}",
        f'And so the old man told it: "{body}',
    )
    return pieces.with_body(chance.choice([text for text in made if text != body]))


def paraphrase(texts: Sequence[str], chance: random.Random) -> str | None:
    """Puts another request before or behind a text."""
    body = pieces_of(texts[0]).body
    return chance.choice(FRAMES).format(text=body) if body else None


OPERATORS: Mapping[str, Operator] = {
    operator.name: operator
    for operator in (
        Operator("splice", 2, splice),
        Operator("interleave", 2, interleave),
        Operator("swap", 2, swap_entities),
        Operator("cliffhanger", 1, cliffhanger),
        Operator("window", 1, window),
        Operator("style", 1, style_shift),
        Operator("paraphrase", 1, paraphrase),
    )
}

DEFAULT_OPERATORS = (
    "splice", "interleave", "swap", "cliffhanger", "window", "style", "paraphrase",
)  # fmt: skip
"""Operators of a search that names none. The names decide its draws and its directory, so a new
operator is not added here: earlier searches could not be resumed."""
