"""Prepared references by prompt, as many as memory should hold."""

from __future__ import annotations

from collections.abc import Mapping

from nafaudit.overlap.words import Reference, prepare

# A prepared reference takes about 100 bytes for each of its characters.
MOST_CHARACTERS = 500_000


class PreparedReferences:
    """Prepares a prompt's reference when it is asked for; forgets what was not asked for longest.

    Args:
        texts: References by prompt.
        most: Characters of all references that are kept prepared; the last one always is.
    """

    def __init__(self, texts: Mapping[str, str], most: int = MOST_CHARACTERS) -> None:
        self._texts, self._most, self._held = texts, most, 0
        self._kept: dict[str, Reference] = {}

    def get(self, prompt: str) -> Reference | None:
        """The prompt's reference; None if it has none with a word in it."""
        text = self._texts.get(prompt, "")
        if not text.strip():
            return None
        found = self._kept.pop(prompt, None)
        if found is None:
            found = prepare(text)
            self._held += len(text)
        # Last in the dictionary is last to be forgotten.
        self._kept[prompt] = found
        while self._held > self._most and len(self._kept) > 1:
            oldest = next(iter(self._kept))
            del self._kept[oldest]
            self._held -= len(self._texts[oldest])
        return found

    def __len__(self) -> int:
        """How many are prepared."""
        return len(self._kept)
