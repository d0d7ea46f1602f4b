"""Takes a prompt apart and joins it again: without it every operator would cut text its own way."""

from __future__ import annotations

import re
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
        """The same instruction before another text."""
        return f"{self.header}\n{body}" if self.header else body


def pieces_of(text: str) -> Pieces:
    """Cuts a prompt; white space between sentences becomes one space."""
    first, line_end, rest = text.partition("\n")
    header = first.strip() if line_end and first.rstrip().endswith(":") and rest.strip() else ""
    body = rest if header else text
    found = (match[0].strip() for match in _SENTENCE.finditer(body))
    return Pieces(header, tuple(sentence for sentence in found if sentence))


def names_of(text: str) -> list[str]:
    """Capitalised words that look like names, in order of appearance, each once.

    A single word that opens a sentence is a name only if it is written so elsewhere as well.
    """
    found = [(_bare(match[0]), _opens(text, match.start())) for match in _NAME.finditer(text)]
    inside = {name for name, opens in found if not opens or " " in name}
    return list(dict.fromkeys(name for name, _ in found if name and name in inside))


def _bare(name: str) -> str:
    """Without words such as "The" in front."""
    words = name.split()
    while words and _NOT_NAMES.fullmatch(words[0]):
        words.pop(0)
    return " ".join(words)


def _opens(text: str, place: int) -> bool:
    before = text[:place].rstrip(" \"'(")
    return not before or before[-1] in ".!?:\n"


def clause_ends(text: str) -> list[int]:
    """Where a reader expects more: just behind a comma or a word that opens a clause."""
    return [match.end() for match in _CLAUSE.finditer(text)]
