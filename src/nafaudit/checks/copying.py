"""How much of a reference the outputs of an arm repeat."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from nafaudit.checks.check import Facts, Worst, mean
from nafaudit.core.finding import Answer, Finding
from nafaudit.core.trajectory import Trajectory
from nafaudit.overlap import METRICS, MIN_SPAN, measure

_RECALL = "near_verbatim_recall"


@dataclass
class Scores:
    """What some outputs share with their references, metric by metric.

    Attributes:
        values: Per metric, one number per scored output that has one.
        scored: Outputs that were compared with a reference.
        unscored: Outputs without a reference, or whose text is not known.
    """

    values: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in METRICS})
    scored: int = 0
    unscored: int = 0

    def mean(self, metric: str) -> float:
        """Mean of a metric; NaN if no output has it."""
        return mean(self.values[metric])

    def max(self, metric: str) -> float:
        """Largest value of a metric; NaN if no output has it."""
        return max(self.values[metric], default=math.nan)

    @property
    def numbers(self) -> dict[str, float]:
        """Mean and max of every metric, and how many outputs were compared."""
        found: dict[str, float] = {"scored": self.scored, "unscored": self.unscored}
        for name in METRICS:
            found |= {f"{name}_mean": self.mean(name), f"{name}_max": self.max(name)}
        return found


def merged(scores: Iterable[Scores]) -> Scores:
    """The scores of several classes as those of one."""
    found = Scores()
    for one in scores:
        for name in METRICS:
            found.values[name] += one.values[name]
        found.scored += one.scored
        found.unscored += one.unscored
    return found


@dataclass
class Copying:
    """Every copying metric of each output; without a reference an output is unscored, never 0.

    Attributes:
        facts: Of the run: its references, classes, and what its token ids stand for.
        classes: Scores by class of prompt.
        worst: The largest near-verbatim recall and where.
    """

    facts: Facts
    classes: dict[str, Scores] = field(default_factory=dict)
    worst: Worst = field(default_factory=Worst)

    def see(self, trajectory: Trajectory) -> None:
        """Scores one output against its prompt's reference."""
        key = trajectory.key
        scores = self.classes.setdefault(self.facts.label(key.prompt), Scores())
        reference = self.facts.prepared.get(key.prompt)
        text = None if reference is None else self.facts.text(trajectory)
        overlap = measure(text, reference)
        if not overlap.scored:
            scores.unscored += 1
            return
        scores.scored += 1
        for name, value in overlap.numbers.items():
            if not math.isnan(value):
                scores.values[name].append(value)
        self.worst.offer(overlap.near_verbatim_recall, key, max(0, len(trajectory) - 1))

    @property
    def recalls(self) -> list[float]:
        """Near-verbatim recall of every output whose reference is long enough for it."""
        return merged(self.classes.values()).values[_RECALL]

    @property
    def unscored(self) -> int:
        """Outputs that were compared with nothing."""
        return sum(scores.unscored for scores in self.classes.values())

    @property
    def mean(self) -> float:
        """Mean near-verbatim recall; NaN if there is none."""
        return mean(self.recalls)

    def finding(self) -> Finding:
        """Mean and largest recall, and where; the other metrics among the numbers."""
        scores = merged(self.classes.values())
        if not scores.scored:
            lacking = "no prompt has a reference to recall"
            if self.facts.references and any(map(str.strip, self.facts.references.values())):
                lacking = "the text of the outputs is not recorded"
            return Finding("copying", Answer.UNKNOWN, math.nan, lacking)
        recalls = scores.values[_RECALL]
        if recalls:
            text = (
                f"near-verbatim recall mean {self.mean:.1%}, largest {self.worst.value:.1%}, over "
                f"{len(recalls)} trajectories with a reference"
            )
        else:
            text = f"no reference has the {MIN_SPAN} words that near-verbatim recall needs"
        text += (
            f"; ROUGE-L mean {scores.mean('rouge_l_f1'):.3f}, largest "
            f"{scores.max('rouge_l_f1'):.3f}; longest common run of words "
            f"{scores.max('substring_words'):.0f}"
        )
        if scores.unscored:
            text += f"; {scores.unscored} unscored"
        return Finding("copying", Answer.INFO, self.mean, text, self.worst.witness, scores.numbers)
