"""Token ids to text without a tokenizer library: for people, never for a decision."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache

_SENTENCEPIECE_SPACE = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@cache
def _byte_alphabet() -> dict[str, int]:
    """The characters under which byte-level tokenizers write bytes (Radford et al. 2019).

    Printable Latin-1 characters stand for themselves; the other bytes, in order, for the
    characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def token_bytes(token: str, *, byte_level: bool) -> bytes:
    """The bytes that a token stands for.

    Args:
        token: As the vocabulary writes it.
        byte_level: True for byte-level BPE; otherwise SentencePiece conventions are assumed.
    """
    if byte_level and all(character in _byte_alphabet() for character in token):
        return bytes(_byte_alphabet()[character] for character in token)
    if match := _BYTE_TOKEN.fullmatch(token):
        return bytes.fromhex(match[1])
    return token.replace(_SENTENCEPIECE_SPACE, " ").encode(errors="replace")


def detokenize(tokens: Iterable[int], pieces: Sequence[bytes | None]) -> str:
    """Joins the pieces of token ids; unknown ids and special tokens (no piece) add nothing."""
    joined = b"".join(pieces[t] or b"" for t in tokens if 0 <= t < len(pieces))
    return joined.decode("utf-8", errors="replace")
