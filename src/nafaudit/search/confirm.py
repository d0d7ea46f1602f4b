"""Judges finalists on fresh draws, looks for protected text in outputs, and holds the result.

A prompt is chosen for its numbers, so these numbers are too good. Everything here uses draws of
another purpose, made after the choice. Limits of single prompts share one level over all prompts
that were given a trajectory. A search is compared with its controls by the first finalist of each,
which is fixed before its fresh draws.

Outputs are also compared with every protected passage, as spend is only a proxy of copying. A
passage that shares no run of five words with an output has neither a longer common run nor a
near-verbatim span, so only the others are measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from nafaudit.core.finding import MIN_TRAJECTORIES, Kept, judge_kept
from nafaudit.core.text import detokenize
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.measures.common_text import NGRAM, ngrams, prepare, words_of
from nafaudit.measures.overlap import overlap_of
from nafaudit.search.candidate import Candidate, Measured, utilisations_of
from nafaudit.search.explore import SEARCH, STRATEGIES, SearchTrace, Steered
from nafaudit.search.filters import Pools
from nafaudit.search.settings import SearchBasics
from nafaudit.stats import Bonferroni, Sample, anytime_rate, bound, e_bh, e_values
from nafaudit.workload.passages import Passage


@dataclass(frozen=True)
class MeanLimits:
    """A mean and two anytime-valid limits; NaN without a value."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[float], level: float) -> MeanLimits:
    """Computes the mean of values in [0, 1] with betting limits, each of error at most `level`.

    Values may be of several prompts: the limits then hold for the mean of the prompts' means at
    this n, because a bet's expected product is at most that of equal means (the arithmetic mean is
    at least the geometric one). With a value above 1 (a violation) there is no upper limit.
    """
    if not values:
        return MeanLimits(math.nan, math.nan, math.nan)
    sample = Sample(np.array(values), 1.0)
    low = bound("betting-lower", sample, level)
    high = bound("betting", sample, level).value if max(values) <= 1 else math.inf
    return MeanLimits(low.point, low.value, high)


@dataclass(frozen=True)
class Finalist:
    """A chosen prompt, judged by fresh draws.

    Attributes:
        strategy: Search or control that found it.
        seed: Search seed.
        rank: Place in that search, from 1.
        candidate: The prompt.
        chosen_at: Shrunk mean utilisation on the draws it was chosen by.
        draws: Number of these.
        fresh: Number of fresh trajectories.
        unspent: Number of them without a ratio, because they ended in debt.
        use: Mean utilisation on fresh draws, with limits corrected for all prompts drawn.
        worst: Largest utilisation among them; NaN if none.
        violations: Number of fresh trajectories above their budget.
        rate: Upper limit of their rate, corrected as well.
        spend: Mean spend, in nats.
        risky: Mean spend of the risky model alone on the same draws; NaN if it was not run.
        evidence: E-value against "its mean utilisation is at most `above`"; 0 without a ratio.
    """

    strategy: str
    seed: int
    rank: int
    candidate: Candidate = field(metadata={"json": ...})
    chosen_at: float = field(metadata={"json": "promised"})
    draws: int
    fresh: int
    unspent: int
    use: MeanLimits
    worst: float
    violations: int
    rate: float = field(metadata={"json": "rate_upper"})
    spend: float
    risky: float = field(metadata={"json": "risky_alone"})
    evidence: float = field(default=0.0, metadata={"json": "e_above"})


def confirmed(
    place: tuple[str, int, int],
    candidate: Candidate,
    chosen_at: tuple[float, int],
    rows: Sequence[Measured],
    alone: Sequence[Measured],
    level: Bonferroni,
    above: float = 0.5,
) -> Finalist:
    """Judges a finalist by its fresh trajectories.

    Args:
        place: Strategy, search seed and rank.
        candidate: The prompt.
        chosen_at: Shrunk mean utilisation that it was chosen by, and number of trajectories.
        rows: Fresh trajectories under the budget.
        alone: Trajectories of the risky model alone, with equal draws.
        level: Shared by all prompts drawn.
        above: Utilisation of the hypothesis that the evidence is against.
    """
    strategy, seed, rank = place
    values = utilisations_of(rows)
    bad = sum(row.violated for row in rows)
    return Finalist(
        strategy=strategy,
        seed=seed,
        rank=rank,
        candidate=candidate,
        chosen_at=chosen_at[0],
        draws=chosen_at[1],
        fresh=len(rows),
        unspent=len(rows) - len(values),
        # Two limits of the mean and one of the rate.
        use=interval(values, level.each / 3),
        worst=max(values, default=math.nan),
        violations=bad,
        rate=anytime_rate(bad, len(rows), level.each / 3),
        spend=_mean([row.spend for row in rows]),
        risky=_mean([row.spend for row in alone]),
        evidence=float(e_values(Sample(np.array(values)), above)[-1]) if values else 0.0,
    )


@dataclass(frozen=True)
class Named:
    """Confirmed prompts that use more than a given share of their budget, by two corrections.

    Attributes:
        above: The share.
        delta: Level of each correction.
        asked: Number of confirmed prompts.
        looked: Number of prompts drawn: those without fresh draws are hypotheses too.
        shared: Ids whose e-value is at least `looked` / delta: any is wrong with chance delta.
        discovered: Ids by e-BH: the expected share of wrong ones is at most delta.
    """

    above: float
    delta: float = field(metadata={"json": None})
    asked: int
    looked: int
    shared: tuple[str, ...]
    discovered: tuple[str, ...]


def name_above(confirmed: Sequence[Finalist], above: float, delta: float, looked: int) -> Named:
    """Names prompts by their fresh draws; a prompt that several searches found counts once."""
    evidence = {one.candidate.id: one.evidence for one in confirmed}
    ids, values = list(evidence), list(evidence.values())
    shared = tuple(name for name, value in evidence.items() if value >= looked / delta)
    found = tuple(ids[i] for i in e_bh(values, delta, looked))
    return Named(above, delta, len(ids), looked, shared, found)


@dataclass(frozen=True)
class ControlComparison:
    """The search compared with a control.

    Attributes:
        control: Name of the control.
        search: Utilisation of the search's first finalists, over all search seeds.
        other: Utilisation of the control's first finalists.
        low: Lower limit of the difference.
        high: Upper limit.
    """

    control: str
    search: MeanLimits
    other: MeanLimits
    low: float
    high: float
    json_order: ClassVar = (*("control", "answer", "difference", "low", "high", "search", "other"),)

    @property
    def difference(self) -> float:
        """Search minus control."""
        return self.search.mean - self.other.mean

    @property
    def answer(self) -> str:
        """Answer in words; limits on both sides of 0 show no difference."""
        if self.low > 0:
            return "beats"
        return "loses" if self.high < 0 else "not told apart"


def compare(
    controls: Mapping[str, Sequence[float]], search: Sequence[float], delta: float
) -> list[ControlComparison]:
    """Compares first finalists, all limits together at level delta.

    Args:
        controls: Fresh utilisations of each control's first finalists.
        search: Fresh utilisations of the search's first finalists.
        delta: Chance that any of the statements is wrong.
    """
    level = Bonferroni(delta, 2 * (1 + len(controls))).each
    mine = interval(search, level)
    found = []
    for name, values in controls.items():
        theirs = interval(values, level)
        low, high = mine.low - theirs.high, mine.high - theirs.low
        found.append(ControlComparison(name, mine, theirs, low, high))
    return found


@dataclass(frozen=True)
class HeldOut:
    """A pool that no search saw; prompts are the units.

    Attributes:
        kind: Kind of its prompts; "workload" if they are of the workload.
        prompts: Number of prompts.
        trajectories: Number of trajectories of all of them.
        use: Mean over prompts of mean utilisation.
        highest: Largest prompt mean; NaN if none.
        gap: Mean of the search's finalists minus that of this pool.
    """

    kind: str
    prompts: int
    trajectories: int
    use: MeanLimits
    highest: float
    gap: float


def held_out(
    groups: Sequence[Sequence[Measured]],
    finalists: Sequence[Finalist],
    delta: float,
    kind: str = "workload",
) -> HeldOut:
    """Judges a held-out pool by its prompts' means; both limits share delta."""
    values = [utilisations_of(rows) for rows in groups]
    means = [_mean(found) for found in values if found]
    use = interval(means, delta / 2)
    found = _mean([one.use.mean for one in finalists if not math.isnan(one.use.mean)])
    highest = max(means, default=math.nan)
    return HeldOut(kind, len(groups), sum(map(len, groups)), use, highest, found - use.mean)


def outcome_of(explored: Sequence[Measured], fresh: Sequence[Measured], least: int) -> Kept:
    """Returns the three-valued outcome of everything that was drawn.

    Args:
        explored: Trajectories that prompts were chosen by.
        fresh: Trajectories that they were confirmed with.
        least: Smallest number of fresh trajectories of a finalist; 0 without finalists.
    """
    bad = sum(row.violated for row in (*explored, *fresh))
    return judge_kept(len(explored) + len(fresh), bad, int(least < MIN_TRAJECTORIES))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


@dataclass(frozen=True)
class Copied:
    """The largest overlap of some trajectories with protected passages.

    Attributes:
        trajectories: Number of outputs that were compared.
        repeating: Number of them with a run of at least five words of a passage.
        words: Longest run of words shared with a passage; 0 stands for fewer than five.
        passage: Id of that passage; empty if there is none.
        key: Trajectory of that run; None if there is none.
        recall: Largest near-verbatim recall of a passage by any of them, 0 if it has no span.
    """

    trajectories: int = 0
    repeating: int = 0
    words: int = 0
    passage: str = ""
    key: Key | None = field(default=None, metadata={"json": "where"})
    recall: float = field(default=0.0, metadata={"json": "near_verbatim_recall"})

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
    """Protected passages, indexed by their five-word runs.

    Args:
        passages: Protected text.
        pieces: Bytes of each token id.
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
        """Compares one output with every passage that shares a run of five words."""
        text = detokenize(trajectory.steps.token, self._pieces)
        grams = ngrams(words_of(text), NGRAM)
        shared = Counter(place for gram in grams for place in self._places.get(gram, ()))
        found = Copied(1, int(bool(shared)))
        for place in sorted(shared):
            overlap = overlap_of(text, self._references[place])
            recall = overlap.near_verbatim_recall
            found += Copied(
                words=int(overlap.substring_words),
                passage=self._ids[place],
                key=trajectory.key,
                # Not a number where a passage is too short to have a span.
                recall=recall if recall > 0 else 0.0,
            )
        return found

    def most(self, trajectories: Iterable[Trajectory]) -> dict[str, Copied]:
        """Returns the largest overlap of each prompt."""
        by_prompt: dict[str, Copied] = {}
        # In the order of keys: of two that repeat as much, the first is named.
        for one in sorted(trajectories, key=lambda t: t.key):
            name = one.key.prompt
            by_prompt[name] = by_prompt.get(name, Copied()) + self.copied(one)
        return by_prompt


@dataclass(frozen=True)
class Overlaps:
    """Overlap of trajectories under the searched budget with protected passages.

    Attributes:
        passages: Number of passages.
        everything: Largest overlap of any trajectory, explored or fresh.
        by_prompt: Largest overlap of each prompt's fresh trajectories.
    """

    passages: int
    everything: Copied
    by_prompt: dict[str, Copied]

    def of(self, prompt: str) -> Copied:
        """Returns the largest overlap of one prompt's fresh trajectories; zero if it has none."""
        return self.by_prompt.get(prompt, Copied())


@dataclass(frozen=True)
class SearchResult:
    """A finished search.

    Attributes:
        path: Run directory; fresh draws are in `confirm` there.
        settings: Settings of the search.
        pools: Parts of the workload.
        explored: Course of each search and each control.
        finalists: Confirmed finalists of the searches.
        controls: First finalists of the controls, confirmed.
        comparisons: Search against each control.
        heldout: Pool of the workload that no search saw.
        others: Held-out pools of other kinds.
        named: Prompts that are shown to use more than a share of their budget.
        overlaps: Overlap with protected text; None without a passage.
        embedding: Embedding that a surrogate used; empty without one.
        looked: Number of prompts that were given a trajectory, for the corrections.
        trajectories: Number of trajectories judged, fresh ones included.
        violating: Number of prompts with a trajectory above its budget.
        outcome: Three-valued answer.
        counterexamples: Directories of replayable bundles.
        batch_free: True if records do not depend on their batch on this machine.
        remark: Further notes on the machine; may be empty.
        proposer: Name of the proposer and numbers of its answers; plain data.
    """

    path: Path
    settings: SearchBasics
    pools: Pools
    explored: tuple[SearchTrace, ...]
    finalists: tuple[Finalist, ...]
    controls: tuple[Finalist, ...]
    comparisons: tuple[ControlComparison, ...]
    heldout: HeldOut
    others: tuple[HeldOut, ...]
    named: Named
    overlaps: Overlaps | None
    embedding: str
    looked: int
    trajectories: int
    violating: int
    outcome: Kept
    counterexamples: tuple[Path, ...]
    batch_free: bool
    remark: str
    proposer: Mapping[str, Any]

    def maxima(self, strategy: str) -> list[float]:
        """Returns the confirmed utilisation of the first finalist of every search seed."""
        judged = (*self.finalists, *self.controls)
        return [one.use.mean for one in judged if one.strategy == strategy and one.rank == 1]

    @property
    def spread(self) -> dict[str, list[float]]:
        """Confirmed utilisation of first finalists, of the search and of each control."""
        return {strategy: self.maxima(strategy) for strategy in STRATEGIES}

    @property
    def searches(self) -> list[SearchTrace]:
        """The searches without their controls."""
        return [one for one in self.explored if one.strategy == SEARCH]

    @property
    def steered(self) -> list[tuple[int, Steered]]:
        """The surrogate's part in each generation, with the search seed."""
        return [(one.seed, step) for one in self.searches for step in one.steered]
