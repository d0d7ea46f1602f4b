"""What the trajectories of a search repeat of protected text: spend is a proxy, copying is not.

Each output is compared with every passage. Passages that share no run of five words with it
cannot have a longer common run nor a near-verbatim span, so only the others are measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nafaudit.core.text import detokenize
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.overlap import measure, prepare
from nafaudit.overlap.runs import NGRAM, ngrams, words_of
from nafaudit.workload.passages import Passage


@dataclass(frozen=True)
class Copied:
    """The most that one of some trajectories repeats.

    Attributes:
        trajectories: Outputs that were compared.
        repeating: Of them with a run of at least five words of a passage.
        words: Longest run of words shared with a passage; 0 stands for fewer than five.
        passage: Which passage; empty if there is none.
        key: Whose output that is; None if there is none.
        recall: Largest near-verbatim recall of a passage by any of them, 0 if it has no span.
    """

    trajectories: int = 0
    repeating: int = 0
    words: int = 0
    passage: str = ""
    key: Key | None = None
    recall: float = 0.0

    def __add__(self, other: Copied) -> Copied:
        first = self if self.words >= other.words else other
        return Copied(
            self.trajectories + other.trajectories,
            self.repeating + other.repeating,
            first.words,
            first.passage,
            first.key,
            max(self.recall, other.recall),
        )


class Protected:
    """Protected passages, ready to be looked for in outputs.

    Args:
        passages: What nobody should repeat.
        pieces: What token ids stand for.
    """

    def __init__(self, passages: Sequence[Passage], pieces: Sequence[bytes | None]) -> None:
        self._pieces = pieces
        self._ids = [passage.id for passage in passages]
        self._references = [prepare(passage.text) for passage in passages]
        self._places: dict[tuple[str, ...], list[int]] = {}
        for place, reference in enumerate(self._references):
            for gram in reference.grams:
                self._places.setdefault(gram, []).append(place)

    def __len__(self) -> int:
        return len(self._ids)

    def copied(self, trajectory: Trajectory) -> Copied:
        """What one output repeats."""
        text = detokenize(trajectory.steps.token, self._pieces)
        grams = ngrams(words_of(text), NGRAM)
        shared = Counter(place for gram in grams for place in self._places.get(gram, ()))
        found = Copied(1, int(bool(shared)))
        for place in sorted(shared):
            overlap = measure(text, self._references[place])
            words, recall = int(overlap.substring_words), overlap.near_verbatim_recall
            found += Copied(
                words=words,
                passage=self._ids[place],
                key=trajectory.key,
                # Not a number where a passage is too short to have a span.
                recall=recall if recall > 0 else 0.0,
            )
        return found

    def most(self, trajectories: Iterable[Trajectory]) -> dict[str, Copied]:
        """The most that is repeated, by prompt."""
        by_prompt: dict[str, Copied] = {}
        # In the order of keys: of two that repeat as much, the first is named.
        for one in sorted(trajectories, key=lambda t: t.key):
            name = one.key.prompt
            by_prompt[name] = by_prompt.get(name, Copied()) + self.copied(one)
        return by_prompt
